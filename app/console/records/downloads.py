"""Files of records, for the browser of somebody signed in."""

from __future__ import annotations

from flask import Response, request

from app.console.records import file_previews
from app.console.shell import guard, scopes
from app.console.shell.blueprint import blueprint
from app.files.routes import files as routes
from app.records.read import files
from app.web.access import public


@blueprint.get("/console/accounts/<account_id>/files/<file_id>")
@public
@guard.admins_only
@guard.retry_stale
def show_file(account_id: str, file_id: str) -> Response:
    """A file that the caller may view, its thumbnail, or the beginning of a text."""
    file = files.readable(file_id, by=scopes.account_scope(account_id).by)
    if "text" in request.args:
        return file_previews.beginning(file)
    return routes.send(file, request.args.get("thumb"))
