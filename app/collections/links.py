"""The entries of lists of references, users and texts, in a table by which they are found.

Records have the lists themselves, as JSON. Whoever stores records keeps both alike (`follow`), with
the records that are referred to locked, so that none of them is deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from app import db, events
from app.collections import definitions
from app.collections.definitions import Definition
from app.collections.fields import PEOPLE
from app.collections.models import RecordLink
from app.db import filters, versioned_cache
from app.ids import new_id

LINKS: Any = RecordLink.__table__
AT_ONCE, PAIRS_AT_ONCE = 5000, 500  # rows of one statement
Row = Mapping[str, Any]


def follow(definition: Definition, before: Sequence[Row], values: Sequence[Row]) -> None:
    """Store the entries of records that are new, or of the changed values of those in `before`.

    Raises Stale if a record that they refer to was deleted meanwhile.
    """
    gone: dict[tuple[str, str], list[tuple[str, str]]] = {}
    new = list[dict[str, object]]()
    for place, row in enumerate(values):
        old = before[place] if before else {}
        account_id, record_id = (old or row)["account_id"], (old or row)["id"]
        for name, field in definition.lists.items():
            if name in row:
                present, former = field.ids(row[name]), field.ids(old.get(name))
                gone.setdefault((account_id, name), []).extend(
                    (record_id, id) for id in {*former} - {*present}
                )
                new += [
                    _link(definition, name, account_id, record_id, id)
                    for id in sorted({*present} - {*former})
                ]
    for (account_id, name), pairs in gone.items():
        mine = (LINKS.c.account_id == account_id, LINKS.c.collection_id == definition.id)
        for start in range(0, len(pairs), PAIRS_AT_ONCE):
            some = sa.tuple_(LINKS.c.record_id, LINKS.c.target_id).in_(
                pairs[start : start + PAIRS_AT_ONCE]
            )
            db.connection().execute(sa.delete(LINKS).where(*mine, LINKS.c.field == name, some))
    add(definition, new)


def add(definition: Definition, rows: Sequence[Mapping[str, object]]) -> None:
    """Insert entries, whose targets stay until the transaction ends. Raises Stale."""
    wanted: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        target = definition.fields[str(row["field"])].leads_to
        if target is None:
            continue  # a text
        wanted.setdefault((target, str(row["account_id"])), set()).add(str(row["target_id"]))
    for (target, account_id), ids in sorted(wanted.items()):
        if target == PEOPLE:
            continue  # a foreign key keeps them
        table = definitions.get(target).table
        query = sa.select(table.c.id).where(
            table.c.account_id == account_id, filters.is_any_of(table.c.id, sorted(ids))
        )
        locking = query.order_by(table.c.id).with_for_update(read=True, key_share=True)
        if {*db.connection().scalars(locking)} != ids:
            raise versioned_cache.Stale
    for start in range(0, len(rows), AT_ONCE):
        db.connection().execute(sa.insert(LINKS), list(rows[start : start + AT_ONCE]))


def forget(definition: Definition, account_id: str, record_ids: Collection[str]) -> None:
    """Delete the entries of deleted records."""
    if definition.lists:
        mine = (LINKS.c.account_id == account_id, LINKS.c.collection_id == definition.id)
        these = filters.is_any_of(LINKS.c.record_id, sorted(record_ids))
        db.connection().execute(sa.delete(LINKS).where(*mine, these))


def rebuild(definition: Definition, account_id: str) -> None:
    """Store the entries of all records of an account, which has none yet."""
    if not definition.lists:
        return
    table = definition.table.c
    query = sa.select(table.id, *(table[name] for name in definition.lists))
    query = query.where(table.account_id == account_id).order_by(table.id)
    after = ""
    while rows := db.connection().execute(query.where(table.id > after).limit(500)).all():
        found = [
            _link(definition, name, account_id, row[0], id)
            for row in rows
            for (name, field), value in zip(definition.lists.items(), row[1:], strict=True)
            for id in field.ids(value)
        ]
        if found:
            db.connection().execute(sa.insert(LINKS), found)
        after = rows[-1][0]


def referring(
    definition: Definition, account_id: str, name: str, ids: Sequence[str]
) -> sa.ColumnElement[bool]:
    """The condition that a record's list has one of the ids."""
    found = sa.select(LINKS.c.record_id).where(
        LINKS.c.account_id == account_id,
        LINKS.c.collection_id == definition.id,
        LINKS.c.field == name,
        filters.is_any_of(LINKS.c.target_id, ids),
    )
    return definition.table.c.id.in_(found)


@events.subscribe(events.FieldsRenamed)
def _rename(event: events.FieldsRenamed) -> None:
    names: Iterable[str] = event.definition.lists
    own = LINKS.c.collection_id == event.definition.id
    for name in names:
        if name in event.removed:
            db.connection().execute(sa.delete(LINKS).where(own, LINKS.c.field == name))
    renames = {old: new for old, new in event.renames.items() if old in event.definition.lists}
    # By way of names that no field has, as two fields may swap theirs.
    for old in renames:
        _set_name(own, old, f"@{old}")
    for old, new in renames.items():
        _set_name(own, f"@{old}", new)


def _set_name(own: Any, old: str, new: str) -> None:
    statement = sa.update(LINKS).where(own, LINKS.c.field == old).values(field=new)
    db.connection().execute(statement)


@events.subscribe(events.CollectionRemoved)
def _remove(event: events.CollectionRemoved) -> None:
    own = LINKS.c.collection_id == event.definition.id
    db.connection().execute(sa.delete(LINKS).where(own))


def _link(
    definition: Definition, name: str, account_id: str, record_id: str, target_id: str
) -> dict[str, object]:
    is_person = definition.fields[name].leads_to == PEOPLE
    return {
        "account_id": account_id,
        "id": new_id(),
        "collection_id": definition.id,
        "field": name,
        "record_id": record_id,
        "target_id": target_id,
        "user_id": target_id if is_person else None,
    }
