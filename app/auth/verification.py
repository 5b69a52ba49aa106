"""Is an address its user's? Proved by a mailed link (spec 5.10, contract section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from app import clock, config, db, jobs
from app.accounts import service as accounts
from app.accounts import users
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.auth import email_changes, lockout, mail_tokens, sessions, tokens
from app.auth import service as auth
from app.auth.principal import NO_ADDRESSES, Principal
from app.errors import Forbidden, InvalidValues
from app.outbound import mail

PURPOSE, CHANGE = mail_tokens.VERIFICATION, mail_tokens.EMAIL_CHANGE


def ask(user: User) -> None:
    """Mail a link to a user, as part of the open transaction."""
    jobs.enqueue("auth.send_verification", {"user_id": user.id}, account_id=user.account_id)


def ask_again(user: User) -> None:
    """Mail a new link to a user. Raises TooManyRequests."""
    lockout.mailbox(user.account_id, user.email)
    with db.transaction():
        ask(user)


def ask_to_change(user: User, email: str) -> None:
    """Mail a link to a new address, which becomes the user's when the link is followed."""
    now = clock.now()
    # The clock that proved the address may have been ahead of this one.
    at = max(now, user.tokens_valid_from or now)
    asked = {"asked_at": clock.iso(at), "asked_by": _who(user)}
    payload = {"user_id": user.id, "email": email, **asked}
    jobs.enqueue("auth.send_email_change", payload, account_id=user.account_id)


def send(caller: Principal, email: str | None) -> None:
    """Mail a new link to the caller, or to a user of the account that the caller administers.

    Raises Forbidden, or TooManyRequests.
    """
    own = accounts.email_key(caller.email or "")
    key = accounts.email_key(email) if email else own
    if key == own:
        ask_again(auth.user_of(caller))
        return
    if not caller.is_admin or caller.account_id is None:
        raise Forbidden("Only an admin may name another user.")
    lockout.mailbox(caller.account_id, key)
    resend(caller.account_id, key)


def resend(account: str | None, email: str) -> None:
    """Mail a new link if there is such a user; the caller cannot tell, not even by the time."""
    payload = {"account": auth.require_account(account), "email": email}
    with db.transaction():
        jobs.enqueue("auth.resend_verification", payload, account_id=SYSTEM_ACCOUNT_ID)


def verify(token: str, *, by: str | None = None) -> User:
    """Prove an address by the token that was mailed to it. Raises BadRequest `invalid_token`.

    Ends what was begun under the address before, unless that very user (`by`) brings the token.
    """
    with db.transaction():
        if used := mail_tokens.use(token, PURPOSE):
            user, _ = used
            _note(user, by)
            return user
        if used := mail_tokens.use(token, CHANGE):
            user, email = used
            if user.email_verified and accounts.email_key(email) != user.email_key:
                email_changes.tell(user, user.email, may_undo=True)
            users.set_email(user, email)
            accounts.bump_version(user)
            _note(user, by)
            return user
    raise mail_tokens.not_valid()


def _note(user: User, by: str | None) -> None:
    note = accounts.mark_verified if user.id == by else accounts.verify_email
    note(user)


def change_profile(caller: Principal, body: Mapping[str, Any], address: str | None) -> User:
    """Change the caller's own name; a new address is mailed a link first.

    Raises InvalidValues, TooManyRequests, or Forbidden long after the sign-in.
    """
    email = body.get("email", "").strip()
    if email:
        caller.refuse_key(NO_ADDRESSES)
    found = [accounts.name_problem(body.get("name") or "")]
    found += [accounts.email_problem(email)] if "email" in body else []
    if any(found):
        raise InvalidValues([one for one in found if one])
    moves = bool(email) and accounts.email_key(email) != accounts.email_key(caller.email or "")
    if moves:
        _check_may_move(caller, body.get("current_password"))
        home, _ = sessions.user_key(caller)
        lockout.mails(home, email, address)
    with db.transaction() as session:
        user = auth.user_of(caller)
        if "name" in body:
            user.name = body["name"]
            accounts.bump_version(user)
        if moves:
            sessions.hold(caller)
            ask_to_change(user, email)
        session.flush()
        return user


def _check_may_move(caller: Principal, password: str | None) -> None:
    # Whoever has the address can set the password: a token that was found must not be enough.
    if password is None:
        caller.require_recent_sign_in()
    elif wrong := auth.problems_of_own_password(auth.user_of(caller), password, "current_password"):
        raise InvalidValues(wrong)


@jobs.job("auth.send_verification", mails=True)
def _mail_verification(payload: Mapping[str, Any]) -> None:
    user = db.db.session.get(User, (payload["account_id"], payload["user_id"]))
    if user is not None and user.may_sign_in and not user.email_verified:
        _send(user, user.email, mail_tokens.issue(user, PURPOSE))


@jobs.job("auth.send_email_change", mails=True)
def _mail_email_change(payload: Mapping[str, Any]) -> None:
    key, alone = (payload["account_id"], payload["user_id"]), {"of": User, "key_share": True}
    with db.transaction() as session:
        user = session.get(User, key, with_for_update=alone)
        if user is None or not user.may_sign_in or not _still_asks(user, payload):
            return
        token = mail_tokens.issue(user, CHANGE, payload["email"])
    _send(user, payload["email"], token)


def _still_asks(user: User, payload: Mapping[str, Any]) -> bool:
    # The owner of the address may have come since somebody else asked, or set a new password.
    begin = user.tokens_valid_from
    since = begin is None or payload.get("asked_at", "") >= clock.iso(begin)
    return since and payload.get("asked_by") == _who(user)


def _who(user: User) -> str:
    """What a new password or address makes another."""
    return tokens.digest(f"{user.email_key}\n{user.password_hash}")


@jobs.job("auth.resend_verification", mails=True)
def _resend(payload: Mapping[str, Any]) -> None:
    user = auth.user_named(payload["account"], payload["email"])
    if user is not None:
        _mail_verification({"account_id": user.account_id, "user_id": user.id})


def _send(user: User, email: str, token: str) -> None:
    link = f"{config.current().base_url}/auth/verify-email?token={quote(token)}"
    mail.send(email, "verification", link=link, account=user.account.name)
