"""Draws the collections and their references: boxes in layers, from left to right.

A collection stands to the right of those that it refers to. References that close a circle are left
out of this order. Within a layer, boxes stand in the order of what they refer to. All of it takes
one pass over boxes and lines, besides sorting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MAX_ROWS = 12  # references that a box shows
WIDTH, HEAD, ROW = 210, 32, 22
GAP_X, GAP_Y, MARGIN = 110, 24, 12
LEFT = MARGIN + GAP_X // 2  # room for lines that turn back
COLUMNS = 4  # of the collections without references
MAX_TEXT = 22  # characters that fit in a box


@dataclass(frozen=True)
class Reference:
    """A field that refers to a collection."""

    source: str
    field: str
    target: str
    required: bool


@dataclass(frozen=True)
class Box:
    """A collection at its place."""

    name: str
    x: int
    y: int
    rows: Sequence[Reference]
    hidden: int
    """The number of further references."""

    @property
    def height(self) -> int:
        """The height of the box."""
        return _height(len(self.rows) + bool(self.hidden))


@dataclass(frozen=True)
class Line:
    """A reference as a curve from its row to its target."""

    reference: Reference
    path: str


@dataclass(frozen=True)
class Diagram:
    """Everything that is drawn."""

    boxes: Sequence[Box]
    lines: Sequence[Line]
    width: int
    height: int


def draw(names: Sequence[str], references: Iterable[Reference]) -> Diagram:
    """The diagram of collections and the references between them."""
    known, outgoing = set(names), defaultdict[str, list[Reference]](list)
    for one in references:
        if {one.source, one.target} <= known:
            outgoing[one.source].append(one)
    linked = {end for rows in outgoing.values() for one in rows for end in (one.source, one.target)}
    layers = _layers([name for name in names if name in linked], outgoing)
    boxes: dict[str, Box] = {}
    for number, layer in enumerate(layers):
        x, y = LEFT + number * (WIDTH + GAP_X), MARGIN
        for name in _ordered(layer, outgoing, boxes):
            boxes[name] = _box(name, x, y, outgoing[name])
            y += boxes[name].height + GAP_Y
    bottom = max((box.y + box.height + GAP_Y for box in boxes.values()), default=MARGIN)
    for place, name in enumerate(name for name in names if name not in linked):
        row, column = divmod(place, COLUMNS)
        x, y = LEFT + column * (WIDTH + GAP_Y), bottom + row * (HEAD + GAP_Y)
        boxes[name] = _box(name, x, y, [])
    right = max((box.x + WIDTH for box in boxes.values()), default=0)
    low = max((box.y + box.height for box in boxes.values()), default=0)
    return Diagram(list(boxes.values()), list(_lines(boxes)), right + MARGIN, low + MARGIN)


def _layers(names: Sequence[str], outgoing: Mapping[str, Sequence[Reference]]) -> list[list[str]]:
    """The collections by the longest way along their references."""
    depth: dict[str, int] = {}
    for name in names:
        _find_depths(name, outgoing, depth)
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in names:
        layers[depth[name]].append(name)
    return layers


def _find_depths(
    start: str, outgoing: Mapping[str, Sequence[Reference]], depth: dict[str, int]
) -> None:
    # Depth first without recursion, as a chain may be long; what is open closes a circle.
    if start in depth:
        return
    path, is_open = [(start, iter(outgoing.get(start, ())))], {start}
    deepest = {start: 0}
    while path:
        name, remaining = path[-1]
        reference = next(remaining, None)
        if reference is None:
            path.pop()
            is_open.discard(name)
            depth[name] = deepest[name]
            if path:
                above = path[-1][0]
                deepest[above] = max(deepest[above], depth[name] + 1)
        elif reference.target in depth:
            deepest[name] = max(deepest[name], depth[reference.target] + 1)
        elif reference.target not in is_open:
            path.append((reference.target, iter(outgoing.get(reference.target, ()))))
            is_open.add(reference.target)
            deepest[reference.target] = 0


def _ordered(
    layer: Sequence[str], outgoing: Mapping[str, Sequence[Reference]], boxes: Mapping[str, Box]
) -> list[str]:
    def height(name: str) -> tuple[float, str]:
        targets = [boxes[one.target].y for one in outgoing.get(name, ()) if one.target in boxes]
        return (sum(targets) / len(targets) if targets else 0, name.lower())

    return sorted(layer, key=height)


def _box(name: str, x: int, y: int, references: Sequence[Reference]) -> Box:
    shown = references if len(references) <= MAX_ROWS else references[: MAX_ROWS - 1]
    return Box(name, x, y, shown, len(references) - len(shown))


def _height(rows: int) -> int:
    return HEAD + ROW * rows + (6 if rows else 0)


def _lines(boxes: Mapping[str, Box]) -> Iterable[Line]:
    for box in boxes.values():
        for number, reference in enumerate(box.rows):
            target = boxes[reference.target]
            x, y = box.x, box.y + HEAD + ROW * number + ROW // 2
            is_left = target.x < box.x
            end_x, end_y = target.x + (WIDTH if is_left else 0), target.y + HEAD // 2
            bend = GAP_X // 2
            control = end_x + bend if is_left else end_x - bend
            yield Line(reference, f"M{x} {y}C{x - bend} {y} {control} {end_y} {end_x} {end_y}")


def cut(text: str) -> str:
    """A text that fits in a box."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
