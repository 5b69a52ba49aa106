"""Responses with a file: all of it, the part that a request names, or a thumbnail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flask import Response

from app import config
from app.audit.security_log import reads
from app.errors import AppError, RangeNotSatisfiable
from app.files import content, downloads, service, storage, thumbnails
from app.files.service import File
from app.files.thumbnails import Form
from app.web import preconditions
from app.web.app import get_header, get_request
from app.web.sockets import Handover, find_socket

# Whatever a file contains, it runs nothing and loads nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; sandbox"


def etag_of(file: File) -> str:
    """The ETag of a file, whose bytes never change."""
    return f'"{file.sha256}"'


def send(file: File, thumb: Form | None = None) -> Response:
    """A response with a file, or the part that the request asks for; or with its thumbnail."""
    if thumb is not None:
        return _thumbnail(file, thumb)
    etag = etag_of(file)
    headers = {
        **_headers(file.mime_type, file.name),
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
    }
    if preconditions.matches(get_header("If-None-Match"), etag):
        return Response(status=304, headers=headers)
    if config.current().files_redirect:
        moved = storage.current().redirect(storage.key_of(file.account_id, file.id))
        reads.store_now()
        return Response(status=302 if "Location" in moved else 200, headers={**headers, **moved})
    requested = _requested_part(file, etag)
    if requested is None:
        part, status = range(file.size), 200
    else:
        part, status = requested, 206
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{file.size}"
    headers["Content-Length"] = str(len(part))
    request = get_request()
    is_large = len(part) > downloads.SMALL and request.method == "GET"
    if is_large and find_socket(request.environ):
        download = downloads.start(file, part.start, len(part))
        if download:
            headers["Connection"] = "close"
            return Handover(download, status=status, headers=headers)
    body = _until_error(service.read(file, part.start, len(part)))
    return Response(body, status, headers=headers)


def _requested_part(file: File, etag: str) -> range | None:
    """The bytes that the header Range names; None if all are to be sent.

    Raises RangeNotSatisfiable.
    """
    requested = get_request().range
    if requested is None or requested.units != "bytes" or len(requested.ranges) != 1:
        return None
    if get_header("If-Range") not in (None, etag):
        return None
    if requested.ranges[0][0] < -file.size:
        # A suffix that is longer than the file is all of it (RFC 9110, 14.1.2), which werkzeug's
        # `range_for_length` takes for none. Of an empty file there is no part.
        return range(file.size) if file.size else None
    found = requested.range_for_length(file.size)
    if found is None:
        raise RangeNotSatisfiable(file.size)
    return range(*found)


def _until_error(pieces: Iterable[bytes]) -> Iterator[bytes]:
    try:
        yield from pieces
    except AppError:  # the head is out: the length tells the client that something is missing
        return


def _thumbnail(file: File, form: Form) -> Response:
    etag = f'"{file.sha256[:40]}-{form.name}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if preconditions.matches(get_header("If-None-Match"), etag):
        return Response(status=304, headers=headers)
    data = thumbnails.get(file, form)
    headers |= _headers(form.mime_type, f"{file.name}.{form.format}")
    return Response(data, headers=headers)


def _headers(mime_type: str, name: str) -> dict[str, str]:
    charset = "; charset=utf-8" if mime_type.startswith("text/") else ""
    return {
        "Content-Type": f"{mime_type}{charset}",
        "Content-Disposition": content.disposition(mime_type, name),
        "Content-Security-Policy": POLICY,
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
