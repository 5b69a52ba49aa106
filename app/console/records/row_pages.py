"""Saves a row of a record table."""

from __future__ import annotations

from flask import request
from werkzeug.wrappers import Response as BaseResponse

from app.console.records import (
    columns,
    list_state,
    listing,
    picker,
    record_form,
    row_edit,
    saved_views,
)
from app.console.records.pages import CHANGED
from app.console.shell import scopes, signing
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Page
from app.errors import AppError, Conflict, NotFound, PreconditionFailed
from app.records import service
from app.web.languages import gettext
from app.web.preconditions import Preconditions


@page(listing.COLLECTION, "POST", role=ADMIN, retry_stale=True)
def change_row(account_id: str, name: str) -> Page | BaseResponse:
    """Save the changed fields of a row, or search for a reference."""
    scope = scopes.collection_scope(account_id, name)
    access, record_id = scope.access(scope.collection, "list"), request.args.get("edit", "")
    edit = row_edit.open_row(scope, record_id, columns.shown(access)) if access else None
    if edit is None:
        raise NotFound
    form = record_form.fill_submitted(edit.form)
    views = saved_views.get_all(scope.collection, scope.by)
    if picker.run(scope, form):
        return listing.render_list(scope, views, edit)
    try:
        body = form.body(new=False)
        if body:
            signing.sign(scope, form)
            etag = form["seen"] or None
            service.patch(
                scope.collection.name,
                edit.record["id"],
                body,
                conditions=Preconditions(etag),
                by=scope.by,
            )
    except PreconditionFailed:
        form.values["seen"] = edit.record.etag
        form.with_error(Conflict(str(CHANGED))).with_stored_notes()
        return listing.render_list(scope, views, edit)
    except AppError as error:
        form.with_error(error)
        return listing.render_list(scope, views, edit)
    notice = gettext("The record is saved.") if body else gettext("No changes.")
    return list_state.redirect_to_list(notice, scope)
