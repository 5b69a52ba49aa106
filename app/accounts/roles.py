"""Roles: shared by all accounts, kept by superadmins (contract section 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from app import db, events
from app.accounts import service as accounts
from app.accounts.models import ADMIN, EDITOR, VIEWER, Role, User
from app.db import errors
from app.errors import Conflict, NotFound, problem

SEEDED = {ADMIN, EDITOR, VIEWER}
TAKEN = "This name is taken."


def page(skip: int, limit: int) -> tuple[list[Role], int]:
    """Roles in the order they were made, and how many there are."""
    total = db.db.session.scalar(sa.select(sa.func.count()).select_from(Role))
    chosen = sa.select(Role).order_by(Role.id).offset(skip).limit(limit)
    return list(db.db.session.scalars(chosen)), total or 0


def get(role_id: int) -> Role:
    """One role. Raises NotFound."""
    role = db.db.session.get(Role, role_id)
    if role is None:
        raise NotFound("There is no such role.")
    return role


def create(name: str, description: str | None) -> Role:
    """A new role. It is a name, and nothing more until rules speak of it. Raises Conflict."""
    name = accounts.label(name)
    with db.transaction() as session, _unique():
        role = Role(name=name, description=description)
        session.add(role)
        session.flush()
        return role


def change(role_id: int, body: Mapping[str, Any]) -> Role:
    """Rename or describe a role; seeded ones keep their names. Raises Conflict."""
    body = {**body, "name": accounts.label(body["name"])} if "name" in body else body
    with db.transaction() as session, _unique():
        role = get(role_id)
        renamed = body.get("name", role.name) != role.name
        if renamed and role.name in SEEDED:
            raise Conflict("The roles that every instance has keep their names.")
        for name, value in body.items():
            setattr(role, name, value)
        if renamed:
            mine = sa.update(User).where(User.role_id == role.id)
            session.execute(mine.values(version=User.version + 1, updated_at=User.updated_at))
        session.flush()
        return role


def delete(role_id: int) -> None:
    """Remove a role that no user and no open invitation has. Raises Conflict."""
    with db.transaction() as session:
        role = get(role_id)
        if role.name in SEEDED:
            raise Conflict("The roles that every instance has cannot be deleted.")
        events.publish(events.RoleDeleted(role.id))
        session.delete(role)
        try:
            session.flush()
        except IntegrityError as error:
            raise Conflict("Users or open invitations have this role.") from error


@contextmanager
def _unique() -> Iterator[None]:
    with (
        errors.conflict_on_unique("roles", "name", "name", TAKEN),
        errors.conflict_on_unique("roles", "name_key", "name", TAKEN),
    ):
        yield


def chosen(body: Mapping[str, Any], found: list[Any], default: str | None = None) -> Role | None:
    """The role that a body names by `role_id`, `role` or both; adds what is wrong with them."""
    by_id = body.get("role_id") is not None
    which = Role.id == body["role_id"] if by_id else Role.name == body.get("role", default)
    role = db.db.session.scalar(sa.select(Role).where(which))
    if role is None:
        field = "role_id" if by_id else "role"
        found.append(problem(field, "invalid_reference", "There is no such role."))
    elif by_id and body.get("role", role.name) != role.name:
        found.append(problem("role", "invalid_reference", "`role_id` names another role."))
    return role
