"""The audit log: of an account for its admins, of all for superadmins, with chains and exports."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any

import sqlalchemy as sa
from flask import Response, render_template, request, stream_with_context

from app import clock, config, db
from app.accounts import service as accounts
from app.accounts import tenants
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User, UserKind
from app.audit import append, checkpoints, exports, sealing, service, verifications
from app.audit.chain import signing, verify
from app.audit.chain.verify import Report
from app.audit.entries import STARTS
from app.audit.log import AUDIT as AUDIT_LOG
from app.audit.models import AuditHead
from app.audit.service import Change
from app.auth import principal as principals
from app.auth.portals import PortalPage
from app.auth.principal import Principal
from app.console.admin import audit_names, security_names
from app.console.admin.audit_names import Names
from app.console.admin.security_names import LogStart
from app.console.records import writers
from app.console.shell import guard, lists, streamed_pages
from app.console.shell.access import ADMIN, SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.lists import Choices, Listing
from app.console.shell.navigation import ACCOUNT, INSTANCE, MenuItem
from app.errors import NotFound
from app.portability.retention import policy as policies
from app.types import JSONObject
from app.web.app import UuidPath
from app.web.languages import lazy_gettext

AUDIT = "/console/audit"
OPERATIONS = {
    append.CREATE: lazy_gettext("Created"),
    append.UPDATE: lazy_gettext("Changed"),
    append.DELETE: lazy_gettext("Deleted"),
}
REFERENCES = ("account", "person")  # filters that the service takes as ids
TEXTS = (*REFERENCES, "record_id")
MAX_SUGGESTED = 100
MAX_ID_LENGTH = 100
NARROWING = ("user_id", "table_name", "operation", "actor_kind")
FORMATS = {"csv": "CSV", "json": "JSON", "jsonl": "JSON lines"}
NO_ACCOUNT = lazy_gettext("There is no account with this slug, code or id.")
NO_PERSON = lazy_gettext("Nobody in this account has this address.")
NO_SUPERADMIN = lazy_gettext(
    "No superadmin has this address. Choose an account to find its people."
)


@page(
    AUDIT,
    role=ADMIN,
    portal=PortalPage.AUDIT_LOG,
    menu=MenuItem(ACCOUNT, 3, lazy_gettext("Audit log"), "history", of_superadmins=(INSTANCE, 5)),
)
def show_audit_log() -> str:
    """The matching changes, newest first."""
    by = guard.require_caller()
    listing, filters = _listing(by)
    names = Names([], by)
    if not listing.errors:
        query = {**filters, "after": _cutoff(listing, filters), **listing.page_args}
        listing.with_page(service.list_changes(query, by=by, max_total=listing.count_limit))
        names = Names(listing.items, by)
    account_id = filters.get("account_id")
    return render_template(
        "console/audit/list.html",
        listing=listing,
        changes=[names.shown(change) for change in listing.items],
        accounts=tenants.names_by_slug(MAX_SUGGESTED) if by.is_superadmin else {},
        people=_people(account_id or SYSTEM_ACCOUNT_ID),
        formats=FORMATS,
        enabled=append.enabled(),
        name_of_day=lists.name_of_day,
        start=_start(account_id),
        verified=verifications.last(verifications.AUDIT, account_id) if account_id else None,
    )


def _start(account_id: str | None) -> LogStart | None:
    start = signing.start_of(AUDIT_LOG, account_id) if account_id else None
    return security_names.log_start(start, account_id, policies.Log.AUDIT)


@page(f"{AUDIT}/<large:entry_id>", role=ADMIN, portal=PortalPage.AUDIT_LOG)
def show_audit_entry(entry_id: str) -> str:
    """One entry with everything a verifier needs."""
    by = guard.require_caller()
    entries = service.of_same_change(int(entry_id), by=by)
    entry = next(one for one in entries if one["id"] == int(entry_id))
    change = _change_of(entry, entries)
    shown = Names([change], by).shown(change)
    verified = verifications.last(verifications.AUDIT, entry["account_id"])
    # The query string has the filters of the list that led here.
    listing, filters = _listing(by)
    newer = older = None
    if not listing.errors:
        query = {**filters, "after": _cutoff(listing, filters)}
        newer, older = service.neighbours(change.occurred_at, change.first_id, query, by=by)
    return render_template(
        "console/audit/one.html",
        entry=entry,
        shown=shown,
        listing=listing,
        newer=newer,
        older=older,
        verified=verified,
        is_verified=verified is not None and change.occurred_at < verified.verified_at,
    )


def _change_of(entry: JSONObject, entries: list[JSONObject]) -> Change:
    fields = {field.name: entry.get(field.name) for field in dataclasses.fields(Change)}
    occurred_at = clock.parse(entry["occurred_at"])
    own = {"first_id": entries[0]["id"], "is_complete": True, "entries": entries}
    return Change(**{**fields, **own, "occurred_at": occurred_at})


@page(f"{AUDIT}/export/<any(csv, json, jsonl):format>", role=ADMIN, portal=PortalPage.AUDIT_LOG)
def export_audit_log(format: str) -> Response:
    """The entries of the matching changes as a file."""
    by = guard.require_caller()
    listing, filters = _listing(by)
    if listing.errors:
        raise NotFound
    account_id = filters.get("account_id")
    signed = (checkpoints.for_account(account_id), signing.starts(AUDIT_LOG, account_id))
    entries = service.export(filters, by=by)  # first: it has the latest changes numbered
    # Counting what an admin may not see would read the whole log twice.
    counts = service.count_hidden(filters, by=by) if by.is_superadmin else {}
    text = exports.serialize(format, entries, *signed)
    return Response(
        stream_with_context(text),
        headers=exports.headers(format, counts),
        mimetype=exports.FORMATS[format],
    )


@page(f"{AUDIT}/chains", role=SUPERADMIN)
def show_chains() -> str:
    listing = lists.from_request("console.show_chains")
    listing.with_page(_chain_page(listing))
    has_key = bool(config.current().audit_checkpoint_key)
    shown = [head.account_id for head, *_ in listing.items]
    verified = verifications.of_accounts(verifications.AUDIT, shown)
    return render_template(
        "console/audit/chains.html",
        listing=listing,
        has_key=has_key,
        verified=verified,
        counts=verifications.counts(),
    )


@page(f"{AUDIT}/verify", "POST", role=SUPERADMIN)
def verify_chains() -> Response:
    """Verify one chain or all, and stream the progress."""
    account_id = (
        request.form.get("account_id", "").replace("\0", "").lower()[:MAX_ID_LENGTH] or None
    )
    template = "console/audit/verified.html"
    return streamed_pages.stream(template, _steps(account_id), names=_chain_names(account_id))


def _chain_names(account_id: str | None) -> dict[str, str]:
    """The names of the accounts of chains; closed ones have none."""
    where = [AuditHead.account_id == account_id] if account_id else []
    named = sa.select(Account.id, Account.name).join(AuditHead, AuditHead.account_id == Account.id)
    return {row.id: row.name for row in db.db.session.execute(named.where(*where))}


def _steps(account_id: str | None) -> Generator[int | Report]:
    # Enough to show progress.
    for step in verify.iter_reports(AUDIT_LOG, account_id):
        if isinstance(step, Report) or step % 10_000 == 0:
            yield step


def _listing(by: Principal) -> tuple[Listing, JSONObject]:
    """The list that the query string asks for, and the filters as the service takes them."""
    choices: Choices = {
        "table_name": audit_names.choices(by),
        "operation": OPERATIONS,
        "actor_kind": writers.KINDS,
    }
    texts = {name: "" for name in TEXTS if by.is_superadmin or name != "account"}
    listing = lists.from_request("console.show_audit_log", choices, texts, lists.TIME_FILTERS)
    filters = {
        name: value for name, value in listing.filter_values.items() if name not in REFERENCES
    }
    if not by.is_superadmin:
        filters["account_id"] = guard.own_account_id()
    elif reference := listing.filters.get("account"):
        filters["account_id"] = _find_account(reference)
        if filters["account_id"] is None:
            listing.errors["account"] = [NO_ACCOUNT]
    if person := listing.filters.get("person"):
        filters["user_id"] = _find_person(person, filters.get("account_id"))
        if filters["user_id"] is None:
            listing.errors["person"] = [NO_PERSON if "account_id" in filters else NO_SUPERADMIN]
    return listing, filters


def _find_account(reference: str) -> str | None:
    account = principals.find_account(reference.lower())
    if account is None:  # the log outlives accounts
        return reference.lower() if UuidPath.accepts(reference) else None
    return account.id


def _find_person(reference: str, account_id: str | None) -> str | None:
    """The id of an actor by email address, `system`, `anonymous` or id."""
    if UuidPath.accepts(reference) or reference.lower() in writers.ACTORS:
        return reference.lower()
    key = accounts.email_key(reference)
    query = sa.select(User.id).where(User.account_id == (account_id or SYSTEM_ACCOUNT_ID))
    id: str | None = db.db.session.scalar(query.where(User.email_key == key))
    return id


def _cutoff(listing: Listing, filters: JSONObject) -> object:
    # An index serves one filter within an account; for several, only the newest are looked at.
    narrowing = [name for name in NARROWING if name in filters]
    account_id = filters.get("account_id")
    is_foreign = "user_id" in filters and not _is_member(filters["user_id"], account_id)
    if "record_id" in filters or len(narrowing) + is_foreign < 2:
        return None
    return listing.scan_newest(lambda offset: service.find_cutoff(account_id, offset))


def _is_member(user_id: str, account_id: str | None) -> bool:
    member = sa.exists().where(User.account_id == account_id, User.id == user_id)
    return account_id is None or bool(db.db.session.scalar(sa.select(member)))


def _people(account_id: str) -> dict[str, str]:
    """The addresses of some users of an account, with their names."""
    is_person = User.kind == UserKind.PERSON
    shown = sa.select(User.email, User.name).where(User.account_id == account_id, is_person)
    rows = db.db.session.execute(shown.order_by(User.email_key).limit(MAX_SUGGESTED))
    return {row.email: row.name or "" for row in rows} | writers.ACTORS


def _chain_page(listing: Listing) -> tuple[list[object], int]:
    sealing.settle_for_list(None)
    total = db.db.session.scalar(sa.select(sa.func.count()).select_from(AuditHead))
    query = sa.select(AuditHead, Account.name, *STARTS.c).outerjoin(
        Account, Account.id == AuditHead.account_id
    )
    query = query.outerjoin(STARTS, STARTS.c.account_id == AuditHead.account_id)
    page = query.order_by(AuditHead.account_id).offset(listing.skip).limit(lists.PAGE_SIZE)
    rows = db.db.session.execute(page).all()
    return [(row[0], row[1], _stored_start(row[2:])) for row in rows], total or 0


def _stored_start(values: Sequence[Any]) -> JSONObject | None:
    """The start in a row, and whether its signature is valid; None if the log was never cut."""
    row = dict(zip(STARTS.c.keys(), values, strict=True))
    if row["account_id"] is None:
        return None
    start = signing.stored_start(row)
    return {**start, "is_signed": signing.fault(start) is None}
