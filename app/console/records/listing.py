"""The records of an account: filtered, sorted, paginated, and the way back to such a list.

The filter, sort order, columns and page of the list that led to a page travel as `back`: the query
string of the list. The ids of records that were just deleted together travel in the form cookie, as
an address is too short for them, until the list that offers to undo it shows them.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import UUID

import sqlalchemy as sa
from flask import flash, redirect, render_template, request, session, url_for
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response as BaseResponse

from app import db
from app.accounts import tenants
from app.collections import definitions, totals
from app.collections.access import Access
from app.collections.definitions import Definition, ViewDefinition
from app.collections.fields import entries
from app.console.records import (
    display,
    file_previews,
    filters,
    record_form,
    references,
    saved_views,
    writers,
)
from app.console.records.display import Labels, format_value, label, label_fields
from app.console.records.filters import FilterForm
from app.console.records.record_form import RecordForm, RowEdit
from app.console.records.saved_views import SavedView
from app.console.shell import checks, completions, guard, lists, navigation, scopes
from app.console.shell.access import USER
from app.console.shell.blueprint import page
from app.console.shell.forms import Page, TemplateContext
from app.console.shell.lists import Listing, UrlArgs
from app.console.shell.names import of_operations
from app.console.shell.navigation import DATA, MenuItem
from app.console.shell.scopes import AccountScope, CollectionScope
from app.db import counts
from app.errors import AppError
from app.realtime.feed import changes
from app.records import service
from app.records.store.reads import ListQuery
from app.rules import OPERATIONS
from app.types import JSONMapping, JSONObject
from app.web.app import UuidPath
from app.web.languages import gettext, lazy_gettext

HOME = "/console/records"
ACCOUNT = f"{HOME}/<uuid:account_id>"
COLLECTION = f"{ACCOUNT}/<name>"
DEFAULT_SORT = "-created_at"
SELECTS_PER_UNION = 100  # collections per statement
ALL: UrlArgs = {"view": "all"}  # the list without the default view
MAX_BACK_LENGTH = 2_000  # characters; longer ones are not kept
MAX_PARAMETERS = 200
DELETED = "deleted"
ID_BYTES = 16
# Parameters of the query string that a link back leaves out: they are no state of the list.
OMITTED = (DELETED, "back", "edit", "focus")


@dataclass(frozen=True)
class ViewLink:
    """A saved view, and the address of its list."""

    view: SavedView
    target: str
    is_own: bool
    is_current: bool


@page(HOME, role=USER)
def show_records_home() -> str | BaseResponse:
    """The page of the current account; superadmins without one, or who ask for all, choose."""
    if account_id := navigation.home_account_id(guard.require_caller()):
        return redirect(url_for("console.show_record_collections", account_id=account_id))
    listing = lists.from_request("console.show_records_home", view="all")
    listing.with_page(tenants.page({**listing.page_args, "is_active": True}))
    return render_template("console/records/accounts.html", listing=listing)


@page(
    ACCOUNT, role=USER, retry_stale=True, menu=MenuItem(DATA, 1, lazy_gettext("Records"), "table")
)
def show_record_collections(scope: AccountScope) -> str:
    """The collections with any operation allowed to the caller."""
    allowed = {one: scope.allowed_operations(one) for one in definitions.get_all(with_views=True)}
    listable = [one for one in allowed if one.view is None and _lists_all(scope, one)]
    counts = totals.of_account(scope.account.id)
    limited = [names for names in allowed.values() if names and set(names) != set(OPERATIONS)]
    return render_template(
        "console/records/collections.html",
        scope=scope,
        collections=[(one, names) for one, names in allowed.items() if names],
        counts={one.id: counts.get(one.id, 0) for one in listable},
        newest=_newest_times(scope, listable),
        hidden=", ".join(
            one.name
            for one, names in allowed.items()
            if names and one.view is None and one not in listable
        ),
        limited=bool(limited),
        listed=of_operations,
    )


def _lists_all(scope: AccountScope, collection: Definition) -> bool:
    access = scope.access(collection, "list")
    return access is not None and access.condition is None


def _newest_times(scope: AccountScope, collections: Sequence[Definition]) -> dict[str, datetime]:
    """The creation time of the newest record of each collection, read from an index."""
    newest = dict[str, datetime]()
    for first in range(0, len(collections), SELECTS_PER_UNION):
        queries = [
            sa.select(sa.literal(one.id), sa.func.max(one.table.c.created_at)).where(
                one.table.c.account_id == scope.account.id
            )
            for one in collections[first : first + SELECTS_PER_UNION]
        ]
        rows = db.connection().execute(sa.union_all(*queries))
        newest |= {row[0]: row[1] for row in rows if row[1] is not None}
    return newest


@page(COLLECTION, role=USER, retry_stale=True)
def show_records(scope: CollectionScope, form: RecordForm | None = None) -> Page | BaseResponse:
    """The records of a collection that the caller may list; at first, in the default view.

    `form` is that of the row which the query string opens, as submitted.
    """
    views = saved_views.get_all(scope.collection, scope.by)
    default = None if request.args else saved_views.default_of(views, scope.by)
    if default is not None:
        url_args = {**scope.url_args, **(saved_views.query(default) or ALL)}
        return redirect(url_for("console.show_records", **url_args))
    access, record_id = scope.access(scope.collection, "list"), request.args.get("edit", "")
    edit = None
    if access and record_id:
        edit = record_form.open_row(scope, record_id, display.shown_fields(access))
        edit = RowEdit(edit.record, form) if edit and form else edit
    return render_list(scope, views, edit)


def render_list(
    scope: CollectionScope, views: Sequence[SavedView], edit: RowEdit | None = None
) -> Page:
    """The list of the query string, with one row as a form."""
    access, form = scope.access(scope.collection, "list"), filters.from_request()
    shown: TemplateContext = {"page_args": scope.url_args}
    if access is not None:
        shown = _shown(scope, access, form, views, edit)
        if scope.collection.view:
            shown |= _charts(scope, access, shown)
    operations = scope.allowed_operations(scope.collection)
    deleted = request.args.get(DELETED, "") if "create" in operations else ""
    page, status = form.render(
        "console/records/list.html",
        scope=scope,
        access=access,
        operations=operations,
        deleted=deleted if UuidPath.accepts(deleted) else None,
        deleted_ids=pop_deleted(scope) if "create" in operations else (),
        ask_superadmins=scopes.ASK_SUPERADMINS,
        **shown,
    )
    return page, edit.form.status if edit and edit.form.status != 200 else status


def _shown(
    scope: CollectionScope,
    access: Access,
    form: FilterForm,
    views: Sequence[SavedView],
    edit: RowEdit | None,
) -> TemplateContext:
    """The template variables for a caller who may list records."""
    # Before the records: the stream that follows from here on misses no change.
    can_follow = not scope.collection.view and scope.access(scope.collection, "view") is not None
    newest_change = changes.newest_change(by=scope.by) if can_follow else None
    requested = display.requested_columns(access)
    listing = _load(scope, access, form, requested)
    by_default = "" if form.values["search"] else ",".join(scope.collection.default_sort)
    sort = listing.filters.get("sort", by_default)  # without one, the best matches come first
    names = requested or display.default_columns(access)
    number = listing.page if listing.page > 1 else None
    view = {name: "all" for name in ALL if request.args.get(name) == "all"}
    page_args = args_from_list(scope, listing.page_url(number, **view))
    labels = labels_in_rows(scope, access, listing.items, names)
    writing = [name for name in writers.FIELDS if name in names]
    written = [{name: row[name] for name in writing} for row in listing.items]
    if edit is not None:
        record_form.load_labels(scope, edit.form)
        if all(record["id"] != edit.record["id"] for record in listing.items):
            listing.items.insert(0, edit.record)  # it was on this page when its row was opened
    links = [_link(scope, listing, one) for one in views]
    named_by, label_names = display.name_field(access), label_fields(access)
    return {
        "page_args": page_args,
        "listing": listing,
        "rows": [(record, label(record, label_names)) for record in listing.items],
        "name_column": display.column(access, listing, named_by, sort) if named_by else None,
        "columns": [display.column(access, listing, name, sort) for name in names],
        "sort": sort,
        "widths": listing.filters.get("width", ()),
        **display.WIDTHS,
        "choosable": display.choosable_columns(access),
        "editable": record_form.editable_at_once(scope.access(scope.collection, "update")),
        "filter_fields": filters.offered_fields(access),
        "searches": bool(filters.searched_fields(access)),
        "has_words": not access.comparable.keys().isdisjoint(access.definition.searched),
        "completions": completions.of_access(access),
        "control": filters.control,
        "filter_labels": filters.labels(form, access, scope.by),
        "labels": labels,
        "writers": writers.names(scope, written) if any(written) else {},
        **(file_previews.context() if scope.collection.files else {}),
        "display": format_value,
        "files_in": file_previews.files_in,
        "newest_change": newest_change,
        "views": links,
        "current_view": next((link for link in links if link.is_current), None),
        "all_url": url_for(listing.endpoint, **scope.url_args, **ALL),
        "may_edit": {"view", "update"} <= set(scope.allowed_operations(scope.collection)),
        "edit": edit,
        "edit_id": edit.record["id"] if edit else None,
        "edit_url": listing.page_url(number, edit=""),  # the record's id follows
        "close_url": listing.page_url(number, **({} if listing.filters else ALL)),
    }


def _charts(scope: CollectionScope, access: Access, shown: TemplateContext) -> TemplateContext:
    view, rows = scope.collection, shown["listing"].items
    if not (isinstance(view, ViewDefinition) and view.is_grouped):
        return {}
    labels = labels_in_rows(scope, access, rows, view.default_sort)
    names = [one.name for one in shown["columns"]]
    return {"charts": display.group_charts(view, rows, labels, names)}


def labels_in_rows(
    scope: CollectionScope, access: Access, rows: Sequence[JSONMapping], names: Sequence[str]
) -> Labels:
    """By reference field: the target collection, and the labels of its records by id.

    People have no collection.
    """
    found: Labels = {}
    for name in names:
        target = scope.collection.followed(name) if name not in access.masked else None
        if target is not None:
            field = access.definition.fields[name]
            ids = [id for row in rows for id in entries(field, row.get(name))]
            collection = target.name if isinstance(target, Definition) else ""
            found[name] = (collection, references.labels(target, ids, scope.by))
    return found


@page(f"{COLLECTION}/condition", role=USER, retry_stale=True)
def show_condition(scope: CollectionScope) -> str:
    """The inputs of one condition, for the field that it names; for scripts."""
    access, n = scope.access(scope.collection, "list"), request.args.get("n", "")
    return render_template(
        "console/records/condition.html",
        form=filters.from_request(),
        n=int(n) if n in map(str, range(filters.MAX_ROWS)) else 0,
        scope=scope,
        filter_fields=filters.offered_fields(access) if access else {},
        searches=bool(access and filters.searched_fields(access)),
        control=filters.control,
        filter_labels={},
    )


@page(f"{COLLECTION}/filter/check", "POST", role=USER, retry_stale=True)
def check_filter(scope: CollectionScope) -> str:
    """Validate a filter expression."""
    text = checks.submitted()
    access = scope.access(scope.collection, "list")
    problems = filters.expression_problems(text, access) if text and access else []
    return checks.verdict_of_expression(text if access else "", problems, gettext("Valid filter."))


def query_args(form: FilterForm, access: Access, requested: Sequence[str]) -> JSONObject:
    """The filter, sort order, columns and their widths of the query string."""
    args: JSONObject = dict(form.query_args)
    if sort := request.args.get("sort", "").replace("\0", "")[:200]:
        args["sort"] = sort
    if requested:
        args["column"] = list(requested)
    if widths := display.column_widths(access):
        args["width"] = saved_views.width_args(widths)
    return args


def _link(scope: CollectionScope, listing: Listing, view: SavedView) -> ViewLink:
    args = saved_views.query(view)
    target = url_for(listing.endpoint, **scope.url_args, **(args or ALL))
    is_own = view.user_id == scope.by.user_id
    return ViewLink(view, target, is_own=is_own, is_current=args == listing.filters)


def _load(
    scope: CollectionScope, access: Access, form: FilterForm, requested: Sequence[str]
) -> Listing:
    """The page of the list; without records if its filter is not valid, which the form says."""
    listing = lists.from_request("console.show_records", **scope.url_args)
    listing.filters = query_args(form, access, requested)
    try:
        params, since = query(scope, access, form, listing, listing.filters.get("sort", ""))
        found = ListQuery(
            parameters=params,
            skip=listing.skip,
            limit=lists.PAGE_SIZE,
            count=True,
            max_total=listing.count_limit,
            since=since,
            cut=lists.MAX_VALUE_LENGTH,
        )
        rows, total = service.page(scope.collection.name, found, by=scope.by)
        return listing.with_page((list(rows), total or 0))
    except AppError as error:
        form.with_error(error)
        return listing


def query(
    scope: CollectionScope, access: Access, form: FilterForm, listing: Listing, sort: str
) -> tuple[dict[str, list[str]], datetime | None]:
    """The parameters of the list, and since when records are scanned. Raises InvalidValues."""
    params, since = {**form.parameters(access), "sort": [sort]}, None
    if form.values["search"].strip():
        params["highlight"] = ["true"]
    is_view = access.definition.view is not None  # what it reads has no newest ones of its own
    is_quick = filters.is_indexed(form, access) and _is_sorted_by_index(access, sort)
    if not (is_quick or is_view):
        since = listing.scan_newest(partial(nth_newest_time, scope.collection, scope.account.id))
    return params, since


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


def args_from_list(scope: CollectionScope, address: str) -> UrlArgs:
    """The arguments of `url_for` for pages opened from the list with this address."""
    return {**scope.url_args, "back": _encode(parse_qsl(urlsplit(address).query))}


def args_from_page(scope: CollectionScope) -> UrlArgs:
    """The arguments for pages opened from this one, which return to the same list."""
    return {**scope.url_args, "back": _query_of_list()}


def list_url(scope: CollectionScope, **params: str) -> str:
    """The address of the list that led to this page."""
    query = "&".join(filter(None, (_query_of_list(), urlencode(params))))
    address = url_for("console.show_records", **scope.url_args)
    return f"{address}?{query}" if query else address


def list_args() -> MultiDict[str, str]:
    """The arguments of the list that led to this page; empty if it is not known."""
    return MultiDict(parse_qsl(_query_of_list() or ""))


def args_on_page(scope: CollectionScope, page: int) -> UrlArgs:
    """The arguments for pages opened from another page of the same list."""
    args = [(name, value) for name, value in list_args().items(multi=True) if name != "page"]
    if page > 1:
        args.append(("page", str(page)))
    return {**scope.url_args, "back": _encode(args)}


def redirect_to_list(notice: str, scope: CollectionScope, **params: str) -> BaseResponse:
    """Redirect to the list that led to this page, with a notice."""
    flash(notice)
    return redirect(list_url(scope, **params), 303)


def remember_deleted(scope: CollectionScope, ids: Iterable[str]) -> None:
    """Store the ids for the next list of the collection."""
    packed = urlsafe_b64encode(b"".join(UUID(id).bytes for id in ids)).decode()
    session[DELETED] = {
        "account": scope.account.id,
        "collection": scope.collection.id,
        "ids": packed,
    }


def pop_deleted(scope: CollectionScope) -> Sequence[str]:
    """Remove and return the ids that are stored for this list; none when a script refreshes it."""
    stored = session.get(DELETED)
    is_refresh = request.headers.get("X-Requested-With") == "XMLHttpRequest"
    if is_refresh or not isinstance(stored, dict):  # a former release stored a list
        return ()
    if (stored["account"], stored["collection"]) != (scope.account.id, scope.collection.id):
        return ()
    del session[DELETED]
    raw = urlsafe_b64decode(stored["ids"])
    return [str(UUID(bytes=raw[n : n + ID_BYTES])) for n in range(0, len(raw), ID_BYTES)]


def _query_of_list() -> str | None:
    """The query string of the list that led to this page; None if it is not known."""
    if request.endpoint == "console.change_row":  # posted to the list's own address
        return _encode(request.args.items(multi=True))
    try:
        pairs = parse_qsl(
            request.args.get("back", "")[: MAX_BACK_LENGTH + 1], max_num_fields=MAX_PARAMETERS
        )
    except ValueError:
        return None
    return _encode(pairs)


def _encode(pairs: Iterable[tuple[str, str]]) -> str | None:
    query = urlencode([(name, value) for name, value in pairs if name not in OMITTED])
    return query if query and len(query) <= MAX_BACK_LENGTH else None
