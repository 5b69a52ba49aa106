"""Stores the words of records: with each write, and of all where a field becomes searchable.

Few records get their words in the transaction that changes the collection, many by a job, in pieces
with a transaction each. Until it is done their collection is not searched. A record that is written
meanwhile has its words from that write, which no piece replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Collection_
from itertools import count, groupby
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from app import db, jobs
from app.collections import definitions, index_builds, search_index, table
from app.collections.changes import Change
from app.collections.definitions import Definition
from app.collections.fields import Field
from app.collections.models import Collection
from app.context import tenancy
from app.db import words
from app.types import JSONMapping
from app.web.feature import Finding

JOB, REBUILD = "collections.index_words", "collections.rebuild_index"
AT_ONCE, PIECE, CHECKED = 2000, 200, 200
PIECES_BETWEEN_REPORTS = 10
PAGES = 200
"""The pages of FTS5's index that one transaction merges."""
Row = Mapping[str, Any]
Place = tuple[str, str]
"""The account and id of a record."""


def added(definition: Definition, values: Sequence[Row], before: Sequence[Row] = ()) -> list[Row]:
    """The values, with the words of the searched fields that any of them has."""
    named = {n: c for n, c in definition.searched.items() if any(n in row for row in values)}
    result = list[Row]()
    for place, row in enumerate(values):
        whole = {**before[place], **row} if before else row
        found = {
            column: marked(definition.fields[name], whole[name]) for name, column in named.items()
        }
        result.append({**row, **found})
    return result


def marked(field: Field, value: Any) -> str:
    """The words of a value, as they are stored."""
    return words.marked(*field.texts(value))


def _text(definition: Definition, name: str) -> Any:
    """What is read of a field to store its words: of a text no more than is searched."""
    column, is_list = definition.table.c[name], definition.fields[name].is_list
    return column if is_list else sa.func.substr(column, 1, words.LONGEST_TEXT).label(name)


def start(row: Collection, change: Change) -> None:
    """Store the words of fields that a change makes searchable; of many records by a job."""
    searched, former = change.new.searched, change.renamed.searched
    waiting = {change.renames.get(name, name) for name in unfinished(row)}
    names = [name for name in searched if name in waiting or name not in former]
    last = None
    if names:
        number, last = _store_next(change.new, names, None, AT_ONCE)
    for name in change.fills.keys() & former.keys() & set(searched) - {*names}:
        _fill(change.new, name)
    if not names or last is None:
        indexing = None
    else:
        with tenancy.across_accounts():
            total = db.connection().scalar(sa.select(sa.func.count()).select_from(change.new.table))
        indexing = {"fields": names, "done": number, "total": total}
        jobs.enqueue(JOB, {"collection_id": row.id}, account_id=jobs.INSTANCE)
    if indexing != row.indexing:  # the definition of the version so far may be remembered
        row.indexing, row.version = indexing, row.version + 1
        db.db.session.flush()


def _fill(definition: Definition, name: str) -> None:
    """Store the words of a default in the records that just got it."""
    column, default = definition.table.c[definition.searched[name]], definition.fields[name].default
    filled = (definition.table.c[name] == default, column == "")
    with tenancy.as_owner():
        stored = (
            sa.update(definition.table).where(*filled).values({column: words.marked(str(default))})
        )
        db.connection().execute(stored)


def unfinished(row: Collection) -> Sequence[str]:
    """The fields whose words are being stored."""
    names: Sequence[str] = (row.indexing or {}).get("fields", ())
    return names


@jobs.job(JOB, is_long=True)
def finish(payload: JSONMapping) -> None:
    """Store the words of a collection's fields that are not searched yet, and let them be."""
    place: Place | None = None
    for piece in count(1):
        with tenancy.across_accounts(), db.transaction() as session:
            row = session.get(Collection, payload["collection_id"], populate_existing=True)
            if row is None or row.indexing is None:
                return
            definition, names = definitions.from_row(row), unfinished(row)
            number, place = _store_next(definition, names, place, PIECE)
            if place is None:
                row.indexing, row.version = None, row.version + 1
                return
            # A report is a change of the row that whoever changes the collection waits for.
            if piece % PIECES_BETWEEN_REPORTS == 0:
                done = row.indexing["done"] + number * PIECES_BETWEEN_REPORTS
                row.indexing = {**row.indexing, "done": done}


def _store_next(
    definition: Definition, names: Sequence[str], after: Place | None, most: int
) -> tuple[int, Place | None]:
    """Store the words of the next records behind a place; returns how many, and their last place.

    The place is None if no record is left without words.
    """
    columns = definition.table.c
    key = (columns.account_id, columns.id)
    lacking = sa.or_(*(columns[definition.searched[name]].is_(None) for name in names))
    texts = [_text(definition, name) for name in names]
    query = sa.select(*key, *texts).where(lacking).order_by(*key).limit(most)
    if after is not None:
        query = query.where(sa.tuple_(*key) > sa.tuple_(*map(sa.literal, after)))
    with tenancy.across_accounts():
        rows = db.connection().execute(query).all()
        for account_id, own in groupby(rows, key=itemgetter(0)):
            remaining = list(own)
            while remaining:
                _store(definition, names, account_id, remaining[:PIECE])
                remaining = remaining[PIECE:]
    return len(rows), (rows[-1][0], rows[-1][1]) if len(rows) == most else None


def _store(
    definition: Definition,
    names: Sequence[str],
    account_id: str,
    rows: Sequence[Any],
    *,
    keeps: bool = True,
) -> None:
    """Store the words of records of an account; it `keeps` words that they have already."""
    table = definition.table
    columns = [table.c[definition.searched[name]] for name in names]
    kinds = (sa.column("record", table.c.id.type), *(sa.column(c.name, c.type) for c in columns))
    fields = [definition.fields[name] for name in names]
    found = [(row[1], *map(marked, fields, row[2:])) for row in rows]
    given = sa.values(*kinds).data(found).cte("given")
    own = (table.c.account_id == account_id, table.c.id == given.c.record)
    found_words = {one: given.c[one.name] for one in columns}
    kept = {one: sa.func.coalesce(one, word) for one, word in found_words.items()}
    values = kept if keeps else found_words
    db.connection().execute(sa.update(table).where(*own).values(values))


def store_all(definition: Definition, account_id: str) -> None:
    """Store the words of an account's records, which have none yet, in the open transaction."""
    if definition.searched:
        place: Place | None = (account_id, "")
        while place is not None and place[0] == account_id:
            _, place = _store_next(definition, [*definition.searched], place, PIECE)


def check() -> Finding:
    """Look for records that have other words than their texts, or that the index does not lead to.

    At the newest ones of each collection's last account.
    """
    wrong = list[str]()
    with tenancy.across_accounts():
        for one in definitions.get_all():
            if one.searched and not one.indexing:
                try:
                    is_right = _is_indexed(one)
                except OperationalError:  # the table of FTS5 is missing, or damaged
                    is_right = False
                wrong += [] if is_right else [one.name]
    if not wrong:
        return Finding("ok", "has the words of records")
    named = ", ".join(wrong[: definitions.MAX_NAMED])
    return Finding("fail", f"lacks words of records of {named}: run bin/atrium search rebuild")


def _is_indexed(definition: Definition) -> bool:
    columns, names = definition.table.c, definition.searched
    key, own = (columns.account_id, columns.id), [columns[name] for name in names.values()]
    texts = [_text(definition, name) for name in names]
    query = sa.select(*key, *texts, *own).order_by(*(one.desc() for one in key)).limit(CHECKED)
    rows = db.connection().execute(query).all()
    return not _differing(definition, rows) and search_index.is_whole(definition.table, rows)


def repair(definition: Definition, progress: Callable[[int, int], None]) -> int:
    """Store the words of all records that have others, and write the index anew.

    Tells the `progress` how many records it has read, of an unknown number (0). Returns how many
    had other words.
    """
    columns, names = definition.table.c, [*definition.searched]
    key, place = (columns.account_id, columns.id), ("", "")
    mended = done = 0
    while True:
        with tenancy.across_accounts(), db.transaction():
            after = sa.tuple_(*key) > sa.tuple_(*map(sa.literal, place))
            query = sa.select(*key).where(after).order_by(*key).limit(PIECE)
            keys = db.connection().execute(query).all()
            for account_id, own in groupby(keys, key=itemgetter(0)):
                mended += _repair(definition, names, account_id, [row[1] for row in own])
        done += len(keys)
        progress(done, 0)
        if len(keys) < PIECE:
            break
        place = (keys[-1][0], keys[-1][1])
    with db.transaction(changes_schema=True):
        table.make_words_index_anew(definition.table)
    rebuild_index({"collection_id": definition.id})
    return mended


def _repair(definition: Definition, names: Sequence[str], account_id: str, ids: list[str]) -> int:
    columns = definition.table.c
    texts = [_text(definition, name) for name in names]
    stored = [columns[definition.searched[name]] for name in names]
    query = sa.select(columns.account_id, columns.id, *texts, *stored)
    own = (columns.account_id == account_id, columns.id.in_(ids))
    rows = db.connection().execute(query.where(*own).order_by(columns.id).with_for_update()).all()
    wrong = _differing(definition, rows)
    if wrong:
        _store(definition, names, account_id, wrong, keeps=False)
    return len(wrong)


def _differing(definition: Definition, rows: Sequence[Any]) -> list[Any]:
    """The rows, of account, id, values and words, where these differ; without them."""
    fields = [definition.fields[name] for name in definition.searched]
    end = 2 + len(fields)
    return [row[:end] for row in rows if [*map(marked, fields, row[2:end])] != [*row[end:]]]


def forget_deleted(origin: str | None = None) -> None:
    """Have a job rid indexes of the words that no record has any more.

    Those of the collection `origin`, or PEOPLE, and of all whose records go with it; without it, of
    all collections.
    """
    present, names = definitions.get_all(), {origin}
    while added := {one.name for one in present if one.name not in names and _goes(one, names)}:
        names |= added
    for one in present:
        if one.searched and (origin is None or one.name in names):
            jobs.enqueue(REBUILD, {"collection_id": one.id}, account_id=jobs.INSTANCE)


def _goes(definition: Definition, names: Collection_[str | None]) -> bool:
    """Whether records go with those of a collection."""
    fields = definition.fields.values()
    return any(one.leads_to in names and one.on_delete == "cascade" for one in fields)


@jobs.job(REBUILD, is_long=True)
def rebuild_index(payload: JSONMapping) -> None:
    """Write a collection's index anew: both databases keep words there that are deleted."""
    for one in definitions.get_all():
        if one.id == payload["collection_id"] and one.searched:
            if db.has_one_writer():
                _merge(one)
            else:
                index_builds.rebuild(search_index.names_of_indexes(one.table))


def _merge(definition: Definition) -> None:
    """Merge all parts of FTS5's index into one, piece by piece, so that others can write."""
    pages, is_merged = -PAGES, False  # negative: of all parts, however few
    while not is_merged:
        with tenancy.across_accounts(), db.transaction():
            connection: Any = db.connection()
            driver = connection.connection.driver_connection
            before = driver.total_changes
            connection.exec_driver_sql(search_index.merging(definition.table, pages))
            is_merged, pages = driver.total_changes - before < 2, PAGES
