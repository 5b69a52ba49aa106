"""Files of records, for the browser of somebody signed in."""

from __future__ import annotations

from flask import Response, request

from app.console.records import file_previews
from app.console.shell import scopes
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.files import responses
from app.records.read import files


@page("/console/accounts/<account_id>/files/<file_id>", role=ADMIN, retry_stale=True)
def show_file(account_id: str, file_id: str) -> Response:
    """A file that the caller may view, its thumbnail, or the beginning of a text."""
    file = files.readable(file_id, by=scopes.account_scope(account_id).by)
    if "text" in request.args:
        return file_previews.beginning(file)
    return responses.send(file, request.args.get("thumb"))
