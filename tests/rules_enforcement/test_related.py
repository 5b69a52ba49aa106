"""`@any` and `@count`: rules over the records of other collections."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock
from app.collections import definitions
from app.context import tenancy
from app.db import transaction
from app.ids import new_id
from tests.builders import OPEN, Caller, Cast, make_collection, make_record, make_user

NAME = {"name": "name", "type": "text"}
MEMBERS = [
    {"name": "project", "type": "text"},
    {"name": "user", "type": "text"},
    {"name": "level", "type": "select", "options": {"choices": ["owner", "editor", "reader"]}},
]
TASKS = [NAME, {"name": "project", "type": "text"}, {"name": "state", "type": "text"}]
MEMBER = "project = @record.project && user = @request.auth.id"
RULE = f'@any(members, {MEMBER} && level IN ["owner", "editor"])'


def make_projects(cast: Cast, rule: str = RULE, **rules: str | None) -> None:
    """Members of projects, whom nobody may list, and tasks for members."""
    make_collection(cast.root, "members", MEMBERS, **dict.fromkeys(OPEN))
    every = dict.fromkeys(OPEN, rule)
    make_collection(cast.root, "tasks", TASKS, **{**every, **rules})


def join(cast: Cast, user: Caller, project: str, level: str = "editor") -> dict[str, Any]:
    owner = cast.root.acting_in(user.slug)
    return make_record(owner, "members", project=project, user=user.id, level=level)


def names(caller: Caller, collection: str = "tasks", **query: Any) -> list[str]:
    answer = caller.get(f"records/{collection}", query_string={"sort": "name", **query})
    assert answer.status_code == 200, answer.json
    return [item["name"] for item in answer.json["items"]]


def test_membership_rule_opens_records_of_own_projects(cast: Cast) -> None:
    make_projects(cast)
    join(cast, cast.bob, "p1")
    join(cast, cast.bob, "p2", "reader")
    made = make_record(cast.bob, "tasks", name="one", project="p1")
    for project in ("p2", "p3", None):
        body = {"name": "no", "project": project}
        assert cast.bob.post("records/tasks", body).status_code == 403
        make_record(cast.root.acting_in("acme"), "tasks", **body)
    assert names(cast.bob) == ["one"]
    assert names(cast.alice) == []
    url = f"records/tasks/{made['id']}"
    assert cast.alice.get(url).status_code == 404
    assert cast.bob.patch(url, {"name": "two"}).json["name"] == "two"
    assert cast.bob.patch(url, {"project": "p2"}).status_code == 403
    assert cast.alice.patch(url, {"name": "x"}).status_code == 404
    assert cast.bob.delete(url).status_code == 204


def test_end_of_membership_acts_at_once(cast: Cast) -> None:
    make_projects(cast)
    member = join(cast, cast.bob, "p1")
    task = make_record(cast.bob, "tasks", name="one", project="p1")
    acme = cast.root.acting_in("acme")
    acme.patch(f"records/members/{member['id']}", {"level": "reader"})
    assert names(cast.bob) == []
    acme.patch(f"records/members/{member['id']}", {"level": "owner"})
    assert names(cast.bob) == ["one"]
    assert acme.delete(f"records/members/{member['id']}").status_code == 204
    assert names(cast.bob) == []
    assert cast.bob.get(f"records/tasks/{task['id']}").status_code == 404


@pytest.mark.parametrize(
    ("kind", "mine", "other"),
    [
        ("date", "2026-01-31", "2026-02-01"),
        ("datetime", "2026-01-31T12:00:00.5Z", "2026-01-31T12:00:00Z"),
        ("number", 1.5, 1),
        ("boolean", False, True),
    ],
)
def test_record_that_is_written_is_tied_by_values_of_any_type(
    cast: Cast, kind: str, mine: object, other: object
) -> None:
    code = {"name": "code", "type": kind}
    make_collection(cast.root, "members", [code], **dict.fromkeys(OPEN))
    rule = "@any(members, code = @record.code)"
    make_collection(cast.root, "tasks", [code], **dict.fromkeys(OPEN, rule))
    make_record(cast.root.acting_in("acme"), "members", code=mine)
    made = make_record(cast.bob, "tasks", code=mine)
    assert cast.bob.post("records/tasks", {"code": other}).status_code == 403
    assert cast.bob.patch(f"records/tasks/{made['id']}", {"code": other}).status_code == 403


def test_membership_of_another_account_opens_nothing(cast: Cast) -> None:
    make_projects(cast)
    globex = cast.root.acting_in("globex")
    for user in (cast.bob, cast.alice):
        make_record(globex, "members", project="p1", user=user.id, level="owner")
    make_record(cast.root.acting_in("acme"), "tasks", name="secret", project="p1")
    assert names(cast.bob) == []
    assert cast.bob.post("records/tasks", {"name": "x", "project": "p1"}).status_code == 403
    for rule in ("!" + RULE, f"@count(members, {MEMBER}) = 0"):
        cast.root.put("collections/tasks/rules", dict.fromkeys(OPEN, rule))
        assert names(cast.bob) == ["secret"]


def test_many_records_at_once_are_judged_each(cast: Cast) -> None:
    make_projects(cast)
    join(cast, cast.bob, "p1")
    join(cast, cast.bob, "p2")
    many = [{"name": f"{n:03}", "project": f"p{1 + n % 2}"} for n in range(120)]
    assert cast.bob.post("records/tasks/batch", {"records": many}).status_code == 201
    one_more = {"records": [*many, {"name": "x", "project": "p3"}]}
    refused = cast.bob.post("records/tasks/batch", one_more)
    assert refused.status_code == 403
    assert names(cast.bob, limit="1") == ["000"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("@any(members, user = @request.auth.id)", ["a", "b", "c"]),
        ("!@any(members, project = @record.project)", ["c"]),
        ("@count(members, project = @record.project) = 2", ["a"]),
        ("@count(members, project = @record.project) >= 1", ["a", "b"]),
        ("@count(members, true) = 3 && name = 'a'", ["a"]),
        ("@any(members, level = 'owner' && project = @record.project)", ["b"]),
        ("@any(members, @record.state = 'open')", ["a"]),
        ("@any(members, project = @record.project && @has_role(viewer))", ["a", "b"]),
        ("@any(members, project = @record.project && @has_role(admin))", []),
        ("@any(members, upper(project) = upper(@record.project))", ["a", "b"]),
        (
            (
                "@any(members, project = @record.project && @any(members, project = @outer.project"
                " && level = 'reader' && user != @outer.user))"
            ),
            ["a"],
        ),
        ("@any(tasks, name > @record.name && state = null)", ["a", "b"]),
        ("(@any(members, false) || name = 'b') && !(@any(members, false))", ["b"]),
        ("if(@any(members, project = @record.project), 1, 2) = 2", ["c"]),
    ],
)
def test_rule_over_other_records(cast: Cast, rule: str, expected: list[str]) -> None:
    make_projects(cast, view_rule=rule, list_rule=rule)
    join(cast, cast.bob, "p1")
    join(cast, cast.alice, "p1", "reader")
    join(cast, cast.bob, "p2", "owner")
    acme, ids = cast.root.acting_in("acme"), {}
    for name, project, state in (("a", "p1", "open"), ("b", "p2", None), ("c", None, None)):
        made = make_record(acme, "tasks", name=name, project=project, state=state)
        ids[name] = made["id"]
    assert names(cast.bob) == expected
    seen = [n for n, id in ids.items() if cast.bob.get(f"records/tasks/{id}").status_code == 200]
    assert seen == expected
    if "state" not in rule and "tasks" not in rule:
        cast.root.put("collections/tasks/rules", {"create_rule": rule, "view_rule": "true"})
        for name, project in (("a", "p1"), ("b", "p2"), ("c", None)):
            body = {"name": name, "project": project}
            may = cast.bob.post("records/tasks", body).status_code == 201
            assert may is (name in expected), name


@pytest.mark.parametrize(
    ("rule", "position", "message"),
    [
        ("@any(nothing, true)", 5, "There is no collection nothing."),
        ("@any(members, title = 1)", 14, "There is no field title."),
        ("@any(members, level > 1)", 22, "Expected a text, found a number."),
        ("@any(members)", 12, "Expected `,` and a condition, found `)`."),
        ("@any('members', true)", 5, "Expected the name of a collection, found `members`."),
        ("@any(members, project)", 14, "Expected a condition, found a text."),
        ("@count(members, true)", 0, "Expected a condition, found a number."),
        ("@record.name = 'x'", 0, "@record stands only in @any and @count. Elsewhere, the"),
        ("@any(members, @outer.level = 'x')", 14, "@outer stands only in an @any or @count"),
        ("@any(members, @has_role(@record.name))", 24, "Expected a name, bare or in quotes."),
        ("@any(members, @any(members, @any(members, true)))", 28, "@any and @count are nested"),
        (" || ".join(["@any(members, true)"] * 6), 115, "An expression has at most 5 times @any"),
    ],
)
def test_rule_that_looks_at_nothing(cast: Cast, rule: str, position: int, message: str) -> None:
    make_projects(cast)
    refused = cast.root.put("collections/tasks/rules", {"view_rule": rule})
    assert refused.status_code == 400
    [problem] = refused.json["details"]
    assert problem["code"] == "rule_invalid"
    assert problem["message"].startswith(message)
    assert problem["position"] == position


def test_filter_sees_only_what_its_caller_may_list(cast: Cast) -> None:
    make_projects(cast, "true")
    join(cast, cast.bob, "p1")
    join(cast, cast.alice, "p2", "owner")
    for n in (1, 2):
        make_record(cast.root.acting_in("acme"), "tasks", name=f"t{n}", project=f"p{n}")
    anyone = "@any(members, project = @record.project)"

    def refusal(caller: Caller, filter: str) -> str:
        answer = caller.get("records/tasks", query_string={"filter": filter})
        assert answer.status_code == 400, answer.json
        message: str = answer.json["details"][0]["message"]
        return message

    assert refusal(cast.bob, anyone) == "There is no collection members."
    assert refusal(cast.bob, "@any(unheard_of, true)") == "There is no collection unheard_of."
    cast.root.put("collections/members/rules", {"list_rule": "user = @request.auth.id"})
    assert names(cast.bob, filter=anyone) == ["t1"]
    assert names(cast.alice, filter=anyone) == ["t2"]
    assert names(cast.bob, filter=f"!{anyone}") == ["t2"]
    assert names(cast.bob, filter="@count(members, true) = 1") == ["t1", "t2"]
    nested = "@any(tasks, name = @record.name && @any(members, project = @outer.project))"
    assert names(cast.bob, filter=nested) == ["t1"]
    cast.root.put("collections/members/rules", {"list_fields": ["project"]})
    assert refusal(cast.bob, "@any(members, level = 'owner')") == "There is no field level."
    assert names(cast.root.acting_in("acme"), filter=anyone) == ["t1", "t2"]
    assert (
        cast.bob.get("records/tasks", query_string={"filter": f"{anyone} && @record.name = 'x'"})
        .json["details"][0]["message"]
        .startswith("@record stands only")
    )


def test_filter_uses_rule_of_members_that_looks_further(cast: Cast) -> None:
    make_projects(cast, "true")
    rule = "@any(members, project = @record.project && user = @request.auth.id)"
    cast.root.put("collections/members/rules", {"list_rule": rule})
    join(cast, cast.bob, "p1")
    join(cast, cast.alice, "p1", "owner")
    join(cast, cast.alice, "p2", "owner")
    for n in (1, 2):
        make_record(cast.root.acting_in("acme"), "tasks", name=f"t{n}", project=f"p{n}")
    owned = "@any(members, project = @record.project && level = 'owner')"
    assert names(cast.bob, filter=owned) == ["t1"]
    assert names(cast.alice, filter=owned) == ["t1", "t2"]
    deep = f"((({owned} || name = 'x') && name ~ 't%') || name = 'y') && !(name = 'z')"
    assert names(cast.bob, filter=deep) == ["t1"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "webhooks", {"filter": "@any(members, true)"}),
        ("POST", "collections", {"expression": "@any(members, true)"}),
        ("POST", "workflows", {"condition": "@any(members, true)"}),
    ],
)
def test_places_without_any(cast: Cast, method: str, path: str, body: dict[str, Any]) -> None:
    make_projects(cast)
    if path == "webhooks":
        body |= {"url": "https://hooks.example/x", "collection": "tasks", "events": ["create"]}
    elif path == "collections":
        field = {"name": "c", "type": "computed", "return_type": "boolean", **body}
        body = {"name": "other", "schema": [field]}
    else:
        step = {"type": "condition", "name": "c", "expression": body["condition"], "then": []}
        body = {"name": "w", "trigger": {"type": "manual"}, "steps": [step]}
    refused = cast.root.acting_in("acme")(method, path, body)
    assert refused.status_code == 400, refused.json
    assert "@any cannot be used here" in str(refused.json), refused.json


EVENT = {"type": "event", "event": "records.update", "collection": "tasks"}
MANUAL = {"type": "manual"}


@pytest.mark.parametrize("condition", ["@any(members, true)", "@count(members, true) > 0"])
@pytest.mark.parametrize(
    ("trigger", "step"),
    [
        ({**EVENT, "condition": ...}, {"type": "wait_delay", "duration": "1s"}),
        (MANUAL, {"type": "condition", "expression": ...}),
        (MANUAL, {"type": "wait_condition", "expression": ...}),
        (MANUAL, {**EVENT, "type": "wait_event", "condition": ...}),
    ],
    ids=["trigger", "condition", "wait_condition", "wait_event"],
)
def test_conditions_of_workflows_look_at_no_other_records(
    cast: Cast, trigger: dict[str, Any], step: dict[str, Any], condition: str
) -> None:
    make_projects(cast)
    trigger, step = (
        {name: condition if value is ... else value for name, value in one.items()}
        for one in (trigger, {"name": "c", **step})
    )
    body = {"name": "w", "trigger": trigger, "steps": [step]}
    refused = cast.root.acting_in("acme").post("workflows", body)
    assert refused.status_code == 400, refused.json
    function = condition.partition("(")[0]
    told = [one["message"] for one in refused.json["details"]]
    assert told == [f"{function} cannot be used here."]


def test_streams_and_feed_judge_by_other_records(cast: Cast) -> None:
    make_projects(cast)
    join(cast, cast.bob, "p1")
    for n in (1, 2):
        make_record(cast.root.acting_in("acme"), "tasks", name=f"t{n}", project=f"p{n}")
    feed = cast.bob.get("changes", query_string={"collections": "tasks"})
    assert feed.status_code == 200, feed.json
    assert [one["record"]["name"] for one in feed.json["items"]] == ["t1"]


def test_explain_tells_how_far_conditions_get(cast: Cast) -> None:
    make_projects(cast)
    join(cast, cast.bob, "p1", "reader")
    join(cast, cast.alice, "p1", "owner")
    task = make_record(cast.root.acting_in("acme"), "tasks", name="t", project="p1")
    question = {"operation": "view", "record_id": task["id"]}
    told = cast.root.post(
        "collections/tasks/rules/explain", {**question, "user_id": cast.bob.id}
    ).json
    assert told["allowed"] is False
    [found] = told["clause"]["subqueries"]
    assert found["text"] == RULE
    steps = [(one["text"], one["records"]) for one in found["conditions"]]
    assert steps == [
        ("project = @record.project", 2),
        ("user = @request.auth.id", 1),
        ('level IN ["owner", "editor"]', 0),
    ]
    assert "FROM col_members" in told["sql"]
    told = cast.root.post(
        "collections/tasks/rules/explain", {**question, "user_id": cast.alice.id}
    ).json
    assert told["allowed"] is True
    told = cast.root.post(
        "collections/tasks/rules/explain", {"operation": "view", "user_id": cast.bob.id}
    ).json
    assert told["allowed"] is None
    new = {"operation": "create", "user_id": cast.alice.id, "data": {"project": "p1"}}
    assert cast.root.post("collections/tasks/rules/explain", new).json["allowed"] is True


def test_diff_counts_by_other_records(cast: Cast) -> None:
    make_projects(cast, "false")
    join(cast, cast.bob, "p1")
    for n in (1, 2):
        make_record(cast.root.acting_in("acme"), "tasks", name=f"t{n}", project=f"p{n}")
    rules = {"list_rule": f"{RULE} && @has_role(viewer)"}
    answer = cast.root.post("collections/tasks/rules/diff", {"rules": rules})
    assert answer.status_code == 200, answer.json
    gained = {
        (one["role"], one["operation"]): one["gained"]["count"]
        for one in answer.json["items"]
        if one["gained"]["count"]
    }
    assert gained == {("viewer", "list"): 1}
    grouped = {"list_rule": f"@any(members, {MEMBER} && @has_group(staff))"}
    answer = cast.root.post("collections/tasks/rules/diff", {"rules": grouped})
    assert answer.status_code == 200, answer.json


def test_rule_is_tried_with_made_up_records(cast: Cast) -> None:
    trial = {
        "rule": RULE,
        "record": {"project": "p1"},
        "auth": {"id": "u1"},
        "records": {"Members": [{"project": "p1", "user": "u1", "level": "owner"}]},
    }
    assert cast.root.post("rules/test", trial).json["result"] is True
    assert cast.root.post("rules/test", {**trial, "auth": {"id": "u2"}}).json["result"] is False
    assert cast.root.post("rules/test", {**trial, "records": {}}).json["result"] is False
    make_projects(cast)
    checked = cast.root.post("rules/validate", {"rule": RULE, "collection": "tasks"})
    assert checked.json["valid"], checked.json


def test_names_in_rules_follow_renames(cast: Cast) -> None:
    make_projects(cast)
    join(cast, cast.bob, "p1")
    make_record(cast.bob, "tasks", name="one", project="p1")
    members, tasks = (cast.root.get(f"collections/{name}").json for name in ("members", "tasks"))
    answer = cast.root.patch(f"collections/{members['id']}", {"name": "people"})
    assert answer.status_code == 200, answer.json
    schema = [{**MEMBERS[0], "name": "place", "rename_from": "project"}, *MEMBERS[1:]]
    answer = cast.root.put(f"collections/{members['id']}", {"schema": schema})
    assert answer.status_code == 200, answer.json
    schema = [NAME, {"name": "belongs_to", "type": "text", "rename_from": "project"}, TASKS[2]]
    answer = cast.root.put(f"collections/{tasks['id']}", {"schema": schema})
    assert answer.status_code == 200, answer.json
    rule = cast.root.get("collections/tasks/rules").json["list_rule"]
    assert rule == (
        "@any(people, place = @record.belongs_to && user = @request.auth.id"
        ' && level IN ["owner", "editor"])'
    )
    assert names(cast.bob) == ["one"]


def test_what_a_rule_looks_at_is_not_removed(cast: Cast) -> None:
    make_projects(cast)
    members = cast.root.get("collections/members").json
    refused = cast.root.delete(f"collections/{members['id']}")
    assert refused.status_code == 409
    places = sorted(one["field"] for one in refused.json["details"])
    assert places == sorted(f"tasks.{rule}" for rule in OPEN)
    url = f"collections/{members['id']}"
    hash_ = cast.root.post(f"{url}/plan", {"remove_fields": ["user"]}).json
    assert "tasks.list_rule" in str(hash_), hash_
    choices = {**MEMBERS[2], "options": {"choices": ["owner", "reader"]}}
    refused = cast.root.put(url, {"schema": [*MEMBERS[:2], choices]})
    assert refused.status_code == 409
    assert "tasks.list_rule" in str(refused.json)
    wrong = {"list_rule": RULE.replace("editor", "edtor")}
    refused = cast.root.put("collections/tasks/rules", wrong)
    assert [one["code"] for one in refused.json["details"]] == ["unknown_choice"]


def test_rule_over_references_of_other_records(cast: Cast, app: Flask) -> None:
    make_collection(cast.root, "companies", [NAME])
    company = {"name": "company", "type": "reference", "collection": "companies"}
    make_collection(cast.root, "people", [{"name": "user", "type": "text"}, company])
    rule = "@any(people, user = @request.auth.id && company.name = @record.company.name)"
    make_collection(cast.root, "orders", [NAME, company], **dict.fromkeys(OPEN, rule))
    acme = cast.root.acting_in("acme")
    ids = [make_record(acme, "companies", name=name)["id"] for name in ("x", "y")]
    make_record(acme, "people", user=cast.bob.id, company=ids[0])
    for n, id in enumerate(ids):
        make_record(acme, "orders", name=f"o{n}", company=id)
    assert names(cast.bob, "orders") == ["o0"]
    assert cast.bob.post("records/orders", {"name": "n", "company": ids[0]}).status_code == 201
    assert cast.bob.post("records/orders", {"name": "n", "company": ids[1]}).status_code == 403
    vera = Caller(app, make_user(app, cast.bob.account_id, "vera@acme.example"))
    assert names(vera, "orders") == []


@pytest.mark.parametrize(
    ("condition", "indexed", "missing"),
    [
        ("project = @record.project && user = @request.auth.id", (), "project or user"),
        ("project = @record.project && user = @request.auth.id", ("user",), None),
        ("@record.project = project || user = 'x'", ("project", "user"), ""),
        ("level = 'owner'", ("project",), "level"),
        ("user != @request.auth.id", ("user",), ""),
        ("id = @record.project", (), None),
    ],
)
def test_subquery_that_no_index_narrows_is_warned_of(
    cast: Cast, condition: str, indexed: tuple[str, ...], missing: str | None
) -> None:
    fields = [
        one | ({"options": {"index": True}} if one["name"] in indexed else {}) for one in MEMBERS
    ]
    make_collection(cast.root, "members", fields)
    make_collection(cast.root, "tasks", TASKS)
    rule = f"state = 'x' && @any(members, {condition})"
    body = {"rule": rule, "collection": "tasks", "operation": "view"}
    warned = cast.root.post("rules/validate", body).json["warnings"]
    manifest = {"version": 1, "collections": [{"name": "tasks", "rules": {"view_rule": rule}}]}
    planned = cast.root.post("manifest/plan", {"manifest": manifest}).json["warnings"]
    assert [one | {"field": "rule"} for one in planned] == warned
    assert [one["field"] for one in planned] == ["tasks.view_rule"] * len(warned)
    if missing is None:
        assert warned == []
    else:
        (one,) = warned
        assert (one["code"], one["position"]) == ("no_index", rule.index("@any"))
        ending = f"index {missing} there." if missing else "compare an indexed field of it by =."
        assert one["message"].endswith(ending)


def test_manifest_warns_of_what_a_caller_may_write_and_is_compared_with(cast: Cast) -> None:
    make_collection(cast.root, "tasks", TASKS)
    rules = {"update_rule": "state = @request.auth.id", "view_rule": "state = @request.auth.id"}
    manifest = {"version": 1, "collections": [{"name": "tasks", "rules": rules}]}
    warned = cast.root.post("manifest/plan", {"manifest": manifest}).json["warnings"]
    assert [(one["field"], one["code"]) for one in warned] == [
        ("tasks.update_rule", "unguarded_field")
    ]


@pytest.mark.long
@pytest.mark.both_databases
def test_project_with_ten_thousand_members_works(app: Flask, cast: Cast) -> None:
    make_projects(cast)
    own = join(cast, cast.bob, "p1")
    with app.app_context(), tenancy.across_accounts(), transaction() as session:
        table = definitions.get("members").table
        fixed = {"account_id": cast.bob.account_id, "project": "p1", "level": "editor"}
        fixed |= {"created_at": clock.now(), "updated_at": clock.now()}
        others = [{**fixed, "id": new_id(), "user": new_id()} for _ in range(10_000)]
        session.execute(sa.insert(table), others)
    many = [{"name": f"{n:02}", "project": f"p{1 + n % 2}"} for n in range(60)]
    root = cast.root.acting_in("acme")
    assert root.post("records/tasks/batch", {"records": many}).status_code == 201
    expected = [one["name"] for one in many if one["project"] == "p1"]
    assert names(cast.bob) == expected
    assert cast.bob.get("records/tasks").json["total"] == 30
    made = make_record(cast.bob, "tasks", name="new", project="p1")
    url = f"records/tasks/{made['id']}"
    assert cast.bob.patch(url, {"name": "newer"}).status_code == 200
    question = {"operation": "view", "record_id": made["id"], "user_id": cast.alice.id}
    told = cast.root.post("collections/tasks/rules/explain", question).json
    [found] = told["clause"]["subqueries"]
    assert [one["records"] for one in found["conditions"]] == [10_001, 0, 0]
    assert root.delete(f"records/members/{own['id']}").status_code == 204
    assert names(cast.bob) == []
    assert cast.bob.get(url).status_code == 404
