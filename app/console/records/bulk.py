"""Deletes, changes and exports the selected records of a list: all of them or none.

Undoing a deletion restores each record that can be restored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flask import request
from werkzeug.wrappers import Response as BaseResponse

from app.console.records import files, listing, record_form, references
from app.console.records.listing import COLLECTION
from app.console.records.record_form import RecordForm
from app.console.shell import forms, scopes, second_factor
from app.console.shell.access import USER
from app.console.shell.blueprint import page
from app.console.shell.forms import MAX_SELECTED, Form, Page
from app.console.shell.scopes import CollectionScope
from app.errors import AppError, Conflict, Forbidden, NotFound
from app.records import batch
from app.records.history import service as history
from app.records.transfer.formats import FORMATS
from app.web.app import UuidPath
from app.web.languages import gettext, lazy_gettext, ngettext

SELECTION = f"{COLLECTION}/selection"
NONE_SELECTED = lazy_gettext("Select records first.")
Names = Mapping[str, str]  # of records by id, or messages
MAX_PASSES = 3  # of restoring: records may refer to others that come later
MAX_REASONS = 3


@dataclass
class SelectionForm(RecordForm):
    """The selected records, and the field that all of them get a value of."""

    names: Names = field(default_factory=dict)
    """Their labels by id."""
    problems: Names = field(default_factory=dict)
    """The problem of each of them, unless it is the same for all."""

    def with_error(self, error: AppError) -> SelectionForm:
        """The form with the messages of an error, by record."""
        ids, found = list(self.names), dict[str, list[str]]()
        for detail in error.extra.get("details") or ():
            if detail.get("index") is not None:
                found.setdefault(ids[detail["index"]], []).append(detail["message"])
        problems = {id: " ".join(messages) for id, messages in found.items()}
        if isinstance(error, NotFound):
            error = Conflict(
                gettext(
                    "Somebody else has changed or deleted some of these records in the meantime."
                )
            )
        if len(problems) == len(self.names) and len(set(problems.values())) == 1:
            error.extra["details"] = list(error.extra.get("details", ()))[:1]
        elif problems:
            error.extra.pop("details", None)
            self.problems = problems
        super().with_error(error)
        return self


@page(SELECTION, "POST", role=USER, retry_stale=True)
def open_selection(scope: CollectionScope) -> Page | BaseResponse:
    """The next page for the selected records: a confirmation, a form for a value, or a file."""
    action, format = request.form.get("do"), request.form.get("format", "")
    names = _selected(scope)
    if not names:
        return listing.redirect_to_list(str(NONE_SELECTED), scope)
    if action == "export" and format in FORMATS:
        sort = request.args.get("sort", "").replace("\0", "")
        return files.export_response(scope, format, {"id": list(names), "sort": [sort]})
    if action == "delete":
        return _delete_page(scope, SelectionForm(names=names))
    return _edit_page(scope, _edit_form(scope, names))


def _delete_page(scope: CollectionScope, form: SelectionForm) -> Page:
    return _page("delete", scope, form)


@page(f"{SELECTION}/delete", "POST", role=USER, retry_stale=True, form_page=_delete_page)
def delete_selection(scope: CollectionScope) -> BaseResponse:
    names = _selected(scope)
    if not names:  # such as by a double click
        return listing.redirect_to_list(gettext("The records are already deleted."), scope)
    form = forms.show_errors_in(SelectionForm(names=names))
    second_factor.sign(scope, form)
    batch.delete(scope.collection.name, list(names), by=scope.by)
    listing.remember_deleted(scope, names)
    notice = ngettext(
        "%(count)s record is deleted.",
        "%(count)s records are deleted.",
        len(names),
        count=len(names),
    )
    return listing.redirect_to_list(notice, scope)


@page(f"{SELECTION}/restore", "POST", role=USER, retry_stale=True)
def restore_selection(scope: CollectionScope) -> BaseResponse:
    """Restore deleted records, each by itself; restoring one twice succeeds."""
    ids = _submitted_ids()
    try:
        second_factor.sign(scope, Form())
    except AppError as error:
        listing.remember_deleted(scope, ids)
        return listing.redirect_to_list(forms.error_text(error.message), scope)
    failures = _restore(scope, ids)
    count = len(ids) - len(failures)
    notice = ngettext(
        "%(count)s record is restored.", "%(count)s records are restored.", count, count=count
    )
    if failures:
        reasons = list(dict.fromkeys(map(_reason, failures.values())))[:MAX_REASONS]
        missing = ngettext(
            "%(count)s record could not be restored: %(reasons)s",
            "%(count)s records could not be restored: %(reasons)s",
            len(failures),
            count=len(failures),
            reasons=" ".join(reasons),
        )
        notice = f"{notice} {missing}"
    return listing.redirect_to_list(notice, scope)


def _restore(scope: CollectionScope, ids: Sequence[str]) -> dict[str, AppError]:
    """Restore what can be restored; returns the errors of the others by id."""
    failures, missing = dict[str, AppError](), sorted(ids)
    for _ in range(MAX_PASSES):
        failures = {}
        for id in missing:
            try:
                _undelete(scope, id)
            except AppError as error:
                failures[id] = error
        if len(failures) in (0, len(missing)):
            break
        missing = list(failures)
    return failures


def _undelete(scope: CollectionScope, id: str) -> None:
    try:
        history.undelete(scope.collection.name, id, by=scope.by)
    except Conflict:
        if not history.deletable(scope.collection.name, id, by=scope.by)[1]:
            raise


def _reason(error: AppError) -> str:
    details = error.extra.get("details") or ()
    texts = [f"{detail['field']}: {detail['message']}" for detail in details if detail["field"]]
    return next(iter(texts), forms.error_text(error.message))


def _edit_page(scope: CollectionScope, form: SelectionForm) -> Page:
    record_form.load_labels(scope, form)
    return _page("edit", scope, form)


@page(f"{SELECTION}/edit", "POST", role=USER, retry_stale=True, form_page=_edit_page)
def edit_selection(scope: CollectionScope) -> Page | BaseResponse:
    """Set one field of the selected records to one value, or search for a reference."""
    names = _selected(scope)
    form = record_form.fill_submitted(_edit_form(scope, names))
    if not names:
        return listing.redirect_to_list(str(NONE_SELECTED), scope)
    if record_form.run_picker(scope, form):
        return _edit_page(scope, form)
    if not form.widgets:
        raise Forbidden(gettext("You may not change this field."))
    second_factor.sign(scope, form)
    body = {form.widgets[0].field.name: None, **form.body(new=False)}
    items = [{"id": id, "data": body} for id in names]
    batch.update(scope.collection.name, items, by=scope.by)
    notice = ngettext(
        "%(count)s record is changed.",
        "%(count)s records are changed.",
        len(names),
        count=len(names),
    )
    return listing.redirect_to_list(notice, scope)


def _selected(scope: CollectionScope) -> Names:
    """The selected records that the caller may list."""
    ids = _submitted_ids()
    labels = references.labels(scope.collection, ids, scope.by)
    return {id: labels[id] for id in ids if id in labels}


def _submitted_ids() -> list[str]:
    ids = [id.lower() for id in request.form.getlist("id") if UuidPath.accepts(id)]
    return list(dict.fromkeys(ids))[:MAX_SELECTED]


def _edit_form(scope: CollectionScope, names: Names) -> SelectionForm:
    access, name = scope.access(scope.collection, "update"), forms.text("field")
    form = SelectionForm(names=names)
    if access is None or name not in record_form.editable_at_once(access):
        return form
    widgets = record_form.field_widgets(access, None)
    form.widgets = [widget for widget in widgets if widget.field.name == name]
    form.before = {widget.name: "" for widget in form.widgets}
    form.values = {**form.before, "field": name}
    return form


def _page(action: str, scope: CollectionScope, form: SelectionForm) -> Page:
    return form.render(
        f"console/records/{action}_selected.html",
        scope=scope,
        names=form.names,
        problems=form.problems,
        ask_superadmins=scopes.ASK_SUPERADMINS,
        list_url=listing.list_url(scope),
        page_args=listing.args_from_page(scope),
    )
