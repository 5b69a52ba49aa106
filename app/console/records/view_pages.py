"""Saves the list that is shown as a view, and deletes views."""

from __future__ import annotations

from werkzeug.wrappers import Response as BaseResponse

from app.console.records import columns, filters, list_state, listing, saved_views
from app.console.shell import forms, scopes
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import CollectionScope
from app.errors import NotFound
from app.types import JSONObject
from app.web.languages import gettext

VIEWS = f"{listing.COLLECTION}/views"


def _list_args(scope: CollectionScope) -> JSONObject:
    """The list of the query string. Raises NotFound if the caller may not list."""
    access = scope.access(scope.collection, "list")
    if access is None:
        raise NotFound
    return listing.query_args(filters.from_request(), access, columns.requested(access))


def _save_page(account_id: str, name: str, form: Form) -> Page:
    scope = scopes.collection_scope(account_id, name)
    at = {**scope.url_args, **_list_args(scope)}
    return form.render("console/records/save_view.html", scope=scope, at=at)


@page(VIEWS, "POST", role=ADMIN, retry_stale=True, form_page=_save_page)
def save_view(account_id: str, name: str) -> BaseResponse:
    """Save the list of the query string under a name."""
    scope = scopes.collection_scope(account_id, name)
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


@page(f"{VIEWS}/<uuid:view_id>/delete", "POST", role=ADMIN, retry_stale=True)
def delete_view(account_id: str, name: str, view_id: str) -> BaseResponse:
    """Delete one of the caller's views."""
    scope = scopes.collection_scope(account_id, name)
    saved_views.delete(view_id, scope.by)
    return list_state.redirect_to_list(gettext("The view is deleted."), scope)
