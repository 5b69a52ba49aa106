"""Mails to the users of an account, in the name of the product or the account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from urllib.parse import quote

import structlog

from app import clock, config, db, jobs
from app.accounts import pii, tenants
from app.accounts.domains import senders
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.accounts.product import mail_templates, settings
from app.accounts.product.mail_kinds import ACCOUNT, DETAILS, EXPIRES, KINDS, PRODUCT
from app.accounts.product.mail_kinds import USER as USER_NAME
from app.accounts.product.mail_templates import Template
from app.errors import Forbidden, InvalidValues, problem
from app.outbound import mail
from app.outbound.mail import Letter, Letterhead
from app.outbound.mail_markup import LINK
from app.types import JSONMapping
from app.web import PREFIX, rate_limits
from app.web.languages import DEFAULT
from app.web.rate_limits import Limit

log = structlog.get_logger()
TESTS = Limit("mail-tests", 20, 3600)
UNVERIFIED = "Verify your own address first, as tests are mailed to it."
EXAMPLE_ACCOUNT = "Acme"


def send(
    kind: str,
    to: str,
    account_id: str,
    *,
    account: str,
    user: User | None = None,
    language: str | None = None,
    expires: datetime | None = None,
    caused_by: str | None = None,
    **context: object,
) -> None:
    """Send a mail of a kind about an account, given by its id and name.

    `user` is the recipient, if there is one already. Raises OSError or SMTPException.
    """
    language = language or (user.language if user else None) or DEFAULT
    if expires is not None:
        context[EXPIRES] = shown_time(expires)
    name = (user.name if user else None) or to.partition("@")[0]
    values = _values(kind, language, account, name, context)
    own = None
    if _may_read_from(account_id, user):
        own = mail_templates.find_own(kind, language, account_id)
    letter = mail_templates.render(own, values, of_account=True) if own else None
    if own and letter is None:
        log.warning("a mail would have another link", kind=kind, account_id=account_id)
    template = own if own and letter else mail_templates.of_instance(kind, language)
    head = letterhead(kind, language, account_id, template.reply_to, caused_by=caused_by)
    mail.send_letter(to, letter or mail_templates.letter(template, values), head, language)


def shown_time(moment: datetime) -> str:
    """A moment as mails show it."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _may_read_from(account_id: str, user: User | None) -> bool:
    """Whether the account's admins may choose the words that a recipient reads.

    They are strangers to superadmins, and members of `pii_access` are warned of them.
    """
    if not settings.may_brand(account_id):
        return False
    return user is None or (
        user.account_id == account_id and not pii.is_member(account_id, user.id)
    )


def _values(
    kind: str, language: str, account: str, name: str, context: Mapping[str, object]
) -> dict[str, str]:
    """The values of a kind's placeholders."""
    shown = mail.plain_name(account)
    if shown != account:
        # If the name had to be altered, quote it as a name, so that it cannot read as part of our
        # sentence.
        shown = mail.render_text("account_name", language, {"name": shown}).strip()
    product = mail.plain_name(settings.load().name or mail.service_name())
    values = {USER_NAME: mail.plain_name(name), ACCOUNT: shown, PRODUCT: product}
    own = KINDS[kind].own
    if DETAILS in own:
        values[DETAILS] = mail_templates.details(kind, language, shown, context)
    return values | {one: str(context.get(one) or "") for one in own if one != DETAILS}


def letterhead(
    kind: str,
    language: str,
    account_id: str | None,
    reply_to: str | None = None,
    *,
    caused_by: str | None = None,
) -> Letterhead:
    """How the mails of an account, or of none in particular, present their sender."""
    product = settings.load()
    brand = settings.load_brand(account_id) if account_id else settings.Face()
    own = senders.of(account_id) if account_id else None
    logo = brand.logo or product.logo
    if logo and not logo.startswith("https:"):
        account = f"?account={quote(account_id or '')}" if brand.logo else ""
        logo = f"{config.current().base_url}{PREFIX}/product/logo{account}"
    footer = None
    if KINDS[kind].has_report:
        reported = {"caused_by": caused_by, "report_to": mail.reports_to(product.support_email)}
        footer = mail.render_text("report", language, reported).strip()
    return Letterhead(
        name=mail.plain_name(brand.name) if brand.name else product.name,
        address=own.address if own else None,
        envelope=own.envelope if own else None,
        reply_to=reply_to,
        logo=logo,
        color=brand.accent_color or product.accent_color,
        footer=footer,
    )


def sender(account_id: str, name: str, code: str) -> mail.Sender:
    """The sender of what an account's own definitions mail."""
    brand, own = settings.load_brand(account_id), senders.of(account_id)
    address, envelope = (own.address, own.envelope) if own else (None, None)
    if brand.name:
        return mail.Sender(brand.name, code, None, address, envelope)
    service = settings.load().name or mail.service_name()
    return mail.Sender(name, code, service, address, envelope)


def preview(
    kind: str, language: str, account_id: str | None, body: JSONMapping | None, *, name: str
) -> Letter:
    """How a mail to somebody of this name or address would look.

    With a new text, or with that in force (None).

    Raises NotFound, Forbidden `branding_off` or InvalidValues.
    """
    template, letter = _example(kind, language, account_id, body, name=name)
    head = letterhead(kind, language, account_id, template.reply_to)
    text, html = mail.bodies(letter, head, language)
    return Letter(letter.subject, text, html)


def send_test(
    kind: str, language: str, account_id: str | None, body: JSONMapping | None, *, to: User
) -> None:
    """Mail an example to a user. Raises as `preview`, and Forbidden or TooManyRequests."""
    if not to.email_verified:
        raise Forbidden(UNVERIFIED)
    template, letter = _example(kind, language, account_id, body, name=to.name or to.email)
    rate_limits.consume(TESTS.of(to.account_id, to.id))
    payload = {
        "kind": kind,
        "language": language,
        "of_account": account_id is not None,
        "to": to.email,
        "reply_to": template.reply_to,
        "letter": asdict(letter),
    }
    with db.transaction():
        jobs.enqueue("product.test_mail", payload, account_id=account_id or SYSTEM_ACCOUNT_ID)


@jobs.job("product.test_mail", mails=True)
def _mail_test(payload: JSONMapping) -> None:
    account_id = payload["account_id"] if payload["of_account"] else None
    head = letterhead(payload["kind"], payload["language"], account_id, payload["reply_to"])
    mail.send_letter(payload["to"], Letter(**payload["letter"]), head, payload["language"])


def _example(
    kind: str, language: str, account_id: str | None, body: JSONMapping | None, *, name: str
) -> tuple[Template, Letter]:
    shown, own = mail_templates.show(kind, language, account_id), True
    template = Template(shown.subject, shown.text, shown.html, shown.reply_to)
    if body is not None:
        template = mail_templates.checked(kind, language, account_id, body)
    else:
        own = shown.is_changed
    account = tenants.get(account_id).name if account_id else EXAMPLE_ACCOUNT
    link = f"{config.current().base_url}/example?token=EXAMPLE"
    expires = shown_time(clock.now() + timedelta(hours=1))
    context = {LINK: link, EXPIRES: expires, **KINDS[kind].example}
    values = _values(kind, language, account, name.partition("@")[0], context)
    of_account = account_id is not None and own
    letter = mail_templates.render(template, values, of_account=of_account)
    if letter is None:
        raise InvalidValues([problem("text", "other_link", mail_templates.ONLY_LINK)])
    return template, letter
