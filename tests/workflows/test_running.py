"""Instances are carried out: every kind of step, templates, failures, resuming."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.workflows.engine import control_steps
from tests.builders import Caller, Cast, change_user, make_collection, make_record, make_user
from tests.workflows.running import (
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


@pytest.fixture
def posts(root: Caller) -> dict[str, Any]:
    return make_collection(root, schema=FIELDS)


def titles(caller: Caller) -> list[str]:
    items = caller.get("records/posts?sort=id").json["items"]
    return [one["title"] for one in items]


def test_workflow_record_steps_run_in_order_with_outputs(
    app: Flask, alice: Caller, posts: dict[str, Any]
) -> None:
    data = {"title": "Order {{ trigger.order }}", "n": "{{ trigger.order }}"}
    where = "title = '{{ steps.make.output.title }}' && n = {{ trigger.order }}"
    steps = [
        action("make", "create_record", collection="posts", data=data),
        action(
            "change",
            "update_record",
            collection="posts",
            record_id="{{ steps.make.output.id }}",
            data={"n": "{{ steps.make.output.n + 1 }}"},
        ),
        action("none", "query_records", collection="posts", filter=where),
        action("some", "query_records", collection="posts", filter="n = 8", limit=5),
        action(
            "drop",
            "delete_record",
            collection="posts",
            record_id="{{ steps.some.output.records.0.id }}",
        ),
    ]
    found = ran(app, alice, make_workflow(alice, steps), {"order": 7})
    assert (found["status"], found["error_message"]) == ("completed", None)
    given = outputs(found)
    assert (given["make"]["title"], given["make"]["n"]) == ("Order 7", 7)
    assert (given["change"]["n"], given["none"]["total"], given["some"]["count"]) == (8, 0, 1)
    assert given["some"]["first"]["created_by"] == alice.id
    assert given["drop"] == {"id": given["make"]["id"], "deleted": True}
    assert statuses(found) == [
        (name, "completed") for name in ("make", "change", "none", "some", "drop")
    ]
    assert found["step_logs"][0]["input"]["data"] == {"title": "Order 7", "n": 7}
    assert found["context"]["trigger"] == {"order": 7}
    assert titles(alice) == []


@pytest.mark.both_databases
def test_workflow_filter_template_values_are_quoted(
    app: Flask, alice: Caller, posts: dict[str, Any]
) -> None:
    for title in ("a", "b"):
        make_record(alice, title=title, n=1)
    sly = {"x": "' || n = 1 || title = '", "y": '\\" || n = 1 || title = "', "some": ["a", "b"]}
    steps = [
        action("one", "query_records", collection="posts", filter="title = '{{ trigger.x }}'"),
        action("two", "query_records", collection="posts", filter='title = "{{ trigger.y }}"'),
        action("three", "query_records", collection="posts", filter="title = {{ trigger.y }}"),
        action("four", "query_records", collection="posts", filter="title IN {{ trigger.some }}"),
    ]
    found = ran(app, alice, make_workflow(alice, steps), sly)
    assert [one["total"] for one in outputs(found).values()] == [0, 0, 0, 2], found


def test_workflow_query_limit_outside_1_to_100_fails(
    app: Flask, alice: Caller, posts: dict[str, Any]
) -> None:
    step = action("all", "query_records", collection="posts", limit="{{ trigger.n }}")
    workflow = make_workflow(alice, [step])
    for n in (0, False, "", 101):
        found = ran(app, alice, workflow, {"n": n})
        assert found["status"] == "failed", n
        assert "from 1 to 100" in found["error_message"]
    assert ran(app, alice, workflow)["status"] == "completed"


@pytest.mark.both_databases
def test_workflow_changes_lists_of_records(app: Flask, root: Caller, alice: Caller) -> None:
    make_collection(root, schema=[{"name": "tags", "type": "text_list"}])
    records = [make_record(alice, tags=tags) for tags in (["new", "a"], ["new"], None)]
    change = {"tags": {"$add": ["seen", "{{ trigger.tag }}"], "$remove": "{{ trigger.gone }}"}}
    config = {"collection": "posts", "record_id": "{{ item.id }}", "data": change}
    steps = [action("tag", "update_record", **config)]
    walk = {"name": "walk", "type": "for_each", "collection": "posts", "steps": steps}
    flow = make_workflow(alice, [walk])
    assert flow["warnings"] == []
    found = ran(app, alice, flow, {"tag": "x", "gone": ["new"]})
    assert (found["status"], found["error_message"]) == ("completed", None)
    tags = [alice.get(f"records/posts/{one['id']}").json["tags"] for one in records]
    assert tags == [["a", "seen", "x"], ["seen", "x"], ["seen", "x"]]
    refused = ran(app, alice, flow, {"tag": {}, "gone": []})
    assert (refused["status"], refused["current_step"]) == ("failed", "tag")


@pytest.mark.both_databases
def test_workflow_aggregates_what_its_owner_may_list(app: Flask, cast: Cast) -> None:
    alice = cast.alice
    make_collection(cast.root, schema=FIELDS, list_rule="created_by = @request.auth.id")
    for title, n in (("a", 1), ("a", 2), ("b", 3.5)):
        make_record(alice, title=title, n=n)
    make_record(cast.bob, title="a", n=100)
    every = {"collection": "posts", "functions": "count(), sum(n)"}
    found = ran(
        app,
        alice,
        make_workflow(
            alice,
            [
                action("groups", "aggregate_records", **every, group_by="title"),
                action("few", "aggregate_records", **every, group_by=["title"], limit=1),
                action("all", "aggregate_records", **every, filter="n < {{ trigger.below }}"),
                create("note", "sum: {{ steps.all.output.first.sum_n }}"),
            ],
        ),
        {"below": 3},
    )
    assert (found["status"], found["error_message"]) == ("completed", None)
    told = outputs(found)
    groups = [{"title": "a", "count": 2, "sum_n": 3}, {"title": "b", "count": 1, "sum_n": 3.5}]
    assert told["groups"] == {"results": groups, "first": groups[0], "total_groups": 2}
    assert told["few"] == {"results": groups[:1], "first": groups[0], "total_groups": 2}
    assert told["all"]["first"] == {"count": 2, "sum_n": 3}
    assert told["note"]["title"] == "sum: 3"


@pytest.mark.both_databases
def test_workflow_groups_behind_references_are_told_line_by_line(app: Flask, cast: Cast) -> None:
    alice, root = cast.alice, cast.root
    make_collection(root, "customers", [{"name": "name", "type": "text"}])
    tickets = [
        {"name": "customer", "type": "reference", "collection": "customers"},
        {"name": "customer_name", "type": "text"},
    ]
    make_collection(root, "tickets", tickets)
    make_collection(root, "digests", [{"name": "text", "type": "text"}])
    for name, number in (("Ann", 2), ("Ben", 1)):
        customer = make_record(alice, "customers", name=name)["id"]
        for _ in range(number):
            make_record(alice, "tickets", customer=customer, customer_name="own")
    [section] = [
        part
        for part in Path("docs/workflows.md").read_text().split("```json\n")
        if part.startswith("[\n") and "steps.line.output" in part
    ]
    steps = json.loads(section.partition("```")[0])
    steps.append(action("both", "aggregate_records", collection="tickets", functions="count()"))
    steps[-1]["config"]["group_by"] = "customer.name,customer_name"
    workflow = make_workflow(alice, steps)
    assert workflow["warnings"] == []
    found = ran(app, alice, workflow)
    assert (found["status"], found["error_message"]) == ("completed", None)
    told = outputs(found)
    assert told["totals"]["first"] == {"customer_name": "Ann", "count": 2}
    assert told["line"]["text"] == "Ann: 2\nBen: 1\n"
    assert told["both"]["first"] == {"customer_name": "own", "count": 2}


def test_workflow_aggregate_problems_have_their_place(alice: Caller, posts: dict[str, Any]) -> None:
    for config, field in (
        ({"functions": "median(n)"}, "functions"),
        ({"functions": [1]}, "functions"),
        ({}, "functions"),
        ({"functions": "count()", "group_by": {}}, "group_by"),
        ({"functions": "count()", "limit": 101}, "limit"),
        ({"functions": "count()", "sort": "n"}, "sort"),
    ):
        step = action("a", "aggregate_records", collection="posts", **config)
        answer = alice.post(
            "workflows", {"name": "x", "trigger": {"type": "manual"}, "steps": [step]}
        )
        assert [one["field"] for one in answer.json["details"]] == [f"steps[0].config.{field}"]
    step = action("a", "aggregate_records", collection="posts", functions="sum(m)", group_by="o,n")
    warned = make_workflow(alice, [step])["warnings"]
    assert [one["field"] for one in warned] == [
        "steps[0].config.functions",
        "steps[0].config.group_by",
    ]


def test_workflow_steps_that_fields_do_not_take_are_refused(
    app: Flask, root: Caller, alice: Caller
) -> None:
    schema = [*FIELDS, {"name": "tags", "type": "text_list"}, {"name": "data", "type": "json"}]
    unseen = {"name": "unseen", "type": "text_list", "readable_if": "@is_superadmin()"}
    make_collection(root, schema=[*schema, unseen])

    def problems(**data: Any) -> list[tuple[str, str]]:
        steps = [
            create("made", "x"),
            action("sums", "aggregate_records", collection="posts", functions=data.pop("sums")),
            action("change", "update_record", collection="posts", record_id="x", data=data),
        ]
        steps[0]["config"]["data"] |= data.pop("new", {})
        body = {"name": "x", "trigger": {"type": "manual"}, "steps": steps}
        answer = alice.post("workflows", body)
        return [(one["field"], one["message"]) for one in answer.json.get("details", ())]

    wrong = problems(
        sums="count(), sum(title), max(n)",
        new={"tags": {"$add": ["a"]}},
        tags={"$push": ["a"]},
    )
    assert [field for field, _ in wrong] == [
        "steps[0].config.data.tags",
        "steps[1].config.functions",
        "steps[2].config.data.tags",
    ]
    assert "for PATCH" in wrong[0][1]
    assert wrong[1][1] == "There is no sum of a text."
    fitting = {"$add": "{{ trigger.tags }}", "$remove": ["a"]}
    hidden = {"$push": ["a"]}
    assert problems(sums="sum(n)", tags=fitting, data=hidden, unseen=hidden) == []


def test_workflow_conditions_lead_to_steps_or_end(
    app: Flask, alice: Caller, posts: dict[str, Any]
) -> None:
    steps = [
        {
            "name": "big",
            "type": "condition",
            "expression": "trigger.n > 10 && now() > '2020-01-01'",
            "on_true": "yes",
            "on_false": "no",
        },
        create("yes", "big", next=None),
        create("no", "small"),
    ]
    workflow = make_workflow(alice, steps)
    for n in (11, 3):
        assert ran(app, alice, workflow, {"n": n})["status"] == "completed"
    assert ran(app, alice, make_workflow(alice, []))["status"] == "completed"
    assert titles(alice) == ["big", "small"]


def test_workflow_conditions_compare_decimals_of_records_exactly(
    app: Flask, root: Caller, alice: Caller
) -> None:
    amounts = [{"name": name, "type": "decimal"} for name in ("amount", "due")]
    make_collection(root, "bills", [*amounts, FIELDS[0]])
    make_collection(root, schema=FIELDS)
    bill = make_record(alice, "bills", title="first", amount="100.50", due="9.00")

    def branch(name: str, expression: str) -> list[dict[str, Any]]:
        test = {"name": f"if_{name}", "type": "condition", "expression": expression}
        return [{**test, "on_true": name, "on_false": None}, create(name, name, next=None)]

    read = {"collection": "bills"}
    functions = {**read, "functions": "sum(amount), max(due)"}
    walk = {"name": "walk", "type": "for_each", **read}
    loop = {"name": "loop", "type": "loop", "items": "{{ steps.read.output.records }}"}
    compared = "{0}.amount > 100 && {0}.amount > {0}.due && {0}.amount + 1 = 101.5"
    steps = [
        action("read", "query_records", **read),
        action("sums", "aggregate_records", **functions),
        {**walk, "steps": branch("walked", compared.format("item"))},
        {**loop, "steps": branch("looped", compared.format("item"))},
        *branch("first", compared.format("steps.read.output.first")),
    ]
    total = "steps.sums.output.first"
    steps[-1]["next"] = "if_sum"
    steps += branch("sum", f"{total}.sum_amount > 100 && {total}.sum_amount > {total}.max_due")
    event = {"type": "event", "event": "records.update", "collection": "bills"}
    make_workflow(alice, steps, event, name="steps")
    trigger = f"{compared.format('trigger.record')} && trigger.previous.amount < 100.51"
    make_workflow(alice, branch("triggered", trigger), event, name="trigger")
    wait = {"name": "wait", "type": "wait_condition", "expression": compared.format("record")}
    make_workflow(alice, [wait, create("waited", "waited")], event, name="wait")
    alice.patch(f"records/bills/{bill['id']}", {"amount": "100.5", "title": "second"})
    work(app)
    assert sorted(titles(alice)) == ["first", "looped", "sum", "triggered", "waited", "walked"]


def test_workflow_loops_and_branches_nest(app: Flask, alice: Caller, posts: dict[str, Any]) -> None:
    inner = {
        "name": "inner",
        "type": "loop",
        "items": ["x", "y"],
        "steps": [create("c", "{{item}}")],
    }
    steps = [
        {
            "name": "outer",
            "type": "loop",
            "items": "{{ trigger.names }}",
            "steps": [create("a", "{{ item }}{{ index }}"), inner],
        },
        {
            "name": "both",
            "type": "parallel",
            "branches": [[create("left", "l"), create("more", "m")], [create("right", "r")]],
        },
        create("last", "{{ steps.outer.output.count }}{{ steps.c.output.title }}"),
    ]
    workflow = make_workflow(alice, steps)
    found = ran(app, alice, workflow, {"names": ["p", "q"]})
    assert found["status"] == "completed", found["error_message"]
    made = titles(alice)
    assert made[:6] == ["p0", "x", "y", "q1", "x", "y"]
    assert (sorted(made[6:9]), made[9]) == (["l", "m", "r"], "2y")
    assert len({log["place"] for log in found["step_logs"]}) == len(found["step_logs"]) == 14
    places = [log["place"].partition("#")[0] for log in found["step_logs"]]
    assert [one for one in places if one.endswith("/c")] == [
        f"outer[{outer}]/inner[{inner}]/c" for outer in (0, 1) for inner in (0, 1)
    ]
    assert places.count("outer[0]/inner") == places.count("outer[1]/inner") == 1
    failed = ran(app, alice, workflow, {"names": "none"})
    assert (failed["status"], failed["current_step"]) == ("failed", "outer")


@pytest.mark.both_databases
def test_instance_resume_repeats_failed_step_only(
    app: Flask, cast: Cast, posts: dict[str, Any]
) -> None:
    alice = cast.alice
    steps = [
        create("first", "one"),
        action("second", "create_record", collection="others", data={"title": "two"}),
        create("third", "three"),
    ]
    found = ran(app, alice, make_workflow(alice, steps))
    assert (found["status"], found["current_step"]) == ("failed", "second")
    assert "others" in found["error_message"] or "collection" in found["error_message"]
    make_collection(cast.root, "others", FIELDS)

    def resume(_: int) -> int:
        return alice.post(f"workflow-instances/{found['id']}/resume").status_code

    with ThreadPoolExecutor(10) as pool:
        assert sorted(pool.map(resume, range(10))) == [200] + [409] * 9
    work(app)
    again = instance(alice, found["id"])
    assert again["status"] == "completed"
    assert titles(alice) == ["one", "three"]
    tries = [(log["step_name"], log["attempt"], log["status"]) for log in again["step_logs"]]
    assert tries == [
        ("first", 1, "completed"),
        ("second", 1, "failed"),
        ("second", 2, "completed"),
        ("third", 1, "completed"),
    ]


def test_workflow_steps_have_current_rights_of_owner(
    app: Flask, cast: Cast, posts: dict[str, Any]
) -> None:
    workflow = make_workflow(cast.alice, [create("make", "x")])
    id = start(cast.alice, workflow)
    rules = {"create_rule": "@has_role(admin)"}
    assert cast.root.put("collections/posts/rules", rules).status_code == 200
    change_user(app, cast.alice.id, is_active=False)
    work(app)
    admin = cast.root.acting_in("acme")
    found = instance(admin, id)
    assert (found["status"], found["current_step"]) == ("failed", "make")
    assert "owner" in found["error_message"]
    saved = {"steps": [create("make", "y")]}
    assert admin.put(f"workflows/{workflow['id']}", saved).json["owner_id"] == cast.root.id
    # What has begun keeps its steps, and whose rights they have.
    assert admin.post(f"workflow-instances/{id}/resume").status_code == 200
    work(app)
    assert instance(admin, id)["status"] == "failed"
    id = start(admin, workflow)
    work(app)
    assert instance(admin, id)["status"] == "completed"


@pytest.mark.both_databases
def test_instance_cancel_ends_waiting_step(
    app: Flask, alice: Caller, posts: dict[str, Any]
) -> None:
    steps = [{"name": "rest", "type": "wait_delay", "duration": "1h"}, create("after")]
    found = ran(app, alice, make_workflow(alice, steps))
    assert (found["status"], found["current_step"]) == ("waiting", "rest")
    path = f"workflow-instances/{found['id']}"
    for what in ("cancel", "resume"):
        wrong = alice.post(f"{path}/{what}", {"x": 1})
        assert (wrong.status_code, wrong.json["detail"][0]["loc"]) == (422, ["body", "x"])
        assert alice.post(f"{path}/{what}", []).status_code == 422
    assert instance(alice, found["id"])["status"] == "waiting"
    gone = alice.post(f"{path}/cancel", {}).json
    assert (gone["status"], statuses(gone)) == ("cancelled", [("rest", "cancelled")])
    assert alice.post(f"{path}/cancel").status_code == 409
    assert alice.post(f"{path}/resume").json["error"] == "not_failed"
    let_pass(app, 7200)
    work(app)
    assert titles(alice) == []


def test_workflow_step_outputs_over_limit_fail(
    app: Flask, alice: Caller, posts: dict[str, Any]
) -> None:
    long = "x" * 100_000
    steps = [create(f"s{n}", "{{ trigger.text }}") for n in range(3)]
    found = ran(app, alice, make_workflow(alice, steps), {"text": long})
    assert (found["status"], found["current_step"]) == ("failed", "s1")
    assert "larger" in found["error_message"]
    assert len(titles(alice)) == 1


@pytest.mark.both_databases
def test_workflow_step_refused_by_database_fails(
    app: Flask, alice: Caller, posts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any) -> None:
        db.connection().execute(sa.text("INSERT INTO workflow_step_logs (id) VALUES ('x')"))

    monkeypatch.setattr(control_steps, "run_record_step", refuse)
    found = ran(app, alice, make_workflow(alice, [create("a")]))
    assert (found["status"], found["current_step"]) == ("failed", "a")
    assert "rejected" in found["error_message"]
    monkeypatch.setattr(control_steps, "run_record_step", lambda *given: 1 / 0)
    broken = ran(app, alice, make_workflow(alice, [create("a")]))
    assert (broken["status"], broken["error_message"]) == ("failed", "The service failed.")


@pytest.mark.both_databases
def test_workflow_step_error_names_conflicting_field(
    app: Flask, alice: Caller, root: Caller
) -> None:
    make_collection(root, schema=[{"name": "title", "type": "text", "unique": True}])
    make_record(alice, title="taken")
    found = ran(app, alice, make_workflow(alice, [create("a", "taken")]))
    assert (found["status"], found["current_step"]) == ("failed", "a")
    assert found["error_message"].startswith("Another record has this value already. title:")


def test_workflow_template_value_over_depth_limit_fails(
    app: Flask, alice: Caller, root: Caller
) -> None:
    make_collection(root, schema=[{"name": "data", "type": "json"}])
    deeper = {"data": {"a": "{{ steps.c.output.data }}"}}
    step = action("c", "create_record", collection="posts", data=deeper, next="c")
    id = start(alice, make_workflow(alice, [step]))
    work(app)
    for path in ("workflow-instances", f"workflow-instances/{id}"):
        answer = alice.get(path)
        assert answer.status_code == 200
        assert '"status":"failed"' in answer.text
        assert "nested deeper than 32" in answer.text
    [last] = json.loads(alice.get("records/posts?sort=-id&limit=1").text)["items"]
    again = alice.put(f"records/posts/{last['id']}", {"data": last["data"]})
    assert again.status_code == 200, again.text


@pytest.mark.both_databases
def test_workflow_save_by_other_admin_moves_failed_instances_to_them(
    app: Flask, cast: Cast, posts: dict[str, Any]
) -> None:
    workflow = make_workflow(cast.alice, [create("a")])
    id = start(cast.alice, workflow)
    other = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", "admin"))
    change_user(app, cast.alice.id, is_active=False)
    work(app)
    assert instance(other, id)["status"] == "failed"
    same = {name: workflow[name] for name in ("name", "trigger", "steps")}
    assert other.put(f"workflows/{workflow['id']}", same).json["owner_id"] == other.id
    assert other.post(f"workflow-instances/{id}/resume").status_code == 200
    work(app)
    assert instance(other, id)["status"] == "completed"
