"""`/records/{collection}/export` and `/import`: records moved as files (contract section 5)."""

from __future__ import annotations

from pathlib import PurePath

import marshmallow as ma
from flask import Response, request
from werkzeug.datastructures import FileStorage

from app import rest
from app.auth.guard import optimistic, principal
from app.errors import Malformed, UnsupportedMediaType
from app.records.api.routes import EXAMPLE, Record, RecordBody
from app.records.transfer import exports, formats
from app.rest import fields, json_input
from app.rest.access import Access, allow
from app.rest.blueprint import Blueprint
from app.rest.responses import json_response
from app.rest.schemas import TEXT, Schema
from app.types import JSONObject

blueprint = Blueprint(
    "Record transfer",
    __name__,
    url_prefix=f"{rest.PREFIX}/records",
    description="The records of a collection, moved as files.",
)

MEDIA_TYPES = {
    **{media_type: format for format, media_type in formats.FORMATS.items()},
    "application/jsonl": "jsonl",
    "application/x-jsonlines": "jsonl",
}
ENDINGS = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}
RECORDS = [{"title": "Hello"}, {"title": "Hello again"}]
LIST_OF_RECORDS = {
    "type": "array",
    "items": {"$ref": f"#/components/schemas/{RecordBody.__name__}"},
}
FILES = {
    "application/json": {
        "schema": {
            "anyOf": [
                LIST_OF_RECORDS,
                {
                    "type": "object",
                    "properties": {"records": LIST_OF_RECORDS},
                    "required": ["records"],
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
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {"file": {"type": "string", "format": "binary"}},
            "required": ["file"],
        }
    },
}


class ExportArgs(Schema):
    """What to export, in which format. Every other parameter is `<field>=<value>`."""

    class Meta:
        """Other parameters are fields of the collection."""

        unknown = ma.EXCLUDE

    format = ma.fields.String(
        load_default="jsonl",
        validate=ma.validate.OneOf(list(formats.FORMATS)),
        metadata={"description": "csv, json or jsonl."},
    )
    sort = fields.Text(metadata={"description": "As a list takes it; default `-created_at`."})
    fields_ = fields.Text(
        data_key="fields",
        attribute="fields",
        metadata={"description": "Comma-separated names; `id` always stays."},
    )
    filter = fields.Text(longest=2**30, metadata={"description": "As a list takes it."})


class ImportArgs(Schema):
    """How to import."""

    dry_run = ma.fields.Boolean(
        load_default=False, metadata={"description": "true does all of it and then undoes it."}
    )
    keep_ids = ma.fields.Boolean(
        load_default=False,
        metadata={"description": "true takes the ids of the file; for superadmins."},
    )


class RecordImport(Schema):
    """What an import did, or would do."""

    imported = ma.fields.Integer(required=True)
    count = ma.fields.Integer(required=True, metadata={"description": "The same as imported."})
    dry_run = ma.fields.Boolean(required=True)


@blueprint.route("/<collection>/export", methods=["GET"])
@blueprint.arguments(ExportArgs, location="query", unknown=ma.EXCLUDE)
@blueprint.response(200, Record, example=EXAMPLE, content_type="application/x-ndjson")
@blueprint.alt_response(
    200, schema=Record(many=True), example=[EXAMPLE], description="The records."
)
@blueprint.alt_response(
    200, schema=TEXT, content_type="text/csv", example="id,...", description="The records."
)
@blueprint.fails(400, 403)
@optimistic
@allow(Access.ANONYMOUS)
def export_records(args: JSONObject, collection: str) -> Response:
    """Export all records of a list.

    The records that the list shows, as it shows them: its rule, fields and masks, `filter`,
    `?field=value`, `sort` and `fields`; all of them as they were at one moment. `json` is an array,
    `jsonl` a record on each line. In `csv` an empty cell is null and JSON stands as text; an
    apostrophe leads an empty text and what a spreadsheet would run (what begins with `=`, `+`, `-`,
    `@`, a tab or a line break), and what would read like one of these. An import takes each of them
    back. `X-Service-Masked-Fields` names the fields that the caller sees masked: the file is then
    no copy of the data. An answer that ends without its last chunk was cut off.
    """
    parameters = request.args.to_dict(flat=False)
    parameters.pop("format", None)
    export = exports.export(collection, args["format"], parameters, by=principal())
    response = Response(export.text, mimetype=formats.FORMATS[args["format"]])
    response.call_on_close(export.close)  # also where nobody reads any of it
    name = f"{export.name}.{args['format']}"
    response.headers["Content-Disposition"] = f"attachment; filename={name}"
    if export.masked:
        response.headers["X-Service-Masked-Fields"] = ", ".join(export.masked)
    return response


@blueprint.route("/<collection>/import", methods=["POST"])
@blueprint.arguments(ImportArgs, location="query")
@blueprint.response(200, RecordImport, example={"imported": 2, "count": 2, "dry_run": False})
@blueprint.fails(400, 403, 409, 413, 415, 422, 428)
@blueprint.doc(requestBody={"required": True, "content": FILES})
@optimistic
@allow(Access.ANONYMOUS)
def import_records(args: JSONObject, collection: str) -> Response:
    """Create a record of each of a file's, all or nothing.

    `text/csv` (the first line names the fields), `application/json` (an array, or
    `{"records": [...]}`), `application/x-ndjson`, or one `file` of these in `multipart/form-data`.
    Each record is created as by `POST /records/{collection}`, but that the system's fields and
    computed ones are ignored, so that an export can be imported. Superadmins may have the ids kept
    (`keep_ids`), and with them what the records refer to. A field that the file does not name takes
    its default; in CSV an empty cell is null, an apostrophe alone an empty text. Whoever sees a
    field masked cannot import its masks (`invalid_option`).

    Whatever is wrong is told with its `line` (and `index`, the place of the record): the first 100
    problems, and in `count` how many there are. A file has at most `SERVICE_IMPORT_MAX_ROWS`
    records (50,000; more are a 413), and CSV 1,000 columns.

    On SQLite, which takes one writer at a time, a file of more than some hundred records is checked
    as a whole, and nothing of it is stored where anything is wrong; then it is stored in pieces,
    and others write in between. Where what somebody else has changed meanwhile is in the way, the
    import ends there: 409 `import_interrupted`, with `imported`, how many of the first records are
    stored. Import the others then.
    """
    format, raw = _file()
    count = exports.import_all(
        collection,
        format,
        raw,
        dry_run=args["dry_run"],
        keep_ids=args["keep_ids"],
        by=principal(),
    )
    return json_response({"imported": count, "count": count, "dry_run": args["dry_run"]})


def _file() -> tuple[str, bytes]:
    if request.mimetype == "multipart/form-data":
        return _part()
    format = MEDIA_TYPES.get(request.mimetype)
    raw = json_input.read_body(request)
    if format is None:
        raise UnsupportedMediaType("Send text/csv, application/json or application/x-ndjson.")
    return format, raw


def _part() -> tuple[str, bytes]:
    files: list[FileStorage] = request.files.getlist("file")
    if len(files) != 1 or len(request.files) != 1:
        raise Malformed.at("body", "file", msg="Send one file, called file.", type="missing")
    name = PurePath(files[0].filename or "").suffix.lower()
    format = ENDINGS.get(name) or MEDIA_TYPES.get(files[0].mimetype)
    if format is None:
        raise UnsupportedMediaType("The file's name must end in .csv, .json, .jsonl or .ndjson.")
    files[0].stream.seek(0)  # the view may run again
    return format, files[0].stream.read()
