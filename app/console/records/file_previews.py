"""What pages show of files: thumbnails, images, PDFs and the beginning of texts."""

from __future__ import annotations

from flask import Response

from app import config
from app.console.shell.forms import TemplateContext
from app.errors import BadRequest
from app.files import content, responses, service, thumbnails
from app.files.models import StoredFile
from app.files.service import File
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext

TEXT_BYTES = 8192
TEXTS = frozenset(content.TEXTS.values())


def context() -> TemplateContext:
    """What the macros of `files.html` need."""
    settings = config.current()
    # The policy of pages allows no frame of an S3 service.
    may_frame = not (settings.files_redirect and settings.files_url)
    return {"has_thumbnail": has_thumbnail, "is_text": is_text, "may_frame": may_frame}


def files_in(value: object) -> list[JSONObject]:
    """The files of a field's value; none if it is masked."""
    if isinstance(value, dict):
        return [value]
    return value if isinstance(value, list) else []


def describe(file: StoredFile) -> JSONObject:
    """An upload as the value of a field describes it."""
    return {"id": file.id, "name": file.name, "size": file.size, "mime_type": file.mime_type}


def has_thumbnail(file: JSONMapping) -> bool:
    """Whether a file is an image that thumbnails are made of."""
    is_raster = file.get("mime_type") in content.RASTER
    return is_raster and int(file["size"]) <= thumbnails.MAX_BYTES


def is_text(mime_type: str) -> bool:
    return mime_type.startswith("text/") or mime_type in TEXTS


def beginning(file: File) -> Response:
    """A response with the beginning of a text, as plain text. Raises BadRequest for others."""
    if not is_text(file.mime_type):
        raise BadRequest(gettext("Only texts have a preview as text."))
    data = b"".join(service.read(file, 0, min(file.size, TEXT_BYTES)))
    text = content.decode(data) or data.decode(errors="ignore")
    response = Response(f"{text}…" if file.size > TEXT_BYTES else text, mimetype="text/plain")
    response.headers["Content-Security-Policy"] = responses.POLICY
    return response
