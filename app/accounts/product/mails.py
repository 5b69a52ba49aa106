"""Mails to the users of an account, in the name of the product or the account."""

from __future__ import annotations

from app.accounts.product import settings
from app.outbound import mail


def send(
    template: str, to: str, account_id: str, *, language: str | None = None, **context: object
) -> None:
    """Send `templates/email/<template>`. Raises OSError or SMTPException."""
    product, brand = settings.load(), settings.load_brand(account_id)
    mail.send(
        to,
        template,
        sender_name=mail.plain_name(brand.name) if brand.name else product.name,
        report_to=product.support_email,
        language=language,
        **context,
    )


def sender(account_id: str, name: str, code: str) -> mail.Sender:
    """The sender of what an account's own definitions mail."""
    brand = settings.load_brand(account_id)
    if brand.name:
        return mail.Sender(brand.name, code)
    return mail.Sender(name, code, settings.load().name or mail.service_name())
