"""How deep an expression nests as SQL, and which parts SQLite is better spared.

SQLite's parser keeps at most 100 symbols in mind, which about 15 calls in one another, or sums of
25 terms, use up. The parts that are too deep are evaluated by a function there (`program`); what
the database can find records by, the conditions at the top, stays SQL.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.rules.nodes import Arithmetic, Call, Comparison, Contains, Membership, Name, Node
from app.rules.program import is_leaf

# Symbols for an expression; the rest of a statement needs some, too.
ROOM = 75
# For one that stands inside another's names, as what references lead to and computed fields do.
INNER = 25
# What a name needs that follows references, and a call of the function with its leaves.
DOTTED, CALL = 10, 10
LAYER = 10  # levels of a tree


def cuts(node: Node, room: int) -> Iterator[Node]:
    """The parts that are too deep to be SQL where there is so much room."""
    needed: dict[int, int] = {}
    _measure(node, needed)
    return _cuts(node, room, needed)


def _cuts(node: Node, room: int, needed: dict[int, int]) -> Iterator[Node]:
    if needed[id(node)] <= room or is_leaf(node):
        return
    first, further = _symbols(node)
    # No index helps inside a call or a sum, so none of it need be SQL.
    if isinstance(node, Arithmetic | Call) or room - further < CALL + DOTTED:
        yield node
        return
    for index, child in enumerate(node.children):
        yield from _cuts(child, room - (further if index else first), needed)


def split_layers(node: Node) -> Iterator[Node]:
    """The node, and before it the parts that stand a layer deeper, and before them theirs."""
    found, left = [], [(node, 0)]
    while left:
        one, level = left.pop()
        if level % LAYER == 0:
            found.append(one)
        if not is_leaf(one):
            left += [(child, level + 1) for child in one.children]
    return reversed(found)


def _measure(node: Node, needed: dict[int, int]) -> int:
    first, further = _symbols(node)
    below = [_measure(child, needed) for child in node.children]
    least = DOTTED if isinstance(node, Name) and len(node.path) > 1 else 1
    deepest = [further + one for one in below]
    deepest[:1] = [first + one for one in below[:1]]
    needed[id(node)] = max([least, *deepest])
    return needed[id(node)]


def _symbols(node: Node) -> tuple[int, int]:
    # What stands open before the first part and before a further one; measured, rounded up.
    if isinstance(node, Membership):
        return 2, 7
    if isinstance(node, Call | Contains) or (isinstance(node, Comparison) and "~" in node.operator):
        return 5, 8
    return (3, 5) if isinstance(node, Arithmetic) else (1, 3)
