"""The trash of collections with `options.trash`: deleted records, as a collection of their own.

A deleted record leaves the table of its collection for `trashed_records`, so that nothing that
reads the former finds it: lists, rules, unique keys, references. `of` gives a definition whose
table is a subquery over the latter, by which lists, filters and rules read the trash as they read
any table. Its values are kept as the texts of the audit log, under the present names of fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from app import db, events
from app.collections import people
from app.collections.definitions import PERSONS, Definition
from app.collections.fields import SYSTEM_FIELDS, Field, NumberField, ReferenceField
from app.collections.fields.datetime import DatetimeField
from app.collections.indexes import Index
from app.collections.models import TrashedRecord
from app.collections.people import People
from app.context import tenancy
from app.db.types import Text
from app.errors import problem
from app.rules import Type
from app.types import JSONMapping, JSONObject, cached_property

MAX_DAYS = 3650
TRASH: Any = TrashedRecord.__table__
OWN = {
    "deleted_at": DatetimeField("deleted_at"),
    "deleted_by": ReferenceField("deleted_by"),
}
RESERVED = ("trash", *OWN)
"""Names that no field of a collection with a trash has: of its parameter and its columns."""
FROM_ROW = ("account_id", "id", *OWN)


@dataclass(frozen=True, eq=False)
class Trash(Definition):
    """A collection as far as it is in the trash, with `deleted_at` and `deleted_by`."""

    is_trash: ClassVar[bool] = True
    live: Definition = dataclasses.field(kw_only=True)
    """The definition of those that are not."""
    default_sort: ClassVar[Any] = ("-deleted_at",)

    @cached_property
    def table(self) -> Any:
        """The deleted records, like the table of the others."""
        columns = [TRASH.c[name] for name in FROM_ROW]
        for name, field in (*_system_columns(), *self.fields.items()):
            columns.append(typed(TRASH.c.record[name].as_string(), field).label(name))
        return sa.select(*columns).where(TRASH.c.collection_id == self.id).subquery("trash")

    @cached_property
    def columns(self) -> Mapping[str, Field]:
        system = {name: field.like for name, field in SYSTEM_FIELDS.items()}
        return {**system, **self.declared, **OWN}

    @cached_property
    def searched(self) -> Mapping[str, str]:
        """None: the words of a record go with it."""
        return {}

    @cached_property
    def all_indexes(self) -> Sequence[Index]:
        return ()

    def field_list(self, operation: str) -> Any:
        listed = super().field_list(operation)
        return [*listed, *OWN] if isinstance(listed, list) else listed

    def followed(self, name: str) -> Definition | People | None:
        found = super().followed(name)
        return self.live if found is self else found

    def expanded(self, name: str) -> Definition | People | None:
        return people.PEOPLE if name in (*PERSONS, "deleted_by") else self.followed(name)

    def related(self, name: str) -> Definition:
        found = super().related(name)
        return self.live if found is self else found


def of(definition: Definition) -> Trash:
    """The trash of a collection."""
    return definition.memo.get(_of, definition)


def _of(definition: Definition) -> Trash:
    own = {one.name: getattr(definition, one.name) for one in dataclasses.fields(Definition)}
    return Trash(**own, live=definition)


def typed(text: Any, field: Field) -> Any:
    """A text of the audit log as the column of a field has it."""
    kind = field.column_type
    if not db.has_one_writer():
        return sa.cast(text, kind)
    if isinstance(kind, sa.Boolean):
        text = sa.case((text == "true", 1), (text == "false", 0))
    elif field.rule_type is Type.DECIMAL:
        text = sa.func.atrium_decimal(text)
    elif isinstance(field.like, NumberField):
        text = sa.cast(text, sa.Numeric)
    return sa.type_coerce(text, kind)


def _system_columns() -> list[tuple[str, Field]]:
    return [(name, one.like) for name, one in SYSTEM_FIELDS.items() if name not in FROM_ROW]


def name_problems(specs: Sequence[JSONMapping], options: JSONMapping) -> list[JSONObject]:
    """The problems of fields that are named like what a trash adds."""
    if not options.get("trash"):
        return []
    message = "With a trash, no field may be called {}."
    return [
        problem(spec["name"], "name_reserved", message.format(spec["name"]))
        for spec in specs
        if spec["name"] in RESERVED
    ]


def number(collection_id: str) -> int:
    """The number of records in the trash of a collection, over all accounts."""
    query = sa.select(sa.func.count()).where(TRASH.c.collection_id == collection_id)
    return db.connection().scalar(query) or 0


def numbers(collection_id: str) -> list[tuple[str, int]]:
    """The accounts with records in the trash of a collection, and how many."""
    query = sa.select(TRASH.c.account_id, sa.func.count())
    query = query.where(TRASH.c.collection_id == collection_id).group_by(TRASH.c.account_id)
    return [(row[0], row[1]) for row in db.connection().execute(query)]


@events.subscribe(events.CollectionRemoved)
def _discard_of_removed(event: events.CollectionRemoved) -> None:
    discard(event.definition)


def discard(definition: Definition) -> None:
    """Delete for good what is in the trash of a collection, of all accounts."""
    if definition.trash_days:
        events.publish(events.TrashDiscarded(definition))
        with tenancy.across_accounts():
            own = TRASH.c.collection_id == definition.id
            db.connection().execute(sa.delete(TRASH).where(own))


@events.subscribe(events.FieldsRenamed)
def _rename(event: events.FieldsRenamed) -> None:
    renames = {old: new for old, new in event.renames.items() if old in event.definition.fields}
    removed = event.removed & event.definition.fields.keys()
    if event.definition.trash_days and (renames or removed):
        own = TRASH.c.collection_id == event.definition.id
        with tenancy.across_accounts():
            value = _renamed(renames, removed)
            db.connection().execute(sa.update(TRASH).where(own).values(record=value))


def _renamed(renames: Mapping[str, str], removed: Collection[str]) -> Any:
    """The values with other names, all changed at once, as two fields may swap theirs."""
    gone = sorted({*renames, *removed})
    if db.has_one_writer():
        kept = sa.func.json_remove(TRASH.c.record, *(_path(name) for name in gone))
        added = [
            part
            for old, new in renames.items()
            for part in (_path(new), sa.func.json_extract(TRASH.c.record, _path(old)))
        ]
        value: Any = sa.func.json_set(kept, *added) if added else kept
        return sa.type_coerce(value, sa.Text)
    value = whole = sa.cast(TRASH.c.record, postgresql.JSONB)
    for name in gone:
        value = value.op("-")(sa.cast(name, Text))
    for old, new in renames.items():
        present = whole.op("->")(sa.cast(old, Text))
        place = postgresql.array([new], type_=Text)
        value = sa.func.jsonb_set_lax(value, place, present, True, "return_target")
    return sa.cast(value, sa.JSON)


def _path(name: str) -> str:
    return f'$."{name}"'
