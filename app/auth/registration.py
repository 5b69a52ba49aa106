"""Registration of an account, or of a user in single-tenant mode."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from app import clock, config, db, slugs
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
from app.accounts.types import Problem
from app.auth import joining, lockout, passwords, verification
from app.auth import principal as principals
from app.auth.mfa import gate
from app.auth.mfa.gate import Proof
from app.errors import Conflict, Forbidden, InvalidValues, problem
from app.ids import new_id


def register(
    *,
    name: str | None,
    slug: str | None,
    email: str,
    password: str,
    address: str | None,
    user_name: str | None = None,
) -> User:
    """Register an account with its admin, or a viewer in single-tenant mode.

    Whoever names the account that owns the domain of the address joins it, if it lets users join:
    the mailed link then creates the user and sets the password.

    Raises InvalidValues, Forbidden, TooManyRequests, or Conflict for a taken slug.
    """
    settings = config.current()
    if settings.registration != "open":
        raise Forbidden("Registration is closed. Ask an administrator for an invitation.")
    if settings.single_tenant:
        return _join(slug, email.strip(), password, address, user_name)
    account = principals.find_account(slug.strip()) if slug else None
    domain = joining.open_domain(account, email)
    if account is not None and domain is not None:
        role = joining.role_of(domain)
        return _join_by_domain(account, role, email.strip(), password, address, user_name)
    return _create_account(name, slug, email.strip(), password, address, user_name)


def _create_account(
    name: str | None,
    slug: str | None,
    email: str,
    password: str,
    address: str | None,
    user_name: str | None,
) -> User:
    name = (name or "").strip()
    slug = slug.strip() if slug else slugs.slug_from(name)
    wrong = slugs.new_slug_problem(slug) if slug is not None else None
    _check(
        email,
        password,
        (name, slug or "", user_name or ""),
        problem("account_slug", "slug_invalid", wrong) if wrong else None,
        accounts.label_problem(name or slug or "", "account_name"),
        accounts.name_problem(user_name or ""),
    )
    lockout.count_mail_request(lockout.NEW_ACCOUNT, email, address)
    password_hash = passwords.hash(password)  # before the transaction, as hashing is slow
    with db.transaction():
        account = accounts.create_account(name or slug or "", slug)
        user = accounts.create_user(
            account.id, email=email, password_hash=password_hash, role=ADMIN, name=user_name
        )
        accounts.join_group(user, PII_GROUP)
        verification.enqueue_mail(user)
    return user


def _join_by_domain(
    account: Account,
    role: str,
    email: str,
    password: str,
    address: str | None,
    user_name: str | None,
) -> User:
    # The mailed link creates the user, and sets the password.
    _check(email, password, (user_name or "",), accounts.name_problem(user_name or ""))
    lockout.count_mail_request(lockout.NEW_ACCOUNT, email, address)
    with db.transaction():
        joining.enqueue_mail(account.id, email, user_name)
    now = clock.now()
    return _unsaved_user(account, email, role, name=user_name, id=new_id(), created_at=now)


def _join(
    slug: str | None, email: str, password: str, address: str | None, user_name: str | None
) -> User:
    # The response never reveals whether the address is taken: it looks the same, down to the id
    # and timestamps, and the owner of a taken address gets a mail.
    name_problem = accounts.name_problem(user_name or "")
    _check(email, password, (user_name or "",), _account_problem(slug), name_problem)
    lockout.count_mail_request(lockout.NEW_ACCOUNT, email, address)
    password_hash = passwords.hash(password)
    with db.transaction():
        account = _single_account()
        is_kept = gate.allows_address(account, email, Proof.PASSWORD)
        id, now = new_id(), clock.now()
        try:
            with db.savepoint():
                user = accounts.create_user(
                    account.id,
                    email=email,
                    password_hash=password_hash if is_kept else None,
                    role=VIEWER,
                    name=user_name,
                    id=id,
                    created_at=now,
                )
        except Conflict:
            joining.enqueue_notice(account.id, email)
            return _unsaved_user(account, email, VIEWER, name=user_name, id=id, created_at=now)
        verification.enqueue_mail(user)
    return user


def _single_account() -> Account:
    settings, session = config.current(), db.db.session
    slug = settings.single_tenant_account
    query = sa.select(Account).where(Account.slug == slug)
    account = session.scalar(query)
    if account is None:
        try:
            with db.savepoint():
                account = accounts.create_account(settings.single_tenant_account_name, slug)
        except Conflict:  # a concurrent registration created it
            account = session.scalars(query).one()
    # Users of the system account would be superadmins.
    if account.id == SYSTEM_ACCOUNT_ID or not account.is_active:
        raise Forbidden("Registration is closed.")
    return account


def _account_problem(slug: str | None) -> Problem | None:
    if not slug or slug.strip().lower() == config.current().single_tenant_account:
        return None
    message = "This service has a single account with another name. Omit the account."
    return problem("account_slug", "invalid_reference", message)


def _unsaved_user(account: Account, email: str, role_name: str, **columns: object) -> User:
    role = db.db.session.scalars(sa.select(Role).where(Role.name == role_name)).one()
    user = User(account_id=account.id, email=email, role_id=role.id, groups=[], **columns)
    user.account, user.role = account, role
    user.is_active, user.email_verified, user.auth_provider = True, False, "password"
    user.updated_at = user.created_at
    return user


def _check(email: str, password: str, names: Iterable[str], *problems: Problem | None) -> None:
    weak = passwords.problems(password, own=(email, *names))
    details = [p for p in (*weak, accounts.email_problem(email), *problems) if p]
    if details:
        raise InvalidValues(details)
