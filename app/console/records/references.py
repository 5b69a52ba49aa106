"""Searches and labels the records and people that fields point to, by what is typed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from app import clock, rules
from app.auth.principal import Principal
from app.collections import access, people
from app.collections.definitions import Definition
from app.collections.fields import Field
from app.collections.people import People
from app.console.records.display import label, label_fields
from app.console.shell import lists
from app.errors import Forbidden, InvalidValues
from app.records import service as records
from app.records import store
from app.records.store.reads import ListQuery
from app.web.app import UuidPath

MAX_HITS = 10
MAX_SEARCHED_FIELDS = 5
MAX_LABELLED = 5000  # of the lists of a page
Hits = list[tuple[str, str]]


def search(target: Definition | People, text: str, by: Principal) -> Hits | None:
    """Ids and labels of matching records or people; None if the caller may not list them."""
    if isinstance(target, People):
        return people.search(by, text, MAX_HITS)
    if not access.is_open(by, target, "list"):
        return None
    names = label_fields(access.for_operation(by, target, "list"))
    if UuidPath.accepts(text):
        return _page(target, {"id": [text.lower()]}, by, names)
    params = {"filter": [contains(text, names[:MAX_SEARCHED_FIELDS])]} if text and names else {}
    return _page(target, params, by, names)


def labels(target: Definition | People, ids: Iterable[str], by: Principal) -> dict[str, str]:
    """Labels by id, without records and people that the caller may not list."""
    unique_ids = list(dict.fromkeys(ids))[:MAX_LABELLED]
    if isinstance(target, People):
        return people.labels(by, unique_ids)
    if not unique_ids or not access.is_open(by, target, "list"):
        return {}
    names = label_fields(access.for_operation(by, target, "list"))
    return dict(_page(target, {"id": unique_ids}, by, names, len(unique_ids)) or ())


def label_query(target: Definition, ids: Sequence[str], by: Principal) -> sa.Select[Any] | None:
    """The id and label of records, for a union; None unless the caller may list all of them."""
    allowed = access.if_open(by, target, "list")
    names = label_fields(allowed) if allowed and allowed.condition is None else []
    columns = target.table.c
    texts = [
        sa.func.nullif(sa.func.trim(sa.func.substr(columns[name], 1, lists.MAX_VALUE_LENGTH)), "")
        for name in names
    ]
    if not texts:
        return None
    # SQLite has no coalesce of a single argument.
    text = sa.func.coalesce(*texts, sa.null()).label("label")
    return sa.select(columns.id, text).where(
        *store.scope(target, by.account_id), columns.id.in_(ids)
    )


def _page(
    target: Definition,
    parameters: Mapping[str, list[str]],
    by: Principal,
    names: list[str],
    limit: int = MAX_HITS,
) -> Hits | None:
    try:
        query = ListQuery(parameters=parameters, limit=limit, cut=lists.MAX_VALUE_LENGTH)
        rows, _ = records.page(target.name, query, by=by)
    except InvalidValues:  # the text is too long for an expression
        return []
    except Forbidden:
        return None
    return [(row["id"], label(row, names)) for row in rows]


def contains(text: str, names: Iterable[str]) -> str:
    """An expression for a text within any of the fields."""
    return matches(f"%{escape_like(text)}%", names)


def matches(pattern: str, names: Iterable[str]) -> str:
    """An expression for a pattern that any of the fields matches."""
    return " || ".join(f"{name} ~ {quote(pattern)}" for name in names)


def literal(field: Field, text: str) -> str:
    """A value of a field as a literal. Raises InvalidValue."""
    field = field.like
    if field.rule_type in (rules.Type.TEXT, rules.Type.LIST):
        return quote(text)
    value = field.from_text(text)
    if isinstance(value, bool):
        return str(value).lower()
    if field.rule_type is rules.Type.DECIMAL:
        return format(value, "f")
    if field.rule_type is rules.Type.DATETIME:
        return quote(clock.iso(value))
    return quote(value.isoformat()) if field.rule_type is rules.Type.DATE else repr(value)


def quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def escape_like(text: str) -> str:
    """A text with the wildcards of a pattern escaped."""
    return text.replace("\\", "\\\\").replace("%", "\\%")
