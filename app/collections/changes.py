"""What an update of a collection comes to: operations, statements, and rows that break it.

The plan and the update are made of the same things, so a plan shows what an update does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from app import db
from app.collections import table
from app.collections.definition import Definition
from app.collections.fields import LONGEST_INDEXED, Field
from app.db.types import json_equal
from app.errors import Conflict, InvalidValues, problem
from app.types import JSONMapping, JSONObject

# A clash of values is a conflict (409); the others are values that the schema refuses (400).
CLASH = "not_unique"


@dataclass(frozen=True)
class Change:
    """A collection as it is and as it shall be."""

    old: Definition
    new: Definition

    @cached_property
    def operations(self) -> list[JSONObject]:
        """What changes, field by field."""
        before = {spec["name"]: spec for spec in self.old.schema}
        return [
            operation
            for spec in self.new.schema
            for operation in _operations(before.get(spec["name"]), spec)
        ]

    @cached_property
    def statements(self) -> list[str]:
        """The SQL that the database is changed by."""
        return table.change(self.old.table, self.new.table)

    @property
    def fills(self) -> JSONObject:
        """The defaults that present records are given, by field."""
        old, new = self.old.table.c, self.new.table.c
        return {
            column.name: column.info["default"]
            for column in new
            if column.info.get("default") is not None
            and (column.name not in old or (old[column.name].nullable and not column.nullable))
        }

    @property
    def description(self) -> str:
        """The revision's description."""
        added = [one["field"] for one in self.operations if one["operation"] == "add_field"]
        changed = [one["field"] for one in self.operations if one["operation"] != "add_field"]
        parts = []
        if added:
            parts.append(f"add {', '.join(added)} to")
        if changed:
            parts.append(f"change {', '.join(dict.fromkeys(changed))} of")
        return f"{' and '.join(parts)} collection {self.old.name}"

    def row_problems(self) -> list[JSONObject]:
        """What keeps the present rows from following, each with a count; in one statement."""
        asked = list(self._questions())
        if not asked:
            return []
        counts = [count.scalar_subquery().label(f"count_{i}") for i, (_, count) in enumerate(asked)]
        found = db.connection().execute(sa.select(*counts)).one()
        return [
            found_problem
            | {"message": found_problem["message"].format(count=count), "count": count}
            for (found_problem, _), count in zip(asked, found, strict=True)
            if count
        ]

    def _questions(self) -> Iterator[tuple[JSONObject, sa.Select[Any]]]:
        for name, field in self.new.fields.items():
            before = self.old.fields.get(name)
            if name in self.new.table.c:
                yield from self._questions_of(field, before, self._value(name))

    def _questions_of(
        self, field: Field, before: Field | None, value: Any
    ) -> Iterator[tuple[JSONObject, sa.Select[Any]]]:
        rows, count = self.old.table, sa.func.count()
        if field.required and field.default is None and not (before and before.required):
            message = "{count} records have no value here; a default would fill them."
            empty = sa.select(count).select_from(rows).where(value.is_(None))
            yield problem(field.name, "required", message), empty
        if field.unique and not (before and before.unique and value is rows.c[field.name]):
            message = "{count} values occur more than once in an account."
            yield problem(field.name, CLASH, message), _clashes(rows, value)
        if before and field.indexed and not before.indexed and _is_text(value):
            message = f"{{count}} records have more than the {LONGEST_INDEXED} bytes of an index."
            long = sa.select(count).select_from(rows).where(_bytes(value) > LONGEST_INDEXED)
            yield problem(field.name, "too_long", message), long

    def _value(self, name: str) -> object:
        # What the field will hold in a present row.
        column, before = self.new.table.c[name], self.old.table.c.get(name)
        default = sa.literal(column.info["default"], column.type)
        if before is None:
            return default
        if before.nullable and not column.nullable and column.info["default"] is not None:
            return sa.func.coalesce(before, default)
        return before


def refuse(problems: Sequence[JSONMapping]) -> None:
    """Raise what rows that break a change amount to: InvalidValues, or Conflict for clashes."""
    if not problems:
        return
    if any(one["code"] != CLASH for one in problems):
        raise InvalidValues(problems)
    first = problems[0]
    raise Conflict(f"{first['field']}: {first['message']}", field=first["field"], details=problems)


def _operations(before: JSONMapping | None, after: JSONMapping) -> Iterator[Any]:
    if before is None:
        yield {"operation": "add_field", "field": after["name"], "property": None}
        return
    for key, value in after.items():
        if not json_equal(before.get(key), value):
            yield {
                "operation": "change_field",
                "field": after["name"],
                "property": key,
                "before": before.get(key),
                "after": value,
            }


def _clashes(rows: sa.Table, value: Any) -> sa.Select[Any]:
    held = sa.select(rows.c.account_id, value.label("value")).where(value.is_not(None)).subquery()
    grouped = sa.select(held.c.account_id).group_by(held.c.account_id, held.c.value)
    several = grouped.having(sa.func.count() > 1).subquery()
    return sa.select(sa.func.count()).select_from(several)


def _is_text(value: Any) -> bool:
    return isinstance(value.type, sa.Text)


def _bytes(value: object) -> Any:
    if db.connection().dialect.name == "postgresql":
        return sa.func.octet_length(value)
    return sa.func.length(sa.cast(value, sa.LargeBinary))
