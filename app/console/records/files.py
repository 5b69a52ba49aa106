"""Records as files: a list exported, a file tried out and imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from flask import Response, get_flashed_messages, request, stream_template
from werkzeug.wrappers import Response as BaseResponse

from app.collections.fields import SYSTEM_FIELDS
from app.console.records import filters
from app.console.records.listing import COLLECTION, tell
from app.console.shell import guard, scopes, signing
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Form, Page, told
from app.console.shell.scopes import Shelf
from app.db.errors import UNAVAILABLE, unavailable
from app.errors import AppError, BadRequest, Malformed, PayloadTooLarge
from app.records.read.views import RecordView
from app.records.transfer import exports, formats, imports
from app.rest.access import public

IMPORT = f"{COLLECTION}/import"
ENDINGS = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}
NO_FILE = "Choose a file whose name ends in .csv, .json, .jsonl or .ndjson."


@blueprint.get(f"{COLLECTION}/export/<any(csv, json, jsonl):format>")
@public
@guard.for_admins
@guard.steady
def export_records(account_id: str, name: str, format: str) -> Response:
    """All records of the list that the page's address names, as a file."""
    shelf = scopes.shelf(account_id, name)
    form, access = filters.asked(), shelf.access(shelf.collection, "list")
    sort = request.args.get("sort", "").replace("\0", "")
    asked = {"filter": [form.build(access)] if access else [], "sort": [sort]}
    export = exports.export(shelf.collection.name, format, asked, by=shelf.by)
    response = Response(export.text, mimetype=formats.FORMATS[format], direct_passthrough=True)
    response.call_on_close(export.close)
    called = f"attachment; filename={export.name}.{format}"
    response.headers["Content-Disposition"] = called
    return response


@dataclass
class Run:
    """A file that is tried out or imported, and what comes of it."""

    account_id: str
    name: str
    format: str
    raw: bytes
    dry_run: bool
    form: Form
    total: int | None
    """How many records there are; None where the file cannot be read to its end."""
    count: int = 0
    sample: list[RecordView] = field(default_factory=list)
    wrong: list[tuple[Any, str | None, str]] = field(default_factory=list)
    more: int = 0

    @property
    def columns(self) -> list[str]:
        """The fields of the sample that any record of it has a value in."""
        filled = {n: True for one in self.sample for n in one if one[n] is not None}
        return [name for name in filled if name not in SYSTEM_FIELDS]

    @property
    def is_long(self) -> bool:
        """Whether somebody who waits for it should see how far it is."""
        return (self.total or 0) > imports.PIECE

    def steps(self) -> Iterator[int]:
        """Do it; yields how many records have been looked at. What is wrong is kept, not raised."""
        try:
            for count, sample in guard.steady_steps(self._begun):
                self.count, self.sample = count, sample
                yield count
        except AppError as error:
            self._refused(error)
        except UNAVAILABLE as error:
            if not self.is_long:  # else the page has begun, and can only tell
                raise
            self._refused(unavailable(error))

    def _begun(self) -> Iterator[tuple[int, list[RecordView]]]:
        shelf = scopes.shelf(self.account_id, self.name)
        return exports.import_in_steps(
            shelf.collection.name, self.format, self.raw, dry_run=self.dry_run, by=shelf.by
        )

    def _refused(self, error: AppError) -> None:
        self.wrong = list(_lines(error))
        self.form.status = error.status
        self.form.problem = None if self.wrong else error.message
        self.more = max(int(error.extra.get("count", 0)) - len(self.wrong), 0)


@blueprint.get(IMPORT)
@public
@guard.for_admins
@guard.steady
def show_import(account_id: str, name: str) -> Page:
    """The form to choose a file with."""
    return _page(scopes.shelf(account_id, name), Form())


@blueprint.post(IMPORT)
@public
@guard.for_admins
@guard.steady
def import_records(account_id: str, name: str) -> Page | BaseResponse:
    """Try a file out, which tells all that is wrong with it; or import it, all or nothing.

    Of a long file the page is sent bit by bit, as the work goes on.
    """
    shelf, form = scopes.shelf(account_id, name), Form({"file": ""})
    dry_run = request.form.get("do") != "import"
    try:
        format, raw = _file()
        signing.sign(shelf, form)
    except AppError as error:
        return _page(shelf, form.refused(error))
    run = Run(account_id, name, format, raw, dry_run, form, _count(format, raw))
    if run.is_long:
        return _page_in_steps(shelf, run)
    for _ in run.steps():
        pass
    if dry_run or form.status != 200:
        return _page(shelf, form, run=run)
    notice = f"{run.count} record{' is' if run.count == 1 else 's are'} imported."
    return told(notice, "console.show_records", **shelf.at)


def _file() -> tuple[str, bytes]:
    file = request.files.get("file")
    format = ENDINGS.get(PurePath(file.filename or "").suffix.lower()) if file else None
    if file is None or format is None:
        raise BadRequest(NO_FILE)
    file.stream.seek(0)  # the page may be made again
    return format, file.stream.read()


def _count(format: str, raw: bytes) -> int | None:
    try:
        return len(exports.lines_of(format, raw))
    except (Malformed, PayloadTooLarge):
        return None


def _lines(error: AppError) -> Iterator[tuple[Any, str | None, str]]:
    """Line, field and message of each problem."""
    if isinstance(error, Malformed):
        for one in error.extra["detail"]:
            yield (
                next((part for part in one["loc"] if isinstance(part, int)), None),
                None,
                one["msg"],
            )
    for detail in error.extra.get("details") or ():
        problem: Mapping[str, Any] = detail
        yield problem.get("line"), problem.get("field"), problem["message"]


def _page(shelf: Shelf, form: Form, **context: Any) -> Page:
    return form.page("console/records/import.html", **_context(shelf), **context)


def _page_in_steps(shelf: Shelf, run: Run) -> Response:
    get_flashed_messages()  # as long as the session's cookie can still be sent
    template = "console/records/import.html"
    text = stream_template(template, form=run.form, run=run, steps=run.steps(), **_context(shelf))
    # A proxy that kept the page until it is whole would show nothing of it.
    return Response(text, headers={"X-Accel-Buffering": "no"})


def _context(shelf: Shelf) -> dict[str, Any]:
    may = "create" in shelf.opened(shelf.collection)
    return {"shelf": shelf, "may": may, "ask": scopes.WHOM_TO_ASK, "tell": tell}
