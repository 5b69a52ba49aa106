"""Records whose texts contain a search: through their list rules, the newest ones only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from flask import url_for

from app import clock, db
from app.collections import access, definition
from app.collections.definition import Definition
from app.console import references
from app.console.places import Place
from app.errors import AppError
from app.records import service
from app.rest import UuidPath

MOST_FOUND = 6
MOST_COLLECTIONS = 40
LOOKED_AT, LEAST_OF_EACH = 8_000, 200  # records of all collections, and of one


@dataclass(frozen=True)
class Some:
    """Names and pages of some records of a collection, and the page that lists all."""

    collection: str
    hits: Sequence[tuple[str, str]]
    rest: str
    looked_at: int | None


def search(text: str, place: Place) -> Iterator[Some]:
    """What is found in each collection of which the caller may list records and see texts."""
    opened = [one for one in definition.everything() if access.may(place.by, one, "list")]
    most = max(LEAST_OF_EACH, LOOKED_AT // max(1, len(opened)))
    for one in opened[:MOST_COLLECTIONS]:
        names = references.speaking(access.of(place.by, one, "list"))
        if names or UuidPath.accepts(text):
            yield _of(one, names[: references.MOST_SEARCHED], text, place, most)


def _of(one: Definition, names: Sequence[str], text: str, place: Place, most: int) -> Some:
    at = {**place.at, "name": one.name}
    oldest, expression = None, references.holding(text, names)
    asked: dict[str, list[str]] = {"id": [text.lower()]}
    if not UuidPath.accepts(text):
        oldest = _moment_of(one, place.account.id, most)
        bound = f" && created_at >= '{clock.iso(oldest)}'" if oldest else ""
        asked = {"filter": [f"({expression}){bound}"]}
    try:
        rows, _ = service.page(one.name, asked, skip=0, limit=MOST_FOUND, count=False, by=place.by)
    except AppError:  # too long a text for an expression; a rule that was closed meanwhile
        rows = []
    hits = [
        (references.label(row, names), url_for("console.show_record", record_id=row["id"], **at))
        for row in rows
    ]
    rest = url_for("console.show_records", filter=expression, **at)
    return Some(one.name, hits, rest, most if oldest else None)


def _moment_of(one: Definition, account_id: str, place: int) -> datetime | None:
    """When the record was made that has so many newer ones; None where there are fewer."""
    table = one.table.c
    made = sa.select(table.created_at).where(table.account_id == account_id)
    newest = made.order_by(table.created_at.desc(), table.id.asc())
    found: datetime | None = db.connection().scalar(newest.offset(place).limit(1))
    return found
