"""Limits recipients and number of workflow mails, which carry the service's own address.

Their author, an account's admin, is a stranger to everybody outside the account.
"""

from __future__ import annotations

import sqlalchemy as sa

from app import config, db
from app.accounts import service as accounts
from app.accounts.models import User
from app.errors import TooManyRequests
from app.http import rate_limits
from app.http.rate_limits import Allowance, Limit
from app.types import JSONMapping
from app.workflows.engine import external_steps
from app.workflows.engine.control_steps import Failed

MEMBERS, ANYONE = "members", "anyone"
RECIPIENTS = (MEMBERS, ANYONE)
HOUR, DAY = 3600, 86_400
STRANGER = (
    "{} is not a verified address of an active member of this account. Mails go to members only"
    " (SERVICE_WORKFLOW_MAIL_RECIPIENTS)."
)
MANY_A_DAY = (
    "This account's workflows have sent {} mails today (SERVICE_WORKFLOW_MAILS_PER_DAY)."
    " Resume the instance tomorrow."
)
MANY_FOR_ONE = (
    "Workflows have sent {} mails to {} within an hour (SERVICE_WORKFLOW_MAILS_PER_MAILBOX)."
    " Resume the instance later."
)


def admit(account_id: str, given: JSONMapping) -> None:
    """Check and count the recipients of a `send_email`. Raises Failed."""
    try:
        addresses = external_steps.addresses(given)
    except external_steps.Failed as error:
        raise Failed(str(error)) from error
    if config.current().workflow_mail_recipients == MEMBERS:
        _refuse_strangers(account_id, addresses)
    for address in addresses:
        _count(account_id, address)


def _refuse_strangers(account_id: str, addresses: list[str]) -> None:
    keys = {accounts.email_key(one): one for one in addresses}
    members = sa.select(User.email_key).where(
        User.account_id == account_id,
        User.email_key.in_(sorted(keys)),
        User.is_active,
        User.email_verified,
    )
    strangers = keys.keys() - set(db.db.session.scalars(members))
    if strangers:
        raise Failed(STRANGER.format(keys[min(strangers)]))


def _count(account_id: str, address: str) -> None:
    # Apart from the mails that people ask for: no workflow uses up somebody's password resets.
    settings = config.current()
    most, most_a_day = settings.workflow_mails_per_mailbox, settings.workflow_mails_per_day
    mailbox = Limit("workflow-mailbox", most, HOUR).of(accounts.email_key(address))
    account = Limit("workflow-mails", most_a_day, DAY).of(account_id)
    _take(mailbox, MANY_FOR_ONE.format(most, address))
    _take(account, MANY_A_DAY.format(most_a_day))


def _take(allowance: Allowance, refusal: str) -> None:
    try:
        rate_limits.consume(allowance)
    except TooManyRequests as error:
        raise Failed(refusal) from error
