"""Verifying email addresses with mailed links; the mail: `templates/email/verify_email.txt`."""

from __future__ import annotations

from collections.abc import Mapping

from app import clock, db, jobs
from app.accounts import attributes, service_users, users
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.accounts.product import links, mails
from app.accounts.product.settings import LinkKind
from app.accounts.types import Body, Problem
from app.auth import (
    email_changes,
    lockout,
    mail_tokens,
    passwords,
    sessions,
    tokens,
)
from app.auth import principal as principals
from app.auth import service as auth
from app.auth.mail_tokens import LinkRequest
from app.auth.mfa import gate
from app.auth.models import LinkPurpose
from app.auth.principal import NO_ADDRESSES, Principal
from app.context import actor, tenancy
from app.errors import Forbidden, InvalidValues
from app.types import JSONObject

PURPOSE, CHANGE = LinkPurpose.VERIFICATION, LinkPurpose.EMAIL_CHANGE


def enqueue_mail(user: User, redirect_uri: str | None = None, *, is_checked: bool = False) -> None:
    """Enqueue a mail with a verification link, in the open transaction.

    `is_checked`: the address is one that the operator has listed, so the account need not.
    """
    payload: JSONObject = {"user_id": user.id, "caused_by": actor.current().user_id}
    if redirect_uri is not None:
        link = {"link": links.with_token(redirect_uri)}
        payload |= link if is_checked else {"redirect_uri": redirect_uri}
    jobs.enqueue("auth.send_verification", payload, account_id=user.account_id)


def send_again(user: User, redirect_uri: str | None = None) -> None:
    """Mail a user a new verification link. Raises TooManyRequests or InvalidValues."""
    links.check_redirect(user.account, redirect_uri)
    lockout.count_mail(user.account_id, user.email)
    with db.transaction():
        enqueue_mail(user, redirect_uri)


def enqueue_change_mail(user: User, email: str) -> None:
    """Enqueue a mail to a new address, which becomes the user's once the link is followed."""
    now = clock.now()
    # The clock of the process that verified the address may have been ahead of ours.
    requested_at = clock.iso(max(now, user.tokens_valid_from or now))
    payload = {"user_id": user.id, "email": email}
    payload |= {"asked_at": requested_at, "asked_by": _fingerprint(user)}
    jobs.enqueue("auth.send_email_change", payload, account_id=user.account_id)


def resend_as_caller(caller: Principal, email: str | None, redirect_uri: str | None = None) -> None:
    """Mail a new link to the caller, or as an admin to a user of the account.

    Raises Forbidden, TooManyRequests or InvalidValues.
    """
    own = accounts.email_key(caller.email or "")
    key = accounts.email_key(email) if email else own
    if key == own:
        send_again(auth.get_user(caller), redirect_uri)
        return
    if not caller.is_admin or caller.account_id is None:
        raise Forbidden("Only admins may request links for other users.")
    lockout.count_mail(caller.account_id, key)
    resend(caller.account_id, key, redirect_uri=redirect_uri)


def resend(
    account: str | None, email: str, source: str | None = None, redirect_uri: str | None = None
) -> None:
    """Enqueue a new link, without revealing whether the user exists, not even by timing.

    `source` is of `lockout.count_mail_request`. Raises InvalidValues.
    """
    reference = auth.require_account(account)
    links.check_redirect(principals.find_account(reference), redirect_uri)
    payload = {"account": reference, "email": email, "source": source, "redirect_uri": redirect_uri}
    with db.transaction():
        jobs.enqueue("auth.resend_verification", payload, account_id=SYSTEM_ACCOUNT_ID)


def find(token: str) -> tuple[User, str] | None:
    """The user of a token and the address that it verifies; None for an invalid one."""
    row = mail_tokens.find(token, PURPOSE) or mail_tokens.find(token, CHANGE)
    user = db.db.session.get(User, (row.account_id, row.user_id)) if row else None
    return (user, row.email) if row and user else None


def verify(
    token: str,
    *,
    by: str | None = None,
    password: str | None = None,
    new_password: str | None = None,
) -> User:
    """Verify an address with the token that was mailed to it. Raises BadRequest `invalid_token`.

    Raises Forbidden `address_managed` for a new address of a user who may not change it. Revokes
    sessions, tokens and keys of the unverified user, unless `by` is that user. A `password` must be
    the user's, and a `new_password` replaces it at a first verification: raises InvalidValues,
    TooManyRequests, or Forbidden for a user who may have none.
    """
    user, _ = find(token) or (None, None)
    if user is not None and password is not None:
        _refuse(auth.current_password_problems(user, password, "password"))
    new_hash = None
    if new_password is not None:
        is_first = mail_tokens.find(token, PURPOSE) is not None
        if user is None or not is_first:
            raise mail_tokens.invalid_token()
        gate.require_password(user.account, user.email)
        _refuse(passwords.problems_for_user(user, new_password, "new_password"))
        new_hash = passwords.hash(new_password)
    with db.transaction():
        if consumed := mail_tokens.consume(token, PURPOSE):
            user = consumed.user
            if new_hash is not None:  # first: locks the user
                users.set_password(user, new_hash)
            _mark_verified(user, by)
            return user
        if consumed := mail_tokens.consume(token, CHANGE):
            user, email = consumed.user, consumed.email
            gate.check_own_address(user)
            if user.email_verified and accounts.email_key(email) != user.email_key:
                email_changes.notify_previous_address(user, user.email, may_undo=True)
            users.set_email(user, email)
            accounts.bump_version(user)
            _mark_verified(user, by)
            return user
    raise mail_tokens.invalid_token()


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise InvalidValues(problems)


def _mark_verified(user: User, by: str | None) -> None:
    mark = accounts.mark_verified if user.id == by else accounts.verify_email
    mark(user)


def change_profile(caller: Principal, body: Body) -> User:
    """Change the caller's name or language; a new address takes effect by its mailed link.

    Raises InvalidValues, TooManyRequests, or Forbidden without a recent sign-in, and for an address
    that only admins may change.
    """
    email = body.get("email", "").strip()
    if email:
        caller.refuse_key(NO_ADDRESSES)
    checks = [accounts.name_problem(body.get("name") or "")]
    checks += [accounts.email_problem(email)] if "email" in body else []
    if problems := [check for check in checks if check]:
        raise InvalidValues(problems)
    changes_email = bool(email) and accounts.email_key(email) != accounts.email_key(
        caller.email or ""
    )
    if changes_email:
        _check_may_change_email(caller, body.get("current_password"))
        lockout.count_own_address(*sessions.user_key(caller), email)
    with db.transaction() as session:
        user = auth.get_user(caller)
        if "name" in body and user.is_service:
            service_users.rename(user, body["name"])
        elif "name" in body:
            user.name = body["name"]
        if "attributes" in body:
            session.refresh(user, ["attributes"], with_for_update={"of": User, "key_share": True})
            user.attributes = attributes.merged(user.attributes, body["attributes"])
        if {"name", "attributes"} & body.keys():
            accounts.bump_version(user)
        if "language" in body:
            user.language = body["language"]
        if changes_email:
            sessions.lock_user(caller)
            enqueue_change_mail(user, email)
        session.flush()
        return user


def _check_may_change_email(caller: Principal, password: str | None) -> None:
    # The address allows resetting the password, so a stolen token must not suffice.
    user = auth.get_user(caller)
    gate.check_own_address(user)
    if password is None or gate.needs_factor(user) or not gate.has_password(user):
        caller.require_recent_sign_in()
    elif problems := auth.current_password_problems(user, password, "current_password"):
        raise InvalidValues(problems)


@jobs.job("auth.send_verification", mails=True)
def _mail_verification(payload: Mapping[str, str]) -> None:
    user = db.db.session.get(User, (payload["account_id"], payload["user_id"]))
    if user is not None and user.may_sign_in and not user.email_verified:
        page = links.Page(payload["link"], user.account.slug) if payload.get("link") else None
        mail_tokens.mail_link(user, LinkKind.VERIFY_EMAIL, PURPOSE, payload, page=page)


@jobs.job("auth.send_email_change", mails=True)
def _mail_email_change(payload: Mapping[str, str]) -> None:
    key, lock = (payload["account_id"], payload["user_id"]), {"of": User, "key_share": True}
    with db.transaction() as session:
        user = session.get(User, key, with_for_update=lock)
        if user is None or not user.may_sign_in or not _is_still_requested(user, payload):
            return
        page = links.page(LinkKind.EMAIL_CHANGE, user.account, user.id)
        request = LinkRequest(redirect_uri=page.redirect_uri)
        token = mail_tokens.issue(user, CHANGE, payload["email"], request=request)
    mails.send(
        "email_change",
        payload["email"],
        user.account_id,
        account=user.account.name,
        user=user,
        link=page.address(token),
        expires=clock.now() + mail_tokens.lifetime(CHANGE),
    )


def _is_still_requested(user: User, payload: Mapping[str, str]) -> bool:
    # Void if the owner has since verified the address or set a new password.
    valid_from = user.tokens_valid_from
    is_newer = valid_from is None or payload.get("asked_at", "") >= clock.iso(valid_from)
    return is_newer and payload.get("asked_by") == _fingerprint(user)


def _fingerprint(user: User) -> str:
    """A digest that changes with the user's address or password."""
    return tokens.digest(f"{user.email_key}\n{user.password_hash}")


@jobs.job("auth.resend_verification", mails=True)
def _resend(payload: Mapping[str, str]) -> None:
    user = auth.find_user(payload["account"], payload["email"])
    if user is not None:
        with tenancy.in_account(user.account_id):  # whose mail it is
            _mail_verification({**payload, "account_id": user.account_id, "user_id": user.id})
