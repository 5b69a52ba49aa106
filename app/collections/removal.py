"""Deletes collections, several at once if they refer to each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress

import sqlalchemy as sa

from app import db, events
from app.collections import definitions, fragments, revisions, table, totals
from app.collections import service as collections
from app.collections.changes import IN_USE
from app.collections.definitions import Definition
from app.collections.models import Collection
from app.errors import Conflict, InvalidValues, NotFound, problem
from app.rules import Node, RuleError, Subquery, parse, walk
from app.types import JSONObject

NAMED = "Rules look at this collection: {}. Change them first."


@table.schema_change
def delete(collection_id: str, also: Sequence[str] = ()) -> JSONObject:
    """Delete a collection with all records, and the collections in `also` (ids or names).

    Raises Conflict if a remaining collection refers to a deleted one, and InvalidValues.
    """
    rows = [collections.locked(collection_id), *_named(also)]
    rows = list({row.id: row for row in rows}.values())
    remaining = _referring_to(rows)
    if remaining:
        names = ", ".join(row.name for row in remaining)
        raise Conflict(f"Other collections refer to this one: {names}.")
    going = {row.name_key for row in rows}
    every = definitions.get_all(with_views=True)
    staying = (one for one in every if one.name.lower() not in going)
    if places := [*naming(going, staying), *fragments.looking_at(going)]:
        raise Conflict(NAMED.format(", ".join(places)), details=naming_problems(places))
    stored = [row for row in rows if row.view is None]
    tables = [definitions.from_row(row).table for row in stored]
    for table_ in tables:
        table.lock(table_)  # before counting: others may be about to commit records
    dropped = {row.id: _drop_view(row) for row in rows if row.view is not None}
    dropped |= {row.id: _drop(row, tables[place + 1 :]) for place, row in enumerate(stored)}
    first, *also_deleted = [dropped[row.id] for row in rows]
    result = {"message": "The collection and its records are deleted.", **first}
    return {**result, "also_deleted": also_deleted} if also else result


def naming(name_keys: AbstractSet[str], of: Iterable[Definition]) -> Iterator[str]:
    """The rules, and conditions of views, that look at any of these collections."""
    for one in of:
        where = {"where": one.view["where"]} if one.view else {}
        for key in (*collections.RULES, *where):
            parts = _parts(({**one.rules, **where}).get(key) or "")
            looks = (part.collection.lower() for part in parts if isinstance(part, Subquery))
            if not name_keys.isdisjoint(looks):
                yield f"{one.name}.{key}"


def naming_problems(places: Iterable[str]) -> list[JSONObject]:
    message = "This looks at the collection, which would be removed."
    return [problem(place, IN_USE, message) for place in places]


def _parts(text: str) -> list[Node]:
    with suppress(RuleError):
        return [*walk(parse(text))] if "@" in text else []
    return []


def bound_to(row: Collection) -> list[Collection]:
    """The collections that refer to one directly or indirectly, and must be deleted with it."""
    bound, referring = {row.id: row}, _referring()
    pending = [row]
    for collection in pending:
        further = [
            candidate for candidate in referring[collection.name_key] if candidate.id not in bound
        ]
        bound |= {candidate.id: candidate for candidate in further}
        pending += further
    return pending[1:]


def _named(references: Sequence[str]) -> list[Collection]:
    rows, unknown = [], []
    for reference in references:
        try:
            rows.append(collections.locked(collections.find(reference).id))
        except NotFound:
            message = f"There is no collection {reference[:80]}."
            unknown.append(problem("with", "invalid_reference", message))
    if unknown:
        raise InvalidValues(unknown)
    return rows


def _referring_to(rows: Sequence[Collection]) -> list[Collection]:
    """The other collections that refer to any of these, by name."""
    ids, referring = {row.id for row in rows}, _referring()
    referring_rows = {row_.name_key: row_ for row in rows for row_ in referring[row.name_key]}
    return [
        referring_rows[key] for key in sorted(referring_rows) if referring_rows[key].id not in ids
    ]


def _referring() -> Mapping[str, list[Collection]]:
    """The collections that refer to each collection, by name key."""
    result: dict[str, list[Collection]] = defaultdict(list)
    for row in db.db.session.scalars(sa.select(Collection).order_by(Collection.name_key)):
        named = {(spec.get("collection") or "").lower() for spec in row.schema}
        for key in named | ({row.view["from"].lower()} if row.view else set()):
            result[key].append(row)
    return result


def _drop_view(row: Collection) -> JSONObject:
    view = definitions.from_row(row)
    db.db.session.delete(row)
    db.db.session.flush()
    events.publish(events.ViewRemoved(view))
    return _dropped(row, 0, None)


def _drop(row: Collection, remaining_tables: Sequence[sa.Table]) -> JSONObject:
    old = definitions.from_row(row)
    records = db.connection().scalar(sa.select(sa.func.count()).select_from(old.table))
    db.db.session.delete(row)
    db.db.session.flush()
    events.publish(events.CollectionRemoved(old))
    statements = table.removal(old.table, remaining_tables)
    table.run(statements)
    totals.forget(row.id)
    revision = revisions.record(row.id, f"delete collection {row.name}", statements)
    return _dropped(row, records, revision)


def _dropped(row: Collection, records: int | None, revision: str | None) -> JSONObject:
    return {
        "collection_id": row.id,
        "collection_name": row.name,
        "table_name": row.table_name,
        "records_deleted": records,
        "migration_revision": revision,
    }
