"""The page of one record: create, view, change, delete."""

from __future__ import annotations

from collections.abc import Sequence

from flask import after_this_request
from werkzeug.wrappers import Response as BaseResponse

from app.collections.access import Access
from app.console.records import (
    columns,
    file_previews,
    list_state,
    neighbours,
    picker,
    record_form,
    related,
    writers,
)
from app.console.records.display import display, label, label_fields
from app.console.records.listing import COLLECTION
from app.console.records.record_form import RecordForm
from app.console.shell import idempotent_forms, scopes, signing
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, TemplateContext, redirect_with_notice
from app.console.shell.scopes import CollectionScope
from app.errors import AppError, Conflict, Forbidden, NotFound, PreconditionFailed
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
CHANGED = lazy_gettext(
    "Somebody else has changed this record in the meantime. Your entries are below, with the stored"
    " values where they differ. Save again to overwrite them."
)
GONE = lazy_gettext(
    "Somebody else has deleted this record in the meantime. Your entries are below: save them as a"
    " new record, or leave this page."
)


@page(NEW, role=ADMIN, retry_stale=True)
def show_new_record(account_id: str, name: str) -> Page:
    scope = scopes.collection_scope(account_id, name)
    access = scope.access(scope.collection, "create")
    return _new_page(scope, record_form.blank(access) if access else RecordForm(), access)


@page(NEW, "POST", role=ADMIN, retry_stale=True)
def create_record(account_id: str, name: str) -> Page | BaseResponse:
    """Create a record, or search for a reference."""
    scope = scopes.collection_scope(account_id, name)
    access = scope.access(scope.collection, "create")
    if access is None:
        return _new_page(scope, RecordForm(), None)
    form = record_form.fill_submitted(record_form.blank(access))
    if picker.run(scope, form):
        return _new_page(scope, form, access)
    id = ""
    try:
        signing.sign(scope, form)
        form.take_uploads(scope.by)
        body = form.body(new=True)
        id = idempotent_forms.derive_id(body)
        service.create(scope.collection.name, body, by=scope.by, record_id=id)
    except AppError as error:
        if not idempotent_forms.already_created(error, lambda: _record(scope, id)):
            return _new_page(scope, form.with_error(error), access)
    return _redirect_to_record(gettext("The record is created."), scope, id)


@page(RECORD, role=ADMIN, retry_stale=True)
def show_record(account_id: str, name: str, record_id: str) -> Page:
    """A record, in a form if the caller may change it."""
    scope = scopes.collection_scope(account_id, name)
    record = _record(scope, record_id)
    return _record_page(scope, record_id, record, _form(scope, record))


@page(RECORD, "POST", role=ADMIN, retry_stale=True)
def change_record(account_id: str, name: str, record_id: str) -> Page | BaseResponse:
    """Save the changed fields, or search for a reference."""
    scope = scopes.collection_scope(account_id, name)
    try:
        record = _record(scope, record_id)
    except NotFound as error:
        return _deleted_page(scope, error)
    form = record_form.fill_submitted(_form(scope, record))
    if picker.run(scope, form):
        return _record_page(scope, record_id, record, form)
    try:
        if not form.widgets:
            raise Forbidden(gettext("You may not change this record."))
        form.take_uploads(scope.by)
        body = form.body(new=False)
        if body:
            etag = form["seen"] or None
            signing.sign(scope, form)
            service.patch(
                scope.collection.name,
                record_id,
                body,
                conditions=Preconditions(etag),
                by=scope.by,
            )
    except PreconditionFailed:
        form.values["seen"] = record.etag if record else ""
        form.with_error(Conflict(str(CHANGED))).with_stored_notes()
        return _record_page(scope, record_id, record, form)
    except AppError as error:
        return _record_page(scope, record_id, record, form.with_error(error))
    notice = gettext("The record is saved.") if body else gettext("No changes.")
    return _redirect_to_record(notice, scope, record_id)


@page(f"{RECORD}/delete", "POST", role=ADMIN, retry_stale=True)
def delete_record(account_id: str, name: str, record_id: str) -> Page | BaseResponse:
    scope, signature = scopes.collection_scope(account_id, name), Form()
    try:
        signing.sign(scope, signature)
        service.delete(scope.collection.name, record_id, by=scope.by)
    except NotFound:
        # Deleting twice, such as by a double click, succeeds.
        if history.deletable(scope.collection.name, record_id.lower(), by=scope.by)[1]:
            raise
    except AppError as error:
        signature = signature.with_error(error)
        record = _record(scope, record_id)
        form = _form(scope, record)
        form.values |= signature.values
        form.problem, form.status = signature.problem, signature.status
        return _record_page(scope, record_id, record, form)
    return list_state.redirect_to_list(gettext("The record is deleted."), scope, deleted=record_id)


@page(f"{RECORD}/revive", "POST", role=ADMIN, retry_stale=True)
def revive_record(account_id: str, name: str, record_id: str) -> BaseResponse:
    """Restore a deleted record; restoring it twice succeeds."""
    scope, form = scopes.collection_scope(account_id, name), Form()
    signing.sign(scope, form)
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
    url_args = list_state.of_page(scope)
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
    form.values["seen"] = record.etag if record else ""
    return form


def _new_page(scope: CollectionScope, form: RecordForm, access: Access | None) -> Page:
    picker.load_labels(scope, form)
    context = {"scope": scope, "may_create": access is not None, "access": access}
    context |= {"form_id": idempotent_forms.form_id(), "ask": scopes.ASK_SUPERADMINS}
    context |= _addresses(scope)
    return form.render("console/records/new.html", **context, **_file_context(scope, form, {}))


def _deleted_page(scope: CollectionScope, error: NotFound) -> Page:
    access = scope.access(scope.collection, "create")
    if access is None:
        raise error
    form = record_form.fill_submitted(record_form.blank(access))
    form.values |= dict.fromkeys(
        (f"f_{name}" for name in access.masked), ""
    )  # masks are not values
    form.problem, form.status = str(GONE), error.status
    return _new_page(scope, form, access)


def _record_page(
    scope: CollectionScope, record_id: str, record: RecordView | None, form: RecordForm
) -> Page:
    opened, id = scope.allowed_operations(scope.collection), record_id.lower()
    picker.load_labels(scope, form)
    # The account is in the header of each page.
    written = {"account_id", *(widget.field.name for widget in form.widgets)}
    shown = {name: value for name, value in (record or {}).items() if name not in written}
    access = scope.access(scope.collection, "view")
    labels = columns.labels(scope, access, [record], list(shown)) if access and record else {}
    return form.render(
        "console/records/one.html",
        scope=scope,
        record=record,
        shown=shown,
        title=_title(access, record, record_id),
        labels=labels,
        writers=writers.names(scope, [shown]),
        actor=writers.actor,
        related=related.related(scope, id) if record else (),
        max_related=related.MAX_HITS,
        changes=_newest_changes(scope, id) if record and "update" in opened else (),
        opened=opened,
        ask=scopes.ASK_SUPERADMINS,
        display=display,
        neighbours=neighbours.links(scope, id) if record else {},
        **_addresses(scope, record_id=record_id),
        **_file_context(scope, form, shown),
    )


def _newest_changes(scope: CollectionScope, record_id: str) -> Sequence[JSONMapping]:
    try:
        return history.page(scope.collection.name, record_id, 0, MAX_CHANGES, by=scope.by).changes
    except AppError:  # its changes are too large, or not for the caller
        return ()


def _addresses(scope: CollectionScope, **url_args: str) -> TemplateContext:
    """The list that led to the page, and the arguments of `url_for` for pages of the record."""
    return {"list_url": list_state.list_url(scope), "at": {**list_state.of_page(scope), **url_args}}


def _file_context(scope: CollectionScope, form: RecordForm, shown: JSONMapping) -> TemplateContext:
    """What shows the files of a form, and of the values that it does not have."""
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


def _title(access: Access | None, record: RecordView | None, record_id: str) -> str:
    names = label_fields(access) if access else ()
    return label(record or {"id": record_id}, names)
