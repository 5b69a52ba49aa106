"""What a record was, and going back to it."""

from __future__ import annotations

from flask import request
from werkzeug.wrappers import Response as BaseResponse

from app.audit.append import DELETE
from app.console.records.listing import tell
from app.console.records.pages import RECORD
from app.console.shell import guard, lists, scopes, signing
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Form, Page, told
from app.errors import AppError, NotFound
from app.records.history import service
from app.rest.access import public

LARGEST_ID = 18  # digits


@blueprint.get(f"{RECORD}/history")
@public
@guard.for_admins
@guard.steady
def show_history(account_id: str, name: str, record_id: str) -> Page:
    """The changes of a record, the newest first."""
    return _page(account_id, name, record_id, Form())


@blueprint.post(f"{RECORD}/history")
@public
@guard.for_admins
@guard.steady
def restore_record(account_id: str, name: str, record_id: str) -> Page | BaseResponse:
    """Write the state after a change anew."""
    shelf = scopes.shelf(account_id, name)
    chosen = request.form.get("audit_id", "")
    if not chosen.isascii() or not chosen.isdigit() or len(chosen) > LARGEST_ID:
        raise NotFound
    form = Form()
    try:
        signing.sign(shelf, form)
        service.restore(shelf.collection.name, record_id.lower(), int(chosen), by=shelf.by)
    except AppError as error:
        return _page(account_id, name, record_id, form.refused(error))
    notice = "The record is as it was then."
    return told(notice, "console.show_record", **shelf.at, record_id=record_id)


def _page(account_id: str, name: str, record_id: str, form: Form) -> Page:
    shelf = scopes.shelf(account_id, name)
    at = {**shelf.at, "record_id": record_id.lower()}
    listing = lists.asked_for("console.show_history", **at)
    found = service.page(
        shelf.collection.name, at["record_id"], listing.skip, lists.SIZE, by=shelf.by
    )
    listing.holding(found)
    deleted = listing.page == 1 and any(one["operation"] == DELETE for one in listing.items[:1])
    context = {"shelf": shelf, "at": at, "listing": listing, "deleted": deleted}
    return form.page("console/audit/history.html", tell=tell, **context)
