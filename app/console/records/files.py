"""Exports records to files, and imports them."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import PurePath
from typing import IO

from flask import Response, request
from werkzeug.wrappers import Response as BaseResponse

from app import config
from app.auth.principal import Principal
from app.collections.fields import SYSTEM_FIELDS
from app.collections.fields.face import WidgetKind
from app.console.records import filters, listing, record_form
from app.console.records.display import format_value
from app.console.records.listing import COLLECTION
from app.console.shell import forms, guard, scopes, second_factor, streamed_pages
from app.console.shell.access import USER
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, TemplateContext
from app.console.shell.scopes import CollectionScope
from app.db.errors import UNAVAILABLE
from app.errors import AppError, BadRequest, Malformed, NotFound
from app.files import service as files
from app.files import uploads
from app.files.uploads import Upload
from app.records.read.views import RecordView
from app.records.routes.transfer import FORMAT_BY_SUFFIX, SEPARATORS, SUFFIXES
from app.records.transfer import exports, formats, imports
from app.records.transfer.archive_imports import ArchiveSource
from app.records.transfer.formats import Dialect, Source, TextSource
from app.records.transfer.imports import Options, Outcome
from app.types import JSONMapping
from app.web.app import UuidPath
from app.web.error_handlers import database_error
from app.web.languages import gettext, ngettext

IMPORT = f"{COLLECTION}/import"
CHOICES = ("upsert", "encoding", "separator")
ENCODINGS = ("", "UTF-8", "UTF-16LE", "UTF-16BE", "windows-1252", "windows-1250", "iso-8859-1")


@page(f"{COLLECTION}/export/<any(csv, json, jsonl, zip):format>", role=USER, retry_stale=True)
def export_records(scope: CollectionScope, format: str) -> Response:
    form, access = filters.from_request(), scope.access(scope.collection, "list")
    sort = request.args.get("sort", "").replace("\0", "")
    params = {**(form.parameters(access) if access else {}), "sort": [sort]}
    return export_response(scope, format, params)


def export_response(
    scope: CollectionScope, format: str, params: Mapping[str, Sequence[str]]
) -> Response:
    """The records of a list as a file. Raises InvalidValues."""
    export = exports.export(scope.collection.name, format, params, bom=True, by=scope.by)
    response = Response(export.text, mimetype=formats.FORMATS[format], direct_passthrough=True)
    response.call_on_close(export.close)
    disposition = f"attachment; filename={export.name}.{format}"
    response.headers["Content-Disposition"] = disposition
    return response


@dataclass(frozen=True)
class Problem:
    """A problem of a field in some lines of a file, or of the file."""

    lines: str
    count: int
    field: str | None
    message: str


@dataclass
class ImportFile:
    name: str
    format: str
    content: IO[bytes]
    upload_id: str | None
    """Its id as an upload that no record takes, such as the file of the last check."""
    archive: Upload | None = None

    @classmethod
    def of(cls, name: str, content: IO[bytes], upload_id: str | None = None) -> ImportFile:
        """The file, if its name says its format. Raises BadRequest."""
        format = FORMAT_BY_SUFFIX.get(PurePath(name).suffix.lower())
        if format is None:
            suffixes = ", ".join(SUFFIXES)
            raise BadRequest(
                gettext("Choose a file whose name ends in %(suffixes)s.", suffixes=suffixes)
            )
        return cls(name, format, content, upload_id)

    def source(self, by: Principal, dialect: Dialect) -> Source:
        if self.format != formats.ARCHIVE:
            # A streamed page outlives the request's own copy.
            raw = self.content.read()
            self.content = BytesIO(raw)
            return TextSource(self.format, raw, dialect)
        self.archive = self._uploaded()  # the source closes it
        return ArchiveSource(self.archive, by, dialect)

    def store(self, by: Principal) -> None:
        """Store it as an upload of the caller, which is deleted within a day."""
        with uploads.receiving() as begun:
            begun.append(self.archive or self._uploaded())
            (stored,) = uploads.store(begun, by, with_record=False)
        self.upload_id = stored.id

    def _uploaded(self) -> Upload:
        self.content.seek(0)
        upload = uploads.start(self.name)
        try:
            shutil.copyfileobj(self.content, upload)
            upload.seek(0)
        except AppError:
            upload.close()
            raise
        return upload


@dataclass
class ImportRun:
    """An import or its dry run, and the result."""

    account_id: str
    name: str
    file: ImportFile
    source: Source
    options: Options
    form: Form
    total: int | None
    """The number of records; None if the file does not parse."""
    outcome: Outcome = field(default_factory=Outcome)
    wrong: list[Problem] = field(default_factory=list)
    more: int = 0

    @property
    def dry_run(self) -> bool:
        return self.options.dry_run

    @property
    def count(self) -> int:
        """The number of records that are checked."""
        return self.outcome.processed

    @property
    def sample(self) -> list[RecordView]:
        """The first records."""
        return self.outcome.first

    @property
    def counts(self) -> str:
        """What became of the records, if some may have been there already."""
        if self.options.upsert is None:
            return ""
        return gettext(
            "New: %(created)s. Changed: %(updated)s. The same as before: %(unchanged)s.",
            created=self.outcome.created,
            updated=self.outcome.updated,
            unchanged=self.outcome.unchanged,
        )

    @property
    def columns(self) -> list[str]:
        """The fields that have a value in any record of the sample."""
        filled = {n: True for record in self.sample for n in record if record[n] is not None}
        return [name for name in filled if name not in SYSTEM_FIELDS]

    @property
    def is_long(self) -> bool:
        """Whether the page should show progress."""
        return (self.total or 0) > imports.BATCH_SIZE

    def steps(self) -> Generator[int]:
        """Run the import; yields how many records are checked. Errors are stored, not raised."""
        try:
            for outcome in guard.retry_stale_steps(self._begun):
                self.outcome = outcome
                yield outcome.processed
            self._store_or_discard()
        except AppError as error:
            self._refused(error)
        except UNAVAILABLE as error:
            if not self.is_long:  # else the response has started and can only report it
                raise
            self._refused(database_error(error))
        finally:
            self.source.close()

    def _begun(self) -> Iterator[Outcome]:
        scope = scopes.collection_scope(self.account_id, self.name)
        name = scope.collection.name
        return exports.import_in_steps(name, self.source, self.options, by=scope.by)

    def _store_or_discard(self) -> None:
        """Store a valid file until it is imported, so that it need not be chosen again."""
        by = scopes.collection_scope(self.account_id, self.name).by
        if self.dry_run and self.file.upload_id is None:
            with suppress(AppError):  # such as too many uploads: then it has to be chosen again
                self.file.store(by)
        elif not self.dry_run and self.file.upload_id is not None:
            with suppress(NotFound):
                files.discard(self.file.upload_id, by)

    def _refused(self, error: AppError) -> None:
        rows = list(_problem_rows(error))
        self.wrong = list(_grouped(rows))
        self.form.status = error.status
        self.form.problem = None if self.wrong else error.message
        self.more = max(int(error.extra.get("count", 0)) - len(rows), 0)


@dataclass
class ImportForm(Form):
    """The form with the chosen file, or the one that a check has stored."""

    file: ImportFile | None = None


@page(IMPORT, role=USER, retry_stale=True)
def show_import(
    scope: CollectionScope, form: ImportForm | None = None, run: ImportRun | None = None
) -> Page:
    form = form or ImportForm()
    return form.render("console/records/import.html", **_context(scope, form, run))


@page(IMPORT, "POST", role=USER, retry_stale=True, form_page=show_import)
def import_records(scope: CollectionScope) -> Page | BaseResponse:
    """Check a file and report all problems, or import it, all or nothing.

    The page of a long import streams its progress.
    """
    form = forms.show_errors_in(ImportForm({"file": "", **{n: forms.text(n) for n in CHOICES}}))
    form.file = file = _sent_file(scope)
    second_factor.sign(scope, form)
    separator = SEPARATORS.get(form.values["separator"])
    source = file.source(scope.by, Dialect(form.values["encoding"] or None, separator))
    dry_run = request.form.get("do") != "import"
    options = Options(dry_run, upsert=form.values["upsert"] or None)
    run = ImportRun(
        scope.account.id, scope.collection.name, file, source, options, form, _count(scope, source)
    )
    if run.is_long:
        context = _context(scope, form, run)
        return streamed_pages.stream(
            "console/records/import.html", run.steps(), form=form, **context
        )
    for _ in run.steps():
        pass
    if dry_run or form.status != 200:
        return show_import(scope, form, run)
    notice = ngettext(
        "%(count)s record is imported.",
        "%(count)s records are imported.",
        run.count,
        count=run.count,
    )
    return listing.redirect_to_list(f"{notice} {run.counts}".strip(), scope)


def _sent_file(scope: CollectionScope) -> ImportFile:
    """The file of the form, or the one that its check has stored. Raises BadRequest."""
    sent, upload_id = request.files.get("file"), forms.text("upload_id")
    if sent is not None and sent.filename:
        sent.stream.seek(0)  # the view may run again
        return ImportFile.of(sent.filename, sent.stream)
    if UuidPath.accepts(upload_id):
        file = files.find(upload_id, scope.account.id)
        is_own = file is not None and files.is_own_upload(file, scope.by)
        if not is_own or file.size > config.current().max_body_bytes:
            raise BadRequest(gettext("The file is no longer stored. Choose it again."))
        content = BytesIO(b"".join(files.read(file, 0, file.size)))
        return ImportFile.of(file.name, content, file.id)
    return ImportFile.of("", BytesIO())


def _count(scope: CollectionScope, source: Source) -> int | None:
    if scope.access(scope.collection, "create") is None:
        return None
    try:
        return len(source.lines(scope.collection))
    except AppError:  # the import reports it
        return None


def _grouped(problems: Iterable[tuple[int | None, str | None, str]]) -> Iterator[Problem]:
    """Equal problems together, with their lines."""
    lines = dict[tuple[str | None, str], list[int]]()
    for line, name, message in problems:
        found = lines.setdefault((name, message), [])
        if line is not None:
            found.append(line)
    for (name, message), found in lines.items():
        yield Problem(_ranges(found), len(found), name, message)


def _ranges(lines: Sequence[int]) -> str:
    """Numbers as a text, such as `2-4, 7`."""
    ranges = list[list[int]]()
    for line in sorted(set(lines)):
        if ranges and line == ranges[-1][-1] + 1:
            ranges[-1][1:] = [line]
        else:
            ranges.append([line])
    return ", ".join("-".join(map(str, ends)) for ends in ranges)


def _problem_rows(error: AppError) -> Iterator[tuple[int | None, str | None, str]]:
    """Line, field and message of each problem."""
    if isinstance(error, Malformed):
        for item in error.extra["detail"]:
            yield (
                next((part for part in item["loc"] if isinstance(part, int)), None),
                None,
                item["msg"],
            )
    for detail in error.extra.get("details") or ():
        problem: JSONMapping = detail
        yield problem.get("line"), problem.get("field"), problem["message"]


def _context(scope: CollectionScope, form: ImportForm, run: ImportRun | None) -> TemplateContext:
    access = scope.access(scope.collection, "create")
    widgets = record_form.blank(access).widgets if access else ()
    return {
        "scope": scope,
        "run": run,
        "file": form.file,
        "ask_superadmins": scopes.ASK_SUPERADMINS,
        "keys": [names[0] for names in scope.collection.unique_keys if len(names) == 1],
        "encodings": ENCODINGS,
        "may_create": "create" in scope.allowed_operations(scope.collection),
        "head": ",".join(one.field.name for one in widgets if one.kind != WidgetKind.FILES),
        "list_url": listing.list_url(scope),
        "page_args": listing.args_from_page(scope),
        "display": format_value,
    }
