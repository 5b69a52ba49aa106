"""Records whose texts contain a search: through their list rules, the newest ones only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from flask import url_for

from app.collections import access, definition
from app.collections.definition import Definition
from app.console.records import listing, references
from app.console.shell.scopes import Place
from app.errors import AppError
from app.records import service
from app.rest.converters import UuidPath

MOST_FOUND = 6
MOST_COLLECTIONS = 40
LOOKED_AT, LEAST_OF_EACH = 5_000, 200  # records of all collections, and of one


@dataclass(frozen=True)
class Some:
    """Names and pages of some records of a collection, and the page that lists all."""

    collection: str
    hits: Sequence[tuple[str, str]]
    rest: str
    looked_at: int | None
    """How many of the newest were looked at, where there are more; 0 of a collection too many."""


def search(text: str, place: Place) -> Iterator[Some]:
    """What is found in each collection of which the caller may list records and see texts."""
    opened = [one for one in definition.get_all() if access.is_open(place.by, one, "list")]
    texts = [
        (one, references.speaking(access.for_operation(place.by, one, "list"))) for one in opened
    ]
    searched = [(one, names) for one, names in texts if names or UuidPath.accepts(text)]
    most = max(LEAST_OF_EACH, LOOKED_AT // max(1, len(searched)))
    for n, (one, names) in enumerate(searched):
        few = names[: references.MOST_SEARCHED]
        yield _of(one, few, text, place, most if n < MOST_COLLECTIONS else 0)


def _of(one: Definition, names: Sequence[str], text: str, place: Place, most: int) -> Some:
    at = {**place.at, "name": one.name}
    oldest, expression = None, references.holding(text, names)
    rest = url_for("console.show_records", filter=expression, look="all", **at)
    if not most:
        return Some(one.name, [], rest, 0)
    asked: dict[str, list[str]] = {"id": [text.lower()]}
    if not UuidPath.accepts(text):
        oldest, asked = listing.moment_of(one, place.account.id, most), {"filter": [expression]}
    search = partial(service.page, skip=0, limit=MOST_FOUND, count=False, by=place.by)
    try:
        rows, _ = search(one.name, asked, since=oldest)
    except AppError:  # too long a text for an expression; a rule that was closed meanwhile
        rows = []
    hits = [
        (references.label(row, names), url_for("console.show_record", record_id=row["id"], **at))
        for row in rows
    ]
    return Some(one.name, hits, rest, most if oldest else None)
