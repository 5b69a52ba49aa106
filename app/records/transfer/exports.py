"""Exports whole lists, and imports files all or nothing.

A list comes from one statement: one snapshot, little memory. It has its own connection, and on
PostgreSQL a server-side cursor. Clients that stop reading are disconnected (`app/db/engine.py`), as
an open snapshot blocks vacuuming.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from orjson import Fragment
from sqlalchemy.engine import Connection

from app.audit.security_log import reads
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definitions
from app.context import deadline, tenancy
from app.db import engine, sqlite_driver
from app.db.versioned_cache import VersionChecks
from app.errors import Forbidden, InvalidValues, problem
from app.records.read import query, views
from app.records.store import Row
from app.records.store.reads import Selection
from app.records.transfer import formats, imports
from app.records.transfer.archives import Archive
from app.records.transfer.formats import Source
from app.records.transfer.imports import Options, Outcome
from app.rules import Type
from app.types import JSONObject

Parameters = Mapping[str, Sequence[str]]
# Parameters of a list that an export does not have.
NOT_EXPORTABLE = query.LIST_PARAMETERS - {"filter", "search", "sort", "fields"}


class Export:
    """A running export; must be closed."""

    def __init__(
        self, name: str, text: Iterator[bytes], rows: Stream, masked: Sequence[str]
    ) -> None:
        self.name, self._text, self.close, self.masked = name, text, rows.close, masked

    @property
    def text(self) -> Iterator[bytes]:
        """Yield the file in chunks; closes the export at the end."""
        try:
            yield from self._text
        finally:
            self.close()


def export(
    collection: str, format: str, parameters: Parameters, *, bom: bool = False, by: Principal
) -> Export:
    """Export all records that the caller may list. Raises InvalidValues, Stale.

    An archive has the bytes of their files. Raises Unavailable if these cannot be read.
    """
    definition = definitions.get(collection)
    access = accesses.for_operation(by, definition, "list")
    parsed = _parse(access, parameters)
    archive = Archive.of(access, parsed.names) if format == formats.ARCHIVE else None
    rows = open_stream(
        replace(parsed.selection, conditions=tuple(parsed.conditions.indexed)),
        parsed.names,
        parsed.order_by,
        archive.extra_columns if archive else {},
    )
    with ExitStack() as failed:
        failed.callback(rows.close)
        if archive:
            text = archive.write(rows, rows.close)
        else:
            views_: Iterator[JSONObject]
            views_ = (views.render(row, parsed.names, access) for row in rows)
            if format == "csv":
                views_ = _with_plain_decimals(views_, parsed.names, access)
            text = formats.write(format, parsed.names, views_, bom=bom)
        if access.exposed or by.is_superadmin:
            text = reads.before_each(text)
        failed.pop_all()
    masked = [name for name in parsed.names if name in access.masked]
    return Export(definition.name, text, rows, masked)


def _with_plain_decimals(
    records: Iterator[JSONObject], names: Sequence[str], access: accesses.Access
) -> Iterator[JSONObject]:
    """The records with decimals as spreadsheets read them: negative ones begin like a formula."""
    decimals = [
        name
        for name in names
        if access.readable[name].like.rule_type is Type.DECIMAL and name not in access.masked
    ]
    for record in records:
        numbers = {n: Fragment(record[n]) for n in decimals if record[n] is not None}
        yield {**record, **numbers} if numbers else record


def _parse(access: accesses.Access, parameters: Parameters) -> query.Query:
    message = "Exports do not have this parameter."
    problems = [
        problem(name, "unknown_field", message) for name in parameters if name in NOT_EXPORTABLE
    ]
    try:
        parsed = query.parse(
            access,
            {n: v for n, v in parameters.items() if n not in NOT_EXPORTABLE},
            ranks=False,
        )
    except InvalidValues as error:
        raise InvalidValues([*problems, *error.details]) from None
    if problems:
        raise InvalidValues(problems)
    return parsed


def import_all(collection: str, source: Source, options: Options, *, by: Principal) -> Outcome:
    """Import all records of a source. A dry run is rolled back.

    Raises Malformed, InvalidValues, Forbidden or Conflict with the lines, PayloadTooLarge, and
    Interrupted.
    """
    outcome = Outcome()
    for outcome in import_in_steps(collection, source, options, by=by):  # noqa: B007 - the last one
        pass
    return outcome


def import_in_steps(
    collection: str, source: Source, options: Options, *, by: Principal
) -> Iterator[Outcome]:
    """Import in steps: yields the outcome after each."""
    if options.keep_ids and not by.is_superadmin:
        raise Forbidden("Only superadmins may keep ids.", error="superadmin_required")
    if options.keep_ids and options.upsert is not None:
        message = "An import that updates records keeps no ids of the file."
        raise InvalidValues([problem("upsert", "invalid_option", message)])
    definition = definitions.get(collection)
    accesses.for_operation(by, definition, "create").check_open()
    lines = source.lines(definition)  # before the transaction blocks other writers
    yield from imports.Import(definition, by, lines, options).steps()


NONE: Mapping[str, sa.ColumnElement[Any]] = {}
BATCH_SIZE = 100  # rows, as in the largest page: each may be as large as a body
DEADLINES = 3
"""A statement for a batch may take so many times as long as others: it reads and sorts more."""


class Stream:
    """The rows of one statement; the caller closes it."""

    def __init__(self, connection: Connection, rows: Any, names: Sequence[str]) -> None:
        self._connection, self._rows, self._names = connection, rows, names
        self._limit = deadline.limit.get()
        self._first: list[Any] = []

    def start(self, version_checks: VersionChecks) -> None:
        """Read the first row and verify its version checks. Raises Stale."""
        first = self._rows.fetchone()
        if first is None:
            version_checks.verify()
        else:
            self._first = [first]
            version_checks.check(first[len(self._names) :])

    def __iter__(self) -> Iterator[Row]:
        batch = self._first
        while batch:
            yield from (dict(zip(self._names, row, strict=False)) for row in batch)
            with sqlite_driver.fetching(self._connection, self._limit):
                batch = self._rows.fetchmany(BATCH_SIZE)

    def close(self) -> None:
        """Release the connection."""
        self._connection.close()


def open_stream(
    selection: Selection,
    names: Sequence[str],
    order_by: Sequence[Any],
    extra_columns: Mapping[str, sa.ColumnElement[Any]] = NONE,
) -> Stream:
    """Open a stream of these fields, in a statement with version checks. Raises Stale."""
    definition, version_checks = selection.definition, selection.version_checks
    selected = dict(zip(definition.columns, definition.selected, strict=True))
    columns = [*(selected[name] for name in names), *extra_columns.values()]
    statement = sa.select(*columns, *version_checks.columns).select_from(selection.source)
    statement = statement.where(*selection.where).order_by(*order_by)
    all_names, connection = [*names, *extra_columns], _open_connection()
    with ExitStack() as failed:
        failed.callback(connection.close)
        longer = deadline.multiplied(DEADLINES)
        with tenancy.through_views(), deadline.within(longer):
            stream = Stream(
                connection, connection.execute(statement, selection.parameters), all_names
            )
            stream.start(version_checks)
        failed.pop_all()
    return stream


def _open_connection() -> Connection:
    connection = engine.current_engine().connect()
    if connection.dialect.name == "postgresql":
        connection.execution_options(isolation_level="READ COMMITTED")
    return connection.execution_options(stream_results=True, yield_per=BATCH_SIZE)
