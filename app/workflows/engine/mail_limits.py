"""Limits recipients and number of workflow mails, which carry the service's own address.

Their authors, admins of an account, are unknown to recipients outside the account.
"""

from __future__ import annotations

import sqlalchemy as sa

from app import config, db
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.accounts.usage import models, quotas
from app.accounts.usage.quotas import QuotaExceeded
from app.auth import stranger_mails
from app.errors import TooManyRequests
from app.types import JSONMapping
from app.web import rate_limits
from app.web.rate_limits import Allowance, Limit
from app.workflows.engine import external_steps
from app.workflows.engine.control_steps import Failed

MEMBERS, ANYONE = "members", "anyone"
HOUR, DAY = 3600, 86_400
NOT_A_MEMBER = (
    "{} is not a verified address of an active member of this account. Mails go to members only"
    " (SERVICE_WORKFLOW_MAIL_RECIPIENTS)."
)
TOO_MANY_PER_DAY = (
    "This account's workflows have sent {} mails today (SERVICE_WORKFLOW_MAILS_PER_DAY)."
    " Resume the instance tomorrow."
)
TOO_MANY_TO_STRANGERS = (
    "This account has sent as many mails to unverified addresses as it may today"
    " (SERVICE_MAILS_PER_ACCOUNT, SERVICE_MAILS_PER_NEW_ACCOUNT). Resume the instance tomorrow."
)
TOO_MANY_PER_MAILBOX = (
    "Workflows have sent {} mails to {} within an hour (SERVICE_WORKFLOW_MAILS_PER_MAILBOX)."
    " Resume the instance later."
)


def admit(account_id: str, input: JSONMapping) -> None:
    """Check and count the recipients of a `send_email`. Raises Failed."""
    try:
        addresses = external_steps.addresses(input)
    except external_steps.Failed as error:
        raise Failed(str(error)) from error
    # The addresses that are not verified ones of active members.
    keys = {accounts.email_key(address): address for address in addresses}
    members = sa.select(User.email_key).where(
        User.account_id == account_id,
        User.email_key.in_(sorted(keys)),
        User.is_active,
        User.email_verified,
    )
    strangers = [keys[key] for key in sorted(keys.keys() - set(db.db.session.scalars(members)))]
    if strangers and config.current().workflow_mail_recipients == MEMBERS:
        raise Failed(NOT_A_MEMBER.format(strangers[0]))
    try:
        quotas.check_stored(account_id, models.MAILS, len(addresses))
    except QuotaExceeded as error:
        raise Failed(f"{error.message} Resume the instance tomorrow.") from error
    # Separate limits: workflows must not use up the mails that users request, such as resets.
    settings = config.current()
    per_mailbox, per_day = settings.workflow_mails_per_mailbox, settings.workflow_mails_per_day
    for address in addresses:
        mailbox = Limit("workflow-mailbox", per_mailbox, HOUR).of(accounts.email_key(address))
        _consume(mailbox, TOO_MANY_PER_MAILBOX.format(per_mailbox, address))
        account = Limit("workflow-mails", per_day, DAY).of(account_id)
        _consume(account, TOO_MANY_PER_DAY.format(per_day))
    if account_id != SYSTEM_ACCOUNT_ID:
        for _ in strangers:
            _consume(stranger_mails.limit(account_id), TOO_MANY_TO_STRANGERS)


def _consume(allowance: Allowance, refusal: str) -> None:
    try:
        rate_limits.consume(allowance)
    except TooManyRequests as error:
        raise Failed(refusal) from error
