"""The trash of a collection: what is there, comes back, or goes for good."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from flask import request
from werkzeug.wrappers import Response as BaseResponse

from app.collections import trash as trashes
from app.console.records import pages, record_form, writers
from app.console.records.display import label, label_fields
from app.console.records.listing import COLLECTION
from app.console.records.record_form import RecordForm
from app.console.shell import lists, second_factor
from app.console.shell.access import USER
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import CollectionScope
from app.errors import Conflict, InvalidValues
from app.records import service, trash
from app.records.store.reads import ListQuery
from app.web.languages import gettext

TRASH = f"{COLLECTION}/trash"
RECORD = f"{TRASH}/<uuid:record_id>"


@page(TRASH, role=USER, retry_stale=True)
def show_trash(scope: CollectionScope, form: Form | None = None) -> Page:
    """What the caller may list and delete of the trash, the latest first."""
    listing = lists.from_request("console.show_trash", **scope.url_args)
    access = scope.access(trashes.of(scope.collection), "list")
    if scope.collection.trash_days and access and scope.access(scope.collection, "delete"):
        found = ListQuery(
            parameters={"trash": ["true"], "sort": ["-deleted_at"]},
            skip=listing.skip,
            limit=lists.PAGE_SIZE,
            count=True,
            max_total=listing.count_limit,
            cut=lists.MAX_VALUE_LENGTH,
        )
        rows, total = service.page(scope.collection.name, found, by=scope.by)
        listing.with_page((list(rows), total or 0))
    names = label_fields(access) if access else []
    form = form or Form()
    filling = form if isinstance(form, RecordForm) else RecordForm()
    record_form.load_labels(scope, filling)
    return form.render(
        "console/records/trash.html",
        scope=scope,
        listing=listing,
        rows=[(row, label(row, names)) for row in listing.items],
        writers=writers.names(scope, [{"created_by": row["deleted_by"]} for row in listing.items]),
        filling=filling,
        **pages.file_context(scope, filling, {}),
    )


@page(f"{RECORD}/restore", "POST", role=USER, retry_stale=True, form_page=show_trash)
def take_back(scope: CollectionScope, record_id: str) -> Page | BaseResponse:
    """Restore a record, with what was entered for fields that it could not come back with."""
    id, names = record_id.lower(), {*request.form.getlist("field")}
    whole = _form(scope, id)
    form = record_form.fill_submitted(_part(whole, names))
    if record_form.run_picker(scope, form):
        return show_trash(scope, form)
    second_factor.sign(scope, form)
    form.take_uploads(scope.by)
    try:
        trash.restore(scope.collection.name, id, form.body(new=False), by=scope.by)
    except (Conflict, InvalidValues) as error:
        names |= {detail["field"] for detail in error.extra.get("details", ())}
        more = _part(whole, names)
        form.widgets, form.values = more.widgets, more.values | form.values
        raise
    notice = gettext("The record is restored.")
    return redirect_with_notice(notice, "console.show_record", **scope.url_args, record_id=id)


def _form(scope: CollectionScope, record_id: str) -> RecordForm:
    """The form of a record in the trash; empty if the caller may not change it."""
    access = scope.access(scope.collection, "update")
    if access is None or scope.access(scope.collection, "list") is None:
        return RecordForm()
    found = ListQuery(parameters={"trash": ["true"], "id": [record_id]}, limit=1)
    rows, _ = service.page(scope.collection.name, found, by=scope.by)
    return record_form.from_record(access, next(iter(rows), None))


def _part(whole: RecordForm, names: Collection[str]) -> RecordForm:
    widgets = [widget for widget in whole.widgets if widget.field.name in names]
    values = {widget.name: whole.before[widget.name] for widget in widgets}
    return replace(whole, widgets=widgets, values=values)


@page(f"{RECORD}/delete", "POST", role=USER, retry_stale=True, form_page=show_trash)
def purge_record(scope: CollectionScope, record_id: str) -> BaseResponse:
    """Delete a record for good."""
    second_factor.sign(scope, Form())
    trash.purge(scope.collection.name, record_id, by=scope.by)
    notice = gettext("The record is deleted for good.")
    return redirect_with_notice(notice, "console.show_trash", **scope.url_args)
