"""Compares two versions of a workflow's steps."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext
from app.workflows.language.definition import LOOP, Written, lists_in

MAX_LINES_OF_STEP, MAX_LINES = 300, 3000  # compared; longer steps are only named
ADDED, REMOVED, CHANGED, MOVED = "added", "removed", "changed", "moved"
KIND_NAMES = {
    ADDED: lazy_gettext("added"),
    REMOVED: lazy_gettext("removed"),
    CHANGED: lazy_gettext("changed"),
    MOVED: lazy_gettext("moved"),
}


@dataclass(frozen=True)
class Line:
    """A line of a step's JSON; `kind` is added, removed or empty."""

    kind: str
    text: str


@dataclass(frozen=True)
class StepChange:
    """A step that differs; without lines if it is too long to compare."""

    name: str
    kind: str
    lines: Sequence[Line]


def compare(old: Sequence[Written], new: Sequence[Written]) -> list[StepChange]:
    """The steps that differ, in the new order; removed ones last."""
    before, after = dict(_own_settings(old, "")), dict(_own_settings(new, ""))
    common = [name for name in after if name in before]
    reordered = common != [name for name in before if name in after]
    changes, remaining = list[StepChange](), MAX_LINES
    for name in [*after, *(name for name in before if name not in after)]:
        kind = ADDED if name not in before else REMOVED if name not in after else CHANGED
        if before.get(name) == after.get(name):
            continue
        texts = _lines(before.get(name)), _lines(after.get(name))
        length = sum(map(len, texts))
        fits = length <= min(MAX_LINES_OF_STEP, remaining)
        remaining -= length if fits else 0
        changes.append(StepChange(name, kind, list(_diff(*texts)) if fits else ()))
    if reordered:
        order = Line("", ", ".join(after))
        changes.insert(0, StepChange(gettext("Order of steps"), MOVED, [order]))
    return changes


def _own_settings(steps: Sequence[Written], place: str) -> Iterator[tuple[str, JSONObject]]:
    """The settings of each step without inner steps, and where it is."""
    for step in steps:
        settings = {
            name: value for name, value in step.items() if name not in ("steps", "branches")
        }
        yield step["name"], {**({"in": place} if place else {}), **settings}
        for number, inner in enumerate(lists_in(step)):
            branch = "" if step["type"] == LOOP else f", branch {number + 1}"
            yield from _own_settings(inner, f"{step['name']}{branch}")


def _lines(settings: Mapping[str, object] | None) -> list[str]:
    if settings is None:
        return []
    return orjson.dumps(settings, option=orjson.OPT_INDENT_2).decode().split("\n")


def _diff(old: Sequence[str], new: Sequence[str]) -> Iterator[Line]:
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, from_old, to_old, from_new, to_new in matcher.get_opcodes():
        if tag == "equal":
            yield from (Line("", text) for text in old[from_old:to_old])
        else:
            yield from (Line(REMOVED, text) for text in old[from_old:to_old])
            yield from (Line(ADDED, text) for text in new[from_new:to_new])
