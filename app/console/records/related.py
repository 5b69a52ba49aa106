"""The records that refer to a record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flask import url_for

from app.collections import access, definitions
from app.collections.definitions import Definition
from app.console.records import display
from app.console.records.references import Hits
from app.console.shell.lists import UrlArgs
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
        url_args |= {"field_0": field, "op_0": "=", "value_0": record_id}
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
