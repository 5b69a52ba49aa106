"""Compares present and proposed rules on the existing users and records.

For each role and operation: the records that at least one active user of that role, in the
record's account, gains or loses. The database computes it from users and records together: caller
properties in rules become columns of `users`. Anonymous callers count as a role. Any user may have
sessions with a second factor and without. Of views, rows are compared, which rights to fields may
leave out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from app import db, rules
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, Group, GroupMember, Role, User
from app.accounts.plans import stored as plans
from app.accounts.plans.stored import Plans
from app.collections.columns import TableColumns, attribute_value
from app.collections.definitions import Definition, ViewDefinition
from app.collections.view_sources import CLOSED, bind_for
from app.context import shown_accounts
from app.db.types import Text
from app.rules import program, sql
from app.rules.nodes import OF_ACCOUNT, PLAN, Call, Caller, Literal, walk
from app.types import JSONMapping

OPERATIONS = ("list", "view", "update", "delete")
ANONYMOUS = "anonymous"
SAMPLE = 10
EVERYTHING, NOTHING = (Literal(0, 0, value, type=rules.Type.BOOLEAN) for value in (True, False))


@dataclass(frozen=True)
class RecordSample:
    """The number of some records, and the ids of the newest."""

    count: int = 0
    sample: Sequence[str] = ()


@dataclass(frozen=True)
class Difference:
    """The records that an operation opens and closes to the users of a role."""

    role: str
    operation: str
    gained: RecordSample = RecordSample()
    lost: RecordSample = RecordSample()


@dataclass(frozen=True)
class Terms:
    """The plans before or after a change."""

    plans: Plans
    renamed: Mapping[str, str] = field(default_factory=dict)
    """New names by the former ones, which accounts still have."""

    @property
    def plan(self) -> Any:
        """The name of an account's plan."""
        return (
            sa.case(self.renamed, value=Account.plan, else_=Account.plan)
            if self.renamed
            else (Account.plan)
        )

    def has_flag(self, name: str) -> Any:
        """Whether an account has a flag: given beside its plan, or by its plan and not taken."""
        having = [plan for plan, one in self.plans.items() if name in one.flags]
        by_plan = sa.and_(Account.plan.is_not(None), self.plan.in_(having))
        return sa.func.coalesce(Account.flags[name].as_boolean(), by_plan)


@dataclass(frozen=True)
class _Users:
    """The users of a role as callers, in sessions with or without a second factor."""

    role_name: str
    mfa: bool
    terms: Terms

    def attribute(self, name: str) -> sa.ColumnElement[Any]:
        """The column of a caller's property."""
        if name == "role":
            return sa.literal(self.role_name, Text)
        if name == "mfa":
            return sa.literal(self.mfa)
        if name == PLAN:
            return _of_account(User.account_id, self.terms.plan)
        column: sa.ColumnElement[Any] = getattr(User, name)
        return column

    def defined(self, node: Caller) -> sa.ColumnElement[Any]:
        """The value of an attribute of the user, or of the user's account."""
        _, _, name = node.attribute.partition(".")
        if not node.attribute.startswith(OF_ACCOUNT):
            value: sa.ColumnElement[Any] = attribute_value(User.attributes, name, node.type)
            return value
        return _of_account(User.account_id, attribute_value(Account.attributes, name, node.type))

    def evaluate_call(self, node: Call) -> sa.ColumnElement[Any]:
        """`@has_group`: whether the user is a member; `@flag`: whether the account has one.

        Partial evaluation has decided the others.
        """
        words = [argument.value for argument in node.arguments if isinstance(argument, Literal)]
        if node.name == "@flag":
            return _of_account(User.account_id, self.terms.has_flag(words[0]))
        member = sa.select(GroupMember.user_id).join(
            Group,
            sa.and_(Group.account_id == GroupMember.account_id, Group.id == GroupMember.group_id),
        )
        return (
            member.where(
                GroupMember.account_id == User.account_id,
                GroupMember.user_id == User.id,
                Group.name.in_(rules.spellings(words)),
            )
            .correlate(User)
            .exists()
        )


@dataclass(frozen=True)
class _Anonymous:
    """Callers who have not signed in, in the account of each record."""

    account_id: sa.ColumnElement[Any]
    terms: Terms

    def attribute(self, name: str) -> sa.ColumnElement[Any]:
        """The plan of the account; there is nothing else."""
        if name == PLAN:
            return _of_account(self.account_id, self.terms.plan)
        return sa.false() if name == "mfa" else sa.cast(sa.null(), Text)

    def defined(self, node: Caller) -> sa.ColumnElement[Any]:
        """The value of an attribute of the account; there is no user."""
        _, _, name = node.attribute.partition(".")
        value = attribute_value(Account.attributes, name, node.type)
        is_own = node.attribute.startswith(OF_ACCOUNT)
        return _of_account(self.account_id, value if is_own else sa.cast(sa.null(), value.type))

    def evaluate_call(self, node: Call) -> sa.ColumnElement[Any]:
        """`@flag`: whether the account has one. Partial evaluation has decided the others."""
        words = [argument.value for argument in node.arguments if isinstance(argument, Literal)]
        return _of_account(self.account_id, self.terms.has_flag(words[0]))


def _of_account(account_id: Any, value: Any) -> sa.ColumnElement[Any]:
    """A value of the account that a column of the statement around names."""
    own = sa.select(value).where(Account.id == account_id)
    found: sa.ColumnElement[Any] = own.correlate_except(Account).scalar_subquery()
    return found


@dataclass(frozen=True)
class _Scope:
    """The role whose access is compared, and the account to which that is limited."""

    role: Role | None
    account_id: str | None
    max_count: int | None
    role_names: tuple[str | None, str | None]
    """The role's name before and after."""
    terms: tuple[Terms, Terms]
    """The plans before and after."""


@dataclass(frozen=True)
class _Side:
    """A condition before or after the change."""

    truth: bool | None
    expression: Any

    def beyond(self, other: _Side) -> object:
        """The records that match this side only; None if there are none."""
        if self.truth is False or other.truth is True:
            return None
        return sa.and_(self.expression, other.expression.is_not(sa.true()))


def differences(
    present: Definition,
    proposed: Definition,
    account_id: str | None,
    max_count: int | None = None,
    renames: JSONMapping = MappingProxyType({}),
    terms: tuple[Terms, Terms] | None = None,
) -> list[Difference]:
    """The number and a sample of gained and lost records for each role and operation.

    Counts stop at `max_count` + 1. `renames` has the new names of roles, for the proposed rules;
    `terms` the plans, if they change, too.
    """
    known = terms or (Terms(plans.load()),) * 2
    roles = list(db.db.session.scalars(sa.select(Role).order_by(Role.id)))
    if present.view is not None:  # what it reads may open and close, too
        changed_operations = {*OPERATIONS[:2]}
    else:
        changed_operations = {
            operation
            for operation in OPERATIONS
            if renames
            or terms
            or present.effective_rule(operation) != proposed.effective_rule(operation)
        }
    result = []
    for role in (*roles, None):
        for operation in OPERATIONS:
            difference = Difference(role.name if role else ANONYMOUS, operation)
            if operation in changed_operations:
                name = role.name if role else None
                names = (name, renames.get(name or "", name))
                scope = _Scope(role, account_id, max_count, names, known)
                gained, lost = _compared(present, proposed, operation, scope)
                difference = replace(difference, gained=gained, lost=lost)
            result.append(difference)
    return result


def _compared(
    present: Definition, proposed: Definition, operation: str, scope: _Scope
) -> tuple[RecordSample, RecordSample]:
    if isinstance(present, ViewDefinition) and isinstance(proposed, ViewDefinition):
        return _gained_and_lost_rows(present, proposed, operation, scope)
    return _gained_and_lost(present, proposed, operation, scope)


def _gained_and_lost(
    present: Definition, proposed: Definition, operation: str, scope: _Scope
) -> tuple[RecordSample, RecordSample]:
    """The records gained and lost by replacing the rule of an operation."""
    gained, lost = [], []
    conditions = present.conditions[operation], proposed.conditions[operation]
    for mfa in _kinds_of_session(conditions) if scope.role else (False,):
        before, after = (
            _partial_condition(definition, operation, name, mfa=mfa)
            for definition, name in zip((present, proposed), scope.role_names, strict=True)
        )
        is_same = program.serialize(before) == program.serialize(after)
        if is_same and scope.terms[0] == scope.terms[1]:
            continue
        columns, of_record = TableColumns(present, present.table), present.table.c.account_id
        before_side, after_side = (
            _Side(rules.truth(node), sql.condition(node, columns, users).expression)
            for node, name, terms in zip(
                (before, after), scope.role_names, scope.terms, strict=True
            )
            for users in [
                _Users(name, mfa, terms) if name is not None else _Anonymous(of_record, terms)
            ]
        )
        gained.append(after_side.beyond(before_side))
        lost.append(before_side.beyond(after_side))
    return _count_records(present, gained, scope), _count_records(present, lost, scope)


def _kinds_of_session(conditions: Iterable[rules.Node | None]) -> tuple[bool, ...]:
    """With and without a second factor, if a condition distinguishes them."""
    parts = chain.from_iterable(walk(node) for node in conditions if node is not None)
    differ = any(isinstance(part, Caller) and part.attribute == "mfa" for part in parts)
    return (False, True) if differ else (False,)


def _count_records(
    definition: Definition, alternatives: Sequence[Any], scope: _Scope
) -> RecordSample:
    """Count the records that match for some user of a role, with a sample."""
    possible = [condition for condition in alternatives if condition is not None]
    if not possible:
        return RecordSample()
    table, condition = definition.table, sa.or_(*possible)
    conditions = [table.c.account_id == scope.account_id] if scope.account_id else []
    matches = _by_some_user(table, scope.role, condition) if scope.role else condition
    query = sa.select(table.c.created_at, table.c.id, table.c.account_id).where(
        *conditions, matches
    )
    if scope.max_count is not None:
        query = query.limit(scope.max_count + 1)
    found = query.subquery().c
    newest_first = sa.select(sa.func.count().over(), found.id, found.account_id)
    newest_first = newest_first.order_by(found.created_at.desc(), found.id).limit(SAMPLE)
    rows = db.connection().execute(newest_first).all()
    for row in rows:
        shown_accounts.note(row.account_id)
    return RecordSample(rows[0][0] if rows else 0, [row[1] for row in rows])


def _by_some_user(table: sa.Table, role: Role, condition: Any) -> Any:
    active = sa.select(User.id).join(Account, Account.id == User.account_id)
    return (
        active.where(
            User.account_id == table.c.account_id,
            User.account_id != SYSTEM_ACCOUNT_ID,  # superadmins pass every rule
            User.role_id == role.id,
            User.is_active,
            condition,
        )
        .correlate(table)
        .exists()
    )


def _partial_condition(
    definition: Definition, operation: str, role: str | None, *, mfa: bool
) -> rules.Node:
    """The part of a rule that depends on a role's users and on records."""
    text, node = definition.rule(operation), definition.conditions[operation]
    if text is None:
        return NOTHING
    if node is None:
        return EVERYTHING if text == "" or role else NOTHING
    return rules.partial_evaluate(node, _caller_of_role(role, mfa=mfa))


def _caller_of_role(role: str | None, *, mfa: bool) -> rules.Subject:
    unknown = rules.UNKNOWN
    of_account = dict.fromkeys(("account_attributes", "plan", "flags"), unknown)
    if role is None:
        return rules.Subject(**of_account)
    held = {"attributes": unknown, **of_account}
    return rules.Subject(unknown, unknown, role, unknown, unknown, mfa=mfa, **held)


@dataclass(frozen=True)
class _Conditions:
    """What decides which rows of a view users of a role see: of its records, then its own rule."""

    within: Sequence[rules.Node]
    reached: Mapping[tuple[str, ...], Any]
    own: rules.Node

    @classmethod
    def of(cls, view: ViewDefinition, operation: str, role: str | None, mfa: bool) -> _Conditions:
        """Those that are left for a role."""
        within = [_partial_condition(view.base, "list", role, mfa=mfa)]
        if view.narrowed is not None:
            within.append(rules.partial_evaluate(view.narrowed, _caller_of_role(role, mfa=mfa)))
        reached = dict[tuple[str, ...], Any]()
        for path, target in view.targets.items():
            if isinstance(target, Definition):
                node = _partial_condition(target, "view", role, mfa=mfa)
                truth = rules.truth(node)
                reached[path] = None if truth else CLOSED if truth is False else node
            else:  # the directory's rule is not looked at
                reached[path] = None if role else CLOSED
        return cls(within, reached, _partial_condition(view, operation, role, mfa=mfa))

    @property
    def nodes(self) -> list[rules.Node]:
        """All conditions."""
        behind = [one for one in self.reached.values() if isinstance(one, rules.Node)]
        return [*self.within, *behind, self.own]

    @property
    def text(self) -> object:
        """What two of them are compared by."""
        is_node = [isinstance(one, rules.Node) or one for one in self.reached.values()]
        return [program.serialize(node) for node in self.nodes], is_node


def _gained_and_lost_rows(
    present: ViewDefinition, proposed: ViewDefinition, operation: str, scope: _Scope
) -> tuple[RecordSample, RecordSample]:
    """The rows of a view gained and lost, also by the rules of what it reads."""
    gained, lost = list[Any](), list[Any]()
    for mfa in (False, True) if scope.role else (False,):
        sides = [
            _Conditions.of(view, operation, name, mfa)
            for view, name in zip((present, proposed), scope.role_names, strict=True)
        ]
        is_same = sides[0].text == sides[1].text and present.view == proposed.view
        if is_same and scope.terms[0] == scope.terms[1]:
            continue
        asks = any(rules.depends_on_caller(node) for side in sides for node in side.nodes)
        before, after = (
            _rows_seen(view, side, scope, name, terms, mfa=mfa, by_user=asks)
            for view, side, name, terms in zip(
                (present, proposed), sides, scope.role_names, scope.terms, strict=True
            )
        )
        for found, one, other in ((gained, after, before), (lost, before, after)):
            if one is not None:
                found.append(one if other is None else one.except_(other))
    return _count_rows(gained, scope), _count_rows(lost, scope)


def _rows_seen(
    view: ViewDefinition,
    side: _Conditions,
    scope: _Scope,
    role_name: str | None,
    terms: Terms,
    *,
    mfa: bool,
    by_user: bool,
) -> sa.Select[Any] | None:
    """Account, id and user of the rows that users of a role see; None if there are none.

    Where nothing but the role decides, of each account with such a user, without the user.
    """
    if any(rules.truth(node) is False for node in (*side.within, side.own)):
        return None
    users: Any = User.__table__
    account_id = view.base.table.c.account_id

    def is_caller(account: Any) -> Any:
        role_id = scope.role.id if scope.role else None
        own = (
            users.c.role_id == role_id,
            users.c.is_active,
            users.c.account_id != SYSTEM_ACCOUNT_ID,
        )
        return sa.and_(users.c.account_id == account, *own)

    def callers(account: Any) -> sql.Callers:
        if role_name is None:
            return _Anonymous(account, terms)
        return _Users(role_name, mfa, terms)

    user = (users.c.id, is_caller(account_id)) if by_user and scope.role else None
    bound = bind_for(view, side.within, side.reached, callers(account_id), user)
    table = bound.table.c
    columns = TableColumns(bound, bound.table)
    own = sql.condition(side.own, columns, callers(table.account_id)).expression
    source, conditions = bound.table, [own]
    if user is not None:
        source = source.join(
            users, sa.and_(users.c.account_id == table.account_id, users.c.id == table.user_id)
        )
    elif scope.role:
        conditions.append(sa.exists().where(is_caller(table.account_id)))
    if scope.account_id:
        conditions.append(table.account_id == scope.account_id)
    user_id = sa.literal("") if user is None else table.user_id
    shown = sa.select(table.account_id, table.id, user_id.label("user_id"))
    return shown.select_from(source).where(*conditions)


def _count_rows(queries: Sequence[Any], scope: _Scope) -> RecordSample:
    if not queries:
        return RecordSample()
    seen = sa.union_all(*(sa.select(one.subquery()) for one in queries)).subquery().c
    query = sa.select(seen.account_id, seen.id).distinct()
    if scope.max_count is not None:
        query = query.limit(scope.max_count + 1)
    found = query.subquery().c
    newest_first = sa.select(sa.func.count().over(), found.id, found.account_id)
    rows = db.connection().execute(newest_first.order_by(found.id.desc()).limit(SAMPLE)).all()
    for row in rows:
        shown_accounts.note(row.account_id)
    return RecordSample(rows[0][0] if rows else 0, [row[1] for row in rows])
