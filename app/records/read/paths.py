"""Values behind references, such as `customer.name`, under the rules of what they pass through.

A value is null where a record on the way is none that the caller may view, as if nothing were
referred to: neither order nor groups tell the one from the other. A name that the caller may not
see, or sees masked, is refused as in filters.

One `Paths` is for one statement:

    paths = Paths(access)                       # what the caller may list
    value = paths.value("customer.name")        # raises PathError; "title" is a path, too
    sa.select(value.expression).select_from(paths.source).where(*selection.where)

is executed with `paths.bound` among its parameters, within `tenancy.through_views`, and checks
`paths.version_checks`; `paths.joined` gives a selection all of it. Each record of the collection is
in `source` once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from app import rules
from app.collections import access as accesses
from app.collections import people
from app.collections.access import Access, Reach
from app.collections.columns import TableColumns
from app.collections.definitions import Definition
from app.collections.fields import (
    BooleanField,
    DateField,
    DatetimeField,
    Field,
    NumberField,
    TextField,
)
from app.collections.people import People
from app.db.versioned_cache import VersionCheck
from app.records.store.reads import Selection
from app.rules import sql
from app.rules.elements import CodePoints
from app.rules.parser import FURTHEST
from app.types import JSONMapping

OF_PEOPLE: Mapping[rules.Type, type[Field]] = {
    rules.Type.TEXT: TextField,
    rules.Type.NUMBER: NumberField,
    rules.Type.BOOLEAN: BooleanField,
    rules.Type.DATE: DateField,
    rules.Type.DATETIME: DatetimeField,
}


class PathError(ValueError):
    """Why a path leads to no value for the caller; `code` is that of a problem."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Value:
    """What a path leads to."""

    field: Field
    """The last field, under the name of the whole path; its `like` tells type and JSON form."""
    expression: Any
    access: Access | None
    """The access by which the caller sees the last field; None for a field of people."""
    is_joined: bool
    """Whether it is behind a reference, so that any record may have null."""


class Paths:
    """The paths of one statement, and what it has to read for them."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.source: Any = access.definition.table
        """The collection's table, joined to those that the paths pass through."""
        self.version_checks: set[VersionCheck] = set()
        """Versions of the collections that the paths pass through."""
        self._reach = Reach(access.caller)
        self._columns = self._reach.columns(access.definition)
        self._joined = set[Any]()

    @property
    def bound(self) -> JSONMapping:
        """The parameters of `source` and of the expressions."""
        compiled = sql.compiled(sa.true(), self._reach.parts)
        return compiled.parameters(self.access.subject, account_id=self.access.caller.account_id)

    def joined(self, selection: Selection) -> Selection:
        """The selection with all that the paths need."""
        return replace(
            selection,
            bound={**selection.bound, **self.bound},
            further_checks={*selection.further_checks, *self.version_checks},
            joined=self.source,
        )

    def value(self, path: str) -> Value:
        """What a path leads to. Raises PathError, ScopeDenied."""
        *steps, last = path.split(".")
        if len(steps) > FURTHEST:
            raise PathError(
                "invalid_option", f"{path[:80]} follows more than {FURTHEST} references."
            )
        access, columns = self.access, self._columns
        for place, step in enumerate(steps):
            target = self._target(access, step)
            columns = self._join(columns, step)
            if isinstance(target, People):
                return self._of_person(columns, steps[place + 1 :], last, path)
            access = accesses.for_operation(access.caller, target, "view")
            self.version_checks |= target.version_checks
        field = _seen(access, last).like
        expression = columns.column((last,))
        if steps and last in access.definition.computed:
            # An expression may have a value where there is no record.
            is_there = columns.source.c.id.is_not(sa.null())
            expression = sa.type_coerce(sa.case((is_there, expression)), field.column_type)
            if isinstance(field, TextField):
                expression = CodePoints(expression)
        return Value(replace(field, name=path), expression, access, bool(steps))

    def _target(self, access: Access, step: str) -> Definition | People:
        """What a step leads to. Raises PathError, for a closed collection as for no field."""
        _seen(access, step)
        if step in access.definition.lists:
            message = f"{step} is a list: a name behind it has no single value."
            raise PathError("invalid_option", message)
        target = access.definition.expanded(step)
        if target is None:
            raise PathError("invalid_option", f"{step} is no reference.")
        if isinstance(target, Definition):
            accesses.check_scope(access.caller, target, "view")
            if not accesses.is_open(access.caller, target, "view"):
                raise PathError("invalid_option", f"{step} cannot be followed.")
        return target

    def _join(self, columns: TableColumns, step: str) -> TableColumns:
        target, conditions = columns.followed(step)
        if target.source not in self._joined:
            self._joined.add(target.source)
            self.source = self.source.outerjoin(target.source, sa.and_(*conditions))
        return target

    def _of_person(self, columns: TableColumns, steps: list[str], last: str, path: str) -> Value:
        scope = people.filter_scope(self.access.caller)
        for step in steps:
            scope = scope.follow(step) if scope else None
        kind = scope.fields.get(last) if scope else None
        if kind is None:
            raise PathError("unknown_field", f"There is no field {path[:80]}.")
        if kind not in OF_PEOPLE:
            raise PathError("invalid_option", f"{path[:80]} is a list.")
        expression = columns.column((*steps, last))
        if kind is rules.Type.TEXT:
            expression = CodePoints(expression)
        return Value(OF_PEOPLE[kind](path), expression, None, is_joined=True)


def _seen(access: Access, name: str) -> Field:
    """A field that the caller sees unmasked. Raises PathError."""
    field = access.readable.get(name)
    if field is None:
        # The same words whether the field is hidden from the caller or does not exist.
        raise PathError("unknown_field", f"There is no field {name[:80]}.")
    if name in access.masked:
        raise PathError("invalid_option", accesses.MASKED.format(name))
    return field
