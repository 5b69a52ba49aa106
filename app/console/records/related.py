"""The records that refer to a record, and those before and after it in its list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flask import url_for

from app.collections import access, definitions
from app.collections.definitions import Definition
from app.console.records import display, filters, list_state, listing
from app.console.records.references import Hits
from app.console.shell import lists
from app.console.shell.lists import Listing, UrlArgs
from app.console.shell.scopes import CollectionScope
from app.errors import AppError
from app.records import service
from app.records.list_query import ListQuery

MAX_HITS, MAX_SEARCHED = 5, 10  # records of each reference; references


@dataclass(frozen=True)
class Related:
    """The first records that refer by a field, and the list of all of them."""

    collection: str
    field: str
    hits: Hits | None
    """None if they were not searched, as no index leads to them."""
    rest: str


def related(scope: CollectionScope, record_id: str) -> Sequence[Related]:
    """The references to a record in collections that the caller may list."""
    searched, result = 0, []
    for other, field in _references_to(scope):
        hits = None
        if field in other.leading and searched < MAX_SEARCHED:
            searched += 1
            hits = _search(scope, other, field, record_id)
        url_args: UrlArgs = {"account_id": scope.account.id, "name": other.name}
        operator = "contains" if field in other.lists else "="
        url_args |= {"field_0": field, "op_0": operator, "value_0": record_id}
        rest = url_for("console.show_records", **url_args)
        result.append(Related(other.name, field, hits, rest))
    return result


def _references_to(scope: CollectionScope) -> Iterator[tuple[Definition, str]]:
    for other in definitions.get_all():
        names = [
            name
            for name, field in other.fields.items()
            if (field.collection or "").lower() == scope.collection.name.lower()
        ]
        if names and access.is_open(scope.by, other, "list"):
            comparable = access.for_operation(scope.by, other, "list").comparable
            yield from ((other, name) for name in names if name in comparable)


def _search(scope: CollectionScope, other: Definition, field: str, record_id: str) -> Hits:
    try:
        query = ListQuery(parameters={field: [record_id]}, limit=MAX_HITS + 1)
        rows, _ = service.page(other.name, query, by=scope.by)
    except AppError:  # the rule was just closed
        return []
    names = display.label_fields(access.for_operation(scope.by, other, "list"))
    return [(row["id"], display.label(row, names)) for row in rows]


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
    url_args = list_state.args_on_page(scope, page)
    return url_for("console.show_record", record_id=record_id, **url_args)
