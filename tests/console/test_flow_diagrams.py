"""Diagrams of workflows: what they draw, where, and what an instance has done."""

from __future__ import annotations

import re
import time
from itertools import combinations
from typing import Any

import pytest
from flask import Flask

from app.console.automation import flow_diagram
from app.console.automation.flow_diagram import Box, Diagram
from app.workflows.language.definition import parse_series
from tests.builders import Cast, make_collection
from tests.console.browser import HOSTILE, Browser
from tests.workflows.running import action, create, make_workflow, start, work

Steps = list[dict[str, Any]]


def wait(name: str, **others: Any) -> dict[str, Any]:
    """A step that waits."""
    return {"name": name, "type": "wait_delay", "duration": "1h", **others}


def branch(name: str, on_true: str | None, on_false: str | None) -> dict[str, Any]:
    """A condition."""
    targets = {"on_true": on_true, "on_false": on_false}
    return {"name": name, "type": "condition", "expression": "trigger.n > 1", **targets}


def loop(name: str, *steps: Any, **others: Any) -> dict[str, Any]:
    """A loop over two items."""
    return {"name": name, "type": "loop", "items": ["a", "b"], "steps": list(steps), **others}


def parallel(name: str, *branches: Steps) -> dict[str, Any]:
    """Branches side by side."""
    return {"name": name, "type": "parallel", "branches": list(branches)}


LINE: Steps = [wait("a"), wait("b"), wait("c")]
DIAMOND: Steps = [branch("if", "yes", "no"), wait("yes", next="then"), wait("no"), wait("then")]
SHORT_CUT: Steps = [branch("if", "a", "c"), wait("a"), wait("b"), wait("c")]
REPEATED: Steps = [wait("a"), wait("b"), branch("again", "a", None)]
ENDLESS: Steps = [wait("a"), wait("b", next="a")]
ITSELF: Steps = [wait("a", next="a")]
EXITS: Steps = [branch(f"c{n}", f"c{n + 1}", None) for n in range(6)] + [wait("c6")]
NESTED: Steps = [
    parallel("both", [wait("p"), loop("each", *SHORT_CUT)], [wait("q")], [wait("r"), wait("s")]),
    loop("outer", loop("inner", wait("x")), parallel("pair", [wait("y")], [wait("z")])),
]
CROSSED: Steps = [
    branch("if", "left", "right"),
    branch("left", "end_b", "end_a"),
    branch("right", "end_a", "end_b"),
    wait("end_a", next=None),
    wait("end_b"),
]
CASES = [LINE, DIAMOND, SHORT_CUT, REPEATED, ENDLESS, ITSELF, EXITS, NESTED, CROSSED]


def drawn(steps: Steps) -> Diagram:
    """The diagram of steps."""
    return flow_diagram.draw(parse_series(steps), "Start")


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes have an area in common."""
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )


def contains(outer: Box, inner: Box) -> bool:
    """Whether a box is a container that holds another one completely."""
    return outer.kind == "container" and (
        outer.x < inner.x
        and outer.y < inner.y
        and inner.x + inner.width < outer.x + outer.width
        and inner.y + inner.height < outer.y + outer.height
    )


@pytest.mark.parametrize("steps", CASES)
def test_flow_diagram_draws_each_step_once_without_overlap(steps: Steps) -> None:
    series, diagram = parse_series(steps), drawn(steps)
    named = sorted(box.title for box in diagram.boxes if box.detail)
    assert named == sorted(step.name for step in series.walk())
    for one, other in combinations(diagram.boxes, 2):
        is_apart = not overlap(one, other) or contains(one, other) or contains(other, one)
        assert is_apart, (one, other)
    for box in diagram.boxes:
        assert box.x >= 0
        assert box.y >= 0
        assert box.x + box.width <= diagram.width + 0.2
        assert box.y + box.height <= diagram.height + 0.2


@pytest.mark.parametrize("steps", CASES)
def test_flow_diagram_back_edge_labels_do_not_cover_lines(steps: Steps) -> None:
    diagram = drawn(steps)
    for edge in diagram.edges:
        if edge.label and "H" in edge.path:
            line = float(edge.path.split("H")[1].split("V")[0])
            assert edge.x + 7 * len(edge.label) < line <= diagram.width


@pytest.mark.parametrize("steps", CASES)
def test_flow_diagram_edges_end_at_steps_and_cross_no_box(steps: Steps) -> None:
    diagram = drawn(steps)
    ways = [way for step in parse_series(steps).walk() for way in flow_diagram.targets(step)]
    assert len(diagram.edges) == len(ways) + 1  # from the start
    assert sorted(filter(None, (edge.label for edge in diagram.edges))) == sorted(
        label for label, _ in ways if label
    )
    leaves = [box for box in diagram.boxes if box.kind != "container"]
    for edge in diagram.edges:
        numbers = [float(text) for text in re.findall(r"-?[\d.]+", edge.path)]
        is_back = "H" in edge.path
        x, y = (numbers[-1], numbers[-2]) if is_back else (numbers[-2], numbers[-1])
        touched = [
            box
            for box in diagram.boxes
            if box.x - 0.2 <= x <= box.x + box.width + 0.2
            and (abs(box.y - y) < 0.2 or (is_back and box.y < y < box.y + box.height))
        ]
        assert touched, edge
        assert max(numbers) <= max(diagram.width, diagram.height) + 0.2
        # Upright pieces pass layers: beside every step.
        points = re.findall(r"([\d.]+) ([\d.]+)V([\d.]+)", edge.path)
        for column, top, bottom in points:
            upper, lower = sorted((float(top), float(bottom)))
            for box in leaves:
                inside = box.x < float(column) < box.x + box.width
                assert not (inside and box.y < lower and upper < box.y + box.height)


def curve(path: str) -> list[tuple[float, float]]:
    """Points of the first curve of a line."""
    start, *ends = re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)[:4]
    (x0, y0), *others = ((float(x), float(y)) for x, y in (start, *ends))
    (x1, y1), (x2, y2), (x3, y3) = others
    return [
        (
            (1 - t) ** 3 * x0 + 3 * (1 - t) ** 2 * t * x1 + 3 * (1 - t) * t**2 * x2 + t**3 * x3,
            (1 - t) ** 3 * y0 + 3 * (1 - t) ** 2 * t * y1 + 3 * (1 - t) * t**2 * y2 + t**3 * y3,
        )
        for t in (n / 40 for n in range(41))
    ]


@pytest.mark.parametrize("steps", CASES)
def test_flow_diagram_edge_labels_do_not_cover_lines(steps: Steps) -> None:
    for edge in drawn(steps).edges:
        if edge.label and "C" in edge.path:
            width = 7 * len(edge.label)
            left = edge.x - width if edge.anchor == "end" else edge.x
            for x, y in curve(edge.path):
                on_label = left < x < left + width and edge.y - 10 < y < edge.y + 2
                assert not on_label, (edge, x, y)


def test_flow_diagram_sequence_is_straight_and_branches_are_side_by_side() -> None:
    boxes = {box.title: box for box in drawn(LINE).boxes}
    assert len({box.x + box.width / 2 for box in boxes.values()}) == 1
    assert boxes["a"].y < boxes["b"].y < boxes["c"].y < boxes["End"].y
    boxes = {box.title: box for box in drawn(DIAMOND).boxes}
    assert boxes["yes"].y == boxes["no"].y
    assert boxes["then"].y > boxes["no"].y
    middle = boxes["if"].x
    assert boxes["then"].x == pytest.approx(middle)
    assert sorted((boxes["yes"].x, boxes["no"].x))[0] < middle


def test_flow_diagram_has_equivalent_list(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    flow = make_workflow(cast.alice, DIAMOND)
    path = f"workflows/{cast.alice.account_id}/workflow/{flow['id']}"
    page = Browser(app, cast.alice).get(path).text
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page.partition("Steps as a list")[2]))
    assert "if: If trigger.n &gt; 1; then true: yes, false: no" in text
    assert "yes: Wait 1h; then then" in text
    assert '<title id="flow-title">' in page


def test_workflow_pages_of_draft_without_steps(app: Flask, cast: Cast) -> None:
    flow = make_workflow(cast.alice, [])
    admin, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}"
    for path in ("", "/steps", "/versions"):
        assert admin.get(f"{home}/workflow/{flow['id']}{path}").status_code == 200, path
    assert "No steps yet." in admin.get(f"{home}/workflow/{flow['id']}").text
    id = start(cast.alice, flow)
    work(app)
    assert admin.get(f"{home}/instances/{id}").status_code == 200


def test_flow_diagram_of_many_steps_is_fast_and_falls_back_to_list() -> None:
    most = flow_diagram.MAX_STEPS
    hard = [branch(f"c{n}", f"c{n + 1}", f"c{(n * 7) % most}") for n in range(most - 1)]
    begun = time.thread_time()
    diagram = drawn([*hard, wait(f"c{most - 1}")])
    assert time.thread_time() - begun < 5
    assert len([box for box in diagram.boxes if box.detail]) == most
    beyond = drawn([wait(f"c{n}") for n in range(most + 1)])
    assert (beyond.boxes, len(beyond.items)) == ([], most + 1)


def states_of(page: str) -> dict[str, str]:
    """The states that a diagram tells, by step."""
    found = re.findall(r"<title>(\w+): [^<]* \(([\w ,]+)\)</title>", page)
    return dict(found)


@pytest.mark.parametrize(
    ("steps", "body", "states"),
    [
        (
            [branch("if", "yes", "no"), create("yes", next="then"), create("no"), create("then")],
            {"n": 2},
            {"if": "completed", "yes": "completed", "no": "skipped", "then": "completed"},
        ),
        (
            [branch("if", "nap", "no"), wait("nap", next="then"), create("no"), create("then")],
            {"n": 2},
            {"if": "completed", "nap": "waiting", "no": "skipped", "then": "not run"},
        ),
        (
            [
                loop("each", create("make")),
                action("bad", "delete_record", collection="posts", record_id="x"),
                create("after"),
            ],
            {},
            {
                "each": "completed",
                "make": "completed, 2 times",
                "bad": "failed",
                "after": "not run",
            },
        ),
        (
            [parallel("both", [wait("p"), create("q")], [create("r")]), create("then")],
            {},
            {
                "both": "running",
                "p": "waiting",
                "q": "not run",
                "r": "completed",
                "then": "not run",
            },
        ),
        (
            [
                parallel(
                    "both",
                    [
                        loop(
                            "each",
                            action("bad", "delete_record", collection="posts", record_id="x"),
                        )
                    ],
                    [create("r")],
                ),
                create("then"),
            ],
            {},
            {
                "both": "failed",
                "each": "failed",
                "bad": "failed",
                "r": "not run",
                "then": "not run",
            },
        ),
    ],
)
@pytest.mark.both_databases
def test_flow_diagram_of_instance_shows_state_of_every_step(
    app: Flask, cast: Cast, steps: Steps, body: dict[str, int], states: dict[str, str]
) -> None:
    make_collection(cast.root)
    id = start(cast.alice, make_workflow(cast.alice, steps), body)
    admin, path = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}/instances/{id}"
    assert set(states_of(admin.get(path).text).values()) == {"not run"}
    work(app)
    assert states_of(admin.get(path).text) == states


def test_flow_diagram_escapes_names_and_texts(app: Flask, cast: Cast) -> None:
    config = {"to": HOSTILE, "subject": "x", "body": "x"}
    flow = make_workflow(cast.alice, [action("tell", "send_email", **config)])
    page = Browser(app, cast.alice).get(f"workflows/{cast.alice.account_id}/workflow/{flow['id']}")
    assert "<script>alert" not in page.text
