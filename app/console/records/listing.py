"""The records of an account, for its admins and for superadmins: found, sorted, leafed through."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import orjson
from flask import redirect, render_template, request, url_for
from markupsafe import Markup
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import tenants
from app.collections import definition
from app.collections.access import Access
from app.collections.definition import Definition
from app.console.records import filters, references
from app.console.records.filters import FilterForm
from app.console.shell import guard, lists, scopes
from app.console.shell.blueprint import blueprint
from app.console.shell.lists import Listing
from app.console.shell.scopes import Shelf
from app.db import counts
from app.errors import AppError
from app.records import service
from app.rest.access import public
from app.rest.converters import UuidPath

HOME = "/console/records"
ACCOUNT = f"{HOME}/<uuid:account_id>"
COLLECTION = f"{ACCOUNT}/<name>"
USUAL_COLUMNS = 5
DEFAULT_SORT = "-created_at"


@dataclass(frozen=True)
class Head:
    """A column of the list: its field, and where its head leads to."""

    name: str
    target: str | None
    sorted: str | None


@blueprint.get(HOME)
@public
@guard.for_admins
def show_records_home() -> str | BaseResponse:
    """For superadmins a choice of the account; admins have one only."""
    if not guard.known_caller().is_superadmin:
        return redirect(url_for("console.show_shelves", account_id=guard.own_account()))
    listing = lists.asked_for("console.show_records_home")
    listing.holding(tenants.page({**listing.asked, "is_active": True}))
    return render_template("console/records/accounts.html", listing=listing)


@blueprint.get(ACCOUNT)
@public
@guard.for_admins
@guard.steady
def show_shelves(account_id: str) -> str:
    """The collections of which something is open to the caller."""
    place = scopes.found(account_id)
    opened = [(one, place.opened(one)) for one in definition.get_all()]
    return render_template(
        "console/records/collections.html",
        place=place,
        shelves=[(one, operations) for one, operations in opened if operations],
    )


@blueprint.get(COLLECTION)
@public
@guard.for_admins
@guard.steady
def show_records(account_id: str, name: str) -> tuple[str, int]:
    """The records of a collection that the caller may list."""
    shelf = scopes.shelf(account_id, name)
    access = shelf.access(shelf.collection, "list")
    form, context = filters.asked(), {"ask": scopes.WHOM_TO_ASK, "access": access}
    if access is not None:
        context |= _listed(shelf, access, form)
    opened = shelf.opened(shelf.collection)
    deleted = request.args.get("deleted", "") if "create" in opened else ""
    context["deleted"] = deleted if UuidPath.accepts(deleted) else None
    return form.page("console/records/list.html", shelf=shelf, opened=opened, **context)


def _listed(shelf: Shelf, access: Access, form: FilterForm) -> dict[str, Any]:
    listing = lists.asked_for("console.show_records", **shelf.at)
    columns, sort = _columns(access), request.args.get("sort", "").replace("\0", "")[:200]
    chosen = columns if "column" in request.args else []
    listing.filters = {**form.kept, **_said(sort=sort, column=chosen)}
    try:
        listing.holding(_found(shelf, access, form, listing, sort))
    except AppError as error:
        form.refused(error)
    sort = sort or DEFAULT_SORT
    return {
        "listing": listing,
        "heads": [_head(access, listing, column, sort) for column in columns],
        "sort": sort,
        "columns": columns,
        "choosable": dict.fromkeys((*_declared(access), *access.readable)),
        "offered": filters.offered(access),
        "operators": filters.OPERATORS,
        "labels": _labels(shelf, access, listing.items, columns),
        "tell": tell,
    }


def _said(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


def _found(
    shelf: Shelf, access: Access, form: FilterForm, listing: Listing, sort: str
) -> tuple[list[Any], int]:
    asked, since = {"filter": [form.build(access)], "sort": [sort]}, None
    if not (filters.is_quick(form, access) and _is_sorted_by_index(access, sort)):
        since = listing.from_newest(partial(moment_of, shelf.collection, shelf.account.id))
    rows, total = service.page(
        shelf.collection.name,
        asked,
        skip=listing.skip,
        limit=lists.SIZE,
        count=True,
        by=shelf.by,
        most=listing.most,
        since=since,
        cut=lists.LONGEST_VALUE,
    )
    return rows, total or 0


def _is_sorted_by_index(access: Access, sort: str) -> bool:
    name = (sort or DEFAULT_SORT).removeprefix("-")
    field = access.definition.declared.get(name)
    return name in ("id", "created_at") or bool(field and field.indexed)


def moment_of(collection: Definition, account_id: str, newer: int) -> datetime | None:
    """When the record was made that has so many newer ones; None where there are fewer."""
    table = collection.table.c
    found: datetime | None = counts.value_at_offset(
        table.created_at, [table.account_id == account_id], newer
    )
    return found


def _columns(access: Access) -> list[str]:
    chosen = [one for one in request.args.getlist("column") if one in access.readable]
    return list(dict.fromkeys(chosen)) or [*_declared(access)[:USUAL_COLUMNS], "created_at"]


def _declared(access: Access) -> list[str]:
    return [one for one in access.definition.declared if one in access.readable]


def _head(access: Access, listing: Listing, name: str, sort: str) -> Head:
    if name not in filters.offered(access):
        return Head(name, None, None)
    now = {name: "ascending", f"-{name}": "descending"}.get(sort)
    then = f"-{name}" if now == "ascending" else name
    kept = {**listing.at, **listing.filters, "sort": then}
    return Head(name, url_for(listing.endpoint, **kept), now)


def _labels(
    shelf: Shelf, access: Access, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> dict[str, tuple[str, dict[str, str]]]:
    """By column of references: the collection they lead to, and what its records are called."""
    found = {}
    for name in columns:
        target = shelf.collection.target(name) if name not in access.masked else None
        if target is not None:
            ids = [row[name] for row in rows if row[name] is not None]
            found[name] = (target.name, references.labels(target, ids, shelf.by))
    return found


def tell(value: Any, longest: int = 60) -> str:
    """A value of a record in a list."""
    if value is None or isinstance(value, bool):
        return "" if value is None else "yes" if value else "no"
    text = text_of(value)
    if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text, re.ASCII):
        moment = f"{text[:10]} {text[11:16]} UTC"
        return Markup('<time datetime="{}">{}</time>').format(text, moment)
    return text if len(text) <= longest else f"{text[:longest]}…"


def text_of(value: Any) -> str:
    """A value in its JSON form as a text."""
    # JSON of a record is passed through unread; that of its history has been read.
    is_json = isinstance(value, orjson.Fragment | dict | list)
    return orjson.dumps(value).decode() if is_json else str(value)
