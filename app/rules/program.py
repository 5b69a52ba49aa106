"""A checked tree as text and back: for SQLite, whose parser stops where an expression nests deep.

What the database alone knows are the tree's leaves: they become numbered names, whose values the
database hands over with the text. The rest is evaluated in Python (`evaluate`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

from app.rules import nodes, values
from app.rules.evaluate import Context, evaluate
from app.rules.nodes import Call, Caller, Literal, Name, Node, Now, Sent, Type, map_children, walk

PLACE = ("start", "end")  # means nothing to the value
KINDS: dict[str, Callable[..., Node]] = {
    kind.__name__: kind for kind in vars(nodes).values() if isinstance(kind, type)
}


@dataclass(frozen=True)
class Program:
    """An expression without the text that it stood in, and how its leaves are read."""

    node: Node
    leaves: Mapping[str, Type]

    def run(self, given: Sequence[object]) -> object:
        """The value for leaves as SQLite keeps them, in its form too."""
        record = {name: _read(given[int(name)], kind) for name, kind in self.leaves.items()}
        return _kept(evaluate(self.node, Context(record)))


def written(node: Node) -> tuple[str, list[Node]]:
    """The text of a tree, and its leaves in the order in which their values are expected."""
    leaves: dict[Node, int] = {}

    def numbered(part: Node) -> Node:
        if not is_leaf(part):
            return map_children(part, numbered)
        alike = replace(part, start=0, end=0)
        return Name(0, 0, (str(leaves.setdefault(alike, len(leaves))),), type=part.type)

    text = json.dumps(numbered(node), default=_fields, separators=(",", ":"))
    return text, list(leaves)


@lru_cache(maxsize=1024)
def read(text: str) -> Program:
    """The program that a text holds."""
    node = json.loads(text, object_hook=_node)
    names = (part for part in walk(node) if isinstance(part, Name))
    return Program(node, {name.path[0]: name.type for name in names})


def is_leaf(node: Node) -> bool:
    """Whether the database, or who asks, decides what this is."""
    about_caller = isinstance(node, Call) and node.name.startswith("@")
    return about_caller or isinstance(node, Name | Caller | Sent | Now)


def _fields(part: Any) -> object:
    if isinstance(part, Node):
        named = ((one.name, getattr(part, one.name)) for one in fields(part))
        return {"kind": type(part).__name__} | {k: v for k, v in named if k not in PLACE}
    return part.value if isinstance(part, Type) else part.isoformat()


def _node(found: dict[str, Any]) -> Node:
    made: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
    kind, made["type"] = KINDS[made.pop("kind")], Type(made["type"])
    if kind is Literal:
        made["value"] = _read(made["value"], made["type"])
    return kind(0, 0, **made)


def _read(value: object, kind: Type) -> object:
    if value is None or kind not in READ:
        return value
    return READ[kind](value)


READ: Mapping[Type, Any] = {
    Type.BOOLEAN: bool,
    Type.DATETIME: values.moment,
    Type.DATE: date.fromisoformat,
}


def _kept(value: object) -> object:
    if isinstance(value, datetime):
        return stored(value)
    return value.isoformat() if isinstance(value, date) else value


def stored(moment: datetime) -> str:
    """A moment as SQLite keeps it."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def groups(leaves: Sequence[object], most: int) -> Iterator[Sequence[Any]]:
    """The leaves in groups, as no function of SQLite takes more than so many."""
    return (leaves[first : first + most] for first in range(0, len(leaves), most))
