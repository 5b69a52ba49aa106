"""Registering an account with its first user, or a user of the one account (contract 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from app import clock, config, db, jobs, slugs
from app.accounts import service as accounts
from app.accounts.models import (
    ADMIN,
    PII_GROUP,
    SYSTEM_ACCOUNT_ID,
    VIEWER,
    Account,
    Role,
    User,
)
from app.auth import lockout, passwords, verification
from app.errors import Conflict, Forbidden, InvalidValues, problem
from app.ids import new_id
from app.outbound import mail


def register(
    *, name: str | None, slug: str | None, email: str, password: str, address: str | None
) -> User:
    """Register. Raises InvalidValues, Forbidden, TooManyRequests, or Conflict for a taken slug."""
    settings = config.current()
    if settings.registration != "open":
        raise Forbidden("Nobody registers here; ask for an invitation.")
    if settings.single_tenant:
        return _join(slug, email.strip(), password, address)
    return _found(name, slug, email.strip(), password, address)


def _found(
    name: str | None, slug: str | None, email: str, password: str, address: str | None
) -> User:
    name = (name or "").strip()
    slug = (slug or slugs.slug_from(name)).strip()
    wrong = slugs.new_slug_problem(slug)
    _check(
        email,
        password,
        (name, slug),
        problem("account_slug", "slug_invalid", wrong) if wrong else None,
        accounts.label_problem(name or slug, "account_name"),
    )
    lockout.mails(lockout.NEW_ACCOUNT, email, address)
    password_hash = passwords.hash(password)  # before the transaction: it takes its time
    with db.transaction():
        account = accounts.create_account(name or slug, slug)
        user = accounts.create_user(
            account.id, email=email, password_hash=password_hash, role=ADMIN
        )
        accounts.join_group(user, PII_GROUP)
        verification.ask(user)
    return user


def _join(slug: str | None, email: str, password: str, address: str | None) -> User:
    # Nobody learns here whether an address is known: the answer looks alike, to the order of the
    # id and the moments in it, and who already has a user under the address is told so by mail.
    _check(email, password, (), _names_another(slug))
    lockout.mails(lockout.NEW_ACCOUNT, email, address)
    password_hash = passwords.hash(password)
    with db.transaction():
        account = _the_account()
        born: dict[str, Any] = {"id": new_id(), "created_at": clock.now()}
        try:
            with db.savepoint():
                user = accounts.create_user(
                    account.id, email=email, password_hash=password_hash, role=VIEWER, **born
                )
        except Conflict:
            payload = {"email_key": accounts.email_key(email)}
            jobs.enqueue("auth.known_already", payload, account_id=account.id)
            return _as_if_new(account, email, **born)
        verification.ask(user)
    return user


def _the_account() -> Account:
    settings, session = config.current(), db.db.session
    slug = settings.single_tenant_account
    chosen = sa.select(Account).where(Account.slug == slug)
    account = session.scalar(chosen)
    if account is None:
        try:
            with db.savepoint():
                account = accounts.create_account(settings.single_tenant_account_name, slug)
        except Conflict:  # another first user was faster
            account = session.scalars(chosen).one()
    # Whoever belongs to the system account is a superadmin.
    if account.id == SYSTEM_ACCOUNT_ID or not account.is_active:
        raise Forbidden("Nobody registers here.")
    return account


def _names_another(slug: str | None) -> dict[str, object] | None:
    if not slug or slug.strip().lower() == config.current().single_tenant_account:
        return None
    message = "There is one account here, and this is not its name. Leave it out."
    return problem("account_slug", "invalid_reference", message)


def _as_if_new(account: Account, email: str, **born: Any) -> User:
    role = db.db.session.scalars(sa.select(Role).where(Role.name == VIEWER)).one()
    user = User(account_id=account.id, email=email, role_id=role.id, groups=[], **born)
    user.account, user.role = account, role
    user.is_active, user.email_verified, user.auth_provider = True, False, "password"
    user.updated_at = user.created_at
    return user


@jobs.job("auth.known_already", mails=True)
def _mail_known_already(payload: Mapping[str, Any]) -> None:
    mine = (User.account_id == payload["account_id"], User.email_key == payload["email_key"])
    user = db.db.session.scalar(sa.select(User).where(*mine))
    if user is not None and user.may_sign_in:
        link = f"{config.current().base_url}/console/forgot-password"
        mail.send(user.email, "known_already", link=link, account=user.account.name)


def _check(
    email: str, password: str, names: Iterable[str], *more: Mapping[str, Any] | None
) -> None:
    weak = passwords.problems(password, own=(email, *names))
    found = [*weak, accounts.email_problem(email), *more]
    if any(found):
        raise InvalidValues([one for one in found if one])
