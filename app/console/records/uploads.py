"""Uploads of one file each, for record forms in browsers with scripts (static/console/files.js)."""

from __future__ import annotations

import shutil

from flask import Response, render_template, request

from app.console.records import file_previews
from app.console.shell import guard, scopes
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import ACCOUNT, page
from app.console.shell.forms import Page
from app.errors import AppError, BadRequest, UnsupportedMediaType
from app.files import uploads
from app.web.languages import gettext

LONGEST_FIELD = 100


@page(f"{ACCOUNT}/files", "POST", role=ADMIN, takes_file=True)
def upload_file(account_id: str) -> Page | Response:
    """Store a file that a record may take; returns what the form shows of it."""
    scope, field = scopes.account_scope(account_id), request.args.get("field", "")[:LONGEST_FIELD]
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
    file = file_previews.describe(stored)
    context = {"scope": scope, "field": field, "file": file}
    context |= file_previews.context()
    return render_template("console/records/uploaded.html", **context), 201
