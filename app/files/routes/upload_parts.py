"""Reads multipart bodies: files are streamed to disk as they arrive."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import chain
from typing import IO, NamedTuple

from flask import Request, Response, after_this_request
from werkzeug.datastructures import MultiDict
from werkzeug.sansio.multipart import (
    Data,
    Epilogue,
    Event,
    Field,
    File,
    MultipartDecoder,
    NeedData,
)

from app import config
from app.auth.guard import principal
from app.collections import access as accesses
from app.collections import definitions
from app.collections.definitions import Definition
from app.collections.fields import typed_value
from app.errors import InvalidValues, Malformed, PayloadTooLarge, problem
from app.files import service as files
from app.files import uploads
from app.files.models import StoredFile
from app.files.uploads import Upload
from app.types import JSONObject
from app.web import serialization
from app.web.app import get_g, get_request

MULTIPART = "multipart/form-data"
DATA = "data"
MOST_PARTS, MOST_FILES, MOST_HEADERS = 1000, 100, 16
PIECE, LONGEST_HEADERS = 64 * 1024, 64 * 1024
PARSED = "multipart_body"
FILENAME = re.compile(r';\s*filename="((?:[^"\\]|\\.)*)"', re.IGNORECASE)
ESCAPED = re.compile(r'\\(["\\])')
NO_FILE_FIELD = "This field takes no files."
Parts = MultiDict[str, StoredFile]
Texts = MultiDict[str, str]


class Part(NamedTuple):
    """A file of a body."""

    name: str
    upload: Upload
    filename: str
    mimetype: str


def record_body(collection: str, operation: str) -> JSONObject:
    """The body of a multipart request for a record, with the uploads that it brought.

    Raises Forbidden or Unauthorized, before it reads, if the operation is closed to the caller.
    """
    context = get_g()
    if PARSED not in context:  # a request may be run again, but read once
        definition = definitions.get(collection)
        accesses.for_operation(principal(), definition, operation).check_open()
        texts, parts = receive(with_record=True)
        setattr(context, PARSED, _values(definition, texts, parts))
    return dict(getattr(context, PARSED))


def receive(*, with_record: bool) -> tuple[Texts, Parts]:
    """The texts and the stored files of a multipart body.

    If the request fails, its uploads are deleted. Raises Malformed, PayloadTooLarge.
    """
    with uploads.receiving() as begun:
        texts, parts = _parse(_with_room(get_request()), begun)
        received = [part.upload for part in parts]
        stored = uploads.store(received, principal(), with_record=with_record) if parts else []
    _discard_if_refused([file.id for file in stored])
    return texts, MultiDict(zip((part.name for part in parts), stored, strict=True))


def receive_file(name: str) -> Part:
    """The only file of a body, in its part of this name, or all of the body.

    Close the upload after use. Raises Malformed, PayloadTooLarge.
    """
    request = _with_room(get_request())
    with uploads.receiving() as begun:
        if request.mimetype == MULTIPART:
            _, parts = _parse(request, begun)
            if [part.name for part in parts] != [name]:
                msg = f"Send one file, called {name}."
                raise Malformed.at("body", name, msg=msg, type="missing")
        else:
            begun.append(uploads.start(None))
            for piece in _pieces(request):
                begun[0].write(piece)
            begun[0].seek(0)
            parts = [Part(name, begun[0], "", request.mimetype)]
        begun.clear()  # the caller closes it
    return parts[0]


def _with_room(request: Request) -> Request:
    settings = config.current()
    if principal().signed_in:
        request.max_content_length = settings.file_max_bytes + settings.max_body_bytes
    return request


def _parse(request: Request, begun: list[Upload]) -> tuple[Texts, list[Part]]:
    texts, parts, room = Texts(), list[Part](), config.current().max_body_bytes
    name, text, part = "", bytearray(), None
    try:
        for event in _events(request):
            if isinstance(event, Field | File):
                name, text = _name(event), bytearray()
                part = _begin(event, begun) if isinstance(event, File) else None
            elif isinstance(event, Data) and part:
                part.upload.write(event.data)
                if not event.more_data:
                    part.upload.seek(0)
                    parts.append(part)
            elif isinstance(event, Data):
                text += event.data
                room -= len(event.data)
                if room < 0:
                    raise PayloadTooLarge("The texts of the form are too large.")
                if not event.more_data:
                    texts.add(name, _checked(text.decode()))
    except ValueError:
        raise Malformed.at(
            "body", msg="This is not multipart/form-data in UTF-8.", type="multipart"
        ) from None
    return texts, parts


def _events(request: Request) -> Iterator[Event]:
    # Not werkzeug's FormDataParser: it bounds each text and the headers of each part, but not all
    # of them together, and a part with a million headers takes seconds.
    boundary = request.mimetype_params.get("boundary", "").encode()
    if not boundary:
        raise ValueError("no boundary")
    decoder = MultipartDecoder(boundary, PIECE + LONGEST_HEADERS, max_parts=MOST_PARTS)
    for piece in chain(_pieces(request), [None]):
        decoder.receive_data(piece)
        while not isinstance(event := decoder.next_event(), NeedData | Epilogue):
            yield event


def _pieces(request: Request) -> Iterator[bytes]:
    stream, size = _stream(request), 0
    while piece := stream.read(PIECE):
        size += len(piece)
        if request.content_length is None and size >= (request.max_content_length or 0):
            raise PayloadTooLarge  # werkzeug reads as much as is allowed, and drops the rest
        yield piece


def _name(part: Field | File) -> str:
    if len(part.headers) > MOST_HEADERS or not part.name:  # typed as a text, it may be None
        raise ValueError("too many headers, or no name")
    return _checked(part.name)


def _begin(part: File, begun: list[Upload]) -> Part:
    if len(begun) >= MOST_FILES:
        raise PayloadTooLarge(f"A request brings at most {MOST_FILES} files.")
    begun.append(uploads.start(_filename(part)))
    mimetype = part.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return Part(_name(part), begun[-1], part.filename, mimetype)


def _filename(part: File) -> str:
    """The name of a file as browsers send it: a backslash escapes quotes and itself only."""
    header = part.headers.get("Content-Disposition", "")
    found = FILENAME.search(header)
    if found is None or "\\" not in found[1] or "filename*" in header.lower():
        return part.filename
    return ESCAPED.sub(r"\1", found[1])


def _checked(text: str) -> str:
    if "\0" in text:
        raise Malformed.at("body", msg="A text contains the NUL character.", type="multipart")
    return text


def _stream(request: Request) -> IO[bytes]:
    # The idempotency key has read the body.
    return BytesIO(request.get_data()) if "claim" in get_g() else request.stream


def _discard_if_refused(ids: Sequence[str]) -> None:
    by = principal()

    def discard(response: Response) -> Response:
        if response.status_code >= 400:
            files.forget(ids, by.require_account_id())
        return response

    if ids:
        after_this_request(discard)


def _values(definition: Definition, texts: Texts, parts: Parts) -> JSONObject:
    body: JSONObject = {}
    for name, values in texts.lists():
        if len(values) > 1 and name not in definition.files:
            raise Malformed.at("body", name, msg="Send this part once.", type="repeated")
    if DATA in texts and DATA not in definition.fields:
        sent = serialization.parse(texts[DATA].encode(), infinite=True)
        if not isinstance(sent, dict):
            raise Malformed.at("body", DATA, msg="Must be a JSON object.", type="type")
        body = sent
    for name, values in texts.lists():
        if name in definition.files:
            body[name] = _several(definition, name, [one for one in values if one])
        elif name != DATA or DATA in definition.fields:
            body[name] = typed_value(definition.fields.get(name), values[0])
    for name, stored in parts.lists():
        if name in definition.fields and name not in definition.files:
            # A value of JSON would name the file, which no record takes.
            raise InvalidValues([problem(name, "invalid_type", NO_FILE_FIELD)])
        known = body.get(name) if name in definition.files else None
        kept = known if isinstance(known, list) else []
        body[name] = _several(definition, name, [*kept, *({"id": file.id} for file in stored)])
    return body


def _several(definition: Definition, name: str, values: Sequence[object]) -> object:
    field = definition.files.get(name)
    if (field and field.most_files > 1) or len(values) > 1:
        return list(values)
    return values[0] if values else None
