"""The page of one record: create, view, change, delete."""

from __future__ import annotations

from collections.abc import Sequence

from flask import after_this_request
from werkzeug.wrappers import Response as BaseResponse

from app.console.records import (
    columns,
    file_previews,
    list_state,
    picker,
    record_form,
    related,
    writers,
)
from app.console.records.display import display, label, label_fields
from app.console.records.listing import COLLECTION
from app.console.records.record_form import RecordForm
from app.console.shell import forms, scopes, second_factor
from app.console.shell.access import USER
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, TemplateContext, redirect_with_notice
from app.console.shell.scopes import CollectionScope
from app.errors import AppError, Conflict, Forbidden, NotFound
from app.records import service
from app.records.history import service as history
from app.records.read.views import RecordView
from app.types import JSONMapping
from app.web import html
from app.web.languages import gettext, lazy_gettext
from app.web.preconditions import Preconditions

NEW = f"{COLLECTION}/new"
RECORD = f"{COLLECTION}/<uuid:record_id>"
MAX_CHANGES = 5
GONE = lazy_gettext(
    "Somebody else has deleted this record in the meantime. Your entries are below: save them as a"
    " new record, or leave this page."
)


@page(NEW, role=USER, retry_stale=True)
def show_new_record(account_id: str, name: str, form: RecordForm | None = None) -> Page:
    scope = scopes.collection_scope(account_id, name)
    access = scope.access(scope.collection, "create")
    form = form or (record_form.blank(access) if access else RecordForm())
    picker.load_labels(scope, form)
    return form.render(
        "console/records/new.html",
        scope=scope,
        may_create=access is not None,
        access=access,
        form_id=forms.form_id(),
        ask_superadmins=scopes.ASK_SUPERADMINS,
        list_url=list_state.list_url(scope),
        page_args=list_state.args_from_page(scope),
        **_file_context(scope, form, {}),
    )


@page(NEW, "POST", role=USER, retry_stale=True, form_page=show_new_record)
def create_record(account_id: str, name: str) -> Page | BaseResponse:
    """Create a record, or search for a reference."""
    scope = scopes.collection_scope(account_id, name)
    access = scope.access(scope.collection, "create")
    if access is None:
        return show_new_record(account_id, name)
    form = record_form.fill_submitted(record_form.blank(access))
    if picker.run(scope, form):
        return show_new_record(account_id, name, form)
    second_factor.sign(scope, form)
    form.take_uploads(scope.by)
    body = form.body(new=True)
    id = forms.derive_id(body)
    with forms.ignore_already_created(lambda: _record(scope, id)):
        service.create(scope.collection.name, body, by=scope.by, record_id=id)
    return _redirect_to_record(gettext("The record is created."), scope, id)


@page(RECORD, role=USER, retry_stale=True)
def show_record(account_id: str, name: str, record_id: str, form: Form | None = None) -> Page:
    """A record, in a form if the caller may change it."""
    scope, id = scopes.collection_scope(account_id, name), record_id.lower()
    record = _record(scope, record_id)
    if not isinstance(form, RecordForm):
        stored = _form(scope, record)
        form = form.over(stored) if form else stored
    picker.load_labels(scope, form)
    # The account is in the header of each page.
    written = {"account_id", *(widget.field.name for widget in form.widgets)}
    shown = {name: value for name, value in (record or {}).items() if name not in written}
    access = scope.access(scope.collection, "view")
    operations = scope.allowed_operations(scope.collection)
    return form.render(
        "console/records/one.html",
        scope=scope,
        record=record,
        shown=shown,
        title=label(record or {"id": record_id}, label_fields(access) if access else ()),
        labels=columns.labels(scope, access, [record], list(shown)) if access and record else {},
        writers=writers.names(scope, [shown]),
        actor=writers.actor,
        related=related.related(scope, id) if record else (),
        max_related=related.MAX_HITS,
        changes=_newest_changes(scope, id) if record and "update" in operations else (),
        operations=operations,
        ask_superadmins=scopes.ASK_SUPERADMINS,
        display=display,
        neighbours=related.links(scope, id) if record else {},
        list_url=list_state.list_url(scope),
        page_args={**list_state.args_from_page(scope), "record_id": record_id},
        **_file_context(scope, form, shown),
    )


@page(RECORD, "POST", role=USER, retry_stale=True, form_page=show_record)
def change_record(account_id: str, name: str, record_id: str) -> Page | BaseResponse:
    """Save the changed fields, or search for a reference."""
    scope = scopes.collection_scope(account_id, name)
    try:
        record = _record(scope, record_id)
    except NotFound as error:
        access = scope.access(scope.collection, "create")
        if access is None:
            raise
        form = record_form.fill_submitted(record_form.blank(access))
        # Masks are not values.
        form.values |= dict.fromkeys((f"f_{name}" for name in access.masked), "")
        form.problem, form.status = str(GONE), error.status
        return show_new_record(account_id, name, form)
    form = record_form.fill_submitted(_form(scope, record))
    if picker.run(scope, form):
        return show_record(account_id, name, record_id, form)
    if not form.widgets:
        raise Forbidden(gettext("You may not change this record."))
    form.take_uploads(scope.by)
    body = form.body(new=False)
    if body:
        etag = form["seen"] or None
        second_factor.sign(scope, form)
        service.patch(
            scope.collection.name, record_id, body, conditions=Preconditions(etag), by=scope.by
        )
    notice = gettext("The record is saved.") if body else gettext("No changes.")
    return _redirect_to_record(notice, scope, record_id)


@page(f"{RECORD}/delete", "POST", role=USER, retry_stale=True, form_page=show_record)
def delete_record(account_id: str, name: str, record_id: str) -> BaseResponse:
    scope = scopes.collection_scope(account_id, name)
    second_factor.sign(scope, forms.submitted())
    try:
        service.delete(scope.collection.name, record_id, by=scope.by)
    except NotFound:
        # Deleting twice, such as by a double click, succeeds.
        if history.deletable(scope.collection.name, record_id.lower(), by=scope.by)[1]:
            raise
    return list_state.redirect_to_list(gettext("The record is deleted."), scope, deleted=record_id)


@page(f"{RECORD}/revive", "POST", role=USER, retry_stale=True)
def revive_record(account_id: str, name: str, record_id: str) -> BaseResponse:
    """Restore a deleted record; restoring it twice succeeds."""
    scope, form = scopes.collection_scope(account_id, name), Form()
    second_factor.sign(scope, form)
    collection, id = scope.collection.name, record_id.lower()
    try:
        history.undelete(collection, id, by=scope.by)
    except Conflict:
        if not history.deletable(collection, id, by=scope.by)[1]:
            raise
        notice = gettext("The record is already restored.")
    else:
        notice = gettext("The record is restored.")
    return _redirect_to_record(notice, scope, id)


def _redirect_to_record(notice: str, scope: CollectionScope, record_id: str) -> BaseResponse:
    url_args = list_state.args_from_page(scope)
    return redirect_with_notice(notice, "console.show_record", **url_args, record_id=record_id)


def _record(scope: CollectionScope, record_id: str) -> RecordView | None:
    """The record as the caller sees it; None if viewing is forbidden. Raises NotFound."""
    try:
        return service.get(scope.collection.name, record_id.lower(), None, by=scope.by)
    except Forbidden:
        return None


def _form(scope: CollectionScope, record: RecordView | None) -> RecordForm:
    access = scope.access(scope.collection, "update")
    if access is None:
        return RecordForm()
    form = record_form.from_record(access, record)
    form.values["seen"] = form.etag = record.etag if record else ""
    return form


def _newest_changes(scope: CollectionScope, record_id: str) -> Sequence[JSONMapping]:
    try:
        return history.page(scope.collection.name, record_id, 0, MAX_CHANGES, by=scope.by).changes
    except AppError:  # its changes are too large, or not for the caller
        return ()


def _file_context(scope: CollectionScope, form: RecordForm, shown: JSONMapping) -> TemplateContext:
    """The template variables for the files of a form, and of values that it does not have."""
    if not scope.collection.files:
        return {"attached": {}}
    after_this_request(html.allow_frames)
    form.load_uploads(scope.by)
    attached = {
        name: file_previews.files_in(value)
        for name, value in shown.items()
        if name in scope.collection.files
    }
    return {"attached": attached, **file_previews.context()}
