"""Changes of a collection: operations, statements, and rows that conflict with them.

Plan and update use the same code, so a plan shows exactly what an update does.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson
import sqlalchemy as sa

from app import db
from app.collections import definitions, renaming, table, trash
from app.collections.definitions import Definition, ViewDefinition
from app.collections.fields import SYSTEM_FIELDS, Field, removed_choices
from app.db.types import json_equal
from app.errors import Conflict, InvalidValues, problem
from app.rules import Type
from app.rules.elements import ListContains
from app.types import JSONMapping, JSONObject, cached_property

DUPLICATE, IN_USE = "not_unique", "in_use"
CONFLICTS = {DUPLICATE, IN_USE}  # 409; other codes are invalid values (400)


class Operation(StrEnum):
    """The kinds of steps that a change of a collection consists of."""

    RENAME_COLLECTION = "rename_collection"
    RENAME_FIELD = "rename_field"
    REMOVE_FIELD = "remove_field"
    ADD_FIELD = "add_field"
    CHANGE_FIELD = "change_field"
    REORDER_FIELDS = "reorder_fields"
    ADD_INDEX = "add_index"
    REMOVE_INDEX = "remove_index"
    CHANGE_REFERENCE = "change_reference"
    CHANGE_RULE = "change_rule"
    CHANGE_VIEW = "change_view"
    DISCARD_TRASH = "discard_trash"


PLANNED_OPERATIONS = tuple(one.value for one in Operation)


@dataclass(frozen=True)
class Proposal:
    """A change of a collection that a caller asks for; None keeps what there is."""

    specs: Sequence[JSONMapping] | None = None
    indexes: Sequence[JSONMapping] | None = None
    removed: Sequence[str] = ()
    partial: bool = False
    """Whether `specs` are changes only."""
    name: str | None = None
    order: Sequence[str] = ()
    """The first fields, by their new names; the others follow as they stand."""
    keeps_omitted: bool = False
    """Whether fields that `specs` leave out stay, with a warning, rather than being a problem."""
    plan_hash: str | None = None
    """The plan that is to be carried out; required where fields are removed."""
    expected_version: str | None = None
    """The version of the collection that the caller saw."""
    options: JSONMapping = field(default_factory=dict)
    """The options that change; null removes one."""

    def renames(self, name: str) -> bool:
        """Whether a collection of this name gets another one; case does not matter."""
        return self.name is not None and self.name.lower() != name.lower()


def merged(present: JSONMapping, options: JSONMapping) -> JSONObject:
    """The options of a collection with changed ones; null removes one."""
    return {name: one for name, one in {**present, **options}.items() if one is not None}


KEPT = "The schema leaves out {}, which stays as it is. Name it in remove_fields to remove it."


@dataclass(frozen=True)
class Change:
    """The old and the new definition of a collection; names change before anything else."""

    old: Definition
    new: Definition
    renames: Mapping[str, str] = field(default_factory=dict)
    """The new name of each renamed field."""
    is_partial: bool = False
    omitted: Sequence[str] = ()
    """The fields that the proposed schema leaves out, and which stay."""
    views: Sequence[tuple[ViewDefinition, ViewDefinition]] = ()
    """The views that follow, before and after."""

    @property
    def warnings(self) -> list[str]:
        """The fields left out; of a partial schema, which lists changes, only if it has none."""
        if self.is_partial and self.operations:
            return []
        return [KEPT.format(name) for name in self.omitted]

    @cached_property
    def renamed(self) -> Definition:
        """The old definition with the new names."""
        return renaming.renamed(self.old, self.renames, self.new.name)

    @cached_property
    def elsewhere(self) -> Sequence[tuple[Definition, Definition]]:
        """Other collections that follow the new names, before and after."""
        return renaming.elsewhere(self.old, self.renames, self.new.name)

    @property
    def former_name(self) -> str | None:
        """The name of the collection that ends; None if it stays."""
        return self.old.name if self.new.name != self.old.name else None

    @cached_property
    def operations(self) -> list[JSONObject]:
        """The changes by field, then those of the indexes."""
        before = {spec["name"]: spec for spec in self.renamed.schema}
        of_fields = [
            operation
            for spec in self.new.schema
            for operation in _operations(before.get(spec["name"]), spec)
        ]
        removed = [
            {"operation": Operation.REMOVE_FIELD, "field": name, "property": None}
            for name in self.removed
        ]
        old_indexes, new_indexes = self.renamed.indexes, self.new.indexes
        of_indexes = [
            {"operation": operation, "field": None, "property": None, "index": spec}
            for operation, specs, others in (
                (Operation.REMOVE_INDEX, old_indexes, new_indexes),
                (Operation.ADD_INDEX, new_indexes, old_indexes),
            )
            for spec in specs
            if spec not in others
        ]
        others = [*removed, *of_fields, *self._order_operations(), *of_indexes]
        if self.discards_trash:
            others.append(
                {"operation": Operation.DISCARD_TRASH, "field": None, "property": "trash"}
            )
        return [*self._renaming_operations(), *others, *self._view_operations()]

    def _order_operations(self) -> Iterator[JSONObject]:
        old, new = self.renamed.declared, self.new.declared
        before = [name for name in old if name in new] + self.added
        if before != [*new]:
            order = {"property": "order", "before": before, "after": [*new]}
            yield {"operation": Operation.REORDER_FIELDS, "field": None, **order}

    def _renaming_operations(self) -> Iterator[JSONObject]:
        if self.former_name:
            names = {"property": "name", "before": self.former_name, "after": self.new.name}
            yield {"operation": Operation.RENAME_COLLECTION, "field": None, **names}
        for former, name in self.renames.items():
            names = {"property": "name", "before": former, "after": name}
            yield {"operation": Operation.RENAME_FIELD, "field": name, **names}
        for old, new in [(self.old, self.renamed), *self.elsewhere]:
            for before, after in zip(old.schema, new.schema, strict=True):
                if after["collection"] != before["collection"]:
                    place = f"{new.name}.{after['name']}"
                    targets = {"before": before["collection"], "after": after["collection"]}
                    named = {"field": place, "property": "collection", **targets}
                    yield {"operation": Operation.CHANGE_REFERENCE, **named}
            for key, value in new.rules.items():
                if value != old.rules[key]:
                    values = {"property": key, "before": old.rules[key], "after": value}
                    yield {"operation": Operation.CHANGE_RULE, "field": new.name, **values}

    def _view_operations(self) -> Iterator[JSONObject]:
        for old, new in self.views:
            before, after = {**old.view, **old.rules}, {**new.view, **new.rules}
            changed = [key for key, value in after.items() if value != before[key]]
            for key in changed or ["schema"]:
                values = {"before": before[key], "after": after[key]} if changed else {}
                named = {"field": new.name, "property": key, **values}
                yield {"operation": Operation.CHANGE_VIEW, **named}

    @cached_property
    def removed(self) -> list[str]:
        """The names of the fields that go."""
        return [name for name in self.renamed.declared if name not in self.new.declared]

    @property
    def added(self) -> list[str]:
        """The names of the new fields."""
        return [name for name in self.new.declared if name not in self.renamed.declared]

    @property
    def lost(self) -> frozenset[str]:
        """The stored fields that go with their values."""
        return frozenset(self.removed) & self.old.fields.keys()

    @property
    def discards_trash(self) -> bool:
        """Whether the trash goes, with what is in it."""
        return self.old.trash_days is not None and self.new.trash_days is None

    @property
    def ended_names(self) -> dict[str, str | None]:
        """The new name of each stored field that loses its own; None for removed ones."""
        renamed = {name: new for name, new in self.renames.items() if name in self.old.fields}
        return {**renamed, **dict.fromkeys(sorted(self.lost))}

    @property
    def plan_hash(self) -> str:
        """The version of the old definition, and a digest of this change and what it rests on."""
        new, followed = self.new, [(one.id, one.schema, one.rules) for _, one in self.elsewhere]
        followed += [(one.id, (one.view, *one.schema), one.rules) for _, one in self.views]
        own = (new.id, new.name, new.schema, new.indexes, new.rules)
        parts = (*own, self.renames, followed, *([self.new.options] * self.discards_trash))
        text = orjson.dumps((*parts, self.statements), option=orjson.OPT_SORT_KEYS)
        return f"{self.old.version}-{hashlib.sha256(text).hexdigest()}"

    @property
    def reverse(self) -> JSONObject:
        """The body of an update that undoes this change; removed values stay lost."""
        specs = [self._restored(spec) for spec in self.old.schema]
        body: JSONObject = {"schema": specs} if specs else {}
        body["indexes"] = [dict(spec) for spec in self.old.indexes]
        if self.former_name:
            body["name"] = self.former_name
        former = self.old.options.get("trash")
        if former != self.new.options.get("trash"):
            body["options"] = {"trash": former}
        if any(self._order_operations()):
            body["field_order"] = [*self.old.declared]
        return {**body, "remove_fields": self.added} if self.added else body

    def _restored(self, spec: JSONMapping) -> JSONObject:
        if spec["name"] in self.renames:
            return {**spec, "rename_from": self.renames[spec["name"]]}
        default = None if definitions.default_expression(spec) else spec["default"]
        is_empty = spec["name"] in self.lost and (spec["unique"] or default is None)
        return {**spec, **({"required": False, "default": None} if is_empty else {})}

    def lost_values(self) -> list[JSONObject]:
        """The fields that go with their values, each with the number of records that have one.

        And the number of records in the trash, under no field, if that goes.
        """
        names = sorted(self.lost)
        thrown_away = trash.number(self.old.id) if self.discards_trash else 0
        of_trash: list[JSONObject] = [{"field": None, "count": thrown_away}] * bool(thrown_away)
        if not names:
            return of_trash
        counts = sa.select(*(sa.func.count(self.old.table.c[name]) for name in names))
        row = db.connection().execute(counts.select_from(self.old.table)).one()
        lost = zip(names, row, strict=True)
        return [*({"field": name, "count": count} for name, count in lost), *of_trash]

    @cached_property
    def renaming_statements(self) -> list[str]:
        """The DDL that renames the table and columns, with their indexes and references."""
        pairs = zip(self.old.all_indexes, self.renamed.all_indexes, strict=True)
        return table.renaming(self.old.table, self.renamed.table, self.renames, pairs)

    @cached_property
    def further_statements(self) -> list[str]:
        """The DDL of the rest."""
        return table.change(self.renamed.table, self.new.table)

    @property
    def statements(self) -> list[str]:
        return [*self.renaming_statements, *self.further_statements]

    @property
    def new_indexes(self) -> list[str]:
        """The statements, of `statements`, that create indexes of present columns."""
        statements = table.new_indexes(self.renamed.table, self.new.table)
        # Before, the table and its columns have their old names.
        return [] if self.renames or self.former_name else statements

    @property
    def fills(self) -> JSONObject:
        """The defaults that existing records get, by field."""
        old, new = self.renamed.table.c, self.new.table.c
        return {
            column.name: column.info["default"]
            for column in new
            if column.info.get("default") is not None
            and (column.name not in old or (old[column.name].nullable and not column.nullable))
        }

    @property
    def removes_choices(self) -> bool:
        """Whether a `select` or `multi_select` loses choices."""
        fields = self.new.fields.items()
        return any(removed_choices(self.renamed.fields.get(name), field) for name, field in fields)

    @property
    def ended_choices(self) -> dict[str, list[str]]:
        """The choices that each field loses, by its present name."""
        former = {new: old for old, new in self.renames.items()}
        fields = self.new.fields.items()
        lost = {
            former.get(name, name): removed_choices(self.renamed.fields.get(name), field)
            for name, field in fields
        }
        return {name: choices for name, choices in lost.items() if choices}

    @property
    def description(self) -> str:
        """The revision's description."""
        changed = [
            operation["field"] or "indexes"
            for operation in self.operations
            if operation["operation"]
            in (Operation.CHANGE_FIELD, Operation.ADD_INDEX, Operation.REMOVE_INDEX)
        ]
        parts = []
        if self.renames:
            names = ", ".join(f"{former} to {name}" for former, name in self.renames.items())
            parts.append(f"rename {names} in")
        if self.removed:
            parts.append(f"remove {', '.join(self.removed)} from")
        if self.added:
            parts.append(f"add {', '.join(self.added)} to")
        if changed:
            parts.append(f"change {', '.join(dict.fromkeys(changed))} of")
        described = [f"{' and '.join(parts)} collection {self.new.name}"] if parts else []
        if self.former_name:
            described.insert(0, f"rename collection {self.former_name} to {self.new.name}")
        return "; ".join(described)

    def row_problems(self, built: Collection[str] = ()) -> list[JSONObject]:
        """The problems of existing rows, each with a count; in one statement.

        Unique indexes that the `built` statements created have no duplicates.
        """
        order = list(self.new.columns)
        checks = list[tuple[JSONObject, sa.Select[Any]]]()
        for name, new in self.new.fields.items():
            if name in self.new.table.c:
                old = self.renamed.fields.get(name)
                checks += self._field_checks(new, old, self._value(name))
        checks += self._duplicates(built)
        checks.sort(key=lambda check: order.index(check[0]["field"]))
        if not checks:
            return []
        counts = [
            count.scalar_subquery().label(f"count_{i}") for i, (_, count) in enumerate(checks)
        ]
        counts_by_check = db.connection().execute(sa.select(*counts)).one()
        return [
            problem_ | {"message": problem_["message"].format(count=count), "count": count}
            for (problem_, _), count in zip(checks, counts_by_check, strict=True)
            if count
        ]

    def _field_checks(
        self, field: Field, old: Field | None, value: Any
    ) -> Iterator[tuple[JSONObject, sa.Select[Any]]]:
        """Yield problems of a changed field, each with the count of the rows that have it."""
        table_, count = self.old.table, sa.func.count()
        if field.required and field.default is None and not (old and old.required):
            message = "{count} records have no value. Set a default to fill them."
            if field.default_expression:
                message = "{count} records have no value. An expression fills new ones only."
            empty = sa.select(count).select_from(table_).where(value.is_(None))
            yield problem(field.name, "required", message), empty
        if old and field.max_bytes and field.max_bytes < (old.max_bytes or math.inf):
            message = f"{{count}} records have more than the {field.max_bytes} bytes of an index."
            long = sa.select(count).select_from(table_).where(_bytes(value) > field.max_bytes)
            yield problem(field.name, "too_long", message), long
        if removed := removed_choices(old, field):
            message = "{count} records use choices that would be removed."
            using = sa.select(count).select_from(table_).where(_uses(field, value, removed))
            yield problem(field.name, IN_USE, message), using

    def _duplicates(self, built: Collection[str]) -> Iterator[tuple[JSONObject, sa.Select[Any]]]:
        table_ = self.old.table
        unique = {*self.renamed.unique_keys, *table.unique_keys(self.new.table, built)}
        for names in self.new.unique_keys:
            values = [self._value(name) for name in names]
            are_kept = all(v is self._column(n) for n, v in zip(names, values, strict=True))
            if names in unique and are_kept:
                continue
            what = "values" if len(names) == 1 else f"combinations of {', '.join(names)}"
            message = f"{{count}} {what} occur more than once in an account."
            query = _duplicates(table_, values)
            yield from ((problem(name, DUPLICATE, message), query) for name in names)

    def _value(self, name: str) -> Any:
        """Return the value that an existing row has in a field after the change."""
        column, old = self.new.table.c[name], self._column(name)
        if name in SYSTEM_FIELDS:
            return old
        default = sa.literal(column.info["default"], column.type)
        if old is None:
            return default
        if old.nullable and not column.nullable and column.info["default"] is not None:
            return sa.func.coalesce(old, default)
        return old

    def _column(self, name: str) -> Any:
        """Return the present column of a field of the new definition; None for a new field."""
        former = {new: old for old, new in self.renames.items()}
        return self.old.table.c.get(former.get(name, name))


def refuse(problems: Sequence[JSONMapping]) -> None:
    """Raise InvalidValues for problems of rows, or Conflict if all are conflicts."""
    if not problems:
        return
    if any(problem_["code"] not in CONFLICTS for problem_ in problems):
        raise InvalidValues(problems)
    first = problems[0]
    raise Conflict(f"{first['field']}: {first['message']}", field=first["field"], details=problems)


def _operations(old: JSONMapping | None, new: JSONMapping) -> Iterator[Any]:
    if old is None:
        yield {"operation": Operation.ADD_FIELD, "field": new["name"], "property": None}
        return
    for key, value in new.items():
        if not json_equal(old.get(key), value):
            yield {
                "operation": Operation.CHANGE_FIELD,
                "field": new["name"],
                "property": key,
                "before": old.get(key),
                "after": value,
            }


def _duplicates(rows: sa.Table, values: Sequence[Any]) -> sa.Select[Any]:
    labels = [value.label(f"value_{n}") for n, value in enumerate(values)]
    present = (value.is_not(None) for value in values)
    keys = sa.select(rows.c.account_id, *labels).where(*present).subquery()
    grouped = sa.select(keys.c.account_id).group_by(*keys.c)
    duplicates = grouped.having(sa.func.count() > 1).subquery()
    return sa.select(sa.func.count()).select_from(duplicates)


def _uses(field: Field, value: Any, choices: Sequence[str]) -> Any:
    if field.rule_type is not Type.LIST:
        return value.in_(choices)
    return sa.or_(*(ListContains(value, sa.literal(choice)) for choice in choices))


def _bytes(value: object) -> Any:
    if db.connection().dialect.name == "postgresql":
        return sa.func.octet_length(value)
    return sa.func.length(sa.cast(value, sa.LargeBinary))
