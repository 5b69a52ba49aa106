"""`for_each` runs steps for each record of a collection once, whatever happens meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from flask import Flask

from app.records import store
from app.workflows.engine import for_each, run
from tests.builders import Caller, Cast, make_collection, make_record
from tests.workflows.running import (
    MANUAL,
    action,
    create,
    instance,
    let_pass,
    make_workflow,
    outputs,
    ran,
    start,
    statuses,
    work,
)

FIELDS = [{"name": "title", "type": "text"}, {"name": "n", "type": "number"}]
pytestmark = pytest.mark.both_databases


def walk(*steps: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """A step that walks over the posts."""
    return {"name": "walk", "type": "for_each", "collection": "posts", "steps": steps, **settings}


def update(**data: Any) -> dict[str, Any]:
    """A step that changes the record of the walk."""
    return action(
        "change", "update_record", collection="posts", record_id="{{ item.id }}", data=data
    )


COUNT = update(n="{{ item.n + 1 }}")


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(for_each, "PAGE_SIZES", (3, 1))


@pytest.fixture
def posts(root: Caller, alice: Caller) -> list[dict[str, Any]]:
    make_collection(root, schema=FIELDS)
    return [make_record(alice, title=f"t{n}", n=n) for n in range(8)]


def numbers(caller: Caller) -> list[int]:
    items = caller.get("records/posts?sort=id&limit=100").json["items"]
    return [one["n"] for one in items]


def test_for_each_runs_steps_once_for_each_matching_record(
    app: Flask, alice: Caller, posts: list[Any]
) -> None:
    steps = [walk(COUNT, filter="n >= {{ trigger.least }} && n < 100"), create("after")]
    found = ran(app, alice, make_workflow(alice, steps), {"least": 2})
    assert (found["status"], found["error_message"]) == ("completed", None)
    assert outputs(found)["walk"] == {"count": 6, "failed": 0, "errors": []}
    assert numbers(alice)[:8] == [0, 1, 3, 4, 5, 6, 7, 8]
    assert statuses(found) == [
        ("walk", "completed"),
        *[("change", "completed")] * 6,
        ("after", "completed"),
    ]
    assert [one["place"] for one in found["step_logs"]][:3] == [
        "walk#1",
        "walk[0]/change#2",
        "walk[1]/change#3",
    ]
    assert found["progress"] is None


def test_for_each_without_matches_ends_at_once(app: Flask, alice: Caller, posts: list[Any]) -> None:
    found = ran(app, alice, make_workflow(alice, [walk(COUNT, filter="n > 100")]))
    assert outputs(found) == {"walk": {"count": 0, "failed": 0, "errors": []}}
    assert found["status"] == "completed"


def test_for_each_sort_orders_records_and_index_counts_them(
    app: Flask, root: Caller, alice: Caller, posts: list[Any]
) -> None:
    make_collection(root, "notes")
    note = action(
        "note",
        "create_record",
        collection="notes",
        data={"title": "{{ index }}: {{ item.title }} of {{ trigger.name }}"},
    )
    found = ran(app, alice, make_workflow(alice, [walk(note, sort="-n")]), {"name": "x"})
    assert found["status"] == "completed", found
    items = alice.get("records/notes?sort=id").json["items"]
    assert [one["title"] for one in items] == [f"{n}: t{7 - n} of x" for n in range(8)]


def test_for_each_sees_records_as_they_are_at_their_turn(
    app: Flask, alice: Caller, posts: list[Any]
) -> None:
    """A record of the same page that was changed, deleted or made meanwhile by the steps."""
    first, second, third, fourth = (one["id"] for one in posts[:4])
    steps = [
        {
            "name": "first",
            "type": "condition",
            "expression": f"item.id = '{first}'",
            "on_true": "drop",
            "on_false": "copy",
        },
        action("drop", "delete_record", collection="posts", record_id=second),
        action("hide", "update_record", collection="posts", record_id=third, data={"n": 200}),
        action("raise", "update_record", collection="posts", record_id=fourth, data={"n": 50}),
        create("new", "new"),
        {**COUNT, "name": "copy"},
    ]
    found = ran(app, alice, make_workflow(alice, [walk(*steps, filter="n < 100 || n = null")]))
    assert found["status"] == "completed", found["error_message"]
    assert outputs(found)["walk"]["count"] == 6
    assert numbers(alice) == [1, 200, 51, 5, 6, 7, 8, None]


def test_for_each_reads_no_more_than_its_owner_may_list(app: Flask, cast: Cast) -> None:
    own = "created_by = @request.auth.id"
    make_collection(cast.root, schema=FIELDS, list_rule=own)
    for caller in (cast.alice, cast.bob, cast.charlie):
        make_record(caller, title="x", n=1)
    found = ran(app, cast.alice, make_workflow(cast.alice, [walk(COUNT)]))
    assert outputs(found)["walk"]["count"] == 1


def test_for_each_fails_at_a_record_and_resumes_there(
    app: Flask, root: Caller, alice: Caller, posts: list[Any]
) -> None:
    check = {
        "name": "check",
        "type": "condition",
        "expression": "item.n = 4",
        "on_true": "bad",
        "on_false": "change",
    }
    broken = action("bad", "query_records", collection="later", next="change")
    found = ran(app, alice, make_workflow(alice, [walk(check, broken, COUNT)]))
    assert (found["status"], found["current_step"]) == ("failed", "bad")
    assert found["progress"] == {"step": "walk", "done": 4, "failed": 0, "total": 8}
    assert numbers(alice) == [1, 2, 3, 4, 4, 5, 6, 7]
    make_collection(root, "later")
    assert alice.post(f"workflow-instances/{found['id']}/resume").status_code == 200
    work(app)
    assert instance(alice, found["id"])["status"] == "completed"
    assert numbers(alice) == list(range(1, 9))


def test_for_each_that_continues_counts_failed_records(
    app: Flask, alice: Caller, posts: list[Any]
) -> None:
    bad = action("bad", "update_record", collection="posts", record_id="{{ item.id }}", data={})
    bad["config"]["data"] = {"n": "{{ item.n % 2 = 0 }}"}
    steps = [walk(COUNT, {**bad, "name": "odd"}, on_error="continue"), create("after")]
    found = ran(app, alice, make_workflow(alice, steps))
    assert (found["status"], found["error_message"]) == ("completed", None)
    told = outputs(found)["walk"]
    assert (told["count"], told["failed"], len(told["errors"])) == (8, 8, 8)
    assert told["errors"][0]["id"] == posts[0]["id"]
    assert told["errors"][0]["step"] == "odd"
    assert numbers(alice)[:8] == list(range(1, 9))
    assert statuses(found).count(("odd", "failed")) == 8


def test_for_each_within_for_each_with_waits(
    app: Flask, root: Caller, alice: Caller, posts: list[Any]
) -> None:
    make_collection(root, "notes")
    inner = {
        "name": "inner",
        "type": "for_each",
        "collection": "posts",
        "filter": "n < {{ item.n }}",
        "steps": [
            action(
                "note",
                "create_record",
                collection="notes",
                data={"title": "{{ item.title }} below {{ index }}"},
            )
        ],
    }
    pause = {"name": "pause", "type": "wait_delay", "duration": "1h"}
    id = start(alice, make_workflow(alice, [walk(inner, pause, filter="n < 4")]))
    for _ in range(4):
        work(app)
        assert instance(alice, id)["status"] == "waiting"
        let_pass(app, 3600)
    work(app)
    found = instance(alice, id)
    assert (found["status"], found["error_message"]) == ("completed", None)
    assert alice.get("records/notes").json["total"] == 0 + 1 + 2 + 3


def test_for_each_position_does_not_grow_and_limits_are_per_record(
    app: Flask, alice: Caller, posts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "MAX_VISITS", 12)
    monkeypatch.setattr(for_each, "MAX_STEPS_PER_RECORD", 3)
    sizes = list[int]()
    save = run.Run._save

    def measured(self: Any, entries: Any) -> None:
        save(self, entries)
        sizes.append(len(self.position_text()))

    monkeypatch.setattr(run.Run, "_save", measured)
    look = action("look", "query_records", collection="posts", limit=1)
    found = ran(app, alice, make_workflow(alice, [walk(COUNT, look)]))
    assert (found["status"], found["error_message"]) == ("completed", None)
    assert max(sizes) < 2 * sizes[2]
    again = {**COUNT, "next": "change"}
    found = ran(app, alice, make_workflow(alice, [walk(again)]))
    assert "3 steps for one record" in found["error_message"]


def test_for_each_gives_way_to_other_instances(
    app: Flask, alice: Caller, posts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "TURN_SECONDS", 0)
    flow = make_workflow(alice, [walk(create("copy", "copy"), filter="n < 100")])
    ids = [start(alice, flow) for _ in range(3)]
    work(app)
    assert {instance(alice, id)["status"] for id in ids} == {"completed"}
    assert alice.get("records/posts?title=copy").json["total"] == 3 * 8


def test_for_each_is_cancelled_between_records(app: Flask, alice: Caller, posts: list[Any]) -> None:
    pause = {"name": "pause", "type": "wait_delay", "duration": "1h"}
    id = start(alice, make_workflow(alice, [walk(COUNT, pause)]))
    work(app)
    shown = alice.get("workflow-instances").json["items"][0]
    assert shown["progress"] == {"step": "walk", "done": 0, "failed": 0, "total": 8}
    let_pass(app, 3600)
    work(app)
    assert alice.post(f"workflow-instances/{id}/cancel").status_code == 200
    let_pass(app, 3600)
    work(app)
    assert numbers(alice) == [1, 2, 2, 3, 4, 5, 6, 7]


def test_for_each_stops_after_seven_days_until_it_is_resumed(
    app: Flask, alice: Caller, posts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(for_each, "MAX_DURATION", timedelta(0))
        found = ran(app, alice, make_workflow(alice, [walk(COUNT)]))
    assert (found["status"], found["current_step"]) == ("failed", "walk")
    assert "Resume" in found["error_message"]
    assert alice.post(f"workflow-instances/{found['id']}/resume").status_code == 200
    work(app)
    assert instance(alice, found["id"])["status"] == "completed"
    assert numbers(alice) == list(range(1, 9))


def test_for_each_reads_large_records_one_by_one(
    app: Flask, alice: Caller, posts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    large = [make_record(alice, title="x" * 500, n=n) for n in (8, 9)]
    monkeypatch.setattr(store, "LARGEST_ANSWER", 1000)
    found = ran(app, alice, make_workflow(alice, [walk(COUNT)]))
    assert (found["status"], found["error_message"]) == ("completed", None)
    monkeypatch.undo()
    assert numbers(alice) == list(range(1, 11))
    monkeypatch.setattr(for_each, "MAX_RECORD_BYTES", 600)
    found = ran(app, alice, make_workflow(alice, [walk(COUNT)]))
    assert (found["status"], found["current_step"]) == ("failed", "walk")
    assert large[0]["id"] in found["error_message"]
    assert found["progress"]["done"] == 8
    found = ran(app, alice, make_workflow(alice, [walk(COUNT, on_error="continue")]))
    told = outputs(found)["walk"]
    assert (told["count"], told["failed"]) == (10, 2)
    assert [one["id"] for one in told["errors"]] == [one["id"] for one in large]
    assert numbers(alice) == [*range(3, 11), 9, 10]


FAULTS: list[tuple[dict[str, Any], dict[str, str]]] = [
    (walk(), {"steps[0].steps": "required"}),
    (walk(COUNT, filter="n >"), {"steps[0].filter": "filter_invalid"}),
    (walk(COUNT, sort="-n"), {"steps[0].sort": "invalid_option"}),
    (walk(COUNT, sort="title,-updated_at"), {"steps[0].sort": "invalid_option"}),
    (walk(COUNT, sort=5), {"steps[0].sort": "invalid_type"}),
    (walk(COUNT, on_error="pray"), {"steps[0].on_error": "invalid_option"}),
    (walk(COUNT, items=[1]), {"steps[0].items": "unknown_field"}),
    (walk(COUNT, collection="a b"), {"steps[0].collection": "name_invalid"}),
    (walk(COUNT, filter="n = {{ item.n }}"), {"steps[0].filter": "template_invalid"}),
    (
        walk({**walk({**walk(COUNT), "name": "b"}), "name": "a"}),
        {"steps[0]": "too_long"},
    ),
]


def test_for_each_problems_have_their_place(alice: Caller) -> None:
    for step, places in FAULTS:
        answer = alice.post("workflows", {"name": "x", "trigger": MANUAL, "steps": [step]})
        assert answer.status_code == 400, (step, answer.json)
        assert {one["field"]: one["code"] for one in answer.json["details"]} == places, step


def test_for_each_warns_of_names_that_do_not_exist(alice: Caller, posts: list[Any]) -> None:
    flow = make_workflow(alice, [walk(update(n="{{ item.tilte }}"), filter="m = 1", sort="o")])
    assert {(one["field"], one["code"]) for one in flow["warnings"]} == {
        ("steps[0].filter", "field_missing"),
        ("steps[0].sort", "field_missing"),
        ("steps[0].steps[0].config.data.n", "field_missing"),
    }
    flow = make_workflow(alice, [walk(create("a"), collection="nowhere")])
    assert flow["warnings"][0]["field"] == "steps[0].collection"


def test_views_are_neither_walked_nor_written(
    app: Flask, root: Caller, alice: Caller, posts: list[Any]
) -> None:
    view = {"type": "view", "from": "posts", "list_rule": "true"}
    for name, parts in (("shown", {"fields": ["title"]}), ("grouped", {"aggregates": ["count()"]})):
        assert root.post("collections", {"name": name, **view, **parts}).status_code == 201
        steps = [
            walk(create("one"), collection=name),
            action("made", "create_record", collection=name, data={"title": "x"}),
            action("changed", "update_record", collection=name, record_id="x", data={"title": "x"}),
            action("gone", "delete_record", collection=name, record_id="x"),
            action("read", "query_records", collection=name),
        ]
        body = {"name": "w", "trigger": MANUAL, "steps": steps}
        assert [
            (one["field"], one["code"]) for one in alice.post("workflows", body).json["details"]
        ] == [
            ("steps[0].collection", "is_view"),
            *((f"steps[{n}].config.collection", "is_view") for n in (1, 2, 3)),
        ]
        named = walk(create("one"), collection="{{ trigger.name }}")
        found = ran(app, alice, make_workflow(alice, [named]), {"name": name})
        assert (found["status"], "This is a view" in found["error_message"]) == ("failed", True)
