"""Resolves names of expressions to SQL columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.sql.elements import False_

from app import clock, db
from app.collections.fields import RETURN_TYPES, Exact, FileField, JsonText
from app.collections.models import RecordLink
from app.db.types import Text, UtcDateTime
from app.rules import Name, Node, Type, attributes, depth, sql, walk
from app.rules.elements import CodePoints, Expression, Parameter, Property
from app.rules.nodes import OF_USER, Comparison, Inner, Old, Some, Subquery, list_of
from app.types import JSONMapping

Reach = Callable[[Any, Any], Iterable[Any]]
"""Returns conditions on referenced records, given their definition and table."""


EVERYWHERE: Reach = lambda definition, source: ()  # noqa: E731


class Named(Protocol):
    """The part of a collection definition that names are resolved with."""

    @property
    def id(self) -> str:
        """The id of the collection."""
        ...

    @property
    def is_trash(self) -> bool:
        """Whether its records are deleted ones, whose lists have no entries of their own."""
        ...

    @property
    def table(self) -> Any:
        """The table that holds the records."""
        ...

    @property
    def columns(self) -> JSONMapping:
        """Every field by name."""
        ...

    @property
    def computed(self) -> Mapping[str, Node]:
        """The expression of each computed field."""
        ...

    @property
    def files(self) -> Mapping[str, FileField | UserAttributes]:
        """The fields that hold files, or attributes, whose properties are names, too."""
        ...

    def followed(self, name: str) -> Any:
        """What a field refers to, which is Named; None for other fields."""
        ...

    def expanded(self, name: str) -> Any:
        """The same, also of system fields that name people."""
        ...

    def related(self, name: str) -> Named:
        """A collection that a rule looks at."""
        ...

    def list_key(self, name: str) -> tuple[str, str]:
        """The ids by which the entries of a list are stored: collection and field."""
        ...


def _property(columns: TableColumns, field: str, name: str) -> Expression:
    owner, column = columns.definition.files[field], columns.source.c[field]
    kind = owner.properties[name]
    if isinstance(owner, UserAttributes):
        value: Expression = attribute_value(column, name, kind)
        return value
    return Property(column, name, is_number=kind is Type.NUMBER)


class UserAttributes:
    """The attributes of users, as names beneath `attributes`."""

    @property
    def properties(self) -> Mapping[str, Type]:
        """The types of the attributes by name."""
        return attributes.types_of(OF_USER)


def attribute_value(column: Any, name: str, kind: Type) -> Any:
    """A value of a JSON column of attributes as expressions read it."""
    value: Any = column[name]
    if kind is Type.NUMBER:
        return value.as_float()
    if kind is Type.BOOLEAN:
        return value.as_boolean()
    if kind is Type.LIST:
        return sa.type_coerce(sa.cast(value, sa.Text), JsonText())
    text = value.as_string()
    if kind not in (Type.DATE, Type.DATETIME):
        return text
    stored = sa.Date() if kind is Type.DATE else UtcDateTime()
    return sa.type_coerce(text, stored) if db.has_one_writer() else sa.cast(text, stored)


class TableColumns:
    """Resolves the names of expressions to SQL columns; references stay in the account.

    `reach` narrows the records that references lead to, by conditions on their table, `listed`
    those that `@any` looks at. `account` is the account of all records, if it is one.
    """

    types: Mapping[Type, object] = {
        Type.TEXT: Text,
        Type.NUMBER: RETURN_TYPES["number"].column_type,
        Type.DECIMAL: Exact(),
        Type.BOOLEAN: sa.Boolean(),
        Type.DATETIME: UtcDateTime(),
        Type.DATE: sa.Date(),
        Type.JSON: sa.Text(),
        Type.LIST: JsonText(),
        Type.NULL: sa.types.NULLTYPE,
    }

    def __init__(
        self,
        definition: Named,
        source: Any,
        reach: Reach = EVERYWHERE,
        listed: Reach = EVERYWHERE,
        account: Any = None,
    ) -> None:
        self.definition, self.source, self.reach = definition, source, reach
        self.listed, self.account = listed, account
        self.before: TableColumns | None = None
        self._led_to: dict[str, tuple[TableColumns, list[sa.ColumnElement[bool]]]] = {}

    @property
    def old(self) -> TableColumns:
        """The columns of the record before a change."""
        return self.before or self

    def now(self) -> Expression:
        """The moment at which the statement is sent."""
        return sa.bindparam("_now", callable_=clock.now, type_=UtcDateTime())

    def column(self, path: tuple[str, ...]) -> Expression:
        """A field of the record, or of one that references lead to."""
        *steps, name = path
        if not steps:
            return self._own(name)
        conditions: list[sa.ColumnElement[bool]] = []
        columns = self
        for step in steps:
            if step in columns.definition.files:
                value: Expression = _property(columns, step, name)
                if columns is self:
                    return value
                break
            columns, join_conditions = columns.followed(step)
            conditions += join_conditions
        else:
            value = columns._own(name)
        query = sa.select(value).where(*conditions).correlate(self.source)
        return query.scalar_subquery()

    def related(self, collection: str) -> sql.Related:
        """The records of another collection in the account of this one's record."""
        target = self.definition.related(collection)
        source = target.table.alias()
        listed = self.listed(target, source)
        columns = TableColumns(target, source, self.reach, self.listed, self.account)
        conditions = [source.c.account_id == self.source.c.account_id, *listed]
        if self.account is None:
            return sql.Related(columns, source, conditions)
        within, own = (one.c.account_id == self.account for one in (self.source, source))
        return sql.Related(columns, source, conditions, (within, [own, *listed]))

    def entries(self, node: Some) -> ListEntries:
        """The entries of the list that a condition is about."""
        *steps, name = node.path
        columns, entries = self, ListEntries(self, node)
        for step in steps:
            columns, join_conditions = columns.followed(step)
            entries.conditions += join_conditions
            entries.sources.append(columns.source)
        entries.read(columns, name)
        return entries

    def _own(self, name: str) -> Expression:
        if name in self.definition.computed:
            return self._computed(name)
        column_: Expression = self.source.c[name]
        return column_

    def _computed(self, name: str) -> Expression:
        node, field = self.definition.computed[name], self.definition.columns[name]
        expression = sql.value(node, self, depth.INNER).expression
        if not any(isinstance(part, Name) for part in walk(node)):
            # PostgreSQL takes a constant that it sorts or groups by for the number of a column.
            return Parameter(expression, type_=field.like.column_type)
        return CodePoints(expression) if field.return_type == "text" else expression

    def followed(self, name: str) -> tuple[TableColumns, list[sa.ColumnElement[bool]]]:
        """The columns of what a field refers to, and the conditions that join it, at most once."""
        # Names that lead the same way do so by the same alias, each in a subquery of its own: the
        # toolkit copies all columns of a table for an alias.
        if name not in self._led_to:
            self._led_to[name] = self._follow(name)
        return self._led_to[name]

    def _follow(self, name: str) -> tuple[TableColumns, list[sa.ColumnElement[bool]]]:
        target = self.definition.expanded(name)
        if target is None:
            raise LookupError(name)  # not before the check of the expression let it through
        source = target.table.alias()
        conditions = [
            source.c.account_id == self.source.c.account_id,
            source.c.id == self.source.c[name],
            *self.reach(target, source),
        ]
        columns = TableColumns(target, source, self.reach, self.listed, self.account)
        return columns, conditions


class ListEntries:
    """Resolves names of the entries of a list; `outer` resolves all others."""

    types = TableColumns.types

    def __init__(self, outer: TableColumns, node: Some) -> None:
        self.outer, self.path, self.node = outer, node.path, node
        links: Any = RecordLink.__table__
        self.link = links.alias()
        self.entry: Any = self.link.c.target_id
        self.sources: list[Any] = [self.link]
        self.of_field: list[sa.ColumnElement[bool]] = []
        self.conditions: list[sa.ColumnElement[bool]] = []
        self.target: TableColumns | None = None
        self.around: ListEntries | None = None
        """The entries of a condition that this one is part of."""

    def read(self, owner: TableColumns, name: str) -> None:
        """Take the entries from a list of what `owner` reads."""
        link, source = self.link, owner.source
        if owner.definition.is_trash:
            elements = _elements(source.c[name])
            self.sources, self.entry = [elements], elements.c.value
            return
        collection_id, field = owner.definition.list_key(name)
        self.of_field = [link.c.collection_id == collection_id, link.c.field == field]
        here = [link.c.account_id == source.c.account_id, link.c.record_id == source.c.id]
        self.conditions += [*here, *self.of_field]
        target = owner.definition.followed(name)
        if self.node.follows and target is not None:
            table = target.table.alias()
            self.target = TableColumns(target, table, owner.reach, owner.listed, owner.account)
            self.sources.append(table)
            self.conditions += [
                table.c.account_id == link.c.account_id,
                table.c.id == link.c.target_id,
                *owner.reach(target, table),
            ]

    @property
    def old(self) -> TableColumns:
        """The columns of the record before a change."""
        return self.outer.old

    def related(self, collection: str) -> sql.Related:
        """The records of another collection in the account of the one with the list."""
        return self.outer.related(collection)

    def now(self) -> Expression:
        """The moment at which the statement is sent."""
        return self.outer.now()

    def column(self, path: tuple[str, ...]) -> Expression:
        """A field of an entry, or of a record outside."""
        if path[: len(self.path)] != self.path:
            return (self.around or self.outer).column(path)
        rest = path[len(self.path) :]
        if not rest:
            found: Expression = self.entry
            return found
        if self.target is None:
            raise LookupError(".".join(path))
        return self.target.column(rest)

    def entries(self, node: Some) -> ListEntries:
        """The entries of another list, within a condition about this one."""
        inner = self.outer.entries(node)
        inner.around = self
        return inner

    def exists(self, condition: Expression) -> Expression:
        """Whether there is an entry that meets a condition."""
        if isinstance(condition, False_):  # it would leave no condition that joins the tables
            return condition
        link, source = self.link, self.outer.source
        if (
            self.of_field
            and len(self.path) == 1
            and _is_found_by_id(self.node)
            and db.has_one_writer()
        ):
            # By the index of the target: SQLite would look at the entries of each record.
            key = sa.tuple_(source.c.account_id, source.c.id)
            query = sa.select(link.c.account_id, link.c.record_id).where(*self.of_field, condition)
            return key.in_(query)
        query = sa.select(sa.literal(1)).select_from(self.sources[0])
        query = query.where(*self.conditions, condition)
        return query.correlate_except(*self.sources).exists()


def _elements(column: Any) -> Any:
    """The entries of a list, of its JSON."""
    if db.has_one_writer():
        listed = sa.func.json_each(column)
    else:
        listed = sa.func.json_array_elements_text(sa.cast(column, sa.JSON))
    return listed.table_valued(sa.column("value", Text))


def _is_found_by_id(node: Some) -> bool:
    """Whether it is about entries with one id, that no other field of the record gives."""
    condition = node.condition
    if node.follows or not isinstance(condition, Comparison) or condition.operator != "=":
        return False
    names = [part for part in walk(condition) if isinstance(part, Name | Inner | Old | Subquery)]
    return len(names) == 1 and list_of(names[0]) == (node.depth, node.path)
