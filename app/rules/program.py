"""Serializes checked trees for SQLite, whose parser limits the depth of expressions.

Values that only the database knows become numbered names, which the database passes along with the
text. The rest is evaluated in Python (`evaluate`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from app.rules import nodes, values
from app.rules.evaluate import Context, evaluate
from app.rules.nodes import (
    Call,
    Caller,
    Inner,
    Literal,
    Name,
    Node,
    Now,
    Old,
    Sent,
    Some,
    Subquery,
    Type,
    map_children,
    walk,
)

PLACE = ("start", "end")  # means nothing to the value
KINDS: dict[str, Callable[..., Node]] = {
    kind.__name__: kind for kind in vars(nodes).values() if isinstance(kind, type)
}


@dataclass(frozen=True)
class Program:
    """A deserialized expression, and the types of its leaves."""

    node: Node
    leaves: Mapping[str, Type]

    def run(self, leaf_values: Sequence[object]) -> object:
        """Evaluate with leaves in SQLite's format; returns the value in the same format."""
        record = {name: _read(leaf_values[int(name)], kind) for name, kind in self.leaves.items()}
        value = evaluate(self.node, Context(record))
        if isinstance(value, datetime):
            return stored(value)
        if isinstance(value, Decimal):
            return values.encoded(value)
        return value.isoformat() if isinstance(value, date) else value


def serialize(node: Node) -> tuple[str, list[Node]]:
    """Serialize a tree; returns the text and its leaves in order."""
    leaves: dict[Node, int] = {}

    def numbered(part: Node) -> Node:
        if not is_leaf(part):
            return map_children(part, numbered)
        alike = replace(part, start=0, end=0)
        return Name(0, 0, (str(leaves.setdefault(alike, len(leaves))),), type=part.type)

    text = json.dumps(numbered(node), default=_fields, separators=(",", ":"))
    return text, list(leaves)


@lru_cache(maxsize=1024)
def parse_program(text: str) -> Program:
    """Deserialize a program."""
    node = json.loads(text, object_hook=_node)
    names = (part for part in walk(node) if isinstance(part, Name))
    return Program(node, {name.path[0]: name.type for name in names})


def is_leaf(node: Node) -> bool:
    """Whether the database or the caller provides the value."""
    asks_caller = isinstance(node, Call) and node.name.startswith("@")
    names = Name | Inner | Old | Subquery | Some
    return asks_caller or isinstance(node, names | Caller | Sent | Now)


def _fields(part: Any) -> object:
    if isinstance(part, Node):
        named = ((field_.name, getattr(part, field_.name)) for field_ in fields(part))
        return {"kind": type(part).__name__} | {k: v for k, v in named if k not in PLACE}
    if isinstance(part, Decimal):
        return values.encoded(part)
    return part.value if isinstance(part, Type) else part.isoformat()


def _node(properties: dict[str, object]) -> Node:
    arguments: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in properties.items()
    }
    kind, arguments["type"] = KINDS[arguments.pop("kind")], Type(arguments["type"])
    if kind is Literal:
        arguments["value"] = _read(arguments["value"], arguments["type"])
    return kind(0, 0, **arguments)


def _read(value: object, kind: Type) -> object:
    if value is None or kind not in READ:
        return value
    return READ[kind](value)


READ: Mapping[Type, Any] = {
    Type.BOOLEAN: bool,
    Type.DATETIME: values.moment,
    Type.DATE: date.fromisoformat,
    Type.DECIMAL: values.decoded,
}


def stored(moment: datetime) -> str:
    """A moment in SQLite's format."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def groups(leaves: Sequence[object], size: int) -> Iterator[Sequence[Any]]:
    """Split the leaves into groups, as SQLite limits the arguments of functions."""
    return (leaves[first : first + size] for first in range(0, len(leaves), size))
