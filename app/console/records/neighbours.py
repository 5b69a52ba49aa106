"""The records before and after one in the list that led to its page."""

from __future__ import annotations

from flask import url_for

from app.console.records import filters, list_state, listing
from app.console.shell import lists
from app.console.shell.lists import Listing
from app.console.shell.scopes import CollectionScope
from app.errors import AppError
from app.records import service
from app.records.list_query import ListQuery


def links(scope: CollectionScope, record_id: str) -> dict[str, str]:
    """The addresses of the records before (`prev`) and after (`next`) one.

    None of them if the record is no longer on that page of the list.
    """
    access, args = scope.access(scope.collection, "list"), list_state.list_args()
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
    url_args = list_state.on_page(scope, page)
    return url_for("console.show_record", record_id=record_id, **url_args)
