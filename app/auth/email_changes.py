"""A changed address is told to the old one, which can take it back (contract section 18)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from app import config, db, events, jobs
from app.accounts import service as accounts
from app.accounts import users
from app.accounts.models import User
from app.auth import mail_tokens, password_resets
from app.outbound import mail

PURPOSE = mail_tokens.EMAIL_UNDO


def tell(user: User, previous: str, *, may_undo: bool) -> None:
    """Mail the previous address that it was changed, as part of the open transaction.

    With a link that takes it back where the user changed it: that may have been a thief.
    """
    payload = {"user_id": user.id, "email": previous, "may_undo": may_undo}
    jobs.enqueue("auth.send_email_changed", payload, account_id=user.account_id)


def expiry(token: str) -> datetime | None:
    """When a mailed token expires; None for one that is not valid."""
    found = mail_tokens.find(token, PURPOSE)
    return found.expires_at if found else None


def take_back(token: str) -> User:
    """Give a user the address back that the token was mailed to, and end all that was there since.

    Sessions, the password, API keys and identities at providers may be of whoever changed it: a
    link to set a new password is mailed. Raises BadRequest `invalid_token`, or Conflict where the
    address is another user's by now.
    """
    with db.transaction():
        found = mail_tokens.find(token, PURPOSE)
        used = mail_tokens.use(token, PURPOSE)
        if found is None or used is None:
            raise mail_tokens.not_valid()
        user, email = used
        accounts.bump_version(user)
        users.set_email(user, email)
        user.password_hash = None
        # Whoever took the address over might take it back in turn.
        mail_tokens.end_since(found)
        events.publish(events.AddressVerified(user.account_id, user.id))
        accounts.mark_verified(user)
        password_resets.ask(user)
        return user


@events.subscribe(events.AddressReplaced)
def _tell_of_replaced(event: events.AddressReplaced) -> None:
    # Only whom the address was proved to belong to: nobody mails strangers by changing addresses.
    if event.previous_verified:
        user = db.db.session.get_one(User, (event.account_id, event.user_id))
        tell(user, event.previous, may_undo=event.by_user)


@jobs.job("auth.send_email_changed", mails=True)
def _mail_email_changed(payload: Mapping[str, Any]) -> None:
    user = db.db.session.get(User, (payload["account_id"], payload["user_id"]))
    if user is None:
        return
    link = None
    if payload["may_undo"]:
        token = mail_tokens.issue(user, PURPOSE, payload["email"])
        link = f"{config.current().base_url}/console/undo-email-change?token={quote(token)}"
    mail.send(payload["email"], "email_changed", link=link, account=user.account.name)
