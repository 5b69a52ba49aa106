"""Notifying the old address of a change, and undoing it from there (contract section 18)."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from app import config, db, events, jobs
from app.accounts import service as accounts
from app.accounts import users
from app.accounts.models import User
from app.auth import mail_tokens, password_resets
from app.outbound import mail

PURPOSE = mail_tokens.EMAIL_UNDO


def notify_previous_address(user: User, previous: str, *, may_undo: bool) -> None:
    """Enqueue a mail to the previous address, in the open transaction.

    `may_undo` adds a link that undoes the change, in case an attacker made it in the user's name.
    """
    payload = {"user_id": user.id, "email": previous, "may_undo": may_undo}
    jobs.enqueue("auth.send_email_changed", payload, account_id=user.account_id)


def find(token: str) -> tuple[User, str] | None:
    """The user of a mailed token and the address that it restores; None for an invalid one."""
    row = mail_tokens.find(token, PURPOSE)
    user = db.db.session.get(User, (row.account_id, row.user_id)) if row else None
    return (user, row.email) if row and user else None


def undo(token: str) -> User:
    """Restore the address that the token was mailed to.

    Revokes the password, sessions, API keys and provider identities, which an attacker may have
    created, and mails a link to set a new password. Raises BadRequest `invalid_token`, or Conflict
    if another user has the address by now.
    """
    with db.transaction():
        row = mail_tokens.find(token, PURPOSE)
        consumed = mail_tokens.consume(token, PURPOSE)
        if row is None or consumed is None:
            raise mail_tokens.invalid_token()
        user, email = consumed
        accounts.bump_version(user)
        users.set_email(user, email)
        user.password_hash = None
        # Later tokens would let an attacker undo this in turn.
        mail_tokens.revoke_since(row)
        events.publish(events.AddressVerified(user.account_id, user.id))
        accounts.mark_verified(user)
        password_resets.enqueue_mail(user)
        return user


@events.subscribe(events.AddressReplaced)
def _on_address_replaced(event: events.AddressReplaced) -> None:
    # Only a verified address: admins must not be able to mail strangers by changing addresses.
    if event.previous_verified:
        user = db.db.session.get_one(User, (event.account_id, event.user_id))
        notify_previous_address(user, event.previous, may_undo=event.by_user)


@jobs.job("auth.send_email_changed", mails=True)
def _mail_email_changed(payload: Mapping[str, str]) -> None:
    user = db.db.session.get(User, (payload["account_id"], payload["user_id"]))
    if user is None:
        return
    link = None
    if payload["may_undo"]:
        token = mail_tokens.issue(user, PURPOSE, payload["email"])
        link = f"{config.current().base_url}/console/undo-email-change?token={quote(token)}"
    values = {"link": link, "account": user.account.name}
    mail.send(payload["email"], "email_changed", language=user.language, **values)
