"""What browsers load: pages with security headers and gzip, and the static files that these use.

Static files have addresses with a version, and browsers and proxies keep them for a year. The
version is a digest of all files, as a folder of the path: the modules that a script imports share
it. An address without a version, or with that of another release, serves the present file, which
browsers then revalidate.
"""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from mimetypes import guess_type
from pathlib import Path
from secrets import randbelow, token_hex

from flask import Flask, Response, request, send_from_directory, url_for
from werkzeug.security import safe_join

POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; script-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

FRAMING_POLICY = f"{POLICY}; frame-src 'self'"

MIN_BYTES = 1400
"""Smaller responses fit into one packet anyway."""
PAGE_LEVEL = 5
MAX_PADDING = 100
STATIC, OTHERS, VERSION_DIGITS = "static", "x", 12
VERSION = re.compile(f"[0-9a-f]{{{VERSION_DIGITS}}}", re.ASCII)
CACHED_FOREVER = "public, max-age=31536000, immutable"
GZIPPED, GZIP_LEVEL = frozenset({".css", ".js", ".json", ".svg"}), 9


def prefers_html() -> bool:
    """Whether the client prefers HTML to JSON."""
    # By quality, not by order: some browsers list other types before text/html.
    kinds = ["application/json", "text/html"]
    return request.accept_mimetypes.best_match(kinds) == "text/html"


def wants_only_json() -> bool:
    """Whether the client names JSON and nothing else, as no browser or mail scanner does."""
    return request.headers.get("Accept", "").strip().lower() == "application/json"


def allow_frames(response: Response) -> Response:
    """Let a page show frames of this service: files, as pages refuse to be framed."""
    response.headers["Content-Security-Policy"] = FRAMING_POLICY
    return response


def framed_by(origins: Sequence[str]) -> str:
    """Return the policy of a page that pages of these origins may show in a frame."""
    ancestors = " ".join(origins) or "'none'"
    return POLICY.replace("frame-ancestors 'none'", f"frame-ancestors {ancestors}")


def add_security_headers(response: Response) -> Response:
    """Add the headers of every page: own scripts only, no frames, no caching.

    Files have a stricter policy, and browsers may keep them if they ask each time.
    """
    response.headers.setdefault("Content-Security-Policy", POLICY)
    response.headers.setdefault("Referrer-Policy", "same-origin")
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def accepts_gzip() -> bool:
    """Whether the client takes gzip."""
    return request.accept_encodings["gzip"] > 0


def compress_page(response: Response) -> Response:
    """Compress a page if the client accepts it.

    Random padding hides the exact size: who could observe it while putting own words into the page
    would guess secrets in it, letter by letter (BREACH).
    """
    response.vary.add("Accept-Encoding")
    is_page = response.mimetype == "text/html" and not response.is_streamed
    if not is_page or "Content-Encoding" in response.headers or not accepts_gzip():
        return response
    page = response.get_data()
    if len(page) < MIN_BYTES:
        return response
    packed = BytesIO()
    name = token_hex(MAX_PADDING)[: randbelow(MAX_PADDING) + 1]
    with gzip.GzipFile(name, "wb", PAGE_LEVEL, packed, mtime=0) as file:
        file.write(page)
    response.set_data(packed.getvalue())
    response.headers["Content-Encoding"] = "gzip"
    return response


def serve_static(app: Flask) -> None:
    """Serve the static folder; `static(filename)` is the address of a file in templates.

    Below `x/{name}/` are the files of the folders in `atrium.static`.
    """
    folder = Path(app.static_folder or "")
    others: Mapping[str, Path] = app.extensions.get("atrium.static", {})
    folders = (folder, *others.values())

    def static(filename: str) -> str:
        return url_for(STATIC, filename=f"{static_version(*folders)}/{filename}")

    def file_of(path: str) -> Response:
        top, _, below = path.partition("/")
        name, _, rest = below.partition("/")
        if top == OTHERS and name in others:
            return _static_file(others[name], rest)
        return _static_file(folder, path)

    def send(filename: str) -> Response:
        first, _, rest = filename.partition("/")
        if not VERSION.fullmatch(first):
            return file_of(filename)
        response = file_of(rest)
        if first == static_version(*folders):
            response.headers["Cache-Control"] = CACHED_FOREVER
        return response

    app.view_functions[STATIC] = send
    app.add_template_global(static)


def static_version(*folders: Path) -> str:
    """The version of the files in folders: hex digits that change with any of them."""
    return _static_version(folders, int(time.monotonic()))


@lru_cache(1)
def _static_version(folders: Sequence[Path], _second: int) -> str:
    files = [
        (folder, path, path.stat().st_mtime_ns)
        for folder in folders
        for path in sorted(path for path in folder.rglob("*") if path.is_file())
    ]
    return _static_digest(tuple(files))


@lru_cache(1)
def _static_digest(files: tuple[tuple[Path, Path, int], ...]) -> str:
    digest = sha256()
    for folder, path, _ in files:
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:VERSION_DIGITS]


def _static_file(folder: Path, name: str) -> Response:
    path = safe_join(str(folder), name)
    file = Path(path) if path else None
    if file and accepts_gzip() and file.is_file():
        packed = _compressed_file(file, file.stat().st_mtime_ns)
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
def _compressed_file(path: Path, modified_ns: int) -> bytes | None:
    """The gzip of a static file, None if it is of a type that does not shrink."""
    if path.suffix not in GZIPPED:
        return None
    return gzip.compress(path.read_bytes(), GZIP_LEVEL, mtime=0)
