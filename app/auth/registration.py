"""Registration of an account, or of a user in single-tenant mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

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
    UserKind,
)
from app.accounts.product import links
from app.accounts.types import Problem
from app.auth import joining, lockout, passwords, verification
from app.auth import principal as principals
from app.auth.mfa import gate
from app.auth.mfa.gate import Proof
from app.errors import Conflict, Forbidden, InvalidValues, problem
from app.ids import new_id

TEMPLATE_FAULT = "No account can be created at the moment. Ask the operator of this service."


@dataclass(frozen=True)
class NewRegistration:
    """The new user, and the name and slug of a new account, or the slug of an existing one."""

    account_name: str | None
    slug: str | None
    email: str
    password: str
    user_name: str | None
    address: str | None
    """The address that the request comes from."""
    redirect_uri: str | None = None
    """The page that the mailed link leads to."""


def register(new: NewRegistration) -> User:
    """Register an account with its admin, or a viewer in single-tenant mode.

    Whoever names the account that owns the domain of the address joins it, if it lets users join:
    the mailed link then creates the user and sets the password.

    Raises InvalidValues, Forbidden, TooManyRequests, or Conflict for a taken slug.
    """
    settings = config.current()
    if settings.registration != "open":
        raise Forbidden("Registration is closed. Ask an administrator for an invitation.")
    if settings.single_tenant:
        return _join(replace(new, email=new.email.strip()))
    account = principals.find_account(new.slug.strip()) if new.slug else None
    domain = joining.open_domain(account, new.email)
    new = replace(new, email=new.email.strip())
    if account is None or domain is None:
        # A new account has no list of its own yet.
        links.check_redirect(db.db.session.get(Account, SYSTEM_ACCOUNT_ID), new.redirect_uri)
        return _create_account(new)
    links.check_redirect(account, new.redirect_uri)
    role = joining.role_of(domain)
    # The mailed link creates the user, and sets the password.
    _check(new, ())
    lockout.count_mail_request(lockout.NEW_ACCOUNT, new.email, new.address)
    with db.transaction():
        joining.enqueue_mail(account.id, new.email, new.user_name, new.redirect_uri)
    return _unsaved_user(account, new, role, new_id(), clock.now())


def _create_account(new: NewRegistration) -> User:
    name = (new.account_name or "").strip()
    slug = new.slug.strip() if new.slug else slugs.slug_from(name)
    wrong = slugs.new_slug_problem(slug) if slug is not None else None
    _check(
        new,
        (name, slug or ""),
        problem("account_slug", "slug_invalid", wrong) if wrong else None,
        accounts.label_problem(name or slug or "", "account_name"),
    )
    lockout.count_mail_request(lockout.NEW_ACCOUNT, new.email, new.address)
    password_hash = passwords.hash(new.password)  # before the transaction, as hashing is slow
    with _discreet_faults(), db.transaction():
        account = accounts.create_account(name or slug or "", slug)
        user = accounts.create_user(
            account.id,
            email=new.email,
            password_hash=password_hash,
            role=ADMIN,
            name=new.user_name,
        )
        accounts.join_group(user, PII_GROUP)
        # Checked by the operator's list.
        verification.enqueue_mail(user, new.redirect_uri, is_checked=True)
    return user


@contextmanager
def _discreet_faults() -> Iterator[None]:
    """Tell strangers of a fault of the operator's template, but not what is in it."""
    try:
        yield
    except Conflict as error:
        if error.error != "template_fault":
            raise
        raise Conflict(TEMPLATE_FAULT, error=error.error) from error


def _join(new: NewRegistration) -> User:
    # The response never reveals whether the address is taken: it looks the same, down to the id
    # and timestamps, and the owner of a taken address gets a mail.
    unknown, slug = None, (new.slug or "").strip().lower()
    if new.slug and slug != config.current().single_tenant_account:
        message = "This service has a single account with another name. Omit the account."
        unknown = problem("account_slug", "invalid_reference", message)
    _check(new, (), unknown)
    lockout.count_mail_request(lockout.NEW_ACCOUNT, new.email, new.address)
    password_hash = passwords.hash(new.password)
    with db.transaction():
        account = _single_account()
        links.check_redirect(account, new.redirect_uri)
        may_sign_in = gate.allows_address(account, new.email, Proof.PASSWORD)
        id, now = new_id(), clock.now()
        try:
            with db.savepoint():
                user = accounts.create_user(
                    account.id,
                    email=new.email,
                    password_hash=password_hash if may_sign_in else None,
                    role=VIEWER,
                    name=new.user_name,
                    id=id,
                    created_at=now,
                )
        except Conflict:
            joining.enqueue_notice(account.id, new.email)
            return _unsaved_user(account, new, VIEWER, id, now)
        verification.enqueue_mail(user, new.redirect_uri)
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


def _unsaved_user(
    account: Account, new: NewRegistration, role_name: str, id: str, created_at: datetime
) -> User:
    role = db.db.session.scalars(sa.select(Role).where(Role.name == role_name)).one()
    user = User(
        account_id=account.id,
        kind=UserKind.PERSON,
        email=new.email,
        role_id=role.id,
        groups=[],
        name=new.user_name,
        id=id,
        created_at=created_at,
    )
    user.account, user.role = account, role
    user.is_active, user.email_verified, user.auth_provider = True, False, "password"
    user.updated_at = user.created_at
    return user


def _check(new: NewRegistration, names: Iterable[str], *problems: Problem | None) -> None:
    user_name = new.user_name or ""
    weak = passwords.problems(new.password, own=(new.email, *names, user_name))
    others = (accounts.email_problem(new.email), *problems, accounts.name_problem(user_name))
    details = [p for p in (*weak, *others) if p]
    if details:
        raise InvalidValues(details)
