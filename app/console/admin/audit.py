"""For superadmins: the audit log, its chains, and exports of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from flask import Response, current_app, render_template, request, stream_with_context

from app import db
from app.accounts.models import Account
from app.audit import append, checkpoints, exports, service, verify
from app.audit.models import AuditHead
from app.audit.verify import Report
from app.console.shell import guard, lists
from app.console.shell.blueprint import blueprint
from app.console.shell.lists import Listing
from app.errors import NotFound
from app.rest.access import public

AUDIT = "/console/audit"
OPERATIONS = (append.CREATE, append.UPDATE, append.DELETE)
TEXTS = {
    "account_id": "Account (id)",
    "table_name": "Table, such as col_posts",
    "record_id": "Record (id)",
    "user_id": "Actor (id, system, anonymous)",
}
LONGEST = 100
FORMATS = list(exports.FORMATS)
ORDER = {"sort_by": "occurred_at", "sort_order": "desc", "include_total": True}


@blueprint.get(AUDIT)
@public
@guard.for_superadmins
def show_audit_log() -> str:
    """The entries that match, the newest first."""
    listing, asked = _asked()
    if not listing.errors:
        whole, by = {**ORDER, **asked, **listing.asked}, guard.known_caller()
        items, total = service.page(whole, by=by, most=listing.most)
        listing.holding((items, total or 0))
    return render_template(
        "console/audit/list.html", listing=listing, formats=FORMATS, enabled=append.enabled()
    )


@blueprint.get(f"{AUDIT}/<large:entry_id>")
@public
@guard.for_superadmins
def show_audit_entry(entry_id: str) -> str:
    """One entry, with all that a verifier takes."""
    entry = service.get(int(entry_id), by=guard.known_caller())
    return render_template("console/audit/one.html", entry=entry)


@blueprint.get(f"{AUDIT}/export/<any(csv, json, jsonl):format>")
@public
@guard.for_superadmins
def export_audit_log(format: str) -> Response:
    """A file of the entries that match."""
    listing, asked = _asked()
    if listing.errors:
        raise NotFound
    by = guard.known_caller()
    found, kept = service.export(asked, by=by), checkpoints.for_account(asked.get("account_id"))
    headers = exports.headers(format, service.count_hidden(asked, by=by))
    text = stream_with_context(exports.serialize(format, found, kept))
    return Response(text, headers=headers, mimetype=exports.FORMATS[format])


@blueprint.get(f"{AUDIT}/chains")
@public
@guard.for_superadmins
def show_chains() -> str:
    """How far each chain has come."""
    listing = lists.asked_for("console.show_chains")
    listing.holding(_chains(listing))
    return render_template("console/audit/chains.html", listing=listing)


@blueprint.post(f"{AUDIT}/verify")
@public
@guard.for_superadmins
def verify_chains() -> Response:
    """Verify every chain, or one, and tell of it as it goes on."""
    account_id = request.form.get("account_id", "").replace("\0", "").lower()[:LONGEST] or None
    template = current_app.jinja_env.get_template("console/audit/verified.html")
    context: dict[str, Any] = {"steps": _steps(account_id), "account_id": account_id}
    current_app.update_template_context(context)
    return Response(stream_with_context(template.generate(context)), mimetype="text/html")


def _steps(account_id: str | None) -> Iterator[int | Report]:
    # Now and then is often enough to see that it goes on.
    for step in verify.iter_reports(account_id):
        if isinstance(step, Report) or step % 10_000 == 0:
            yield step


def _asked() -> tuple[Listing, Mapping[str, Any]]:
    choices = {"operation": OPERATIONS}
    listing = lists.asked_for("console.show_audit_log", choices, TEXTS, lists.TIMES)
    asked = dict(listing.wanted)
    if "account_id" in asked:
        asked["account_id"] = asked["account_id"].lower()
    return listing, asked


def _chains(listing: Listing) -> tuple[list[Any], int]:
    total = db.db.session.scalar(sa.select(sa.func.count()).select_from(AuditHead))
    chosen = sa.select(AuditHead, Account.name).outerjoin(
        Account, Account.id == AuditHead.account_id
    )
    page = chosen.order_by(AuditHead.account_id).offset(listing.skip).limit(lists.SIZE)
    return list(db.db.session.execute(page).all()), total or 0
