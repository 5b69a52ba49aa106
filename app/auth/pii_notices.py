"""Mails to the members of `pii_access` about refused sign-ins and removed members."""

from __future__ import annotations

from collections.abc import Mapping

from app import db, events, jobs
from app.accounts import pii
from app.accounts.models import Account, User
from app.accounts.product import mails
from app.errors import TooManyRequests
from app.types import JSONObject
from app.web import rate_limits
from app.web.rate_limits import Limit

MAX_RECIPIENTS = 50
ONCE_A_DAY = Limit("pii-notice", 1, 86_400)


def notify_of_refusal(account_id: str, provider: str) -> None:
    """Notify members that a member's sign-in was refused; once a day per provider."""
    try:
        rate_limits.consume(ONCE_A_DAY.of(account_id, provider))
    except TooManyRequests:
        return
    with db.transaction():
        for user_id in pii.members(account_id, MAX_RECIPIENTS):
            payload = {"user_id": user_id, "provider": provider}
            jobs.enqueue("auth.tell_pii_refusal", payload, account_id=account_id)


@events.subscribe(events.PiiMemberExpelled)
def _notify_of_removal(event: events.PiiMemberExpelled) -> None:
    payload = {"user_id": event.user_id, "reason": event.reason, "old_email": event.email}
    # The user gets the mail at the previous address.
    recipients: list[dict[str, str]] = [{"to": event.email}]
    for member_id in pii.members(event.account_id, MAX_RECIPIENTS):
        recipients.append({"member_id": member_id})
    for recipient in recipients:
        jobs.enqueue(
            "auth.tell_pii_expulsion", {**payload, **recipient}, account_id=event.account_id
        )


@jobs.job("auth.tell_pii_expulsion", mails=True)
def _mail_removal(payload: Mapping[str, str]) -> None:
    account = db.db.session.get(Account, payload["account_id"])
    user = _user(payload["account_id"], payload.get("member_id", payload["user_id"]))
    to = payload.get("to") or (user.email if user else None)
    if account and to:
        context: JSONObject = {"email": payload["old_email"], "reason": payload["reason"]}
        mails.send("pii_member_removed", to, account.id, account=account.name, user=user, **context)


@jobs.job("auth.tell_pii_refusal", mails=True)
def _mail_refusal(payload: Mapping[str, str]) -> None:
    account = db.db.session.get(Account, payload["account_id"])
    user = _user(payload["account_id"], payload["user_id"])
    if account and user:
        context: JSONObject = {"account": account.name, "provider": payload["provider"]}
        mails.send("pii_sign_in_refused", user.email, account.id, user=user, **context)


def _user(account_id: str, user_id: str) -> User | None:
    user = db.db.session.get(User, (account_id, user_id))
    return user if user and user.is_active else None
