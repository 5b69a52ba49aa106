"""Reads multipart bodies: files are streamed to disk as they arrive (contract section 16)."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import IO

from flask import Request, Response, after_this_request
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser

from app import config
from app.auth.guard import principal
from app.collections import access as accesses
from app.collections import definition as definitions
from app.collections.definition import Definition
from app.errors import Malformed, PayloadTooLarge
from app.files import service as files
from app.files import uploads
from app.files.models import StoredFile
from app.files.uploads import Upload
from app.records.transfer.exports import typed_value
from app.rest import json_input
from app.rest.current_request import get_g, get_request
from app.types import JSONObject

MULTIPART = "multipart/form-data"
DATA = "data"
MOST_PARTS, MOST_FILES = 1000, 100
PARSED = "multipart_body"
Parts = MultiDict[str, StoredFile]
Texts = MultiDict[str, str]


def record_body(collection: str, operation: str) -> JSONObject:
    """The body of a multipart request for a record, with the uploads that it brought.

    Raises Forbidden or Unauthorized, before it reads, if the operation is closed to the caller.
    """
    context = get_g()
    if PARSED not in context:  # a request may be run again, but read once
        definition = definitions.get(collection)
        accesses.for_operation(principal(), definition, operation).check_open()
        texts, parts = receive()
        setattr(context, PARSED, _values(definition, texts, parts))
    return dict(getattr(context, PARSED))


def receive() -> tuple[Texts, Parts]:
    """The texts and the stored files of a multipart body.

    If the request fails, its uploads are deleted. Raises Malformed, PayloadTooLarge.
    """
    request, settings, by = get_request(), config.current(), principal()
    if by.signed_in:
        request.max_content_length = settings.file_max_bytes + settings.max_body_bytes
    with uploads.receiving() as begun:
        texts, parts = _parse(request, begun)
        stored = uploads.store([upload for _, upload in parts], by) if parts else []
    _discard_if_refused([file.id for file in stored])
    return texts, MultiDict(zip((name for name, _ in parts), stored, strict=True))


def _parse(request: Request, begun: list[Upload]) -> tuple[Texts, Sequence[tuple[str, Upload]]]:
    def open_stream(*, filename: str | None = None, **_: object) -> Upload:
        if len(begun) >= MOST_FILES:
            raise PayloadTooLarge(f"A request brings at most {MOST_FILES} files.")
        begun.append(uploads.start(filename))
        return begun[-1]

    parser = FormDataParser(
        stream_factory=open_stream,  # type: ignore[arg-type]
        max_form_memory_size=config.current().max_body_bytes,
        max_content_length=request.max_content_length,
        max_form_parts=MOST_PARTS,
        silent=False,
    )
    source = (request.mimetype, request.content_length, request.mimetype_params)
    try:
        _, texts, found = parser.parse(_stream(request), *source)
    except ValueError:
        raise Malformed.at(
            "body", msg="This is not multipart/form-data.", type="multipart"
        ) from None
    if request.content_length is None and _is_cut(begun, request):
        raise RequestEntityTooLarge
    parts = [(name, one.stream) for name, one in found.items(multi=True)]
    return texts, parts  # type: ignore[return-value]


def _stream(request: Request) -> IO[bytes]:
    # The idempotency key has read the body.
    return BytesIO(request.get_data()) if "claim" in get_g() else request.stream


def _is_cut(begun: Sequence[Upload], request: Request) -> bool:
    # Of a body without length werkzeug reads as much as is allowed, and drops the rest.
    return sum(one.size for one in begun) >= (request.max_content_length or 0)


def _discard_if_refused(ids: Sequence[str]) -> None:
    by = principal()

    def discard(response: Response) -> Response:
        if response.status_code >= 400:
            for file_id in ids:
                files.forget(file_id, by.require_account_id())
        return response

    if ids:
        after_this_request(discard)


def _values(definition: Definition, texts: Texts, parts: Parts) -> JSONObject:
    body: JSONObject = {}
    if DATA in texts and DATA not in definition.fields:
        sent = json_input.loads(texts[DATA].encode(), infinite=True)
        if not isinstance(sent, dict):
            raise Malformed.at("body", DATA, msg="Must be a JSON object.", type="type")
        body = sent
    for name, values in texts.lists():
        if name in definition.files:
            body[name] = _several(definition, name, [one for one in values if one])
        elif name != DATA or DATA in definition.fields:
            body[name] = typed_value(definition.fields.get(name), values[-1])
    for name, stored in parts.lists():
        known = body.get(name) if name in definition.files else None
        kept = known if isinstance(known, list) else []
        body[name] = _several(definition, name, [*kept, *({"id": file.id} for file in stored)])
    return body


def _several(definition: Definition, name: str, values: Sequence[object]) -> object:
    field = definition.files.get(name)
    if (field and field.most_files > 1) or len(values) > 1:
        return list(values)
    return values[0] if values else None
