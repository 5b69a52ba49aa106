"""Static files at addresses with a version, which browsers and proxies keep for a year.

The version is a digest of all files, as a folder of the path: the modules that a script imports
share it. An address without a version, or with that of another release, serves the present file,
which browsers then revalidate.
"""

from __future__ import annotations

import gzip
import re
import time
from functools import lru_cache
from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path

from flask import Flask, Response, request, send_from_directory, url_for
from werkzeug.security import safe_join

from app.web import html

ENDPOINT, DIGITS = "static", 12
VERSION = re.compile(f"[0-9a-f]{{{DIGITS}}}", re.ASCII)
FOREVER = "public, max-age=31536000, immutable"
GZIPPED, GZIP_LEVEL = frozenset({".css", ".js", ".json", ".svg"}), 9


def init_app(app: Flask) -> None:
    """Serve the static folder; `static(filename)` is the address of a file in templates."""
    folder = Path(app.static_folder or "")

    def static(filename: str) -> str:
        return url_for(ENDPOINT, filename=f"{version(folder)}/{filename}")

    def send(filename: str) -> Response:
        first, _, rest = filename.partition("/")
        if not VERSION.fullmatch(first):
            return _file(folder, filename)
        response = _file(folder, rest)
        if first == version(folder):
            response.headers["Cache-Control"] = FOREVER
        return response

    app.view_functions[ENDPOINT] = send
    app.add_template_global(static)


def version(folder: Path) -> str:
    """The version of the files in a folder: hex digits that change with any of them."""
    return _version(folder, int(time.monotonic()))


@lru_cache(1)
def _version(folder: Path, _second: int) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return _digest(folder, tuple((path, path.stat().st_mtime_ns) for path in files))


@lru_cache(1)
def _digest(folder: Path, files: tuple[tuple[Path, int], ...]) -> str:
    digest = sha256()
    for path, _ in files:
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:DIGITS]


def _file(folder: Path, name: str) -> Response:
    path = safe_join(str(folder), name)
    file = Path(path) if path else None
    if file and html.accepts_gzip() and file.is_file():
        packed = _compressed(file, file.stat().st_mtime_ns)
        if packed is not None:
            kind = guess_type(file.name)[0]
            response = Response(packed, mimetype=kind)
            response.headers.update({"Content-Encoding": "gzip", "Cache-Control": "no-cache"})
            response.add_etag()
            response.vary.add("Accept-Encoding")
            response.make_conditional(request)
            return response
    response = send_from_directory(folder, name)
    response.vary.add("Accept-Encoding")
    return response


@lru_cache(256)
def _compressed(path: Path, modified_ns: int) -> bytes | None:
    """The gzip of a static file, None if it is of a type that does not shrink."""
    if path.suffix not in GZIPPED:
        return None
    return gzip.compress(path.read_bytes(), GZIP_LEVEL, mtime=0)
