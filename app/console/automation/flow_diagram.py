"""A diagram of a workflow's steps: a layered layout, drawn as SVG by a template.

Each list of steps is laid out by itself, from top to bottom: a step stands one layer below the
last step that leads to it. An edge that passes layers has a place in each of them, which all edges
to the same step share; edges back to an earlier step run along the right side. Loops and parallel
steps are boxes around the layouts of their lists. The cost is bounded by steps times layers.

The status of each step of an instance follows from its log, its position and its paths.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from app.auth.principal import Principal
from app.console.shell import names
from app.web.languages import gettext, lazy_gettext, ngettext
from app.workflows import instances
from app.workflows.instances import Instance
from app.workflows.language import recipients
from app.workflows.language.definition import (
    CONDITION,
    FOR_EACH,
    LOOP,
    LOOPS,
    PARALLEL,
    WAIT_CONDITION,
    WAIT_DELAY,
    WAIT_EVENT,
    Series,
    Step,
)
from app.workflows.models import ACTIVE, InstanceState

MAX_STEPS = 300  # nested ones included; more are shown as a list only
WIDTH, HEIGHT, STATE_HEIGHT, PILL_HEIGHT = 200.0, 52.0, 18.0, 34.0
GAP, LAYER_GAP, PADDING, HEADER = 28.0, 44.0, 18.0, 48.0
DOT, PASSING, GUTTER, CURVE, SPREAD = 12.0, 12.0, 16.0, 22.0, 42.0
MAX_DETAIL = 30  # characters that fit in a box
CHARACTER = 8.0  # the width of one in a label, about
START, END = "-start", "-end"  # no steps' names
WORDS = {
    LOOP: lazy_gettext("Loop over %(items)s"),
    FOR_EACH: lazy_gettext("For each of %(collection)s"),
    PARALLEL: lazy_gettext("In parallel"),
    CONDITION: lazy_gettext("If %(expression)s"),
    WAIT_DELAY: lazy_gettext("Wait %(duration)s"),
    WAIT_CONDITION: lazy_gettext("Wait until %(expression)s"),
    WAIT_EVENT: lazy_gettext("Wait for %(event)s %(collection)s"),
    "send_webhook": lazy_gettext("Request %(url)s"),
    "send_email": lazy_gettext("Mail %(to)s"),
    "create_record": lazy_gettext("Create in %(collection)s"),
    "update_record": lazy_gettext("Update in %(collection)s"),
    "delete_record": lazy_gettext("Delete in %(collection)s"),
    "query_records": lazy_gettext("Query %(collection)s"),
    "aggregate_records": lazy_gettext("Aggregate %(collection)s"),
}
WAY_NAMES = {"": "", "true": lazy_gettext("true"), "false": lazy_gettext("false")}
Way = tuple[str, str, str]  # source, label, target
Place = tuple[str, int]  # a step in its layer, or edges to it that pass another layer
SKIPPED, NOT_RUN = "skipped", "not run"


@dataclass(frozen=True)
class StepState:
    """The status of a step in an instance."""

    status: str
    times: int = 0

    @property
    def text(self) -> str:
        state = names.of_state(self.status)
        if self.times <= 1:
            return state
        return ngettext(
            "%(state)s, %(num)s time", "%(state)s, %(num)s times", self.times, state=state
        )


@dataclass(frozen=True)
class Box:
    """A step, or the start or the end of a list."""

    kind: str
    title: str
    detail: str
    x: float
    y: float
    width: float
    height: float
    state: StepState | None = None
    is_warned: bool = False
    """Whether a warning is about the step."""


@dataclass(frozen=True)
class Edge:
    """A line between steps, as SVG path data, and its label."""

    path: str
    label: str
    x: float
    y: float
    anchor: str


@dataclass(frozen=True)
class Item:
    """A step of the textual alternative."""

    name: str
    detail: str
    state: StepState | None
    next: str
    lists: Sequence[Sequence[Item]]


@dataclass
class Diagram:
    """The shapes that the template draws; no boxes if there are too many steps."""

    items: Sequence[Item]
    width: float = 0
    height: float = 0
    boxes: list[Box] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)


def draw(
    series: Series,
    start: str,
    states: Mapping[str, StepState] | None = None,
    *,
    warned: Container[str] = (),
) -> Diagram:
    """The diagram of a definition, or of an instance with the states of its steps by name.

    The steps with a name in `warned` are marked.
    """
    diagram = Diagram(list(_items(series, states)))
    if series.first and sum(1 for _ in series.walk()) <= MAX_STEPS:
        layout = _Layout(series, states, start)
        layout.add_to(diagram, 0, 0)
        diagram.boxes = [
            replace(box, is_warned=bool(box.detail) and box.title in warned)
            for box in diagram.boxes
        ]
        diagram.width, diagram.height = layout.width, layout.height
    return diagram


def describe(step: Step) -> str:
    """The work of a step, in a few words."""
    values: Mapping[str, object] = step.config if step.action else step.settings
    words = WORDS.get(step.action or step.type, step.type)
    named = {name: values.get(name) or "" for name in ("items", "expression", "duration", "event")}
    named |= {name: values.get(name) or "" for name in ("collection", "url", "to")}
    named["to"] = ", ".join(map(_recipient, recipients.of_config(named["to"])))
    named["items"] = named["items"] if isinstance(named["items"], str) else gettext("a list")
    return (words % named).strip()


def _recipient(to: object) -> str:
    if isinstance(to, Mapping):
        return ", ".join(f"{kind} {value}" for kind, value in to.items())
    return str(to)


def targets(step: Step) -> list[tuple[str, str | None]]:
    """The steps that may follow, with the labels of the ways there; None is the end."""
    if step.type != CONDITION:
        return [("", step.following)]
    on_true, on_false = (step.settings.get(name) for name in ("on_true", "on_false"))
    return [("", on_true)] if on_true == on_false else [("true", on_true), ("false", on_false)]


def _items(series: Series, states: Mapping[str, StepState] | None) -> Iterator[Item]:
    following, end = dict(pairwise([*series.steps, None])), gettext("end")
    for name, step in series.steps.items():
        ways = targets(step)
        is_plain = [target for _, target in ways] == [following[name]]
        words = [
            f"{WAY_NAMES[label]}: {target or end}" if label else target or end
            for label, target in ways
        ]
        lists = [list(_items(inner, states)) for inner in step.inner]
        state = states.get(name) if states is not None else None
        yield Item(name, describe(step), state, "" if is_plain else ", ".join(words), lists)


class _Layout:
    """The layout of one list of steps; coordinates are relative to it."""

    def __init__(
        self, series: Series, states: Mapping[str, StepState] | None, start: str | None = None
    ) -> None:
        self._steps, self._states, self._start = series.steps, states, start
        self._inner = {
            name: [_Layout(inner, states) for inner in step.inner if inner.first]
            for name, step in series.steps.items()
        }
        ways = [(START, "", series.first or END)] if start else []
        for name, step in series.steps.items():
            ways += [(name, label, target or END) for label, target in targets(step)]
        back = _back_ways(ways)
        self._back = [way for way in ways if way in back]
        self._forward = [way for way in ways if way not in back]
        self._layer = _layers([*series.steps, *dict.fromkeys(w[2] for w in ways)], self._forward)
        self._centers: dict[Place, float] = {}
        self._tops: list[float] = []
        self._heights: list[float] = []
        self._arrange()

    def add_to(self, diagram: Diagram, x: float, y: float) -> None:
        """Add the boxes and edges, with the upper left corner at a point of the diagram."""
        for name, layer in self._layer.items():
            width, height = self._size((name, layer))
            left, top = x + self._centers[name, layer] - width / 2, y + self._tops[layer]
            diagram.boxes.append(self._box(name, left, top, width, height))
            left += PADDING
            for inner in self._inner.get(name, ()):
                inner.add_to(diagram, left, top + self._header())
                left += inner.width + GAP
        diagram.edges += [self._edge(way, x, y) for way in self._forward]
        diagram.edges += [self._back_edge(way, n, x, y) for n, way in enumerate(self._back)]

    def _arrange(self) -> None:
        sources: dict[Place, dict[Place, None]] = {}
        layers: list[dict[Place, None]] = [{} for _ in range(max(self._layer.values()) + 1)]
        for name, layer in self._layer.items():
            layers[layer][name, layer] = None
        for source, _, target in self._forward:
            for above, below in self._pieces(source, target):
                layers[below[1]][below] = None
                sources.setdefault(below, {})[above] = None
        top = left = right = 0.0
        for layer_places in layers:
            wanted = {
                place: _mean([self._centers[one] for one in sources.get(place, ())])
                for place in layer_places
            }
            places = sorted(layer_places, key=lambda place: wanted[place])
            self._spread(places, wanted)
            left = min(left, *(self._centers[p] - self._size(p)[0] / 2 for p in places))
            right = max(right, *(self._centers[p] + self._size(p)[0] / 2 for p in places))
            self._tops.append(top)
            self._heights.append(max(self._size(place)[1] for place in places))
            top += self._heights[-1] + LAYER_GAP
        self._centers = {place: center - left for place, center in self._centers.items()}
        # Edges back run along the right side, beyond their labels.
        labels = [str(WAY_NAMES[label]) for _, label, _ in self._back if label]
        self._right = right - left + CHARACTER * max(map(len, labels), default=0)
        self.width = self._right + GUTTER * (len(self._back) + 1 if self._back else 0)
        self.height = top - LAYER_GAP

    def _spread(self, places: Sequence[Place], wanted: Mapping[Place, float]) -> None:
        """Place a layer side by side, as near to the wanted centers as that allows."""
        edge = -float("inf")
        for place in places:
            half = self._size(place)[0] / 2
            self._centers[place] = max(wanted[place], edge + half)
            edge = self._centers[place] + half + GAP
        # Steps keep straight below each other; lines that pass make room for them.
        steps = [place for place in places if self._layer[place[0]] == place[1]]
        shift = _mean([wanted[place] - self._centers[place] for place in steps or places])
        for place in places:
            self._centers[place] += shift

    def _pieces(self, source: str, target: str) -> Iterator[tuple[Place, Place]]:
        """An edge from layer to layer."""
        first = self._layer[source]
        for layer in range(first, self._layer[target]):
            yield (source if layer == first else target, layer), (target, layer + 1)

    def _size(self, place: Place) -> tuple[float, float]:
        name, layer = place
        if self._layer[name] != layer:
            return PASSING, 0
        if name == START or (name == END and self._start):
            return WIDTH, PILL_HEIGHT
        if name == END:
            return DOT, DOT
        inner = self._inner[name]
        if not inner:
            return WIDTH, self._header() + HEIGHT - HEADER
        width = sum(one.width for one in inner) + GAP * (len(inner) - 1) + 2 * PADDING
        return max(width, WIDTH), self._header() + max(one.height for one in inner) + PADDING

    def _header(self) -> float:
        return HEADER + (STATE_HEIGHT if self._states is not None else 0)

    def _box(self, name: str, x: float, y: float, width: float, height: float) -> Box:
        place = (round(x, 1), round(y, 1), round(width, 1), round(height, 1))
        if name == START:
            return Box("start", self._start or "", "", *place)
        if name == END:
            return Box("end" if self._start else "dot", gettext("End"), "", *place)
        step = self._steps[name]
        state = self._states.get(name) if self._states is not None else None
        kind = "container" if self._inner[name] else step.type
        return Box(kind, name, describe(step), *place, state)

    def _edge(self, way: Way, x: float, y: float) -> Edge:
        source, label, target = way
        first = (source, self._layer[source])
        center, bottom = self._centers[first], self._tops[first[1]] + self._size(first)[1]
        begin, anchor = center, "start"
        if label:
            following = self._next_center(way)
            others = [self._next_center(w) for w in self._forward if w[0] == source and w != way]
            is_left = (following, label) < (others[0], "false") if others else label == "false"
            begin = center - SPREAD if is_left else center + SPREAD
            # The line leans towards its target: the label stands on its other side.
            leans_left = following < begin - 1 or (following <= begin + 1 and not is_left)
            anchor = "start" if leans_left else "end"
        path = [f"M{x + begin:.1f} {y + bottom:.1f}"]
        at = (x + begin, y + bottom)
        for _, below in self._pieces(source, target):
            to = (x + self._centers[below], y + self._tops[below[1]])
            path.append(
                f"C{at[0]:.1f} {at[1] + CURVE:.1f} {to[0]:.1f} {to[1] - CURVE:.1f}"
                f" {to[0]:.1f} {to[1]:.1f}"
            )
            at = to
            if below[1] != self._layer[target]:
                at = (to[0], to[1] + self._heights[below[1]])
                path.append(f"V{at[1]:.1f}")
        shift = -6 if anchor == "end" else 6
        return Edge(
            " ".join(path), str(WAY_NAMES[label]), x + begin + shift, y + bottom + 16, anchor
        )

    def _next_center(self, way: Way) -> float:
        return self._centers[way[2], self._layer[way[0]] + 1]

    def _back_edge(self, way: Way, number: int, x: float, y: float) -> Edge:
        ends = []
        for name, share in ((way[0], 0.5), (way[2], 0.3)):
            place = (name, self._layer[name])
            width, height = self._size(place)
            right = x + self._centers[place] + width / 2
            ends.append((right, y + self._tops[place[1]] + min(height, HEIGHT) * share))
        (from_x, from_y), (to_x, to_y) = ends
        gutter = x + self._right + GUTTER * (number + 1)
        path = f"M{from_x:.1f} {from_y:.1f}H{gutter:.1f}V{to_y:.1f}H{to_x:.1f}"
        return Edge(path, str(WAY_NAMES[way[1]]), from_x + 6, from_y - 5, "start")


def _back_ways(ways: Sequence[Way]) -> set[Way]:
    """The edges that lead back to a step on the path to their source."""
    by_source: dict[str, list[Way]] = {}
    for way in ways:
        by_source.setdefault(way[0], []).append(way)
    back, path, finished = set[Way](), set[str](), set[str]()
    for first in by_source:
        pending = [] if first in finished else [(first, iter(by_source[first]))]
        path.update(name for name, _ in pending)
        while pending:
            name, rest = pending[-1]
            for way in rest:
                if way[2] in path:
                    back.add(way)
                elif way[2] not in finished and way[2] in by_source:
                    path.add(way[2])
                    pending.append((way[2], iter(by_source[way[2]])))
                    break
            else:
                pending.pop()
                path.discard(name)
                finished.add(name)
    return back


def _layers(names: Sequence[str], ways: Sequence[Way]) -> dict[str, int]:
    """The layer of each name: the length of the longest path to it. The end is the last one."""
    every = dict.fromkeys([*(way[0] for way in ways), *names])
    missing, following = dict.fromkeys(every, 0), dict[str, list[str]]()
    for source, _, target in ways:
        missing[target] += 1
        following.setdefault(source, []).append(target)
    layers = dict.fromkeys(every, 0)
    ready = [name for name, number in missing.items() if not number]
    while ready:
        name = ready.pop()
        for target in following.get(name, ()):
            layers[target] = max(layers[target], layers[name] + 1)
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    if END in layers:
        layers[END] = max(layer for name, layer in layers.items() if name != END) + 1
    return layers


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def step_states(instance: Instance, series: Series, by: Principal) -> dict[str, StepState]:
    current, status = set((instance.current_step or "").split(", ")), instance.status
    logged = instances.step_statuses(instance.id, by=by)
    may_run = _may_run(series, current) if status != InstanceState.COMPLETED else set()
    states = {}
    for step in series.walk():
        log = logged.get(step.name)
        logged_status = log.status if log else None
        if any(one.name in current for inner in step.inner for one in inner.walk()):
            logged_status = InstanceState.RUNNING if status in ACTIVE else status
        elif (
            status in ACTIVE
            and step.name in current
            and logged_status in (None, InstanceState.COMPLETED)
        ):
            logged_status = status  # about to run, or to run again in a loop
        unlogged = NOT_RUN if step.name in may_run or status == InstanceState.CANCELLED else SKIPPED
        states[step.name] = StepState(logged_status or unlogged, log.times if log else 0)
    return states


def _may_run(series: Series, current: set[str]) -> set[str]:
    """The steps that can still run when the current ones are next, or all before the first."""
    if not any(step.name in current for step in series.walk()):
        return {step.name for step in series.walk()}
    inside = {
        name: {one.name for inner in step.inner for one in inner.walk()}
        for name, step in series.steps.items()
    }
    found = set[str]()
    pending = [name for name in series.steps if name in current or inside[name] & current]
    for name in pending:
        step = series.steps[name]
        found |= inside[name] if step.type in LOOPS or name in current else set()
        for inner in step.inner:  # other branches may wait for theirs: they may all run
            found |= _may_run(inner, current)
    while pending:
        for _, target in targets(series.steps[pending.pop()]):
            if target is not None and target not in found:
                found |= {target, *inside[target]}
                pending.append(target)
    return found
