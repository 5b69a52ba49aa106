"""Exports whole lists, and imports files all or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from app.audit.security_log import reads
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definitions
from app.errors import Forbidden, InvalidValues, problem
from app.records.read import query, views
from app.records.read.views import RecordView
from app.records.transfer import formats, imports, stream
from app.records.transfer.archives import Archive
from app.records.transfer.formats import Source
from app.records.transfer.stream import Stream

Parameters = Mapping[str, Sequence[str]]
# Parameters of a list that an export does not have.
NOT_EXPORTABLE = query.LIST_PARAMETERS - {"filter", "sort", "fields"}


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
    rows = stream.open_stream(
        parsed.selection,
        parsed.names,
        parsed.order_by,
        archive.extra_columns if archive else {},
    )
    with ExitStack() as failed:
        failed.callback(rows.close)
        if archive:
            text = archive.write(rows, rows.close)
        else:
            views_ = (views.render(row, parsed.names, access) for row in rows)
            text = formats.write(format, parsed.names, views_, bom=bom)
        if access.exposed or by.is_superadmin:
            text = reads.before_each(text)
        failed.pop_all()
    masked = [name for name in parsed.names if name in access.masked]
    return Export(definition.name, text, rows, masked)


def _parse(access: accesses.Access, parameters: Parameters) -> query.Query:
    message = "Exports do not have this parameter."
    problems = [
        problem(name, "unknown_field", message) for name in parameters if name in NOT_EXPORTABLE
    ]
    try:
        parsed = query.parse(
            access, {n: v for n, v in parameters.items() if n not in NOT_EXPORTABLE}
        )
    except InvalidValues as error:
        raise InvalidValues([*problems, *error.details]) from None
    if problems:
        raise InvalidValues(problems)
    return parsed


def import_all(
    collection: str, source: Source, *, dry_run: bool, keep_ids: bool, by: Principal
) -> int:
    """Import all records of a source; returns their number. A dry run is rolled back.

    Raises Malformed, InvalidValues, Forbidden or Conflict with the lines, PayloadTooLarge, and
    Interrupted.
    """
    if keep_ids and not by.is_superadmin:
        raise Forbidden("Only superadmins may keep ids.", error="superadmin_required")
    count = 0
    for count, _ in import_in_steps(  # noqa: B007 - the last one counts
        collection, source, dry_run=dry_run, keep_ids=keep_ids, by=by
    ):
        pass
    return count


def import_in_steps(
    collection: str,
    source: Source,
    *,
    dry_run: bool,
    keep_ids: bool = False,
    by: Principal,
) -> Iterator[tuple[int, list[RecordView]]]:
    """Import in steps: yields the number of processed records and the first created ones."""
    definition = definitions.get(collection)
    accesses.for_operation(by, definition, "create").check_open()
    lines = source.lines(definition)  # before the transaction blocks other writers
    running = imports.Import(definition, by, lines, keep_ids=keep_ids)
    steps = running.in_one_transaction if running.is_short else running.in_pieces
    for count in steps(dry_run=dry_run):
        yield count, running.first
