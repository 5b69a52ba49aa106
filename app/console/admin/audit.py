"""The audit log, its chains and exports, for superadmins."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from flask import Response, current_app, render_template, request, stream_with_context

from app import db
from app.accounts.models import Account
from app.audit import append, checkpoints, exports, service, verify
from app.audit.models import AuditHead
from app.audit.verify import Report
from app.console.shell import guard, lists
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import TemplateContext
from app.console.shell.lists import Listing
from app.errors import NotFound
from app.rest.access import public
from app.types import JSONMapping

AUDIT = "/console/audit"
OPERATIONS = (append.CREATE, append.UPDATE, append.DELETE)
TEXT_FILTERS = {
    "account_id": "Account (id)",
    "table_name": "Table, such as col_posts",
    "record_id": "Record (id)",
    "user_id": "Actor (id, system, anonymous)",
}
MAX_ID_LENGTH = 100
FORMATS = list(exports.FORMATS)
ORDER = {"sort_by": "occurred_at", "sort_order": "desc", "include_total": True}


@blueprint.get(AUDIT)
@public
@guard.superadmins_only
def show_audit_log() -> str:
    """The matching entries, newest first."""
    listing, filters = _listing()
    if not listing.errors:
        params, by = {**ORDER, **filters, **listing.page_args}, guard.require_caller()
        items, total = service.page(params, by=by, max_total=listing.count_limit)
        listing.with_page((items, total or 0))
    return render_template(
        "console/audit/list.html", listing=listing, formats=FORMATS, enabled=append.enabled()
    )


@blueprint.get(f"{AUDIT}/<large:entry_id>")
@public
@guard.superadmins_only
def show_audit_entry(entry_id: str) -> str:
    """One entry with everything a verifier needs."""
    entry = service.get(int(entry_id), by=guard.require_caller())
    return render_template("console/audit/one.html", entry=entry)


@blueprint.get(f"{AUDIT}/export/<any(csv, json, jsonl):format>")
@public
@guard.superadmins_only
def export_audit_log(format: str) -> Response:
    """The matching entries as a file."""
    listing, filters = _listing()
    if listing.errors:
        raise NotFound
    by = guard.require_caller()
    entries, signed = (
        service.export(filters, by=by),
        checkpoints.for_account(filters.get("account_id")),
    )
    headers = exports.headers(format, service.count_hidden(filters, by=by))
    text = stream_with_context(exports.serialize(format, entries, signed))
    return Response(text, headers=headers, mimetype=exports.FORMATS[format])


@blueprint.get(f"{AUDIT}/chains")
@public
@guard.superadmins_only
def show_chains() -> str:
    """The head of each chain."""
    listing = lists.from_request("console.show_chains")
    listing.with_page(_chain_page(listing))
    return render_template("console/audit/chains.html", listing=listing)


@blueprint.post(f"{AUDIT}/verify")
@public
@guard.superadmins_only
def verify_chains() -> Response:
    """Verify one chain or all, and stream the progress."""
    account_id = (
        request.form.get("account_id", "").replace("\0", "").lower()[:MAX_ID_LENGTH] or None
    )
    template = current_app.jinja_env.get_template("console/audit/verified.html")
    context: TemplateContext = {"steps": _steps(account_id), "account_id": account_id}
    current_app.update_template_context(context)
    return Response(stream_with_context(template.generate(context)), mimetype="text/html")


def _steps(account_id: str | None) -> Iterator[int | Report]:
    # Enough to show progress.
    for step in verify.iter_reports(account_id):
        if isinstance(step, Report) or step % 10_000 == 0:
            yield step


def _listing() -> tuple[Listing, JSONMapping]:
    choices = {"operation": OPERATIONS}
    listing = lists.from_request(
        "console.show_audit_log", choices, TEXT_FILTERS, lists.TIME_FILTERS
    )
    filters = dict(listing.filter_values)
    if "account_id" in filters:
        filters["account_id"] = filters["account_id"].lower()
    return listing, filters


def _chain_page(listing: Listing) -> tuple[list[object], int]:
    total = db.db.session.scalar(sa.select(sa.func.count()).select_from(AuditHead))
    query = sa.select(AuditHead, Account.name).outerjoin(
        Account, Account.id == AuditHead.account_id
    )
    page = query.order_by(AuditHead.account_id).offset(listing.skip).limit(lists.PAGE_SIZE)
    return list(db.db.session.execute(page).all()), total or 0
