"""Collections dropped, several at once where they refer to each other (contract section 4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from app import db, events
from app.collections import definition, revisions, table
from app.collections import service as collections
from app.collections.models import Collection
from app.errors import Conflict, InvalidValues, NotFound, problem
from app.types import JSONObject


@collections.schema_change
def delete(collection_id: str, along: Sequence[str] = ()) -> JSONObject:
    """Drop a collection with all its records, and others (ids or names) `along` with it.

    Raises Conflict while one that stays refers to one that goes, and InvalidValues.
    """
    rows = [collections.locked(collection_id), *_named(along)]
    rows = list({row.id: row for row in rows}.values())
    staying = _referring_to(rows)
    if staying:
        names = ", ".join(row.name for row in staying)
        raise Conflict(f"Other collections refer to this one: {names}.")
    tables = [definition.from_row(row).table for row in rows]
    for one in tables:
        table.lock(one)  # before records are counted: others may be about to commit theirs
    first, *others = [_drop(row, tables[place + 1 :]) for place, row in enumerate(rows)]
    answer = {"message": "The collection and its records are deleted.", **first}
    return {**answer, "also_deleted": others} if along else answer


def bound_to(row: Collection) -> list[Collection]:
    """The collections that have to go along with one: those that refer to it, and on from them."""
    found, referring = {row.id: row}, _referring()
    going = [row]
    for one in going:
        more = [other for other in referring[one.name_key] if other.id not in found]
        found |= {other.id: other for other in more}
        going += more
    return going[1:]


def _named(references: Sequence[str]) -> list[Collection]:
    found, unknown = [], []
    for reference in references:
        try:
            found.append(collections.locked(collections.find(reference).id))
        except NotFound:
            message = f"There is no collection {reference[:80]}."
            unknown.append(problem("with", "invalid_reference", message))
    if unknown:
        raise InvalidValues(unknown)
    return found


def _referring_to(rows: Sequence[Collection]) -> list[Collection]:
    """The other collections that refer to any of these, by name."""
    ids, referring = {row.id for row in rows}, _referring()
    found = {other.name_key: other for row in rows for other in referring[row.name_key]}
    return [found[key] for key in sorted(found) if found[key].id not in ids]


def _referring() -> Mapping[str, list[Collection]]:
    """The collections that refer to each, by the key of its name, read at once."""
    found: dict[str, list[Collection]] = defaultdict(list)
    for row in db.db.session.scalars(sa.select(Collection).order_by(Collection.name_key)):
        for key in {(spec.get("collection") or "").lower() for spec in row.schema}:
            found[key].append(row)
    return found


def _drop(row: Collection, later: Sequence[sa.Table]) -> JSONObject:
    old = definition.from_row(row)
    records = db.connection().scalar(sa.select(sa.func.count()).select_from(old.table))
    db.db.session.delete(row)
    db.db.session.flush()
    events.publish(events.CollectionRemoved(old))
    statements = table.removal(old.table, later)
    table.run(statements)
    revision = revisions.record(row.id, f"delete collection {row.name}", statements)
    return {
        "collection_id": row.id,
        "collection_name": row.name,
        "table_name": row.table_name,
        "records_deleted": records,
        "migration_revision": revision,
    }
