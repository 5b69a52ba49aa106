"""Forms of a list of records: saves a row, or the list as a view, and deletes views."""

from __future__ import annotations

from flask import request
from werkzeug.wrappers import Response as BaseResponse

from app.console.records import display, filters, listing, record_form, saved_views
from app.console.shell import forms, second_factor
from app.console.shell.access import USER
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import CollectionScope
from app.errors import NotFound
from app.records import service
from app.types import JSONObject
from app.web.languages import gettext
from app.web.preconditions import Preconditions

VIEWS = f"{listing.COLLECTION}/views"


@page(listing.COLLECTION, "POST", role=USER, retry_stale=True, form_page=listing.show_records)
def change_row(scope: CollectionScope) -> Page | BaseResponse:
    """Save the changed fields of a row, or search for a reference."""
    access, record_id = scope.access(scope.collection, "list"), request.args.get("edit", "")
    edit = record_form.open_row(scope, record_id, display.shown_fields(access)) if access else None
    if edit is None:
        raise NotFound
    form = record_form.fill_submitted(edit.form)
    if record_form.run_picker(scope, form):
        return listing.show_records(scope, form)
    body = form.body(new=False)
    if body:
        second_factor.sign(scope, form)
        service.patch(
            scope.collection.name,
            edit.record["id"],
            body,
            conditions=Preconditions(form["seen"] or None),
            by=scope.by,
        )
    notice = gettext("The record is saved.") if body else gettext("No changes.")
    return listing.redirect_to_list(notice, scope)


def _list_args(scope: CollectionScope) -> JSONObject:
    """The list of the query string. Raises NotFound if the caller may not list."""
    access = scope.access(scope.collection, "list")
    if access is None:
        raise NotFound
    return listing.query_args(filters.from_request(), access, display.requested_columns(access))


def _save_page(scope: CollectionScope, form: Form) -> Page:
    page_args = {**scope.url_args, **_list_args(scope)}
    return form.render("console/records/save_view.html", scope=scope, page_args=page_args)


@page(VIEWS, "POST", role=USER, retry_stale=True, form_page=_save_page)
def save_view(scope: CollectionScope) -> BaseResponse:
    """Save the list of the query string under a name."""
    form = forms.submitted("name", "is_shared", "is_default")
    view = saved_views.save(
        scope.collection,
        form["name"],
        _list_args(scope),
        is_shared=bool(form["is_shared"]),
        is_default=bool(form["is_default"]),
        by=scope.by,
    )
    url_args = {**scope.url_args, **(saved_views.query(view) or listing.ALL)}
    return redirect_with_notice(gettext("The view is saved."), "console.show_records", **url_args)


@page(f"{VIEWS}/<uuid:view_id>/delete", "POST", role=USER, retry_stale=True)
def delete_view(scope: CollectionScope, view_id: str) -> BaseResponse:
    """Delete one of the caller's views."""
    saved_views.delete(view_id, scope.by)
    return listing.redirect_to_list(gettext("The view is deleted."), scope)
