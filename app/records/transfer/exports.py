"""Records moved as files: lists exported whole, files imported all or nothing (contract 5)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from app import config
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definition as definitions
from app.collections.definition import Definition
from app.collections.fields import BooleanField, Field, InvalidValue, JsonField, NumberField
from app.db import versioned_cache
from app.errors import Forbidden, InvalidValues, Malformed, PayloadTooLarge, problem
from app.records import store
from app.records.read import query, views
from app.records.read.views import RecordView
from app.records.transfer import formats, imports, stream
from app.records.transfer.stream import Stream
from app.rest import json_input

Parameters = Mapping[str, Sequence[str]]
# What a list takes but an export does not, as it is the whole list.
REFUSED = query.OWN - {"filter", "sort", "fields"}


class Export:
    """A list on its way into a file; to be closed."""

    def __init__(
        self, name: str, text: Iterator[bytes], rows: Stream, masked: Sequence[str]
    ) -> None:
        self.name, self._text, self.close, self.masked = name, text, rows.close, masked

    @property
    def text(self) -> Iterator[bytes]:
        """The file, in pieces; closed behind the last."""
        try:
            yield from self._text
        finally:
            self.close()


def export(collection: str, format: str, parameters: Parameters, *, by: Principal) -> Export:
    """All records that the caller may list, as a list shows them. Raises InvalidValues, Stale."""
    definition = definitions.get(collection)
    access = accesses.for_operation(by, definition, "list")
    asked = _asked(access, parameters)
    conditions = asked.conditions
    rows = stream.open_stream(
        definition,
        asked.names,
        [*store.scope(definition, by.account_id, access.where), *conditions.where],
        asked.order_by,
        versioned_cache.combine(
            *by.version_checks, *definition.version_checks, *conditions.version_checks
        ),
        {**access.parameters, **conditions.bound},
    )
    shown = (views.render(row, asked.names, access) for row in rows)
    text = formats.write(format, asked.names, shown)
    masked = [name for name in asked.names if name in access.masked]
    return Export(definition.name, text, rows, masked)


def _asked(access: accesses.Access, parameters: Parameters) -> query.Query:
    message = "An export has no such parameter."
    found = [problem(name, "unknown_field", message) for name in parameters if name in REFUSED]
    try:
        asked = query.parse(access, {n: v for n, v in parameters.items() if n not in REFUSED})
    except InvalidValues as error:
        raise InvalidValues([*found, *error.details]) from None
    if found:
        raise InvalidValues(found)
    return asked


def import_all(
    collection: str, format: str, raw: bytes, *, dry_run: bool, keep_ids: bool, by: Principal
) -> int:
    """Create a record of each of the file's; returns how many. A dry run does it and undoes it.

    Raises Malformed, InvalidValues, Forbidden or Conflict with the lines that are at fault,
    PayloadTooLarge, and Interrupted.
    """
    if keep_ids and not by.is_superadmin:
        raise Forbidden("Only superadmins may keep ids.", error="superadmin_required")
    count = 0
    for count, _ in import_in_steps(  # noqa: B007 - the last one counts
        collection, format, raw, dry_run=dry_run, keep_ids=keep_ids, by=by
    ):
        pass
    return count


def import_in_steps(
    collection: str,
    format: str,
    raw: bytes,
    *,
    dry_run: bool,
    keep_ids: bool = False,
    by: Principal,
) -> Iterator[tuple[int, list[RecordView]]]:
    """The same bit by bit: after each how many records were seen, and how the first come out."""
    definition = definitions.get(collection)
    accesses.for_operation(by, definition, "create").check_open()
    lines = lines_of(format, raw)  # read before anything keeps others from writing
    if format == "csv":
        lines = list(map(partial(_typed, definition), lines))
    under_way = imports.Import(definition, by, lines, keep_ids=keep_ids)
    steps = under_way.in_one_transaction if under_way.is_short else under_way.in_pieces
    for count in steps(dry_run=dry_run):
        yield count, under_way.first


def lines_of(format: str, raw: bytes) -> list[formats.Line]:
    """A file's records, with their lines. Raises Malformed, PayloadTooLarge."""
    most = config.current().import_max_rows
    lines = list(islice(formats.read(format, raw), most + 1))
    if len(lines) > most:
        raise PayloadTooLarge(f"An import has at most {most:,} records. Split the file.")
    return lines


def _typed(definition: Definition, line: formats.Line) -> formats.Line:
    number, cells = line
    if not isinstance(cells, dict):
        return line
    fields = definition.fields
    return number, {name: _value(fields.get(name), cell) for name, cell in cells.items()}


def _value(field: Field | None, cell: str | None) -> object:
    # What is no number, or no JSON, stays a text: the field itself says what is wrong with it.
    try:
        if cell is not None and isinstance(field, NumberField | BooleanField):
            return field.from_text(cell)
        if cell is not None and isinstance(field, JsonField):
            return json_input.loads(cell.encode(), infinite=True)
    except InvalidValue as error:
        return math.inf if error.code == "number_out_of_range" else cell
    except Malformed:
        pass
    return cell
