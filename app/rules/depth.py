"""Measures how deep an expression nests as SQL, and finds the parts that are too deep for SQLite.

The stack of SQLite's parser holds 100 symbols, which about 15 nested calls or sums of 25 terms use
up. Parts that are too deep are evaluated by a function (`program`); the conditions at the top, by
which the database finds records, stay SQL.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.rules.nodes import (
    Arithmetic,
    Call,
    Comparison,
    Contains,
    Inner,
    Membership,
    Name,
    Node,
    Some,
    Subquery,
    walk,
)
from app.rules.program import is_leaf

# Symbols that an expression may take; the rest of a statement needs some, too.
ROOM = 75
# Those kept free for names, which stand for subqueries of references or for computed fields.
INNER = 25
# Symbols of a name that follows references, and of a call of the function with its leaves.
DOTTED, CALL = 10, 10
# Those of a subquery's own, and of its condition by how deep it stands.
SUBQUERY, CONDITION = 8, {1: INNER, 2: 12}
# Those of the condition about the entries of a list.
SOME = 12
LAYER = 10  # levels of a tree


def cuts(node: Node, room: int) -> Iterator[Node]:
    """Yield the largest parts that are too deep to be SQL of at most `room` symbols."""
    needed: dict[int, int] = {}
    _measure(node, needed)
    return _cuts(node, room, needed)


def _cuts(node: Node, room: int, needed: dict[int, int]) -> Iterator[Node]:
    if needed[id(node)] <= room or is_leaf(node):
        return
    first, further = _symbols(node)
    # No index helps inside a call or a sum, so none of it need be SQL.
    leaf = max(DOTTED, *map(_leaf, walk(node)))
    if isinstance(node, Arithmetic | Call) or room - further < CALL + leaf:
        yield node
        return
    for index, child in enumerate(node.children):
        yield from _cuts(child, room - (further if index else first), needed)


def split_layers(node: Node) -> Iterator[Node]:
    """Yield the subtrees that start at every tenth level, inner ones first and the node last."""
    roots, pending = [], [(node, 0)]
    while pending:
        part, level = pending.pop()
        if level % LAYER == 0:
            roots.append(part)
        if not is_leaf(part):
            pending += [(child, level + 1) for child in part.children]
    return reversed(roots)


def _measure(node: Node, needed: dict[int, int]) -> int:
    """Store the symbols that each part needs, by the id of its node; return those of the whole."""
    first, further = _symbols(node)
    most = _leaf(node) if is_leaf(node) else 1
    for index, child in enumerate(() if isinstance(node, Some | Subquery) else node.children):
        most = max(most, (further if index else first) + _measure(child, needed))
    needed[id(node)] = most
    return most


def _leaf(node: Node) -> int:
    """The symbols of a value that the database provides."""
    if isinstance(node, Subquery):
        nested = [part for part in walk(node.condition) if isinstance(part, Subquery)]
        deeper = SUBQUERY + CONDITION[2] if nested else 0
        if any(isinstance(part, Some) for one in nested for part in walk(one.condition)):
            deeper += DOTTED + SOME
        return SUBQUERY + CONDITION[node.depth] + deeper
    if isinstance(node, Some):
        return DOTTED + (_leaf(node.condition) if isinstance(node.condition, Some) else SOME)
    return DOTTED if isinstance(node, Name | Inner) and len(node.path) > 1 else 1


def _symbols(node: Node) -> tuple[int, int]:
    """Return the symbols on the stack before the first child, and before a further one.

    Measured and rounded up.
    """
    if isinstance(node, Membership):
        return 2, 7
    if isinstance(node, Call | Contains) or (isinstance(node, Comparison) and "~" in node.operator):
        return 5, 8
    return (3, 5) if isinstance(node, Arithmetic) else (1, 3)
