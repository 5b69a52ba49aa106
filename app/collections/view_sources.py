"""What a view reads in place of a table, for callers of whom the same rules are left.

It is a subquery of the records of `from` that the caller may list. References are followed by outer
joins, to records that the caller may view: where there is none, columns are null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import quoted_name
from sqlalchemy.sql.functions import FunctionElement

from app import rules
from app.collections import aggregates
from app.collections.columns import TableColumns
from app.collections.definitions import Definition, ViewColumn, ViewDefinition
from app.collections.fields import Exact, Field, Number, TextField
from app.db.types import Id, Text, UtcDateTime
from app.db.versioned_cache import Stale, VersionCheck
from app.rules import sql
from app.rules.elements import CodePoints
from app.types import cached_property

Path = tuple[str, ...]
CLOSED = "closed"
"""Stands for the condition of records that the caller may not view at all."""


class GroupId(FunctionElement[str]):
    """An id made of what the records of a group have in common."""

    type = Id
    inherit_cache = True
    name = "atrium_group_id"


@compiles(GroupId)
def _group_id(element: GroupId, compiler: SQLCompiler, **options: object) -> str:
    return f"atrium_group_id({compiler.process(element.clauses, **options)})"


@compiles(GroupId, "postgresql")
def _postgres_group_id(element: GroupId, compiler: SQLCompiler, **options: object) -> str:
    values = compiler.process(element.clauses, **options)
    return f"md5(jsonb_build_array({values})::text)::uuid::text"


class Canonical(FunctionElement[str]):
    """A value as a text that is the same on both databases, so that ids of groups are, too."""

    type = Text
    inherit_cache = True
    name = "atrium_canonical"


@compiles(Canonical)
def _canonical(element: Canonical, compiler: SQLCompiler, **options: object) -> str:
    [value] = element.clauses
    text = compiler.process(value, **options)
    if isinstance(value.type, (Exact, Number)):
        function = "decimal_plain" if isinstance(value.type, Exact) else "plain"
        return f"atrium_{function}({text})"
    return f"CAST({text} AS TEXT)"


@compiles(Canonical, "postgresql")
def _postgres_canonical(element: Canonical, compiler: SQLCompiler, **options: object) -> str:
    [value] = element.clauses
    text = compiler.process(value, **options)
    match value.type:
        case Exact() | Number():
            text = f"trim_scale({text})"
        case sa.Boolean():
            text = f"({text})::int"
        case sa.Date():
            return f"to_char({text}, 'YYYY-MM-DD')"
        case UtcDateTime():
            form = """'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'"""
            return f"to_char({text} AT TIME ZONE 'UTC', {form})"
    return f"({text})::text"


@dataclass(frozen=True, eq=False)
class BoundView(ViewDefinition):
    """A view with what it reads for some callers."""

    source: Any = None
    origin: ViewDefinition = field(default=None)  # type: ignore[assignment]
    conditions_within: Sequence[sql.Compiled] = ()
    """The conditions within `source`, which ask for parameters."""

    @cached_property
    def table(self) -> Any:
        """The subquery."""
        return self.source

    @cached_property
    def version_checks(self) -> frozenset[VersionCheck]:
        """Those of the view."""
        return self.origin.version_checks

    @cached_property
    def conditions(self) -> Mapping[str, rules.Node | None]:
        """Those of the view."""
        return self.origin.conditions

    @cached_property
    def base(self) -> Definition:
        """That of the view."""
        return self.origin.base

    @cached_property
    def declared(self) -> Any:
        """Those of the view."""
        return self.origin.declared

    def list_key(self, name: str) -> tuple[str, str]:
        """The entries are those of the records that it reads."""
        return self.base.id, name


def bind(
    view: ViewDefinition,
    anywhere: bool,
    condition: rules.Node | None,
    narrowed: rules.Node | None,
    reached: Sequence[tuple[Path, Any]],
) -> BoundView:
    """The view over the records that meet the rule of what it reads, and its own `where`.

    `reached` has the condition on the records that each path leads to, None without one, or CLOSED.
    `anywhere` stands for the records of all accounts. Raises Stale if what it reads has changed.
    """
    conditions = [node for node in (condition, narrowed) if node is not None]
    try:
        return _Source(view, anywhere, conditions, dict(reached)).bound()
    except LookupError:
        raise Stale from None


def bind_for(
    view: ViewDefinition,
    conditions: Sequence[rules.Node],
    reached: Mapping[Path, Any],
    callers: sql.Callers,
    user: tuple[Any, Any] | None,
) -> BoundView:
    """The view in all accounts, over records for which conditions on callers hold.

    `user` is the id of a caller, and what says which users are callers of an account: the table
    then has the rows of each, with a column `user_id`.
    """
    return _Source(view, True, conditions, reached, callers, user).bound()


class _Source:
    def __init__(
        self,
        view: ViewDefinition,
        anywhere: bool,
        conditions: Sequence[rules.Node],
        reached: Mapping[Path, Any],
        callers: sql.Callers | None = None,
        user: tuple[Any, Any] | None = None,
    ) -> None:
        self.view, self.anywhere, self.reached = view, anywhere, reached
        self.callers, self.user = callers, user
        base = view.base
        self.account = None if anywhere else sql.ACCOUNT
        self.compiled: list[sql.Compiled] = []
        own = TableColumns(base, base.table, account=self.account)
        self.columns: dict[Path, TableColumns] = {(): own}
        self.joined: Any = base.table if user is None else base.table.join(user[0].table, user[1])
        self.conditions = [] if anywhere else [base.table.c.account_id == sql.ACCOUNT]
        self.conditions += [self._condition(node, own) for node in conditions]

    def _condition(self, node: rules.Node, columns: TableColumns) -> Any:
        compiled = sql.condition(node, columns, self.callers)
        self.compiled.append(compiled)
        return compiled.expression

    def bound(self) -> BoundView:
        """The view with its subquery."""
        view, base = self.view, self.view.base
        columns = [self._labelled(one) for one in view.read_columns]
        users = [] if self.user is None else [self.user[0].label("user_id")]
        if view.is_grouped:
            keys = [self._value(one) for one in view.read_columns if one.function is None]
            account = base.table.c.account_id
            own = [GroupId(*map(Canonical, keys)).label("id"), account]
            query = sa.select(*own, *users, *columns).group_by(account, *users, *keys)
        else:
            query = sa.select(*(base.table.c[name] for name in view.system), *users, *columns)
        source = query.select_from(self.joined).where(*self.conditions).subquery("viewed")
        values: Any = {one.name: getattr(view, one.name) for one in fields(ViewDefinition)}
        further: Any = {"source": source, "origin": view, "conditions_within": tuple(self.compiled)}
        return BoundView(**values, **further)

    def _labelled(self, column: ViewColumn) -> Any:
        value = self._value(column)
        if isinstance(value, sa.Column) and value.name == column.name and not column.function:
            return value  # which the database knows whether it may be null
        return value.label(quoted_name(column.name, True))

    def _value(self, column: ViewColumn) -> Any:
        if not column.path:
            return sa.func.count()
        *steps, name = column.path
        owner = self._owner(tuple(steps))
        field_ = self.view.declared[column.name]
        if owner is None:
            return sa.cast(sa.null(), field_.column_type)
        value = owner.column((name,))
        if steps and name in owner.definition.computed:
            # An expression may have a value where there is no record.
            is_there = owner.source.c.id.is_not(sa.null())
            like: Field = owner.definition.columns[name].like
            value = sa.type_coerce(sa.case((is_there, value)), like.column_type)
            value = CodePoints(value) if isinstance(like, TextField) else value
        if not column.function:
            return value
        read = owner.definition.columns[name]
        like = read.like if isinstance(read, Field) else field_
        return aggregates.expression(column.function, like, value)

    def _owner(self, path: Path) -> TableColumns | None:
        """The columns of the records that a path leads to; None if the caller may view none."""
        if path in self.columns:
            return self.columns[path]
        outer = self._owner(path[:-1])
        condition = self.reached[path]
        if outer is None or condition == CLOSED:
            return None
        target = self.view.targets[path]
        source = target.table.alias()
        columns = TableColumns(target, source, account=self.account)
        on = [
            source.c.account_id == outer.source.c.account_id,
            source.c.id == outer.source.c[path[-1]],
        ]
        if not self.anywhere:
            on.insert(0, source.c.account_id == sql.ACCOUNT)
        if condition is not None:
            on.append(self._condition(condition, columns))
        self.joined = self.joined.outerjoin(source, sa.and_(*on))
        self.columns[path] = columns
        return columns
