"""Service users: they act by API keys and as owners, and never sign in."""

from __future__ import annotations

import sqlalchemy as sa

from app import db
from app.accounts import attributes, roles
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, VIEWER, Account, Role, User, UserKind, name_key
from app.accounts.types import Body
from app.db import errors
from app.errors import Conflict, InvalidValues, problem

NOT_OF_SYSTEM = "The system account has no service users: create an operator key instead."
TAKEN = "A service user of this name exists."


def create(account_id: str, body: Body) -> User:
    """Create a service user with a role. Raises InvalidValues or Conflict."""
    account_id = account_id.lower()
    if account_id == SYSTEM_ACCOUNT_ID:
        raise Conflict(NOT_OF_SYSTEM)
    name = (body.get("name") or "").strip()
    problems = [one for one in (accounts.label_problem(name),) if one]
    account = db.db.session.get(Account, account_id)
    if account is None or not account.is_active:
        problems.append(problem("account_id", "invalid_reference", "There is no such account."))
    role = roles.resolve(body, problems, VIEWER)
    if problems or role is None:
        raise InvalidValues(problems)
    values = attributes.merged({}, body.get("attributes", {}))
    return _insert(account_id, name, role, attributes=values)


def ensure(account_id: str, name: str, role: str) -> User:
    """Return the account's service user of this name, created with the role if there is none."""
    with db.transaction() as session:
        accounts.get_for_update(account_id)
        present = find(account_id, name)
        if present is not None:
            return present
        stored_role = session.scalars(sa.select(Role).where(Role.name == role)).one()
        return _insert(account_id, name, stored_role)


def find(account_id: str, name: str) -> User | None:
    """Return the account's service user of this name."""
    key = (User.account_id == account_id, User.email_key == key_of(name))
    return db.db.session.scalar(sa.select(User).where(*key, User.leaving_at.is_(None)))


def key_of(name: str) -> str:
    """Return what stands in for the normalized address: names are unique, and no address."""
    # No normalized address begins with a space, so none leads to a service.
    return f" {name_key(name)}"


def rename(user: User, name: str | None) -> None:
    """Rename a service user. Raises InvalidValues or Conflict."""
    user.name = accounts.label(name or "")
    user.email_key = key_of(user.name)
    with errors.conflict_on_unique("users", "email_key", "name", TAKEN):
        db.db.session.flush()


def _insert(account_id: str, name: str, role: Role, **columns: object) -> User:
    with db.transaction() as session:
        user = User(
            account_id=account_id,
            kind=UserKind.SERVICE,
            email="",
            email_key=key_of(name),
            name=name,
            role_id=role.id,
            auth_provider="none",
            **columns,
        )
        with errors.conflict_on_unique("users", "email_key", "name", TAKEN):
            session.add(user)
            session.flush()
        session.refresh(user, ["account", "role", "groups"])
        return user
