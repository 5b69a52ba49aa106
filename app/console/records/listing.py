"""The records of an account: filtered, sorted, paginated."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
from app.console.records import file_previews, filters, references
from app.console.records.filters import FilterForm
from app.console.shell import guard, lists, scopes
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import TemplateContext
from app.console.shell.lists import Listing
from app.console.shell.scopes import CollectionScope
from app.db import counts
from app.errors import AppError
from app.feed import service as feed
from app.records import service
from app.rest.access import public
from app.rest.converters import UuidPath
from app.types import JSONMapping, JSONObject

HOME = "/console/records"
ACCOUNT = f"{HOME}/<uuid:account_id>"
COLLECTION = f"{ACCOUNT}/<name>"
DEFAULT_COLUMNS = 5
DEFAULT_SORT = "-created_at"


@dataclass(frozen=True)
class ColumnHead:
    """The head of a column: its field, sort link and sort order."""

    name: str
    target: str | None
    sorted: str | None


@blueprint.get(HOME)
@public
@guard.admins_only
def show_records_home() -> str | BaseResponse:
    """A choice of the account for superadmins; admins have one only."""
    if not guard.require_caller().is_superadmin:
        return redirect(
            url_for("console.show_record_collections", account_id=guard.own_account_id())
        )
    listing = lists.from_request("console.show_records_home")
    listing.with_page(tenants.page({**listing.page_args, "is_active": True}))
    return render_template("console/records/accounts.html", listing=listing)


@blueprint.get(ACCOUNT)
@public
@guard.admins_only
@guard.retry_stale
def show_record_collections(account_id: str) -> str:
    """The collections with any operation allowed to the caller."""
    scope = scopes.account_scope(account_id)
    allowed = [
        (collection, scope.allowed_operations(collection)) for collection in definition.get_all()
    ]
    return render_template(
        "console/records/collections.html",
        scope=scope,
        collections=[(collection, operations) for collection, operations in allowed if operations],
    )


@blueprint.get(COLLECTION)
@public
@guard.admins_only
@guard.retry_stale
def show_records(account_id: str, name: str) -> tuple[str, int]:
    """The records of a collection that the caller may list."""
    scope = scopes.collection_scope(account_id, name)
    access = scope.access(scope.collection, "list")
    form, context = filters.from_request(), {"ask": scopes.ASK_SUPERADMINS, "access": access}
    if access is not None:
        context |= _list_context(scope, access, form)
    opened = scope.allowed_operations(scope.collection)
    deleted = request.args.get("deleted", "") if "create" in opened else ""
    context["deleted"] = deleted if UuidPath.accepts(deleted) else None
    return form.render("console/records/list.html", scope=scope, opened=opened, **context)


def _list_context(scope: CollectionScope, access: Access, form: FilterForm) -> TemplateContext:
    # Before the records: the stream that follows from here on misses no change.
    can_follow = scope.access(scope.collection, "view") is not None
    newest_change = feed.newest_change(by=scope.by) if can_follow else None
    listing = lists.from_request("console.show_records", **scope.url_args)
    columns, sort = _columns(access), request.args.get("sort", "").replace("\0", "")[:200]
    selected = columns if "column" in request.args else []
    listing.filters = {**form.query_args, **_non_empty(sort=sort, column=selected)}
    try:
        listing.with_page(_load(scope, access, form, listing, sort))
    except AppError as error:
        form.with_error(error)
    sort = sort or DEFAULT_SORT
    return {
        "listing": listing,
        "heads": [_column_head(access, listing, column, sort) for column in columns],
        "sort": sort,
        "columns": columns,
        "choosable": dict.fromkeys((*_readable_fields(access), *access.readable)),
        "offered": filters.offered_fields(access),
        "operators": filters.OPERATORS,
        "labels": _labels(scope, access, listing.items, columns),
        **file_previews.context(),
        "display": display,
        "files_in": file_previews.files_in,
        "newest_change": newest_change,
    }


def _non_empty(**values: object) -> JSONObject:
    return {key: value for key, value in values.items() if value}


def _load(
    scope: CollectionScope, access: Access, form: FilterForm, listing: Listing, sort: str
) -> tuple[list[Any], int]:
    params, since = {"filter": [form.build(access)], "sort": [sort]}, None
    if not (filters.is_indexed(form, access) and _is_sorted_by_index(access, sort)):
        since = listing.scan_newest(partial(nth_newest_time, scope.collection, scope.account.id))
    rows, total = service.page(
        scope.collection.name,
        params,
        skip=listing.skip,
        limit=lists.PAGE_SIZE,
        count=True,
        by=scope.by,
        max_total=listing.count_limit,
        since=since,
        cut=lists.MAX_VALUE_LENGTH,
    )
    return rows, total or 0


def _is_sorted_by_index(access: Access, sort: str) -> bool:
    name = (sort or DEFAULT_SORT).removeprefix("-")
    return name in ("id", "created_at") or name in access.definition.leading


def nth_newest_time(collection: Definition, account_id: str, newer: int) -> datetime | None:
    """The creation time of the record after the n newest ones; None if there are fewer."""
    table = collection.table.c
    cutoff: datetime | None = counts.value_at_offset(
        table.created_at, [table.account_id == account_id], newer
    )
    return cutoff


def _columns(access: Access) -> list[str]:
    selected = [name for name in request.args.getlist("column") if name in access.readable]
    return list(dict.fromkeys(selected)) or [
        *_readable_fields(access)[:DEFAULT_COLUMNS],
        "created_at",
    ]


def _readable_fields(access: Access) -> list[str]:
    return [name for name in access.definition.declared if name in access.readable]


def _column_head(access: Access, listing: Listing, name: str, sort: str) -> ColumnHead:
    if name not in filters.filterable_fields(access):
        return ColumnHead(name, None, None)
    order = {name: "ascending", f"-{name}": "descending"}.get(sort)
    next_sort = f"-{name}" if order == "ascending" else name
    url_args = {**listing.url_args, **listing.filters, "sort": next_sort}
    return ColumnHead(name, url_for(listing.endpoint, **url_args), order)


def _labels(
    scope: CollectionScope,
    access: Access,
    rows: Sequence[JSONMapping],
    columns: Sequence[str],
) -> dict[str, tuple[str, dict[str, str]]]:
    """By reference column: the target collection, and the labels of its records by id."""
    labels = {}
    for name in columns:
        target = scope.collection.target(name) if name not in access.masked else None
        if target is not None:
            ids = [row[name] for row in rows if row[name] is not None]
            labels[name] = (target.name, references.labels(target, ids, scope.by))
    return labels


def display(value: object, longest: int = 60) -> str:
    """A value of a record for a list."""
    if value is None or isinstance(value, bool):
        return "" if value is None else "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        text = ", ".join(value)
    elif names := _file_names(value):
        text = ", ".join(names)
    else:
        text = json_text(value)
    if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text, re.ASCII):
        moment = f"{text[:10]} {text[11:16]} UTC"
        return Markup('<time datetime="{}">{}</time>').format(text, moment)
    return text if len(text) <= longest else f"{text[:longest]}…"


def _file_names(value: object) -> list[str]:
    """The names of the files of a value; none for other values."""
    files = value if isinstance(value, list) else [value]
    known = [one for one in files if isinstance(one, dict) and one.keys() >= {"name", "sha256"}]
    return [str(one["name"]) for one in known] if len(known) == len(files) else []


def json_text(value: object) -> str:
    """A value in its JSON form."""
    # JSON of a record is passed through unparsed; that of its history has been read.
    is_json = isinstance(value, orjson.Fragment | dict | list)
    return orjson.dumps(value).decode() if is_json else str(value)
