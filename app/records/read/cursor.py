"""Keyset paging: a cursor says where in the order of a list a page ended.

What comes after a position is several ranges, one after the other: those that are equal to it but
in the last key, those equal but in the last two, and so on, each with its nulls behind. Each range
is one that an index can begin to read at its first row, so that no page costs more than the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import orjson
import sqlalchemy as sa
from itsdangerous import BadSignature

from app import clock, crypto, rules
from app.collections.definitions import Definition
from app.errors import InvalidValues, problem
from app.records.store.reads import Part
from app.types import JSONObject

PURPOSE = "cursor"
BEFORE = "<"  # stands before what a prev_cursor belongs to
LONGEST_POSITION = 3000  # bytes; it has to fit into the line of a request, beside a filter
DIRECTIONS = ("cursor", "cursor_before")
COMPARISON = 5  # how firmly it binds, so that the toolkit puts brackets around what binds as much
FOREIGN = "This cursor is not one of this list: not with this filter, this order, this account."

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Key:
    """One field of an order."""

    name: str
    type: rules.Type
    expression: Any
    descending: bool
    nullable: bool
    backward: bool = False
    """Whether the index of its order is read backward, which would begin with nulls."""
    nulls_last: bool = False
    """Whether the index of its order has nulls last, so that an order without nulls must say so."""

    def ordered(self, *, backward: bool = False, present: bool = False) -> sa.ColumnElement[Any]:
        """What to order by; `present` where nulls are excluded anyway."""
        descending = self.descending is not backward
        order = sa.desc if descending else sa.asc
        ordered: sa.UnaryExpression[Any] = order(self.expression)
        # Without NULLS LAST an index in the usual order serves; without nulls, it says nothing.
        if (not self.nullable or present) and not self.nulls_last:
            return ordered
        return ordered.nulls_first() if backward else ordered.nulls_last()


@dataclass(frozen=True)
class CursorPosition:
    """Where a page begins and in which direction it goes from there."""

    binding: str
    backward: bool
    position: Sequence[object] | None
    """The values of the keys that the page comes after, or before; None at the very end."""


def read(
    parameters: Mapping[str, str], keys: Sequence[Key], binding: str, problems: list[JSONObject]
) -> CursorPosition | None:
    """The walk that a list asks for; None where it asks for none."""
    present = [name for name in DIRECTIONS if name in parameters]
    if not present:
        return None
    if len(present) == 2:
        problems.append(_problem("cursor_before", "Either cursor or cursor_before."))
    for name, minimum in (("skip", 0), ("page", 1)):
        if int(parameters.get(name) or minimum) > minimum:
            problems.append(_problem(name, "A cursor says where the page begins."))
    text = parameters[present[0]]
    try:
        forward = present[0] == "cursor"
        position = _position(text, keys, binding, forward=forward) if text else None
    except WrongDirection:
        problems.append(_problem("cursor", "This is a prev_cursor: send it as cursor_before."))
        return None
    except BadSignature:
        problems.append(_problem(present[0], FOREIGN))
        return None
    return CursorPosition(binding, present[0] == "cursor_before", position)


def binding(
    definition: Definition, account_id: str | None, keys: Sequence[Key], conditions: Any
) -> str:
    """What a cursor belongs to: the list of an account, its conditions and its order."""
    order = [[key.name, key.type.value, key.descending] for key in keys]
    text = orjson.dumps([definition.id, account_id, order, conditions])
    return hashlib.sha256(text).hexdigest()[:32]


def parts(keys: Sequence[Key], walk: CursorPosition) -> list[Part]:
    """The ranges that follow each other from where the walk begins."""
    if walk.position is None:
        return list(_parts_from_end(keys, walk.backward))
    result: list[Part] = []
    for position in reversed(range(len(keys))):
        equal = [_equals(key, walk.position[i]) for i, key in enumerate(keys[:position])]
        for part in _parts_after(keys[position:], walk.position[position], walk.backward):
            result.append(Part([*equal, *part.where], part.order_by))
    return result


@dataclass(frozen=True)
class OffsetParts:
    """A list that is read from its start."""

    keys: tuple[Key, ...]

    def __call__(self) -> list[Part]:
        first = self.keys[0]
        if first.backward and first.nullable and first.descending:
            return list(_parts_from_end(self.keys, False))
        return [Part([], [key.ordered() for key in self.keys])]


def answer(
    rows: Sequence[Row],
    limit: int,
    walk: CursorPosition,
    keys: Sequence[Key],
    definition: Definition,
) -> tuple[Sequence[Row], JSONObject]:
    """The page in the order of the list, of up to limit + 1 rows read; and what leads on from it.

    `has_more` tells of what comes after the page, whichever way it was walked to.
    """
    has_further, page = len(rows) > limit, rows[:limit]
    page = page[::-1] if walk.backward else page

    def token(row: Row | None, token_binding: str) -> str:
        values = [_encode_value(definition, key, row) for key in keys] if row else []
        if len(orjson.dumps(values)) > LONGEST_POSITION:
            raise InvalidValues([_problem("sort", "Its values are too long to page by cursor.")])
        return crypto.sign([token_binding, values], PURPOSE)

    has_position = walk.position is not None
    has_next, has_previous = (
        (has_further, has_position) if not walk.backward else (has_position, has_further)
    )
    # What came before an empty page is everything.
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
    """What comes after a value of the first key; nulls last."""
    first, rest = keys[0], [key.ordered(backward=backward) for key in keys[1:]]
    present = [first.ordered(backward=backward, present=True), *rest]
    if value is not None:
        operator = "<" if first.descending is not backward else ">"
        yield Part(
            [first.expression.bool_op(operator, COMPARISON)(_parameter(first, value))], present
        )
        if first.nullable and not backward:
            yield Part([first.expression.is_(sa.null())], rest)
    elif backward:
        yield Part([first.expression.is_not(sa.null())], present)


def _equals(key: Key, value: object) -> Any:
    if value is None:
        return key.expression.is_(sa.null())
    return key.expression == _parameter(key, value)


def _parameter(key: Key, value: object) -> object:
    return sa.bindparam(None, value, type_=key.expression.type, unique=True)


def _encode_value(definition: Definition, key: Key, row: Row) -> object:
    value = row[key.name]
    return None if value is None else definition.columns[key.name].shown(value)


class WrongDirection(Exception):
    """A cursor that leads back, where one that leads on is needed."""


def _position(
    text: str, keys: Sequence[Key], binding: str, *, forward: bool
) -> Sequence[object] | None:
    bound, values = crypto.unsign(text, PURPOSE)
    if forward and bound == BEFORE + binding:
        raise WrongDirection
    if bound.removeprefix(BEFORE) != binding:
        raise BadSignature(FOREIGN)
    if not values:
        return None
    return [_decode_value(key, value) for key, value in zip(keys, values, strict=True)]


def _decode_value(key: Key, value: Any) -> object:
    if value is None or key.type not in DECODERS:
        return value
    return DECODERS[key.type](value)


DECODERS = {rules.Type.DATETIME: clock.parse, rules.Type.DATE: date.fromisoformat}


def _problem(name: str, message: str) -> JSONObject:
    return problem(name, "invalid_option", message)
