"""Keyset paging: a cursor holds the sort values where a page ended.

The records after a position form several ranges: those equal in all keys but the last, those equal
in all but the last two, and so on, each with its nulls at the end. An index can start reading at
the first row of each range, so no page costs more than the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

import orjson
import sqlalchemy as sa
from itsdangerous import BadSignature

from app import clock, crypto, rules
from app.collections.definitions import Definition
from app.collections.fields import Field
from app.errors import InvalidValues, problem
from app.records.store.reads import Part
from app.types import JSONObject

PURPOSE = "cursor"
BEFORE = "<"  # begins the binding of a prev_cursor
LONGEST_POSITION = 3000  # bytes, to fit into the line of a request, beside a filter
DIRECTIONS = ("cursor", "cursor_before")
COMPARISON = 5  # precedence, so that SQLAlchemy brackets operands of the same
DECODERS: Mapping[rules.Type, Callable[[Any], object]] = {
    rules.Type.DATETIME: clock.parse,
    rules.Type.DATE: date.fromisoformat,
    rules.Type.DECIMAL: Decimal,
}
FOREIGN = "This cursor is not one of this list: not with this filter, this order, this account."

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Key:
    """One field of an order."""

    field: Field = field(compare=False)  # which has no hash: its name and type tell
    """The field; one behind references has the name of its path."""
    name: str
    type: rules.Type
    expression: Any
    descending: bool
    nullable: bool
    backward: bool = False
    """Whether its index is read backward, which returns nulls first."""
    nulls_last: bool = False
    """Whether its index has NULLS LAST, so that ORDER BY must say it even without nulls."""
    value: Any = None
    """What is ordered, if it is behind a reference: records do not have it."""

    @classmethod
    def of(cls, field: Field, expression: Any, descending: bool, **more: Any) -> Key:
        """The key of a field."""
        order = field.sort_expression(expression) if field.has_order else expression
        return cls(field, field.name, field.rule_type, order, descending, **more)

    def ordered(self, *, backward: bool = False, present: bool = False) -> sa.ColumnElement[Any]:
        """Return the term of ORDER BY; `present` if a condition excludes nulls."""
        descending = self.descending is not backward
        order = sa.desc if descending else sa.asc
        ordered: sa.UnaryExpression[Any] = order(self.expression)
        # Without nulls, NULLS LAST would only keep the database from using a usual index.
        if (not self.nullable or present) and not self.nulls_last:
            return ordered
        return ordered.nulls_first() if backward else ordered.nulls_last()


@dataclass(frozen=True)
class CursorPosition:
    """The position at which a page begins, and its direction."""

    binding: str
    backward: bool
    position: Sequence[object] | None
    """The keys' values that the page comes after or before; None for the end of the list."""


def read(
    parameters: Mapping[str, str], keys: Sequence[Key], binding: str, problems: list[JSONObject]
) -> CursorPosition | None:
    """Return where a list's cursor points; None without a valid one. Adds to `problems`."""
    present = [name for name in DIRECTIONS if name in parameters]
    if not present:
        return None
    if len(present) == 2:
        problems.append(_problem("cursor_before", "Either cursor or cursor_before."))
    for name, minimum in (("skip", 0), ("page", 1)):
        if int(parameters.get(name) or minimum) > minimum:
            problems.append(_problem(name, "A cursor says where the page begins."))
    backward, text = present[0] == "cursor_before", parameters[present[0]]
    if not text:
        return CursorPosition(binding, backward, None)
    try:
        signed_binding, values = crypto.unsign(text, PURPOSE)
    except BadSignature:
        signed_binding, values = "", ()
    if not backward and signed_binding == BEFORE + binding:
        problems.append(_problem("cursor", "This is a prev_cursor: send it as cursor_before."))
        return None
    if signed_binding.removeprefix(BEFORE) != binding:
        problems.append(_problem(present[0], FOREIGN))
        return None
    return CursorPosition(binding, backward, decoded(keys, values) or None)


def decoded(keys: Sequence[Key], values: Sequence[Any]) -> list[object]:
    """Return the keys' values that a position holds as JSON."""
    return [
        value if value is None or key.type not in DECODERS else DECODERS[key.type](value)
        for key, value in zip(keys, values, strict=bool(values))
    ]


def position_of(row: Row, keys: Sequence[Key]) -> list[object]:
    """Return the keys' values of a row, as a position holds them."""
    values = [(key, row[key.name]) for key in keys]
    return [None if value is None else key.field.sort_value(value) for key, value in values]


def binding(
    definition: Definition, account_id: str | None, keys: Sequence[Key], conditions: Any
) -> str:
    """Return a digest of the list that a cursor belongs to: account, conditions and order."""
    order = [[key.name, key.type.value, key.descending] for key in keys]
    text = orjson.dumps([definition.id, account_id, order, conditions])
    return hashlib.sha256(text).hexdigest()[:32]


def parts(keys: Sequence[Key], walk: CursorPosition) -> list[Part]:
    """Return the ranges that follow each other from the position on."""
    if walk.position is None:
        return list(_parts_from_end(keys, walk.backward))
    result: list[Part] = []
    for position in reversed(range(len(keys))):
        equal = [
            key.expression.is_(sa.null()) if value is None else key.expression == _bind(key, value)
            for key, value in zip(keys[:position], walk.position, strict=False)
        ]
        for part in _parts_after(keys[position:], walk.position[position], walk.backward):
            result.append(Part([*equal, *part.where], part.order_by))
    return result


@dataclass(frozen=True)
class OffsetParts:
    """The ranges of a list that is read from its start."""

    keys: tuple[Key, ...]

    def __call__(self) -> list[Part]:
        first = self.keys[0]
        if first.backward and first.nullable and first.descending:
            return list(_parts_from_end(self.keys, False))
        return [Part([], [key.ordered() for key in self.keys])]


def beside(keys: Sequence[Key]) -> dict[str, Any]:
    """What a cursor needs of a record besides its fields: the keys behind references.

    Of a long text, as much as shows that it is too long.
    """
    found = {key.name: key.value for key in keys if key.value is not None}
    for key in keys:
        if key.value is not None and key.field.is_long:
            beginning = sa.func.substr(key.value, 1, LONGEST_POSITION + 1)
            found[key.name] = sa.type_coerce(beginning, key.value.type)
    return found


def answer(
    rows: Sequence[Row], limit: int, walk: CursorPosition, keys: Sequence[Key]
) -> tuple[Sequence[Row], JSONObject]:
    """Return the page, of up to limit + 1 rows read, in the order of the list, and its cursors.

    `has_more` says whether records come after the page, also when going backward.
    """
    has_further, page = len(rows) > limit, rows[:limit]
    page = page[::-1] if walk.backward else page

    def token(row: Row | None, token_binding: str) -> str:
        values = [] if row is None else position_of(row, keys)
        if len(orjson.dumps(values)) > LONGEST_POSITION:
            raise InvalidValues([_problem("sort", "Its values are too long to page by cursor.")])
        return crypto.sign([token_binding, values], PURPOSE)

    has_position = walk.position is not None
    has_next, has_previous = (
        (has_further, has_position) if not walk.backward else (has_position, has_further)
    )
    # Without rows, the cursors point to the end of the list.
    next_token = token(page[-1] if page else None, walk.binding) if has_next else None
    first = page[0] if page else None
    previous_token = token(first, BEFORE + walk.binding) if has_previous else None
    links = {
        "next_cursor": next_token,
        "prev_cursor": previous_token,
        "has_more": has_next,
        "limit": limit,
    }
    return page, links


def _parts_from_end(keys: Sequence[Key], backward: bool) -> Iterator[Part]:
    first, rest = keys[0], [key.ordered(backward=backward) for key in keys[1:]]
    present = [first.ordered(backward=backward, present=True), *rest]
    if not first.nullable:
        yield Part([], present)
        return
    both = [
        Part([first.expression.is_not(sa.null())], present),
        Part([first.expression.is_(sa.null())], rest),
    ]
    yield from reversed(both) if backward else both


def _parts_after(keys: Sequence[Key], value: object, backward: bool) -> Iterator[Part]:
    """Yield the ranges after a value of the first key; nulls last."""
    first, rest = keys[0], [key.ordered(backward=backward) for key in keys[1:]]
    present = [first.ordered(backward=backward, present=True), *rest]
    if value is not None:
        operator = "<" if first.descending is not backward else ">"
        yield Part([first.expression.bool_op(operator, COMPARISON)(_bind(first, value))], present)
        if first.nullable and not backward:
            yield Part([first.expression.is_(sa.null())], rest)
    elif backward:
        yield Part([first.expression.is_not(sa.null())], present)


def _bind(key: Key, value: object) -> object:
    return sa.bindparam(None, value, type_=key.expression.type, unique=True)


def _problem(name: str, message: str) -> JSONObject:
    return problem(name, "invalid_option", message)
