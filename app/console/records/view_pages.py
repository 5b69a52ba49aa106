"""Saves the list that is shown as a view, and deletes views."""

from __future__ import annotations

from werkzeug.wrappers import Response as BaseResponse

from app.console.records import columns, filters, list_state, listing, saved_views
from app.console.shell import forms, scopes
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Page, redirect_with_notice
from app.errors import AppError, NotFound
from app.web.languages import gettext

VIEWS = f"{listing.COLLECTION}/views"


@page(VIEWS, "POST", role=ADMIN, retry_stale=True)
def save_view(account_id: str, name: str) -> Page | BaseResponse:
    """Save the list of the query string under a name."""
    scope = scopes.collection_scope(account_id, name)
    form = forms.submitted("name", "is_shared", "is_default")
    access = scope.access(scope.collection, "list")
    if access is None:
        raise NotFound
    query = listing.query_args(filters.from_request(), access, columns.requested(access))
    try:
        view = saved_views.save(
            scope.collection,
            form["name"],
            query,
            is_shared=bool(form["is_shared"]),
            is_default=bool(form["is_default"]),
            by=scope.by,
        )
    except AppError as error:
        at = {**scope.url_args, **query}
        return form.with_error(error).render("console/records/save_view.html", scope=scope, at=at)
    url_args = {**scope.url_args, **(saved_views.query(view) or listing.ALL)}
    return redirect_with_notice(gettext("The view is saved."), "console.show_records", **url_args)


@page(f"{VIEWS}/<uuid:view_id>/delete", "POST", role=ADMIN, retry_stale=True)
def delete_view(account_id: str, name: str, view_id: str) -> BaseResponse:
    """Delete one of the caller's views."""
    scope = scopes.collection_scope(account_id, name)
    saved_views.delete(view_id, scope.by)
    return list_state.redirect_to_list(gettext("The view is deleted."), scope)
