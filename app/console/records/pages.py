"""One record of an account: made, looked at, changed, deleted."""

from __future__ import annotations

from flask import request
from werkzeug.wrappers import Response as BaseResponse

from app.collections.access import Access
from app.console.records import record_form, references
from app.console.records.listing import COLLECTION, tell, text_of
from app.console.records.record_form import RecordForm
from app.console.shell import guard, idempotent_forms, scopes, signing
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Form, Page, told
from app.console.shell.scopes import Shelf
from app.errors import AppError, Conflict, Forbidden, NotFound, PreconditionFailed
from app.records import service
from app.records.history import service as history
from app.records.read.views import RecordView
from app.rest.access import public

NEW = f"{COLLECTION}/new"
RECORD = f"{COLLECTION}/<uuid:record_id>"
DELETED = "The record is deleted."
BACK, BACK_ALREADY = "The record is there again.", "The record is there already."
CHANGED = (
    "Somebody else has changed this record meanwhile. Below is what you typed, and what is"
    " stored now where that is something else; save again to write it over."
)
GONE = (
    "Somebody else has deleted this record meanwhile. Below is what you typed: store it as a new"
    " record, or leave it."
)


@blueprint.get(NEW)
@public
@guard.for_admins
@guard.steady
def show_new_record(account_id: str, name: str) -> Page:
    """The form of a new record."""
    shelf = scopes.shelf(account_id, name)
    access = shelf.access(shelf.collection, "create")
    return _new(shelf, record_form.of_new(access) if access else RecordForm(), access)


@blueprint.post(NEW)
@public
@guard.for_admins
@guard.steady
def create_record(account_id: str, name: str) -> Page | BaseResponse:
    """Store a new record, or look for one to refer to."""
    shelf = scopes.shelf(account_id, name)
    access = shelf.access(shelf.collection, "create")
    if access is None:
        return _new(shelf, RecordForm(), None)
    form = record_form.take_sent(record_form.of_new(access))
    if _pick(shelf, form):
        return _new(shelf, form, access)
    id = ""
    try:
        signing.sign(shelf, form)
        body = form.body(new=True)
        id = idempotent_forms.id_of(body)
        service.create(shelf.collection.name, body, by=shelf.by, record_id=id)
    except AppError as error:
        if not idempotent_forms.is_made(error, lambda: _record(shelf, id)):
            return _new(shelf, form.refused(error), access)
    return told("The record is stored.", "console.show_record", **shelf.at, record_id=id)


@blueprint.get(RECORD)
@public
@guard.for_admins
@guard.steady
def show_record(account_id: str, name: str, record_id: str) -> Page:
    """A record, in a form where the caller may change it."""
    shelf = scopes.shelf(account_id, name)
    record = _record(shelf, record_id)
    return _one(shelf, record_id, record, _form(shelf, record))


@blueprint.post(RECORD)
@public
@guard.for_admins
@guard.steady
def change_record(account_id: str, name: str, record_id: str) -> Page | BaseResponse:
    """Write what was changed in the form, or look for a record to refer to."""
    shelf = scopes.shelf(account_id, name)
    try:
        record = _record(shelf, record_id)
    except NotFound as error:
        return _instead_of(shelf, error)
    form = record_form.take_sent(_form(shelf, record))
    if _pick(shelf, form):
        return _one(shelf, record_id, record, form)
    try:
        if not form.widgets:
            raise Forbidden("You may not change this record.")
        body = form.body(new=False)
        if body:
            seen = form["seen"] or None
            signing.sign(shelf, form)
            service.patch(shelf.collection.name, record_id, body, if_match=seen, by=shelf.by)
    except PreconditionFailed:
        form.values["seen"] = record.etag if record else ""
        form.refused(Conflict(CHANGED)).telling_stored()
        return _one(shelf, record_id, record, form)
    except AppError as error:
        return _one(shelf, record_id, record, form.refused(error))
    notice = "The record is saved." if body else "Nothing was changed."
    return told(notice, "console.show_record", **shelf.at, record_id=record_id)


@blueprint.post(f"{RECORD}/delete")
@public
@guard.for_admins
@guard.steady
def delete_record(account_id: str, name: str, record_id: str) -> Page | BaseResponse:
    """Delete a record."""
    shelf, refused = scopes.shelf(account_id, name), Form()
    try:
        signing.sign(shelf, refused)
        service.delete(shelf.collection.name, record_id, by=shelf.by)
    except NotFound:
        # Asked for once more, as by a button pressed twice, it is done all the same.
        if history.deletable(shelf.collection.name, record_id.lower(), by=shelf.by)[1]:
            raise
    except AppError as error:
        refused = refused.refused(error)
        record = _record(shelf, record_id)
        form = _form(shelf, record)
        form.values |= refused.values
        form.problem, form.status = refused.problem, refused.status
        return _one(shelf, record_id, record, form)
    return told(DELETED, "console.show_records", **shelf.at, deleted=record_id)


@blueprint.post(f"{RECORD}/revive")
@public
@guard.for_admins
@guard.steady
def revive_record(account_id: str, name: str, record_id: str) -> BaseResponse:
    """Undo a deletion, by making the record anew; once, however often it is asked for."""
    shelf, form, notice = scopes.shelf(account_id, name), Form(), BACK
    signing.sign(shelf, form)
    collection, id = shelf.collection.name, record_id.lower()
    try:
        history.revive(collection, id, by=shelf.by)
    except Conflict:
        if not history.deletable(collection, id, by=shelf.by)[1]:
            raise
        notice = BACK_ALREADY
    return told(notice, "console.show_record", **shelf.at, record_id=id)


def _record(shelf: Shelf, record_id: str) -> RecordView | None:
    """The record as the caller sees it; None where viewing is closed. Raises NotFound."""
    try:
        return service.get(shelf.collection.name, record_id.lower(), None, by=shelf.by)
    except Forbidden:
        return None


def _form(shelf: Shelf, record: RecordView | None) -> RecordForm:
    access = shelf.access(shelf.collection, "update")
    if access is None:
        return RecordForm()
    form = record_form.of_record(access, record)
    form.values["seen"] = record.etag if record else ""
    return form


def _pick(shelf: Shelf, form: RecordForm) -> bool:
    """Do what the picker's buttons ask for; whether that was all there is to do."""
    act, _, rest = request.form.get("do", "").replace("\0", "").partition(":")
    name, _, chosen = rest.partition(":")
    pickers = {w.field.name: w for w in form.widgets if w.kind == "reference"}
    if act == "pick" and name in pickers:
        form.values[pickers[name].name], form.values[f"find_{name}"] = chosen, ""
        return True
    if act != "save":  # the Enter key: within a search, it searches
        typed = (one for one in pickers if form[f"find_{one}"])
        wanted = name if act == "find" else next(typed, None)
        if wanted in pickers:
            _search(shelf, form, wanted)
            return True
    return False


def _search(shelf: Shelf, form: RecordForm, name: str) -> None:
    target = shelf.collection.target(name)
    if target is not None:
        text = form[f"find_{name}"].strip()
        form.found[name] = references.search(target, text, shelf.by)


def _name_targets(shelf: Shelf, form: RecordForm) -> None:
    for widget in form.widgets:
        target = shelf.collection.target(widget.field.name)
        if target is not None and form[widget.name] and widget.kind == "reference":
            id = form[widget.name].strip().lower()
            form.labels[widget.name] = references.labels(target, [id], shelf.by).get(id, "")


def _new(shelf: Shelf, form: RecordForm, access: Access | None) -> Page:
    _name_targets(shelf, form)
    shown = {"shelf": shelf, "may": access is not None, "access": access}
    shown |= {"drawn": idempotent_forms.drawn(), "ask": scopes.WHOM_TO_ASK}
    return form.page("console/records/new.html", **shown)


def _instead_of(shelf: Shelf, gone: NotFound) -> Page:
    access = shelf.access(shelf.collection, "create")
    if access is None:
        raise gone
    form = record_form.take_sent(record_form.of_new(access))
    form.values |= dict.fromkeys((f"f_{name}" for name in access.masked), "")  # masks are no values
    form.problem, form.status = GONE, gone.status
    return _new(shelf, form, access)


def _one(shelf: Shelf, record_id: str, record: RecordView | None, form: RecordForm) -> Page:
    opened = shelf.opened(shelf.collection)
    _name_targets(shelf, form)
    written = {widget.field.name for widget in form.widgets}
    return form.page(
        "console/records/one.html",
        shelf=shelf,
        record_id=record_id,
        record=record,
        shown={name: value for name, value in (record or {}).items() if name not in written},
        title=_title(shelf, record, record_id),
        opened=opened,
        ask=scopes.WHOM_TO_ASK,
        tell=tell,
        text_of=text_of,
    )


def _title(shelf: Shelf, record: RecordView | None, record_id: str) -> str:
    access = shelf.access(shelf.collection, "view")
    if record is None or access is None:
        return record_id
    return references.label(record, references.speaking(access))
