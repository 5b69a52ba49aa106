"""Draws the collections and their references: boxes in layers, from left to right.

A collection stands to the right of those that it refers to. References that close a circle are left
out of this order. Within a layer, boxes stand in the order of what they refer to. All of it takes
one pass over boxes and lines, besides sorting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MAX_ROWS = 12  # fields that a box shows
WIDTH, HEAD, ROW = 230, 32, 22
GAP_X, GAP_Y, MARGIN = 110, 24, 12
LEFT = MARGIN + GAP_X // 2  # room for lines that turn back
COLUMNS = 4  # of the collections without references
MAX_TEXT, MAX_FIELD = 24, 17  # characters that fit in a box, and beside a type


@dataclass(frozen=True)
class Reference:
    """A field that refers to a collection."""

    source: str
    field: str
    target: str
    required: bool


@dataclass(frozen=True)
class Row:
    """A field in a box; `reference` if it refers to a collection."""

    name: str
    type: str = ""
    reference: Reference | None = None


@dataclass(frozen=True)
class Box:
    name: str
    x: int
    y: int
    rows: Sequence[Row]
    hidden: int
    """The number of further fields."""

    @property
    def height(self) -> int:
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


def draw(
    names: Sequence[str],
    references: Iterable[Reference],
    fields: Mapping[str, Sequence[tuple[str, str]]] | None = None,
) -> Diagram:
    known, outgoing = set(names), defaultdict[str, list[Reference]](list)
    for one in references:
        if {one.source, one.target} <= known:
            outgoing[one.source].append(one)
    linked = {end for rows in outgoing.values() for one in rows for end in (one.source, one.target)}
    rows = {name: _rows((fields or {}).get(name, ()), outgoing[name]) for name in names}
    layers = _layers([name for name in names if name in linked], outgoing)
    boxes: dict[str, Box] = {}
    for number, layer in enumerate(layers):
        x, y = LEFT + number * (WIDTH + GAP_X), MARGIN
        for name in _ordered(layer, outgoing, boxes):
            boxes[name] = _box(name, x, y, rows[name])
            y += boxes[name].height + GAP_Y
    bottom = max((box.y + box.height + GAP_Y for box in boxes.values()), default=MARGIN)
    alone = [name for name in names if name not in linked]
    for start in range(0, len(alone), COLUMNS):
        line = [
            _box(name, LEFT + column * (WIDTH + GAP_Y), bottom, rows[name])
            for column, name in enumerate(alone[start : start + COLUMNS])
        ]
        boxes |= {box.name: box for box in line}
        bottom += max(box.height for box in line) + GAP_Y
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


def _rows(fields: Sequence[tuple[str, str]], references: Sequence[Reference]) -> list[Row]:
    by_field = {one.field: one for one in references}
    named = [Row(name, type, by_field.get(name)) for name, type in fields]
    listed = {row.name for row in named}
    return named + [Row(one.field, reference=one) for one in references if one.field not in listed]


def _box(name: str, x: int, y: int, rows: Sequence[Row]) -> Box:
    if len(rows) <= MAX_ROWS:
        return Box(name, x, y, rows, 0)
    # References first, as their lines need a row; then in the order of the definition.
    wanted = sorted(range(len(rows)), key=lambda n: rows[n].reference is None)[: MAX_ROWS - 1]
    shown = [rows[n] for n in sorted(wanted)]
    return Box(name, x, y, shown, len(rows) - len(shown))


def _height(rows: int) -> int:
    return HEAD + ROW * rows + (6 if rows else 0)


def _lines(boxes: Mapping[str, Box]) -> Iterable[Line]:
    for box in boxes.values():
        for number, row in enumerate(box.rows):
            reference = row.reference
            if reference is None:
                continue
            target = boxes[reference.target]
            x, y = box.x, box.y + HEAD + ROW * number + ROW // 2
            is_left = target.x < box.x
            end_x, end_y = target.x + (WIDTH if is_left else 0), target.y + HEAD // 2
            bend = GAP_X // 2
            control = end_x + bend if is_left else end_x - bend
            yield Line(reference, f"M{x} {y}C{x - bend} {y} {control} {end_y} {end_x} {end_y}")


def cut(text: str, most: int = MAX_TEXT) -> str:
    """A text that fits in a box."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
