"""Searches records within the caller's list rules: words, or the texts of the newest ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flask import url_for

from app.collections import access, definitions
from app.collections.definitions import Definition
from app.console.records import display, listing, references
from app.console.records.filters import has_words
from app.console.shell.scopes import AccountScope
from app.errors import AppError
from app.records import service
from app.records.store.reads import ListQuery
from app.web.app import UuidPath

MAX_HITS = 6
MAX_COLLECTIONS = 40
MAX_SCANNED, MIN_SCANNED = 5_000, 200  # records of all collections; of each


@dataclass(frozen=True)
class CollectionHits:
    """Labels and pages of matching records of a collection; `rest` is the full list."""

    collection: str
    hits: Sequence[tuple[str, str]]
    rest: str
    scanned: int | None
    """The number of newest rows scanned, if there are more; 0 if the collection was skipped."""


def search(text: str, scope: AccountScope) -> Iterator[CollectionHits]:
    """The hits in each collection whose records and texts the caller may list."""
    listed = [
        collection
        for collection in definitions.get_all()
        if access.is_open(scope.by, collection, "list")
    ]
    texts = [
        (collection, display.label_fields(access.for_operation(scope.by, collection, "list")))
        for collection in listed
    ]
    searched = [
        (collection, names) for collection, names in texts if names or UuidPath.accepts(text)
    ]
    most = max(MIN_SCANNED, MAX_SCANNED // max(1, len(searched)))
    for n, (collection, names) in enumerate(searched):
        few = names[: references.MAX_SEARCHED_FIELDS]
        yield _search_collection(collection, few, text, scope, most if n < MAX_COLLECTIONS else 0)


def _search_collection(
    collection: Definition, names: Sequence[str], text: str, scope: AccountScope, scan_limit: int
) -> CollectionHits:
    url_args = {**scope.url_args, "name": collection.name}
    listed = access.for_operation(scope.by, collection, "list")
    if has_words(listed) and not UuidPath.accepts(text):
        # Its index answers, however many records there are.
        rest = url_for("console.show_records", search=text, **url_args)
        query = ListQuery(parameters={"search": [text]}, limit=MAX_HITS)
        return _hits(collection, query, names, scope, rest)
    oldest, expression = None, references.contains(text, names)
    rest = url_for("console.show_records", filter=expression, look="all", **url_args)
    if not scan_limit:
        return CollectionHits(collection.name, [], rest, 0)
    params: dict[str, list[str]] = {"id": [text.lower()]}
    if not UuidPath.accepts(text):
        oldest, params = (
            listing.nth_newest_time(collection, scope.account.id, scan_limit),
            {"filter": [expression]},
        )
    query = ListQuery(parameters=params, limit=MAX_HITS, since=oldest)
    return _hits(collection, query, names, scope, rest, scan_limit if oldest else None)


def _hits(
    collection: Definition,
    query: ListQuery,
    names: Sequence[str],
    scope: AccountScope,
    rest: str,
    scanned: int | None = None,
) -> CollectionHits:
    url_args = {**scope.url_args, "name": collection.name}
    try:
        rows, _ = service.page(collection.name, query, by=scope.by)
    except AppError:  # the text is too long, or has no word, or the rule was just closed
        rows = []
    hits = [
        (
            display.label(row, names),
            url_for("console.show_record", record_id=row["id"], **url_args),
        )
        for row in rows
    ]
    return CollectionHits(collection.name, hits, rest, scanned)
