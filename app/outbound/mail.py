"""Mails, sent by jobs, never by requests."""

from __future__ import annotations

import hashlib
import re
import smtplib
import ssl
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from email import message_from_bytes
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import make_msgid, parseaddr
from html import escape
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import flask_babel
import structlog
from email_validator import EmailNotValidError, validate_email
from flask import render_template
from markupsafe import Markup

from app import clock, config, events
from app.context import tenancy
from app.types import JSONMapping

log = structlog.get_logger()
LONGEST_SHOWN_NAME = 60
# What mail programs turn into links; they also take the ideographic and full-width dots for dots.
_LINK = re.compile(r"://|www\.|(?<=\w)[.\u3002\uff0e\uff61](?=[^\W\d_])", re.IGNORECASE)
_JOINERS = "\u200c\u200d"
TIMEOUT_SECONDS = 20
INSTANCE = "00000000-0000-0000-0000-000000000000"  # the account of mails of the whole instance


@dataclass(frozen=True)
class Sender:
    """The account on whose behalf the service sends a mail."""

    name: str
    code: str
    service: str | None = None
    """The service that it uses, which From names beside it."""
    address: str | None = None
    """Its own address in From."""
    envelope: str | None = None


@dataclass(frozen=True)
class Letter:
    """The text of a mail, and the HTML of its body."""

    subject: str
    text: str
    html: str


@dataclass(frozen=True)
class Letterhead:
    """How a mail presents its sender; the settings have the defaults."""

    name: str | None = None
    address: str | None = None
    """In From, instead of that of the settings."""
    envelope: str | None = None
    """Where failures are returned to, if not to the address of the settings."""
    reply_to: str | None = None
    logo: str | None = None
    """Its address."""
    color: str | None = None
    footer: str | None = None


PLAIN = Letterhead()


def send(
    to: str,
    template: str,
    *,
    sender_name: str | None = None,
    language: str | None = None,
    **context: object,
) -> None:
    """Send `templates/email/<template>.txt` in a language. Raises OSError or SMTPException.

    `sender_name` is the display name in From, that of the settings by default.
    """
    language = language or flask_babel.get_babel().default_locale
    send_letter(to, render(template, language, **context), Letterhead(sender_name), language)


def send_letter(
    to: str, letter: Letter, head: Letterhead = PLAIN, language: str | None = None, *, key: str = ""
) -> None:
    """Send a letter. Raises OSError or SMTPException.

    If the mail server refuses the sender's own address, that of the settings stands in for it.
    """
    language = language or flask_babel.get_babel().default_locale
    try:
        _deliver(_compose(to, letter, head, language), key, head.envelope)
    except smtplib.SMTPSenderRefused:
        if head.address is None:
            raise
        log.warning("mail server refuses the address of an account", address=head.address)
        own = replace(head, address=None, envelope=None)
        _deliver(_compose(to, letter, own, language), key)


def send_for(sender: Sender, to: str, template: str, *, key: str, **context: object) -> None:
    """Send a mail on behalf of an account, which From names beside the service.

    The account is `sender` in the template.
    """
    sender = replace(sender, name=plain_name(sender.name))
    shown = f"{sender.name} by {sender.service}" if sender.service else sender.name
    language = flask_babel.get_babel().default_locale
    letter = render(template, language, sender=sender, **context)
    head = Letterhead(shown, sender.address, sender.envelope)
    send_letter(to, letter, head, language, key=key)


def render(template: str, language: str, **context: object) -> Letter:
    """The letter of `templates/email/<template>.txt`, whose first line is the subject."""
    context.setdefault("report_to", reports_to())
    subject, _, body = render_text(template, language, context).partition("\n")
    html = f'<div style="white-space: pre-wrap">{escape(body.strip())}</div>'
    return Letter(subject.strip(), body, html)


def render_text(template: str, language: str, context: JSONMapping) -> str:
    """Render `templates/email/<template>.txt` in a language."""
    with flask_babel.force_locale(language):
        return render_template(f"email/{template}.txt", language=language, **context)


def reports_to(address: str | None = None) -> str:
    """Where recipients report abuse: the address of the settings, else this one."""
    settings = config.current()
    return settings.abuse_email or address or parseaddr(settings.mail_from)[1]


def service_name() -> str:
    """The display name of the sender in the settings."""
    return parseaddr(config.current().mail_from)[0]


def plain_name(name: str) -> str:
    """Return a name as mails show it: one short line, of which programs make no link.

    Whoever chose the name may not know the recipient, who trusts a mail of the service.
    """
    shown = "".join(
        character
        for character in _LINK.sub(" ", name)
        if character in _JOINERS or unicodedata.category(character) not in ("Cc", "Cf")
    )
    shown = " ".join(shown.replace("=?", "= ?").split())
    if len(shown) > LONGEST_SHOWN_NAME:
        shown = shown[: LONGEST_SHOWN_NAME - 1].rstrip() + "…"
    return shown


def _deliver(message: EmailMessage, key: str, envelope: str | None = None) -> None:
    settings = config.current()
    if key:
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        message.replace_header("Message-ID", f"<{digest}@{_domain(settings)}>")
    url = urlsplit(settings.mail_url)
    if url.scheme == "console":
        name = f"{clock.now():%Y%m%dT%H%M%S%f}-{message['Message-ID'].strip('<>')[:40]}.eml"
        path = _outbox(settings) / name
        draft = path.with_suffix(".tmp")
        draft.touch(mode=0o600)  # it contains sign-in links
        draft.write_bytes(message.as_bytes())
        draft.rename(path)
        log.info("mail written", file=str(path))
    else:
        with _connect(url) as smtp:
            own = _ascii_address(parseaddr(settings.mail_from)[1])
            smtp.send_message(message, from_addr=_ascii_address(envelope) if envelope else own)
    scope = tenancy.current()
    of_instance = scope in (tenancy.ALL_ACCOUNTS, tenancy.NO_ACCOUNT, tenancy.OWNER)
    events.publish(events.MailSent(INSTANCE if of_instance else scope))


@dataclass(frozen=True)
class SavedMail:
    name: str
    to: str
    subject: str
    date: datetime | None
    text: str


def is_saved_to_files() -> bool:
    """Whether mails are written to files instead of being sent."""
    return urlsplit(config.current().mail_url).scheme == "console"


def saved_names() -> list[str]:
    """Return the file names of saved mails, newest first."""
    return sorted((path.name for path in _outbox(config.current()).glob("*.eml")), reverse=True)


def load_saved(name: str) -> SavedMail:
    """Load a saved mail."""
    message = message_from_bytes((_outbox(config.current()) / name).read_bytes(), policy=SMTP)
    part = message.get_body(("plain",))
    text = part.get_content() if part else ""
    date = message["Date"].datetime if message["Date"] else None
    return SavedMail(name, str(message["To"]), str(message["Subject"]), date, text)


def check(timeout: float = TIMEOUT_SECONDS) -> None:
    """Check the mail server without sending. Raises OSError or SMTPException."""
    settings = config.current()
    url = urlsplit(settings.mail_url)
    if url.scheme == "console":
        _outbox(settings)
        return
    with _connect(url, timeout) as smtp:
        smtp.noop()


def _compose(to: str, letter: Letter, head: Letterhead, language: str) -> EmailMessage:
    settings = config.current()
    # The policy refuses CR and LF in headers. 998 characters, the limit of mail servers, keep links
    # on one line; longer lines are encoded.
    message = EmailMessage(policy=SMTP.clone(max_line_length=998))
    own_name, own_address = parseaddr(settings.mail_from)
    address = _ascii_address(head.address or own_address)
    if head.name or head.address:
        name = " ".join((head.name or own_name).split())
        message["From"] = Address(name, addr_spec=address)
    else:
        message["From"] = settings.mail_from.replace(own_address, address)
    # Programs decode `=?` as an encoded word, which could show any text.
    message["To"] = _ascii_address(to)
    message["Subject"] = letter.subject.replace("=?", "= ?")
    if head.reply_to:
        message["Reply-To"] = _ascii_address(head.reply_to)
    message["Date"], message["Message-ID"] = clock.now(), make_msgid(domain=_domain(settings))
    message["Auto-Submitted"] = "auto-generated"  # no replies from absent people (RFC 3834)
    text, html = bodies(letter, head, language)
    message.set_content(text)
    message.add_alternative(html, subtype="html")
    return message


def bodies(letter: Letter, head: Letterhead, language: str) -> tuple[str, str]:
    """The text of a mail, and its HTML as a document."""
    text = "\n\n".join(filter(None, (letter.text.strip(), head.footer))) + "\n"
    html = render_template(
        "email/layout.html",
        language=language,
        subject=letter.subject,
        content=Markup(letter.html),  # noqa: S704  (escaped where it was made)
        name=head.name,
        logo=head.logo,
        color=head.color,
        footer=head.footer,
    )
    return text, html


def _domain(settings: config.Config) -> str:
    return _ascii_address(parseaddr(settings.mail_from)[1]).rpartition("@")[2] or "localhost"


def _ascii_address(address: str) -> str:
    # Not every server accepts internationalized addresses, but all accept the ASCII form of a
    # domain.
    if address.isascii():
        return address
    try:
        return validate_email(address, check_deliverability=False).ascii_email or address
    except EmailNotValidError:
        return address


def _outbox(settings: config.Config) -> Path:
    outbox = settings.instance_dir / "outbox"
    settings.instance_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    outbox.mkdir(mode=0o700, exist_ok=True)
    return outbox


@contextmanager
def _connect(url: SplitResult, timeout: float = TIMEOUT_SECONDS) -> Iterator[smtplib.SMTP]:
    tls, host = ssl.create_default_context(), url.hostname or ""
    with (
        smtplib.SMTP_SSL(host, url.port or 465, timeout=timeout, context=tls)
        if url.scheme == "smtps"
        else smtplib.SMTP(host, url.port or 25, timeout=timeout)
    ) as smtp:
        if parse_qs(url.query).get("starttls") == ["1"]:
            smtp.starttls(context=tls)
        if url.username:
            smtp.login(unquote(url.username), unquote(url.password or ""))
        yield smtp
