"""Roles: shared by all accounts, managed by superadmins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from app import db, events
from app.accounts import names
from app.accounts import service as accounts
from app.accounts.models import ADMIN, EDITOR, VIEWER, Role, User
from app.accounts.names import Name
from app.accounts.types import Body, Problem
from app.db import citus, errors
from app.errors import Conflict, NotFound, problem
from app.rules.named import ROLE

BUILT_IN = {ADMIN, EDITOR, VIEWER}
TAKEN = "This name is taken."
NO_ROLE = "There is no such role."
ADMINS_CONSOLE = "Admins always may open the console."
IN_USE = "This role is in use by users or open invitations."


def page(skip: int, limit: int) -> tuple[list[Role], int]:
    """One page of roles in order of creation, and the total."""
    total = db.db.session.scalar(sa.select(sa.func.count()).select_from(Role))
    query = sa.select(Role).order_by(Role.id).offset(skip).limit(limit)
    return list(db.db.session.scalars(query)), total or 0


def get(role_id: int) -> Role:
    """The role with this id. Raises NotFound."""
    role = db.db.session.get(Role, role_id)
    if role is None:
        raise NotFound(NO_ROLE)
    return role


def create(name: str, description: str | None, *, console: bool = False) -> Role:
    """Create a role; it grants nothing until rules refer to it. Raises Conflict."""
    name = accounts.label(name)
    with db.transaction() as session, _unique():
        role = Role(name=name, description=description, console=console)
        session.add(role)
        session.flush()
        return role


def change(role_id: int, body: Body) -> Role:
    """Change a role's properties; what names the role follows a new name, in all accounts.

    Raises Conflict for a taken name, a built-in role's, or with the places that cannot follow.
    """
    if "name" in body:
        body = {**body, "name": accounts.label(body["name"])}
    with db.transaction() as session, _unique():
        role = _get_for_update(role_id)
        former, renamed = role.name, body.get("name", role.name) != role.name
        if renamed and former in BUILT_IN:
            raise Conflict("Built-in roles cannot be renamed.")
        if former == ADMIN and not body.get("console", True):
            raise Conflict(ADMINS_CONSOLE)
        has_changed = renamed or body.get("console", role.console) != role.console
        for name, value in body.items():
            setattr(role, name, value)
        if renamed:
            session.flush()
            names.follow(Name(ROLE, former), role.name)
        if has_changed:
            holders = sa.update(User).where(User.role_id == role.id)
            session.execute(holders.values(version=User.version + 1, updated_at=User.updated_at))
        session.flush()
        return role


def delete(role_id: int) -> None:
    """Delete a role. Raises Conflict if a user or an open invitation has it, or what names it."""
    with db.transaction() as session:
        citus.use_one_connection_per_node(db.connection())
        role = _get_for_update(role_id)
        if role.name in BUILT_IN:
            raise Conflict("Built-in roles cannot be deleted.")
        # SQLite checks no foreign keys in a transaction that also changes tables.
        if session.scalar(sa.select(User.id).where(User.role_id == role.id).limit(1)):
            raise Conflict(IN_USE)
        names.refuse_deletion(Name(ROLE, role.name))
        events.publish(events.RoleDeleted(role.id))
        session.delete(role)
        try:
            session.flush()
        except IntegrityError as error:
            raise Conflict(IN_USE) from error


def _get_for_update(role_id: int) -> Role:
    # An expression that is being saved with this name holds the row, or waits for the new name.
    query = sa.select(Role).where(Role.id == role_id).with_for_update()
    role = db.db.session.scalar(query.execution_options(populate_existing=True))
    if role is None:
        raise NotFound(NO_ROLE)
    return role


@contextmanager
def _unique() -> Iterator[None]:
    with (
        errors.conflict_on_unique("roles", "name", "name", TAKEN),
        errors.conflict_on_unique("roles", "name_key", "name", TAKEN),
    ):
        yield


def resolve(body: Body, problems: list[Problem], default: str | None = None) -> Role | None:
    """The role that a body names by `role_id`, `role` or both; appends to `problems`."""
    role_id = body.get("role_id")
    by_id = role_id is not None
    condition = Role.id == role_id if by_id else Role.name == body.get("role", default)
    role = db.db.session.scalar(sa.select(Role).where(condition))
    if role is None:
        field = "role_id" if by_id else "role"
        problems.append(problem(field, "invalid_reference", "There is no such role."))
    elif by_id and body.get("role", role.name) != role.name:
        problems.append(problem("role", "invalid_reference", "`role_id` names another role."))
    return role
