"""Mails, rendered from `templates/email/` and sent by jobs, never by requests."""

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
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import flask_babel
import structlog
from email_validator import EmailNotValidError, validate_email
from flask import render_template

from app import clock, config, events
from app.context import tenancy
from app.types import JSONObject

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


def send(
    to: str,
    template: str,
    *,
    sender_name: str | None = None,
    language: str | None = None,
    **context: object,
) -> None:
    """Send `templates/email/<template>` in a language. Raises OSError or SMTPException.

    `sender_name` is the display name in From, that of the settings by default.
    """
    settings = config.current()
    message = _compose(settings, to, template, context, language)
    if sender_name:
        _set_display_name(message, settings, sender_name)
    _deliver(message, None)


def send_for(sender: Sender, to: str, template: str, *, key: str, **context: object) -> None:
    """Send a mail on behalf of an account, which From names beside the service.

    The account is `sender` in the template.
    """
    settings = config.current()
    sender = replace(sender, name=plain_name(sender.name))
    message = _compose(settings, to, template, {**context, "sender": sender})
    shown = f"{sender.name} by {sender.service}" if sender.service else sender.name
    _set_display_name(message, settings, shown)
    _deliver(message, key)


def service_name() -> str:
    """The display name of the sender in the settings."""
    return parseaddr(config.current().mail_from)[0]


def _set_display_name(message: EmailMessage, settings: config.Config, name: str) -> None:
    address = _ascii_address(parseaddr(settings.mail_from)[1])
    message.replace_header("From", Address(" ".join(name.split()), addr_spec=address))


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


def _deliver(message: EmailMessage, key: str | None) -> None:
    settings = config.current()
    if key is not None:
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
            smtp.send_message(message)
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


def _compose(
    settings: config.Config,
    to: str,
    template: str,
    context: JSONObject,
    language: str | None = None,
) -> EmailMessage:
    language = language or flask_babel.get_babel().default_locale
    with flask_babel.force_locale(language):
        name = context.get("account")
        if isinstance(name, str) and (shown := plain_name(name)) != name:
            # If the name had to be altered, quote it as a name, so that it cannot read as part of
            # our sentence.
            phrase = flask_babel.gettext('the account named "%(name)s"', name=shown)
            context = {**context, "account": str(phrase)}
        address = context.get("report_to") or parseaddr(settings.mail_from)[1]
        context = {**context, "report_to": settings.abuse_email or address}
        text, html = (
            render_template(f"email/{template}.{kind}", language=language, **context)
            for kind in ("txt", "html")
        )
    # The first line of the text template is the subject.
    subject, _, body = text.partition("\n")
    # The policy refuses CR and LF in headers. 998 characters, the limit of mail servers, keep links
    # on one line; longer lines are encoded.
    message = EmailMessage(policy=SMTP.clone(max_line_length=998))
    sender, address = settings.mail_from, parseaddr(settings.mail_from)[1]
    message["From"] = sender.replace(address, _ascii_address(address))
    # Programs decode `=?` as an encoded word, which could show any text.
    subject = subject.strip().replace("=?", "= ?")
    message["To"], message["Subject"] = _ascii_address(to), subject
    message["Date"], message["Message-ID"] = clock.now(), make_msgid(domain=_domain(settings))
    message["Auto-Submitted"] = "auto-generated"  # no replies from absent people (RFC 3834)
    message.set_content(body.strip() + "\n")
    message.add_alternative(html, subtype="html")
    return message


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
