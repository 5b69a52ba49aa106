"""The position of an instance: a pure state machine without database or step logic.

The position is JSON. A spot is the next step of a list; the spot of a loop or a parallel step
has inner spots, one per active list. A loop stores its items and index, a `for_each` its record,
index and place in the order of the records. Each visit of a step has a number, which retries and
resumes keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from app.types import JSONMapping, JSONObject
from app.workflows.language.definition import FOR_EACH, LOOP, Series, Step

Spot = JSONObject


@dataclass(frozen=True)
class Frame:
    """A spot within its list, which is the `branch` of the enclosing step."""

    series: Series
    spot: Spot
    branch: int = 0

    @property
    def step(self) -> Step:
        """The next step here."""
        return self.series.steps[self.spot["step"]]

    @property
    def label(self) -> str:
        """Its name, with the current iteration of a loop."""
        inner = self.spot.get("inner") or {}
        return f"{self.spot['step']}[{inner['index']}]" if "index" in inner else self.spot["step"]


@dataclass(frozen=True)
class Place:
    """The next step, and the steps around it."""

    frames: Sequence[Frame]
    names: JSONMapping = field(default_factory=dict)
    """`item` and `index`, within a loop."""
    path: str = field(init=False)
    """Identifies this visit within the instance; the same for all attempts."""

    def __post_init__(self) -> None:
        """Store the current path: enclosing loops move on."""
        parents = [frame.label for frame in self.frames[:-1]]
        path = f"{'/'.join([*parents, self.step.name])}#{self.spot['visit']}"
        object.__setattr__(self, "path", path)

    @property
    def step(self) -> Step:
        return self.frames[-1].step

    @property
    def spot(self) -> Spot:
        """The state of this visit."""
        return self.frames[-1].spot


Next = Callable[[Place], tuple[object, Sequence[object]] | None]
"""The record that a `for_each` comes to next, and its position; None if it has to be read."""
MAX_ERRORS = 10  # that a `for_each` keeps of failed records


class Position:
    """The spots of an instance; `state` is their JSON, which changes as it moves on."""

    def __init__(self, series: Series, state: JSONObject, next_item: Next) -> None:
        self.series, self.state, self._next_item = series, state, next_item
        if not state:
            state["visits"] = 0
            state["spot"] = self._spot(series.first) if series.first else None

    def places(self) -> list[Place]:
        """The next steps: one, or one per branch."""
        spot = self.state["spot"]
        return list(_within((Frame(self.series, spot),), {})) if spot else []

    def enter(self, place: Place, items: list[object] | None = None) -> bool:
        """Enter a loop or a parallel step; False if a loop has no items."""
        step = place.step
        if step.type == LOOP and not items:
            return False
        spots = [self._spot(series.first or "") for series in step.inner]
        loop_state = {"items": items, "index": 0} if step.type == LOOP else {}
        place.spot["inner"] = {"spots": spots, **loop_state}
        return True

    def advance(self, frames: Sequence[Frame]) -> bool:
        """Move a `for_each` to its next record; False if none has been read.

        Steps and bytes of a record that is done with no longer count against the limits.
        """
        inner = frames[-1].spot["inner"]
        self._excuse(inner)
        found = self._next_item(Place(frames))
        if found is None:
            inner["spots"] = [None]
            return False
        inner["item"], inner["after"] = found
        inner["index"] += 1
        inner["spots"] = [self._spot(frames[-1].step.inner[0].first or "")]
        return True

    def skip(self, frames: Sequence[Frame], error: JSONObject) -> None:
        """Move a `for_each` on from a record whose steps have failed."""
        inner = frames[-1].spot["inner"]
        inner["failed"] += 1
        inner["errors"] = [*inner["errors"], error][:MAX_ERRORS]
        self.advance(frames)

    def _excuse(self, inner: Spot) -> None:
        state = self.state
        if "steps" in inner:
            state["excused"] = state["visits"] - inner["steps"]
            state["written"] = inner["written"]
        inner["steps"], inner["written"] = self.steps_run, state.get("written", 0)

    @property
    def steps_run(self) -> int:
        """The visits of steps, without those for records that a `for_each` is done with."""
        return int(self.state["visits"] - self.state.get("excused", 0))

    def finish(self, place: Place, target: str | None) -> list[Place]:
        """Move to a step of the same list or to its end; returns the steps that end with it."""
        return [Place(frames) for frames in self._go_on(tuple(place.frames), target)]

    def _go_on(self, frames: tuple[Frame, ...], target: str | None) -> Iterator[tuple[Frame, ...]]:
        self._put(frames, self._spot(target) if target is not None else None)
        if target is not None or len(frames) == 1:
            return
        parent = frames[-2]
        inner = parent.spot["inner"]
        if parent.step.type == FOR_EACH:
            self.advance(frames[:-1])
        elif "index" in inner and inner["index"] + 1 < len(inner["items"]):
            inner["index"] += 1
            inner["spots"][0] = self._spot(frames[-1].series.first or "")
        elif not any(inner["spots"]):
            yield frames[:-1]
            yield from self._go_on(frames[:-1], parent.step.following)

    def _put(self, frames: tuple[Frame, ...], spot: Spot | None) -> None:
        if len(frames) == 1:
            self.state["spot"] = spot
        else:
            frames[-2].spot["inner"]["spots"][frames[-1].branch] = spot

    def _spot(self, name: str) -> Spot:
        self.state["visits"] += 1
        return {"step": name, "visit": self.state["visits"]}


def _within(frames: tuple[Frame, ...], names: JSONMapping) -> Iterator[Place]:
    frame = frames[-1]
    inner = frame.spot.get("inner")
    # A `for_each` between two records is next itself: it reads on.
    if inner is None or not any(inner["spots"]):
        yield Place(frames, names)
        return
    if "item" in inner:
        names = {**names, "item": inner["item"], "index": inner["index"]}
    elif "index" in inner:
        names = {**names, "item": inner["items"][inner["index"]], "index": inner["index"]}
    for branch, spot in enumerate(inner["spots"]):
        if spot is not None:
            series = frame.step.inner[branch]
            yield from _within((*frames, Frame(series, spot, branch)), names)


def progress(state: JSONMapping) -> JSONObject | None:
    """How far the outermost `for_each` is: `{step, done, failed, total}`; None outside of one."""
    spots = [state.get("spot")]
    while spots:
        spot = spots.pop() or {}
        inner = spot.get("inner") or {}
        if "total" in inner:
            done = inner["index"] + (not any(inner["spots"]))
            return {"step": spot["step"], "done": done} | {
                name: inner[name] for name in ("failed", "total")
            }
        spots += inner.get("spots") or ()
    return None
