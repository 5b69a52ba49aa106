"""`/records/{collection}/export` and `/import`: records as files."""

from __future__ import annotations

from contextlib import closing
from pathlib import PurePath

import marshmallow as ma
from flask import Response, after_this_request, request

from app import config, web
from app.auth.guard import optimistic, principal
from app.collections import access as accesses
from app.collections import definitions
from app.errors import PayloadTooLarge, UnsupportedMediaType
from app.files.routes import upload_parts
from app.records.routes import stale_reads
from app.records.routes.records import EXAMPLE, RecordBody, RecordObject, search_text
from app.records.transfer import exports, formats
from app.records.transfer.archive_imports import ArchiveSource
from app.records.transfer.formats import Dialect, Source, TextSource
from app.records.transfer.imports import Options
from app.types import JSONObject
from app.web import fields, serialization
from app.web.access import anonymous
from app.web.app import get_g
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.schemas import TEXT, Schema, View
from app.web.serialization import json_response

blueprint = Blueprint(
    "Record transfer",
    __name__,
    url_prefix=f"{web.PREFIX}/records",
    description="Export and import of records as files.",
)

MEDIA_TYPES = {
    **{media_type: format for format, media_type in formats.FORMATS.items()},
    "application/jsonl": "jsonl",
    "application/x-jsonlines": "jsonl",
}
FORMAT_BY_SUFFIX = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".zip": formats.ARCHIVE,
}
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
SUFFIXES = ", ".join(FORMAT_BY_SUFFIX)
SOURCE = "import_source"
BYTES = {"type": "string", "format": "binary"}
RECORDS = [{"title": "Hello"}, {"title": "Hello again"}]
RECORD_ARRAY = {
    "type": "array",
    "items": {"$ref": f"#/components/schemas/{RecordBody.__name__}"},
}
FILES = {
    "application/json": {
        "schema": {
            "anyOf": [
                RECORD_ARRAY,
                {
                    "type": "object",
                    "properties": {"records": RECORD_ARRAY},
                    "required": ["records"],
                    "additionalProperties": False,
                },
            ]
        },
        "example": RECORDS,
    },
    "application/x-ndjson": {
        "schema": TEXT,
        "example": '{"title": "Hello"}\n{"title": "Hello again"}\n',
    },
    "text/csv": {"schema": TEXT, "example": "title\r\nHello\r\nHello again\r\n"},
    "application/zip": {"schema": BYTES, "example": "(bytes)"},
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {"file": BYTES},
            "required": ["file"],
        }
    },
}


class ExportArgs(Schema):
    """What to export, in which format. Every other parameter is `<field>=<value>`."""

    class Meta:
        """Other parameters are fields of the collection."""

        unknown = ma.EXCLUDE

    names_fields = True

    format = ma.fields.String(
        load_default="jsonl",
        validate=ma.validate.OneOf(list(formats.FORMATS)),
        **doc("csv, json, jsonl or zip."),
    )
    bom = ma.fields.Boolean(
        load_default=False, **doc("true begins CSV with a byte order mark, as Excel needs it.")
    )
    sort = fields.Text(**doc("As in the list; default `-created_at`."))
    fields_ = fields.Text(
        data_key="fields", attribute="fields", **doc("Comma-separated names; `id` always stays.")
    )
    filter = fields.Text(longest=2**30, **doc("As in the list."))
    search = search_text()


class ImportArgs(Schema):
    dry_run = ma.fields.Boolean(
        load_default=False, **doc("true checks everything and rolls it back.")
    )
    keep_ids = ma.fields.Boolean(
        load_default=False, **doc("true keeps the ids of the file; for superadmins.")
    )
    upsert = fields.Text(
        **doc("A unique field: records that have a value of the file are updated, not created.")
    )
    encoding = fields.Text(longest=40, **doc("Of CSV, such as `windows-1252`; else it is found."))
    separator = fields.Choice(SEPARATORS, **doc("Of CSV; else it is found."))


class RecordImport(View):
    """The result of an import or dry run."""

    optional = ("created", "updated", "unchanged", "ignored", "encoding", "separator")

    imported = ma.fields.Integer(**doc("The records of the file."))
    count = ma.fields.Integer(**doc("The same as imported."))
    dry_run = ma.fields.Boolean()
    created = ma.fields.Integer(**doc("With `upsert`: the new ones of them."))
    updated = ma.fields.Integer(**doc("With `upsert`: those that have changed."))
    unchanged = ma.fields.Integer(**doc("With `upsert`: those that were there already, the same."))
    ignored = ma.fields.List(
        ma.fields.String(), **doc("Of `created_at` and `created_by`: what was not taken.")
    )
    encoding = ma.fields.String(**doc("Of CSV: the encoding that was named, or found."))
    separator = ma.fields.String(**doc("Of CSV: what separates the cells."))


@blueprint.route("/<collection>/export", methods=["GET"])
@blueprint.arguments(ExportArgs, location="query", unknown=ma.EXCLUDE)
@blueprint.response(200, RecordObject, example=EXAMPLE, content_type="application/x-ndjson")
@blueprint.alt_response(
    200, schema=RecordObject(many=True), example=[EXAMPLE], description="The records."
)
@blueprint.alt_response(
    200, schema=TEXT, content_type="text/csv", example="id,...", description="The records."
)
@blueprint.alt_response(
    200,
    schema=BYTES,
    content_type=formats.FORMATS[formats.ARCHIVE],
    example="(bytes)",
    description="The records, with the bytes of their files.",
)
@blueprint.fails(503)
@blueprint.doc(parameters=[stale_reads.HEADER])
@optimistic
@stale_reads.may_be_stale
@anonymous(operator="records")
def export_records(args: JSONObject, collection: str) -> Response:
    """Export all records of a list.

    Contains the records of the list with the same rule, fields and masks, `filter`, `?field=value`,
    `sort` and `fields`, from one snapshot. `json` is an array, `jsonl` has one record per line. In
    `csv` an empty cell is null and JSON is text; an apostrophe escapes empty texts, texts that a
    spreadsheet would execute (starting with `=`, `+`, `-`, `@`, a tab or a line break), and texts
    that look escaped; an import reverses it. `zip` has the records in `records.jsonl`, and the
    files that the caller may download in `files/<id>/<name>`. `X-Service-Masked-Fields` names
    masked fields: the file is then not a full copy. A response without its last chunk is
    incomplete.
    """
    parameters = request.args.to_dict(flat=False)
    for name in ("format", "bom"):
        parameters.pop(name, None)
    export = exports.export(collection, args["format"], parameters, bom=args["bom"], by=principal())
    response = Response(export.text, mimetype=formats.FORMATS[args["format"]])
    response.call_on_close(export.close)  # even if nobody reads it
    name = f"{export.name}.{args['format']}"
    response.headers["Content-Disposition"] = f"attachment; filename={name}"
    if export.masked:
        response.headers["X-Service-Masked-Fields"] = ", ".join(export.masked)
    return response


@blueprint.route("/<collection>/import", methods=["POST"])
@blueprint.arguments(ImportArgs, location="query")
@blueprint.response(200, RecordImport, example={"imported": 2, "count": 2, "dry_run": False})
@blueprint.fails(405, 409, 413, 415, 422, 428, 503)
@blueprint.doc(requestBody={"required": True, "content": FILES})
@optimistic
@anonymous(operator="records")
def import_records(args: JSONObject, collection: str) -> Response:
    """Import records from a file, all or nothing.

    `text/csv` (the first line names the fields, separated by commas, semicolons or tabs, as are
    the cells, unless a line `sep=;` before it or `separator` names another; in UTF-8, UTF-16 or
    windows-1252, or what `encoding` or the charset names), `application/json` (an array, or
    `{"records": [...]}`), `application/x-ndjson`, `application/zip`, or one `file` of these in
    `multipart/form-data`.
    Each record is created as by `POST /records/{collection}`, but system and computed fields are
    ignored, so that an export can be imported. From admins, `created_at` and `created_by` (the id
    or address of a user of the account) are taken. Superadmins may keep ids (`keep_ids`), and so
    the references between the records. Fields that the file does not name get their defaults; in
    CSV an empty cell is null, a single apostrophe an empty text. Masks of a field that the caller
    sees masked are refused (`invalid_option`).

    With `upsert`, a record that has a value of the file in this unique field is changed as by
    PATCH instead, by the update rule and its fields; one that the caller may neither view nor
    update is not found, and its value is taken. Each value is once in the file.

    An archive has one `records.jsonl`, `.json` or `.csv`, and in `files/<id>/<name>` the files that
    it names by their ids. They are uploaded for the imported records, and get new ids. It has at
    most 1,000 files and `SERVICE_FILE_MAX_BYTES`; unpacked, it has at most that and
    `SERVICE_MAX_BODY_BYTES` together. Wrong entries are a 400 `archive_invalid`.

    Returns the first 100 problems with their `line` and the record's `index`, and in `count` their
    number. A file has at most `SERVICE_IMPORT_MAX_ROWS`
    records (50,000; more are a 413), and CSV 1,000 columns.

    On SQLite, which has a single writer, a file of more than a few hundred records is first checked
    as a whole and then stored in batches, so that others can write in between. If a concurrent
    change conflicts, the import stops with 409 `import_interrupted`, where `imported` is the number
    of stored records. Import the rest then.
    """
    source = _source(
        collection, Dialect(args.get("encoding"), SEPARATORS.get(args.get("separator", "")))
    )
    options = Options(args["dry_run"], args["keep_ids"], args.get("upsert"))
    outcome = exports.import_all(collection, source, options, by=principal())
    count = outcome.processed
    answer = {"imported": count, "count": count, "dry_run": args["dry_run"]}
    if options.upsert is not None:
        counts = ("created", "updated", "unchanged")
        answer |= {name: getattr(outcome, name) for name in counts}
    if outcome.ignored:
        answer["ignored"] = sorted(outcome.ignored)
    return json_response({**answer, **source.dialect.found()})


def _source(collection: str, dialect: Dialect) -> Source:
    context = get_g()
    if SOURCE not in context:  # a request may be run again, but read once
        access = accesses.for_operation(principal(), definitions.get(collection), "create")
        access.check_open()  # before it reads
        source = _read_source(dialect)
        setattr(context, SOURCE, source)

        @after_this_request
        def close(response: Response) -> Response:
            source.close()
            return response

    found: Source = getattr(context, SOURCE)
    return found


def _read_source(dialect: Dialect) -> Source:
    format = MEDIA_TYPES.get(request.mimetype)
    if request.mimetype != upload_parts.MULTIPART and format != formats.ARCHIVE:
        if format == "csv" and dialect.encoding is None:
            dialect.encoding = request.mimetype_params.get("charset")
        raw = serialization.read_body(request, any_charset=format == "csv")
        if format is None:
            raise UnsupportedMediaType(f"Send {', '.join(formats.FORMATS.values())}.")
        return TextSource(format, raw, dialect)
    _, upload, filename, mimetype = upload_parts.receive_file("file")
    format = FORMAT_BY_SUFFIX.get(PurePath(filename).suffix.lower()) or MEDIA_TYPES.get(mimetype)
    if format == formats.ARCHIVE:
        return ArchiveSource(upload, principal(), dialect)
    with closing(upload):
        if format is None:
            raise UnsupportedMediaType(f"The file's name must end in {SUFFIXES}.")
        if upload.size > config.current().max_body_bytes:
            raise PayloadTooLarge
        return TextSource(format, upload.path.read_bytes(), dialect)
