"""What proposed rules would change for the people there are, on the records there are (contract 6).

For each role and operation: the records that at least one active user of that role, in the
record's own account, gains or loses. The database computes it over users and records together:
what a rule asks of the caller becomes a column of `users`. Nobody signed in is a role of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app import db, rules
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, Group, GroupMember, Role, User
from app.collections.columns import TableColumns
from app.collections.definition import Definition
from app.db.types import Text
from app.rules import program, sql
from app.rules.nodes import Call, Literal
from app.types import JSONMapping, JSONObject

OPERATIONS = ("list", "view", "update", "delete")
ANONYMOUS = "anonymous"
SAMPLE = 10
NONE: JSONMapping = {"count": 0, "sample": []}
EVERYTHING, NOTHING = (Literal(0, 0, value, type=rules.Type.BOOLEAN) for value in (True, False))


@dataclass(frozen=True)
class _Users:
    """The users of a role as those who ask."""

    role: Role

    def attribute(self, name: str) -> sa.ColumnElement[Any]:
        """The column with a value of the caller's."""
        if name == "role":
            return sa.literal(self.role.name, Text)
        found: sa.ColumnElement[Any] = getattr(User, name)
        return found

    def asked(self, node: Call) -> sa.ColumnElement[Any]:
        """`@has_group`: whether the user is in it. The rest the role has answered."""
        words = [one.value for one in node.arguments if isinstance(one, Literal)]
        member = sa.select(GroupMember.user_id).join(
            Group,
            sa.and_(Group.account_id == GroupMember.account_id, Group.id == GroupMember.group_id),
        )
        return member.where(
            GroupMember.account_id == User.account_id,
            GroupMember.user_id == User.id,
            Group.name.in_(words),
        ).exists()


@dataclass(frozen=True)
class _Side:
    """A condition before or after the change."""

    truth: bool | None
    expression: Any

    def beyond(self, other: _Side) -> object:
        """What is met where this holds and the other does not; None where that is nowhere."""
        if self.truth is False or other.truth is True:
            return None
        return sa.and_(self.expression, other.expression.is_not(sa.true()))


def differences(
    present: Definition, proposed: Definition, account_id: str | None
) -> list[JSONObject]:
    """For each role and operation, how many records are gained and lost, and some of them."""
    roles = list(db.db.session.scalars(sa.select(Role).order_by(Role.id)))
    changed = {one for one in OPERATIONS if present.rule(one) != proposed.rule(one)}
    told = []
    for role in (*roles, None):
        for operation in OPERATIONS:
            named = {"role": role.name if role else ANONYMOUS, "operation": operation}
            gained = lost = NONE
            if operation in changed:
                was, will = (_left(one, operation, role) for one in (present, proposed))
                gained, lost = _changes(present, was, will, role, account_id)
            told.append(named | {"gained": gained, "lost": lost})
    return told


def _changes(
    definition: Definition,
    was: rules.Node,
    will: rules.Node,
    role: Role | None,
    account_id: str | None,
) -> tuple[JSONMapping, JSONMapping]:
    """The records that one condition closes and another opens, and the other way round."""
    if program.written(was) == program.written(will):
        return NONE, NONE
    columns = TableColumns(definition, definition.table)
    users = _Users(role) if role else None
    before, after = (
        _Side(rules.truth(one), sql.condition(one, columns, users).expression)
        for one in (was, will)
    )
    gained, lost = after.beyond(before), before.beyond(after)
    return _found(definition, gained, role, account_id), _found(definition, lost, role, account_id)


def _found(
    definition: Definition, condition: Any, role: Role | None, account_id: str | None
) -> JSONMapping:
    """The records that meet a condition for some user of a role; None is met by none."""
    if condition is None:
        return NONE
    table = definition.table
    scoped = [table.c.account_id == account_id] if account_id else []
    reached = _by_some_user(table, role, condition) if role else condition
    chosen = sa.select(sa.func.count().over(), table.c.id).where(*scoped, reached)
    newest = chosen.order_by(table.c.created_at.desc(), table.c.id).limit(SAMPLE)
    rows = db.connection().execute(newest).all()
    return {"count": rows[0][0] if rows else 0, "sample": [row[1] for row in rows]}


def _by_some_user(table: sa.Table, role: Role, condition: Any) -> Any:
    active = sa.select(User.id).join(Account, Account.id == User.account_id)
    return (
        active.where(
            User.account_id == table.c.account_id,
            User.account_id != SYSTEM_ACCOUNT_ID,  # whose users pass every rule
            User.role_id == role.id,
            User.is_active,
            condition,
        )
        .correlate(table)
        .exists()
    )


def _left(definition: Definition, operation: str, role: Role | None) -> rules.Node:
    """What of a rule remains to be asked of a role's users and of the records."""
    text, node = definition.rule(operation), definition.conditions[operation]
    if text is None:
        return NOTHING
    if node is None:
        return EVERYTHING if text == "" or role else NOTHING
    return rules.partial_evaluate(node, _asker(role))


def _asker(role: Role | None) -> rules.Asker:
    if role is None:
        return rules.Asker()
    some = rules.UNKNOWN
    return rules.Asker(some, some, role.name, some, some)
