"""Notifying the old address of a change, and undoing it from there (docs/sign-in.md).

Whoever reads the old mailbox may be the owner, whose session was stolen, or somebody else, whom the
owner left. Second factors from before the change tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from urllib.parse import quote

from app import clock, config, db, events, jobs
from app.accounts import service as accounts
from app.accounts import users
from app.accounts.models import User
from app.accounts.product import mails
from app.auth import mail_tokens, password_resets
from app.auth.mfa import gate
from app.auth.mfa import service as mfa
from app.auth.mfa.challenges import Step
from app.auth.mfa.gate import MfaRequired
from app.auth.mfa.service import Answer
from app.auth.models import LinkPurpose, MailedToken
from app.context import actor
from app.errors import Conflict, Forbidden, NotFound

PURPOSE = LinkPurpose.EMAIL_UNDO
WAIT = timedelta(hours=24)
"""The time that an undoing waits if no second factor confirms it."""
FACTOR_REQUIRED = (
    "Confirm with a second factor that the user is yours, or send wait=true to restore the address"
    " in 24 hours."
)


def notify_previous_address(user: User, previous: str, *, may_undo: bool) -> None:
    """Enqueue a mail to the previous address, in the open transaction.

    `may_undo` adds a link that undoes the change, in case an attacker made it in the user's name.
    """
    payload = {"user_id": user.id, "email": previous, "may_undo": may_undo}
    payload["changed_at"] = clock.iso(clock.now())
    jobs.enqueue("auth.send_email_changed", payload, account_id=user.account_id)


def find(token: str) -> tuple[User, str] | None:
    """The user of a mailed token and the address that it restores; None for an invalid one."""
    row = mail_tokens.find(token, PURPOSE)
    return (_user_of(row), row.email) if row else None


def factor_request(token: str) -> MfaRequired | None:
    """The error that asks for the second factor that this token needs; None if it needs none."""
    row = mail_tokens.find(token, PURPOSE)
    user = _user_of(row) if row else None
    if row is None or user is None or not mfa.has_factor_from_before(user, row.created_at):
        return None
    return gate.factor_required(user, Step.EMAIL_UNDO, FACTOR_REQUIRED)


def undo(token: str, answer: Answer | None = None, *, waits: bool = False) -> datetime | None:
    """Restore the address that the token was mailed to, or return when that will happen.

    Revokes what an attacker may have created since: the password, sessions, API keys, provider
    identities and younger second factors. Mails a link to set a new password, and tells the address
    that is replaced. Of a user with an older second factor, this needs an answer by one; else, with
    `waits`, it happens after a day, and the present address gets a link that stops it.

    Raises BadRequest `invalid_token`, MfaRequired, Unauthorized for a wrong factor,
    TooManyRequests, Conflict if another user has the address by now, or Forbidden `address_managed`
    if users of the present one sign in with a provider only.
    """
    found = find(token)
    if found is None:
        raise mail_tokens.invalid_token()
    user, email = found
    gate.check_own_address(user, email)
    if asked := factor_request(token):
        if answer is not None:
            mfa.prove_again(user, answer, Step.EMAIL_UNDO)
        elif waits:
            return _wait(user, token)
        else:
            raise asked
    with db.transaction():
        row = mail_tokens.find(token, PURPOSE)
        if row is None or mail_tokens.consume(token, PURPOSE) is None:
            raise mail_tokens.invalid_token()
        _restore(user, row)
    return None


def _user_of(row: MailedToken) -> User:
    return db.db.session.get_one(User, (row.account_id, row.user_id))


def _wait(user: User, token: str) -> datetime:
    now = clock.now()
    with db.transaction() as session:
        accounts.bump_version(user)  # two requests at once would mail twice
        session.expire_all()
        row = mail_tokens.find(token, PURPOSE)
        if row is None:
            raise mail_tokens.invalid_token()
        if row.due_at is None or row.due_at <= now:
            row.due_at = now + WAIT
            row.expires_at = max(row.expires_at, row.due_at + mail_tokens.LIFETIME)
            payload = {"user_id": user.id, "token_id": row.id, "email": user.email}
            seconds = int(WAIT.total_seconds())
            jobs.enqueue(
                "auth.undo_email_change", payload, account_id=user.account_id, after=seconds
            )
            payload["due_at"] = clock.iso(row.due_at)
            jobs.enqueue("auth.send_email_undo_waits", payload, account_id=user.account_id)
        return row.due_at


def keep(token: str) -> User:
    """End what waits to undo the change to the present address, by the token mailed to it.

    Raises BadRequest `invalid_token`.
    """
    with db.transaction():
        consumed = mail_tokens.consume(token, LinkPurpose.EMAIL_KEEP)
        if consumed is None:
            raise mail_tokens.invalid_token()
        mail_tokens.cancel_scheduled_undos(consumed.user)
        return consumed.user


def find_kept(token: str) -> User | None:
    """The user of a token that keeps the present address; None for an invalid one."""
    row = mail_tokens.find(token, LinkPurpose.EMAIL_KEEP)
    return _user_of(row) if row else None


def _restore(user: User, row: MailedToken) -> None:
    """Restore the address of a token, in the open transaction. Raises Conflict."""
    accounts.bump_version(user)
    replaced, was_verified = user.email, user.email_verified
    users.set_email(user, row.email)
    user.password_hash = None
    # Later tokens would let an attacker undo this in turn.
    mail_tokens.revoke_since(row)
    events.publish(events.AddressVerified(user.account_id, user.id, row.created_at))
    accounts.mark_verified(user)
    password_resets.enqueue_mail(user)
    if was_verified:
        payload = {"user_id": user.id, "email": replaced}
        jobs.enqueue("auth.send_email_restored", payload, account_id=user.account_id)


@events.subscribe(events.AddressReplaced)
def _on_address_replaced(event: events.AddressReplaced) -> None:
    # Only a verified address: admins must not be able to mail strangers by changing addresses.
    if event.previous_verified:
        user = db.db.session.get_one(User, (event.account_id, event.user_id))
        notify_previous_address(user, event.previous, may_undo=event.by_user)


@jobs.job("auth.undo_email_change")
def _undo_after_waiting(payload: Mapping[str, str]) -> None:
    account_id = payload["account_id"]
    with db.transaction() as session:
        user = session.get(User, (account_id, payload["user_id"]))
        if user is None:
            return
        try:
            accounts.bump_version(user)  # first, in the order of all changes to users
        except NotFound:
            return
        row = session.get(MailedToken, (account_id, payload["token_id"]))
        # Stopped, done with a factor meanwhile, or the address was changed once more.
        if row is None or row.due_at is None or user.email != payload["email"]:
            return
        by = actor.SYSTEM._replace(user_id=user.id, user_email=user.email, user_name=user.name)
        # Another user may have it by now, or the domain needs its provider.
        with suppress(Conflict, Forbidden), db.savepoint(), actor.acting(by):
            if user.may_sign_in:
                gate.check_own_address(user, row.email)
                _restore(user, row)


@jobs.job("auth.send_email_changed", mails=True)
def _mail_email_changed(payload: Mapping[str, str]) -> None:
    user = db.db.session.get(User, (payload["account_id"], payload["user_id"]))
    if user is None:
        return
    account_id, account, to = user.account_id, user.account.name, payload["email"]
    if payload["may_undo"]:
        changed_at = clock.parse(payload.get("changed_at") or clock.iso(clock.now()))
        token = mail_tokens.issue(user, PURPOSE, payload["email"], caused_at=changed_at)
        link = f"{config.current().base_url}/welcome/undo-email-change?token={quote(token)}"
        expires = clock.now() + mail_tokens.lifetime(PURPOSE)
        values = {"account": account, "link": link}
        mails.send("email_changed", to, account_id, user=user, expires=expires, **values)
    else:
        mails.send("email_changed_by_admin", to, account_id, account=account, user=user)


@jobs.job("auth.send_email_undo_waits", mails=True)
def _mail_undo_waits(payload: Mapping[str, str]) -> None:
    user = db.db.session.get(User, (payload["account_id"], payload["user_id"]))
    if user is None or user.email != payload["email"]:
        return
    token = mail_tokens.issue(user, LinkPurpose.EMAIL_KEEP)
    link = f"{config.current().base_url}/welcome/keep-email?token={quote(token)}"
    values = {"link": link, "account": user.account.name}
    due = clock.parse(payload["due_at"])
    mails.send("email_undo_waits", user.email, user.account_id, user=user, expires=due, **values)


@jobs.job("auth.send_email_restored", mails=True)
def _mail_restored(payload: Mapping[str, str]) -> None:
    user = db.db.session.get(User, (payload["account_id"], payload["user_id"]))
    if user is not None:
        to, account = payload["email"], user.account.name
        mails.send("email_restored", to, user.account_id, account=account, user=user)
