"""The history of a record, and restoring an earlier state."""

from __future__ import annotations

from collections.abc import Sequence

from flask import request
from werkzeug.wrappers import Response as BaseResponse

from app.audit.append import DELETE
from app.console.records import columns, list_state, references, writers
from app.console.records.display import display
from app.console.records.pages import RECORD
from app.console.shell import forms, lists, scopes, second_factor
from app.console.shell.access import USER
from app.console.shell.blueprint import page
from app.console.shell.checks import Excerpt, differences
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import CollectionScope
from app.errors import NotFound
from app.records.history import service
from app.types import JSONMapping
from app.web.languages import gettext

MAX_ID_DIGITS = 18  # digits
MAX_LENGTH = 500
SIDES = ("old_value", "new_value")


@page(f"{RECORD}/history", role=USER, retry_stale=True)
def show_history(account_id: str, name: str, record_id: str, form: Form | None = None) -> Page:
    """The changes of a record, newest first."""
    scope, id = scopes.collection_scope(account_id, name), record_id.lower()
    url_args = {**list_state.args_from_page(scope), "record_id": id}
    listing = lists.from_request("console.show_history", **url_args)
    result = service.page(scope.collection.name, id, listing.skip, lists.PAGE_SIZE, by=scope.by)
    listing.with_page((result.changes, result.total))
    newest = listing.items[:1] if listing.page == 1 else ()
    return (form or Form()).render(
        "console/audit/history.html",
        scope=scope,
        page_args=url_args,
        listing=listing,
        deleted=any(change["operation"] == DELETE for change in newest),
        list_url=list_state.list_url(scope),
        labels=_labels(scope, listing.items),
        actor=writers.actor,
        compared=_compared,
        truncation=result.truncation,
        title=references.labels(scope.collection, [id], scope.by).get(id, f"…{id[-8:]}"),
    )


@page(f"{RECORD}/history", "POST", role=USER, retry_stale=True, form_page=show_history)
def restore_record(account_id: str, name: str, record_id: str) -> BaseResponse:
    """Restore the state after a change."""
    scope = scopes.collection_scope(account_id, name)
    entry_id = request.form.get("audit_id", "")
    if not entry_id.isascii() or not entry_id.isdigit() or len(entry_id) > MAX_ID_DIGITS:
        raise NotFound
    second_factor.sign(scope, forms.submitted())
    service.restore(scope.collection.name, record_id.lower(), int(entry_id), by=scope.by)
    notice = gettext("The record is restored to this state.")
    url_args = list_state.args_from_page(scope)
    return redirect_with_notice(notice, "console.show_record", **url_args, record_id=record_id)


def _compared(change: JSONMapping) -> dict[str, str | Excerpt]:
    """The old and the new value for display, with what differs marked."""
    shown = [display(change.get(side), MAX_LENGTH, exact=True) for side in SIDES]
    return dict(zip(SIDES, differences(*shown) or shown, strict=True))


def _labels(scope: CollectionScope, changes: Sequence[JSONMapping]) -> columns.Labels:
    """The labels of the records that the changed references pointed to."""
    access = scope.access(scope.collection, "view")
    values = [
        {change["field"]: change[key]}
        for entry in changes
        for change in entry["changes"]
        for key in ("old_value", "new_value")
        if isinstance(change.get(key), str | list)
    ]
    names = {name for value in values for name in value}
    return columns.labels(scope, access, values, sorted(names)) if access else {}
