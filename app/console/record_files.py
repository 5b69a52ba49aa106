"""Records as files: a list exported, a file tried out and imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from flask import Response, request
from werkzeug.wrappers import Response as BaseResponse

from app.console import guard, places, record_filter, signing
from app.console.blueprint import blueprint
from app.console.forms import Form, Page, told
from app.console.places import Shelf
from app.console.records import COLLECTION
from app.errors import AppError, BadRequest, Malformed
from app.records import formats, transfer
from app.rest import public

IMPORT = f"{COLLECTION}/import"
ENDINGS = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}
NO_FILE = "Choose a file whose name ends in .csv, .json, .jsonl or .ndjson."


@blueprint.get(f"{COLLECTION}/export/<any(csv, json, jsonl):format>")
@public
@guard.for_admins
@guard.steady
def export_records(account_id: str, name: str, format: str) -> Response:
    """All records of the list that the page's address names, as a file."""
    shelf = places.shelf(account_id, name)
    form, access = record_filter.asked(), shelf.access(shelf.collection, "list")
    sort = request.args.get("sort", "").replace("\0", "")
    asked = {"filter": [form.build(access)] if access else [], "sort": [sort]}
    export = transfer.exported(shelf.collection.name, format, asked, by=shelf.by)
    response = Response(export.text, mimetype=formats.FORMATS[format], direct_passthrough=True)
    response.call_on_close(export.close)
    called = f"attachment; filename={export.name}.{format}"
    response.headers["Content-Disposition"] = called
    return response


@blueprint.get(IMPORT)
@public
@guard.for_admins
@guard.steady
def show_import(account_id: str, name: str) -> Page:
    """The form to choose a file with."""
    return _page(places.shelf(account_id, name), Form())


@blueprint.post(IMPORT)
@public
@guard.for_admins
@guard.steady
def import_records(account_id: str, name: str) -> Page | BaseResponse:
    """Try a file out, which tells all that is wrong with it; or import it, all or nothing."""
    shelf, form = places.shelf(account_id, name), Form({"file": ""})
    dry_run = request.form.get("do") != "import"
    try:
        format, raw = _file()
        signing.sign(shelf, form)
        count = transfer.imported(
            shelf.collection.name, format, raw, dry_run=dry_run, keep_ids=False, by=shelf.by
        )
    except AppError as error:
        return _refused(shelf, form, error)
    if dry_run:
        return _page(shelf, form, fits=count)
    return told(f"{count} records are imported.", "console.show_records", **shelf.at)


def _file() -> tuple[str, bytes]:
    file = request.files.get("file")
    format = ENDINGS.get(PurePath(file.filename or "").suffix.lower()) if file else None
    if file is None or format is None:
        raise BadRequest(NO_FILE)
    file.stream.seek(0)  # the page may be made again
    return format, file.stream.read()


def _refused(shelf: Shelf, form: Form, error: AppError) -> Page:
    wrong = list(_lines(error))
    form.status = error.status
    form.problem = None if wrong else error.message
    more = int(error.extra.get("count", 0)) - len(wrong)
    return _page(shelf, form, wrong=wrong, more=max(more, 0))


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
    may = "create" in shelf.opened(shelf.collection)
    return form.page(
        "console/records/import.html", shelf=shelf, may=may, ask=places.WHOM_TO_ASK, **context
    )
