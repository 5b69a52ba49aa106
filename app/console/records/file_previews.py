"""Files of records: what pages show of them, uploads of forms, and downloads."""

from __future__ import annotations

import shutil

from flask import Response, render_template, request

from app import config
from app.console.shell import guard
from app.console.shell.access import USER
from app.console.shell.blueprint import ACCOUNT, page
from app.console.shell.forms import Page, TemplateContext
from app.console.shell.scopes import AccountScope
from app.errors import AppError, BadRequest, UnsupportedMediaType
from app.files import content, responses, service, thumbnails, uploads
from app.files.models import StoredFile
from app.files.service import File
from app.records.read import files
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext

LONGEST_FIELD = 100


TEXT_BYTES = 8192
TEXTS = frozenset(content.TEXTS.values())


def context() -> TemplateContext:
    """The template variables of the macros in `files.html`."""
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


@page("/console/accounts/<account_id>/files/<file_id>", role=USER, retry_stale=True)
def show_file(scope: AccountScope, file_id: str) -> Response:
    """A file that the caller may view, its thumbnail, or the beginning of a text."""
    file = files.readable(file_id, by=scope.by)
    if "text" in request.args:
        return beginning(file)
    given = (request.args.get(name) for name in ("thumb", "fit", "format"))
    return responses.send(file, thumbnails.parse(*given))


@page(f"{ACCOUNT}/files", "POST", role=USER, takes_file=True)
def upload_file(scope: AccountScope) -> Page | Response:
    """Store a file that a record may take; returns what the form shows of it."""
    field = request.args.get("field", "")[:LONGEST_FIELD]
    try:
        if request.mimetype != guard.FILE:
            raise UnsupportedMediaType(gettext("Send the file as %(type)s.", type=guard.FILE))
        if request.content_length is None:  # werkzeug would read as much as is allowed
            raise BadRequest(gettext("Send a Content-Length."))
        uploads.check_may_upload(scope.by)
        with uploads.receiving() as begun:
            begun.append(uploads.start(request.args.get("name")))
            shutil.copyfileobj(request.stream, begun[0])
            (stored,) = uploads.store(begun, scope.by, with_record=False)
    except AppError as error:
        return Response(error.message, error.status, error.headers, mimetype="text/plain")
    page = render_template(
        "console/records/uploaded.html",
        scope=scope,
        field=field,
        file=describe(stored),
        **context(),
    )
    return page, 201
