"""The numbers of `sequence` fields: a counter per account and field, which only goes up.

It is moved in the transaction that creates the records. The lock of its row lasts until that ends,
so numbers ascend as transactions commit, and what is rolled back draws none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from app import db, events
from app.collections.definitions import Definition
from app.collections.fields import SequenceField
from app.collections.models import RecordSequence
from app.context import tenancy

COUNTERS: Any = RecordSequence.__table__
Row = Mapping[str, Any]


def numbered(definition: Definition, rows: Sequence[Row]) -> list[Row]:
    """The new records, each with a number in its order; numbers that some have move the counter."""
    result = [dict(row) for row in rows]
    for name, field in definition.sequences.items():
        places = defaultdict[str, list[int]](list)
        for place, row in enumerate(result):
            places[row["account_id"]].append(place)
        for account_id, own in sorted(places.items()):
            given = [result[place][name] for place in own if result[place].get(name) is not None]
            new = [place for place in own if result[place].get(name) is None]
            least = max(map(field.number, given), default=0)
            last = _advance(definition, name, account_id, least, len(new))
            for number, place in enumerate(new, start=last - len(new) + 1):
                result[place][name] = field.text(number)
    return list(result)


def reserve(definition: Definition, name: str, account_id: str, number: int) -> None:
    """Have the numbers that follow be larger than this one."""
    _advance(definition, name, account_id, number, 0)


def _advance(definition: Definition, name: str, account_id: str, least: int, count: int) -> int:
    """Move a counter to `least` at least, then on by `count`; returns where it stands."""
    dialect = postgresql if db.connection().dialect.name == "postgresql" else sqlite
    own = {"account_id": account_id, "collection_id": definition.id, "field": name}
    former = COUNTERS.c.value
    moved = sa.case((former < least, sa.literal(least, sa.BigInteger)), else_=former) + count
    statement = (
        dialect.insert(COUNTERS)
        .values(**own, value=least + count)
        .on_conflict_do_update(index_elements=[*COUNTERS.primary_key], set_={"value": moved})
        .returning(former)
    )
    last: int = db.connection().execute(statement).scalar_one()
    return last


def taken(definition: Definition, field: SequenceField, values: Iterable[Row]) -> set[int]:
    """The numbers, of those in new records of an account, that stored ones have, however written.

    They may have another prefix, or other zeros.
    """
    rows = [row for row in values if row.get(field.name) is not None]
    if not rows:
        return set()
    table, numbers = definition.table, {field.number(row[field.name]) for row in rows}
    number = field.sort_expression(table.c[field.name])
    query = sa.select(number).where(
        table.c.account_id == rows[0]["account_id"], number.in_(sorted(numbers))
    )
    return {*db.connection().scalars(query)}


def fill(definition: Definition, names: Iterable[str]) -> None:
    """Number the present records by their age, in a change of the schema that adds these fields."""
    table = definition.table
    for name in names:
        field = definition.sequences[name]
        order = (table.c.created_at, table.c.id)
        place = sa.func.row_number().over(partition_by=table.c.account_id, order_by=order)
        ordered = sa.select(table.c.account_id, table.c.id, place.label("place")).subquery()
        digits, width = sa.cast(ordered.c.place, sa.Text), field.options.get("digits", 1)
        zeros = sa.func.substr("0" * width, 1, width - sa.func.length(digits))
        is_short = sa.func.length(digits) < width
        text = sa.literal(field.prefix) + sa.case((is_short, zeros), else_="") + digits
        same = (table.c.account_id == ordered.c.account_id, table.c.id == ordered.c.id)
        count = sa.select(
            table.c.account_id, sa.literal(definition.id), sa.literal(name), sa.func.count()
        ).group_by(table.c.account_id)
        columns = ["account_id", "collection_id", "field", "value"]
        with tenancy.as_owner():
            db.connection().execute(sa.update(table).where(*same).values({name: text}))
            db.connection().execute(sa.insert(COUNTERS).from_select(columns, count))


@events.subscribe(events.FieldsRenamed)
def _rename(event: events.FieldsRenamed) -> None:
    own, names = COUNTERS.c.collection_id == event.definition.id, event.definition.sequences
    for name in event.removed & names.keys():
        db.connection().execute(sa.delete(COUNTERS).where(own, COUNTERS.c.field == name))
    renames = {old: new for old, new in event.renames.items() if old in names}
    # By way of names that no field has, as two fields may swap theirs.
    ways = [(old, f"@{old}") for old in renames]
    for former, name in [*ways, *((f"@{old}", new) for old, new in renames.items())]:
        renamed = sa.update(COUNTERS).where(own, COUNTERS.c.field == former)
        db.connection().execute(renamed.values(field=name))


@events.subscribe(events.CollectionRemoved)
def _remove(event: events.CollectionRemoved) -> None:
    own = COUNTERS.c.collection_id == event.definition.id
    db.connection().execute(sa.delete(COUNTERS).where(own))
