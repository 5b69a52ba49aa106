"""The page of one record: create, view, change, delete; with its history and what refers to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flask import after_this_request, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.audit.append import DELETE
from app.collections import back_references
from app.collections.access import Access
from app.console.records import file_previews, filters, listing, record_form, references, writers
from app.console.records.display import Labels, format_value, label, label_fields
from app.console.records.listing import COLLECTION
from app.console.records.record_form import RecordForm
from app.console.records.references import Hits
from app.console.shell import forms, lists, scopes, second_factor
from app.console.shell.access import USER
from app.console.shell.blueprint import page
from app.console.shell.checks import Excerpt, differences
from app.console.shell.forms import Form, Page, TemplateContext, redirect_with_notice
from app.console.shell.lists import Listing, UrlArgs
from app.console.shell.scopes import CollectionScope
from app.errors import AppError, Conflict, Forbidden, NotFound
from app.records import service
from app.records.history import service as history
from app.records.read.views import RecordView
from app.records.store.reads import ListQuery
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
MAX_TEXT_LENGTH = 100  # of a search
MAX_HITS, MAX_SEARCHED = 5, 10  # records of each reference; references
MAX_ID_DIGITS = 18
MAX_VALUE_LENGTH = 500  # of a value in a history
SIDES = ("old_value", "new_value")


@page(NEW, role=USER, retry_stale=True)
def show_new_record(scope: CollectionScope, form: RecordForm | None = None) -> Page:
    access = scope.access(scope.collection, "create")
    form = form or (record_form.blank(access) if access else RecordForm())
    record_form.load_labels(scope, form)
    return form.render(
        "console/records/new.html",
        scope=scope,
        may_create=access is not None,
        access=access,
        form_id=forms.form_id(),
        ask_superadmins=scopes.ASK_SUPERADMINS,
        list_url=listing.list_url(scope),
        page_args=listing.args_from_page(scope),
        **file_context(scope, form, {}),
    )


@page(NEW, "POST", role=USER, retry_stale=True, form_page=show_new_record)
def create_record(scope: CollectionScope) -> Page | BaseResponse:
    """Create a record, or search for a reference."""
    access = scope.access(scope.collection, "create")
    if access is None:
        return show_new_record(scope)
    form = record_form.fill_submitted(record_form.blank(access))
    if record_form.run_picker(scope, form):
        return show_new_record(scope, form)
    second_factor.sign(scope, form)
    form.take_uploads(scope.by)
    body = form.body(new=True)
    id = forms.derive_id(body)
    with forms.ignore_already_created(lambda: _record(scope, id)):
        service.create(scope.collection.name, body, by=scope.by, record_id=id)
    return _redirect_to_record(gettext("The record is created."), scope, id)


@page(RECORD, role=USER, retry_stale=True)
def show_record(scope: CollectionScope, record_id: str, form: Form | None = None) -> Page:
    """A record, in a form if the caller may change it."""
    id = record_id.lower()
    record = _record(scope, record_id)
    if not isinstance(form, RecordForm):
        stored = _form(scope, record)
        form = form.over(stored) if form else stored
    record_form.load_labels(scope, form)
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
        labels=listing.labels_in_rows(scope, access, [record], list(shown))
        if access and record
        else {},
        writers=writers.names(scope, [shown]),
        actor=writers.actor,
        related=related(scope, id) if record else (),
        max_related=MAX_HITS,
        changes=_newest_changes(scope, id) if record and "update" in operations else (),
        operations=operations,
        ask_superadmins=scopes.ASK_SUPERADMINS,
        display=format_value,
        neighbours=links(scope, id) if record else {},
        list_url=listing.list_url(scope),
        page_args={**listing.args_from_page(scope), "record_id": record_id},
        **file_context(scope, form, shown),
    )


@page(RECORD, "POST", role=USER, retry_stale=True, form_page=show_record)
def change_record(scope: CollectionScope, record_id: str) -> Page | BaseResponse:
    """Save the changed fields, or search for a reference."""
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
        return show_new_record(scope, form)
    form = record_form.fill_submitted(_form(scope, record))
    if record_form.run_picker(scope, form):
        return show_record(scope, record_id, form)
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
def delete_record(scope: CollectionScope, record_id: str) -> BaseResponse:
    second_factor.sign(scope, forms.submitted())
    try:
        service.delete(scope.collection.name, record_id, by=scope.by)
    except NotFound:
        # Deleting twice, such as by a double click, succeeds.
        if history.deletable(scope.collection.name, record_id.lower(), by=scope.by)[1]:
            raise
    return listing.redirect_to_list(gettext("The record is deleted."), scope, deleted=record_id)


@page(f"{RECORD}/revive", "POST", role=USER, retry_stale=True)
def revive_record(scope: CollectionScope, record_id: str) -> BaseResponse:
    """Restore a deleted record; restoring it twice succeeds."""
    form = Form()
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
    url_args = listing.args_from_page(scope)
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


def file_context(scope: CollectionScope, form: RecordForm, shown: JSONMapping) -> TemplateContext:
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


@page(f"{COLLECTION}/options", role=USER, retry_stale=True)
def show_options(scope: CollectionScope) -> dict[str, object]:
    """Ids and labels of records that a text finds for `field`; none if it is no reference."""
    target = scope.collection.followed(request.args.get("field", ""))
    text = request.args.get("text", "").replace("\0", "").strip()[:MAX_TEXT_LENGTH]
    hits = references.search(target, text, scope.by) if target else None
    return {"options": [{"id": id, "label": label} for id, label in hits or ()]}


@dataclass(frozen=True)
class Related:
    """The first records that refer by a field, and the list of all of them."""

    collection: str
    field: str
    hits: Hits | None
    """None if they were not searched, as no index leads to them."""
    rest: str


def related(scope: CollectionScope, record_id: str) -> Sequence[Related]:
    """The references to a record in collections that the caller may list."""
    searched, result = 0, []
    for other, field, listed in back_references.to(scope.collection, scope.by):
        hits = None
        if field in other.leading and searched < MAX_SEARCHED:
            searched += 1
            hits = _search(scope, listed, field, record_id)
        url_args: UrlArgs = {"account_id": scope.account.id, "name": other.name}
        operator = "contains" if field in other.lists else "="
        url_args |= {"field_0": field, "op_0": operator, "value_0": record_id}
        rest = url_for("console.show_records", **url_args)
        result.append(Related(other.name, field, hits, rest))
    return result


def _search(scope: CollectionScope, listed: Access, field: str, record_id: str) -> Hits:
    try:
        query = ListQuery(parameters={field: [record_id]}, limit=MAX_HITS + 1)
        rows, _ = service.page(listed.definition.name, query, by=scope.by)
    except AppError:  # the rule was just closed
        return []
    return [(row["id"], label(row, label_fields(listed))) for row in rows]


def links(scope: CollectionScope, record_id: str) -> dict[str, str]:
    """The addresses of the records before (`prev`) and after (`next`) one.

    None of them if the record is no longer on that page of the list.
    """
    access, args = scope.access(scope.collection, "list"), listing.list_args()
    if access is None:
        return {}
    form, sort = filters.from_args(args), args.get("sort", "").replace("\0", "")[:200]
    shown = Listing("console.show_records", scope.url_args)
    shown.page = lists.page_number(args.get("page", ""))
    shown.unlimited = {name for name in lists.UNLIMITED if args.get(name) == "all"}
    # With the last record of the page before it, and the first of the one after it.
    first, end = max(0, shown.skip - 1), shown.skip + lists.PAGE_SIZE + 1
    try:
        params, since = listing.query(scope, access, form, shown, sort)
        query = ListQuery(parameters=params, skip=first, limit=end - first, since=since)
        ids = service.page_ids(scope.collection.name, query, by=scope.by)
    except AppError:  # the list says what is wrong
        return {}
    if record_id.lower() not in ids:
        return {}
    at = ids.index(record_id.lower())
    sides = {"prev": at - 1, "next": at + 1}
    return {
        rel: _url(scope, ids[n], (first + n) // lists.PAGE_SIZE + 1)
        for rel, n in sides.items()
        if 0 <= n < len(ids)
    }


def _url(scope: CollectionScope, record_id: str, page: int) -> str:
    url_args = listing.args_on_page(scope, page)
    return url_for("console.show_record", record_id=record_id, **url_args)


@page(f"{RECORD}/history", role=USER, retry_stale=True)
def show_history(scope: CollectionScope, record_id: str, form: Form | None = None) -> Page:
    """The changes of a record, newest first."""
    id = record_id.lower()
    url_args = {**listing.args_from_page(scope), "record_id": id}
    shown = lists.from_request("console.show_history", **url_args)
    result = history.page(scope.collection.name, id, shown.skip, lists.PAGE_SIZE, by=scope.by)
    shown.with_page((result.changes, result.total))
    newest = shown.items[:1] if shown.page == 1 else ()
    return (form or Form()).render(
        "console/audit/history.html",
        scope=scope,
        page_args=url_args,
        listing=shown,
        deleted=any(change["operation"] == DELETE for change in newest),
        list_url=listing.list_url(scope),
        labels=_labels(scope, shown.items),
        actor=writers.actor,
        compared=_compared,
        truncation=result.truncation,
        title=references.labels(scope.collection, [id], scope.by).get(id, f"…{id[-8:]}"),
    )


@page(f"{RECORD}/history", "POST", role=USER, retry_stale=True, form_page=show_history)
def restore_record(scope: CollectionScope, record_id: str) -> BaseResponse:
    """Restore the state after a change."""
    entry_id = request.form.get("audit_id", "")
    if not entry_id.isascii() or not entry_id.isdigit() or len(entry_id) > MAX_ID_DIGITS:
        raise NotFound
    second_factor.sign(scope, forms.submitted())
    history.restore(scope.collection.name, record_id.lower(), int(entry_id), by=scope.by)
    notice = gettext("The record is restored to this state.")
    url_args = listing.args_from_page(scope)
    return redirect_with_notice(notice, "console.show_record", **url_args, record_id=record_id)


def _compared(change: JSONMapping) -> dict[str, str | Excerpt]:
    """The old and the new value for display, with what differs marked."""
    shown = [format_value(change.get(side), MAX_VALUE_LENGTH, exact=True) for side in SIDES]
    return dict(zip(SIDES, differences(*shown) or shown, strict=True))


def _labels(scope: CollectionScope, changes: Sequence[JSONMapping]) -> Labels:
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
    return listing.labels_in_rows(scope, access, values, sorted(names)) if access else {}
