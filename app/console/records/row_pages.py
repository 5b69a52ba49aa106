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
)
from app.console.shell import scopes, signing
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Page
from app.errors import NotFound
from app.records import service
from app.web.languages import gettext
from app.web.preconditions import Preconditions


@page(listing.COLLECTION, "POST", role=ADMIN, retry_stale=True, form_page=listing.show_records)
def change_row(account_id: str, name: str) -> Page | BaseResponse:
    """Save the changed fields of a row, or search for a reference."""
    scope = scopes.collection_scope(account_id, name)
    access, record_id = scope.access(scope.collection, "list"), request.args.get("edit", "")
    edit = row_edit.open_row(scope, record_id, columns.shown(access)) if access else None
    if edit is None:
        raise NotFound
    form = record_form.fill_submitted(edit.form)
    if picker.run(scope, form):
        return listing.show_records(account_id, name, form)
    body = form.body(new=False)
    if body:
        signing.sign(scope, form)
        service.patch(
            scope.collection.name,
            edit.record["id"],
            body,
            conditions=Preconditions(form["seen"] or None),
            by=scope.by,
        )
    notice = gettext("The record is saved.") if body else gettext("No changes.")
    return list_state.redirect_to_list(notice, scope)
