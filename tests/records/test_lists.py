"""References and users with `multiple: true`: lists of ids."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app.accounts.models import EDITOR
from app.collections.models import RecordLink
from app.db import db
from tests.builders import Caller, change_user, make_collection, make_record, make_user

TITLE = {"name": "title", "type": "text"}
UNKNOWN = "01a22a0b-494e-7161-a88a-7806b170e983"


def many(name: str, to: str | None = None, **more: Any) -> dict[str, Any]:
    """A list of users, or of records of a collection."""
    kind = {"type": "reference", "collection": to} if to else {"type": "user"}
    return {"name": name, "multiple": True, **kind, **more}


@pytest.fixture
def dora(app: Flask, alice: Caller) -> Caller:
    """An editor of acme, whom tests delete."""
    return Caller(app, make_user(app, alice.account_id, "dora@acme.example", EDITOR))


@pytest.fixture
def projects(root: Caller) -> None:
    make_collection(root, "tags", [TITLE])
    make_collection(root, "projects", [TITLE, many("members"), many("tags", "tags")])


def problems(answer: Any) -> list[tuple[str | None, str]]:
    assert answer.status_code == 400, answer.json
    return [(one["field"], one["code"]) for one in answer.json["details"]]


def links(app: Flask) -> set[tuple[str, str, str]]:
    """The entries of lists as the database has them, beside the lists."""
    with app.app_context():
        columns = (RecordLink.record_id, RecordLink.field, RecordLink.target_id)
        return {tuple(row) for row in db.session.execute(sa.select(*columns))}


def test_list_keeps_order_and_its_entries(
    app: Flask, projects: None, alice: Caller, bob: Caller
) -> None:
    tags = [make_record(alice, "tags", title=title)["id"] for title in "abc"]
    made = make_record(alice, "projects", members=[bob.id.upper(), alice.id], tags=tags[::-1])
    assert (made["members"], made["tags"]) == ([bob.id, alice.id], tags[::-1])
    id = made["id"]
    assert links(app) == {(id, "members", one) for one in (bob.id, alice.id)} | {
        (id, "tags", one) for one in tags
    }
    assert alice.get(f"records/projects/{id}").json["tags"] == tags[::-1]
    changed = alice.patch(f"records/projects/{id}", {"tags": [tags[1], tags[2]], "members": []})
    assert (changed.json["tags"], changed.json["members"]) == ([tags[1], tags[2]], [])
    assert links(app) == {(id, "tags", tags[1]), (id, "tags", tags[2])}
    assert alice.patch(f"records/projects/{id}", {"tags": None}).json["tags"] is None
    batch = {"records": [{"members": [alice.id]}, {"members": [bob.id]}, {}]}
    created = alice.post("records/projects/batch", batch).json["created"]
    assert links(app) == {
        (created[0]["id"], "members", alice.id),
        (created[1]["id"], "members", bob.id),
    }
    change = [{"id": one["id"], "data": {"members": [alice.id, bob.id]}} for one in created]
    alice.patch("records/projects/batch", {"records": change})
    assert len(links(app)) == 6
    alice.delete("records/projects/batch", json={"ids": [one["id"] for one in created[:2]]})
    assert {id for id, _, _ in links(app)} == {created[2]["id"]}


def test_list_problems(
    projects: None, root: Caller, alice: Caller, bob: Caller, charlie: Caller
) -> None:
    theirs = make_record(charlie, "tags")["id"]
    for body, code in (
        ({"members": bob.id}, "invalid_type"),
        ({"members": {"id": bob.id}}, "invalid_type"),
        ({"members": [7]}, "invalid_type"),
        ({"members": [bob.id, bob.id.upper()]}, "duplicate_item"),
        ({"members": [bob.id] * 101}, "too_many_items"),
        ({"members": [bob.id, charlie.id]}, "invalid_reference"),
        ({"members": [bob.id, root.id]}, "invalid_reference"),
        ({"members": [UNKNOWN]}, "invalid_reference"),
        ({"tags": [theirs]}, "invalid_reference"),
        ({"tags": [bob.id]}, "invalid_reference"),
    ):
        assert problems(alice.post("records/projects", body)) == [(next(iter(body)), code)], body
    for sort in ("members", "-tags"):
        assert problems(alice.get(f"records/projects?sort={sort}")) == [("sort", "invalid_option")]
    needed = many("owners", required=True, on_delete="restrict", options={"max_items": 2})
    make_collection(root, "teams", [needed])
    assert problems(alice.post("records/teams", {"owners": []})) == [("owners", "required_missing")]
    assert problems(alice.post("records/teams", {})) == [("owners", "required_missing")]
    three = [UNKNOWN, alice.id, bob.id]
    assert problems(alice.post("records/teams", {"owners": three})) == [
        ("owners", "too_many_items")
    ]


@pytest.mark.parametrize(
    ("field", "code"),
    [
        (many("a", options={"max_items": 0}), "invalid_option"),
        (many("a", options={"max_items": 1001}), "invalid_option"),
        (many("a", options={"max_items": "5"}), "invalid_option"),
        (many("a", options={"index": True}), "invalid_option"),
        (many("a", unique=True), "invalid_option"),
        (many("a", default=[]), "invalid_reference"),
        (many("a", required=True), "on_delete_invalid"),
        ({"name": "a", "type": "text", "multiple": True}, "invalid_option"),
        ({"name": "a", "type": "user", "options": {"max_items": 5}}, "invalid_option"),
    ],
)
def test_list_definition_problems(root: Caller, field: dict[str, Any], code: str) -> None:
    assert problems(root.post("collections", {"name": "tasks", "schema": [field]})) == [("a", code)]


def test_list_cannot_become_single_nor_single_a_list(root: Caller) -> None:
    single = {"name": "owner", "type": "user"}
    made = make_collection(root, "tasks", [single, many("members")])
    assert [one.get("multiple", False) for one in made["schema"]] == [False, True]
    path = f"collections/{made['id']}"
    for wrong in (single | {"multiple": True}, many("members") | {"multiple": False}):
        refused = root.patch(path, {"schema": [wrong]})
        assert problems(refused) == [(wrong["name"], "type_change_not_allowed")]
    larger = many("members", options={"max_items": 200}, on_delete="cascade")
    assert root.patch(path, {"schema": [larger]}).status_code == 200


def test_list_entries_follow_renamed_and_removed_fields(
    app: Flask, root: Caller, alice: Caller, bob: Caller
) -> None:
    made = make_collection(root, "tasks", [TITLE, many("members"), many("readers")])
    record = make_record(alice, "tasks", members=[bob.id], readers=[alice.id])["id"]
    path = f"collections/{made['id']}"
    specs = [{"name": "people", "rename_from": "members"}]
    answer = root.patch(path, {"schema": specs, "name": "jobs"})
    assert answer.status_code == 200, answer.json
    assert links(app) == {(record, "people", bob.id), (record, "readers", alice.id)}
    assert alice.patch(f"records/jobs/{record}", {"people": [alice.id]}).status_code == 200
    plan = root.post(f"{path}/plan", {"remove_fields": ["readers"]}).json
    body = {"remove_fields": ["readers"], "plan_hash": plan["plan_hash"]}
    assert root.patch(path, body).status_code == 200
    assert links(app) == {(record, "people", alice.id)}
    assert root.delete(path).status_code == 200
    assert links(app) == set()


def test_deleted_targets_leave_lists(
    app: Flask, root: Caller, alice: Caller, bob: Caller, dora: Caller
) -> None:
    make_collection(root, "tags", [TITLE])
    fields = [
        TITLE,
        many("members"),
        many("owners", on_delete="cascade"),
        many("tags", "tags", on_delete="set_null"),
        many("labels", "tags", on_delete="cascade"),
        many("marks", "tags"),
    ]
    make_collection(root, "tasks", fields)
    one, two, kept = (make_record(alice, "tags", title=title)["id"] for title in "abc")
    loose = make_record(alice, "tasks", members=[bob.id, dora.id, alice.id], tags=[one, two])
    alone = make_record(alice, "tasks", members=[dora.id], tags=[one], marks=[kept])
    hers = make_record(alice, "tasks", owners=[bob.id, dora.id])
    labelled = make_record(alice, "tasks", labels=[two, one], members=[dora.id])
    refused = alice.delete(f"records/tags/{kept}")
    assert refused.status_code == 409
    assert alice.delete(f"records/tags/{one}").status_code == 204
    left = {one["id"]: one for one in alice.get("records/tasks").json["items"]}
    assert left.keys() == {loose["id"], alone["id"], hers["id"]}
    assert (left[loose["id"]]["tags"], left[alone["id"]]["tags"]) == ([two], [])
    assert alice.delete(f"account/users/{dora.id}").status_code == 204
    left = {one["id"]: one for one in alice.get("records/tasks").json["items"]}
    assert left.keys() == {loose["id"], alone["id"]}
    assert left[loose["id"]]["members"] == [bob.id, alice.id]
    assert left[alone["id"]]["members"] == []
    assert links(app) == {
        (loose["id"], "members", bob.id),
        (loose["id"], "members", alice.id),
        (loose["id"], "tags", two),
        (alone["id"], "marks", kept),
    }
    assert labelled["id"] not in {id for id, _, _ in links(app)}
    history = alice.get(f"records/tasks/{loose['id']}/history").json["items"]
    change = history[0]["changes"][0]
    assert (change["old_value"], change["new_value"]) == (
        [bob.id, dora.id, alice.id],
        [bob.id, alice.id],
    )
    first = alice.post(
        f"records/tasks/{loose['id']}/restore", {"audit_id": history[-1]["audit_id"]}
    )
    assert {name for name, _ in problems(first)} == {"members", "tags"}


def test_restricting_list_keeps_user(root: Caller, alice: Caller, dora: Caller) -> None:
    make_collection(root, "tasks", [many("owners", required=True, on_delete="restrict")])
    made = make_record(alice, "tasks", owners=[alice.id, dora.id])
    refused = alice.delete(f"account/users/{dora.id}")
    assert refused.status_code == 409
    assert [one["field"] for one in refused.json["details"]] == ["tasks.owners"]
    alice.patch(f"records/tasks/{made['id']}", {"owners": [alice.id]})
    assert alice.delete(f"account/users/{dora.id}").status_code == 204


def test_expand_of_lists_is_lists_in_order(
    app: Flask, projects: None, root: Caller, alice: Caller, bob: Caller, dora: Caller
) -> None:
    change_user(app, bob.id, name="Bob")
    a, b = (make_record(alice, "tags", title=title) for title in "ab")
    made = make_record(
        alice, "projects", members=[bob.id, alice.id], tags=[b["id"], a["id"]], title="x"
    )
    make_record(alice, "projects", members=[])
    make_record(alice, "projects")
    *_, empty, one = bob.get("records/projects?expand=members,tags&sort=-created_at").json["items"]
    people = [{"id": bob.id, "name": "Bob"}, {"id": alice.id, "name": None}]
    assert one == made | {"expand": {"members": people, "tags": [b, a]}}
    assert empty["expand"] == {"members": []}
    root.put("collections/tags/rules", {"view_rule": "title = 'a'"})
    hidden = bob.get(f"records/projects/{made['id']}?expand=tags").json
    assert (hidden["tags"], hidden["expand"]) == (made["tags"], {"tags": [a]})


def test_import_and_export_of_lists(
    app: Flask, projects: None, alice: Caller, bob: Caller, charlie: Caller
) -> None:
    tag = make_record(alice, "tags")["id"]
    rows = [{"title": "a", "members": ["BOB@acme.example", alice.id], "tags": [tag]}]
    assert alice.post("records/projects/import", rows).json["imported"] == 1
    (made,) = alice.get("records/projects").json["items"]
    assert (made["members"], made["tags"]) == ([bob.id, alice.id], [tag])
    sheet = alice.get("records/projects/export?format=csv").text
    again = alice("POST", "records/projects/import", data=sheet, content_type="text/csv")
    assert again.json["imported"] == 1, again.json
    both = alice.get("records/projects").json["items"]
    assert [one["members"] for one in both] == [[bob.id, alice.id]] * 2
    assert len(links(app)) == 6
    for person in (charlie.email, "nobody@acme.example"):
        refused = alice.post("records/projects/import", [{"members": [bob.email, person]}])
        assert problems(refused) == [("members", "invalid_reference")]


@pytest.fixture
def team(
    app: Flask, root: Caller, alice: Caller, bob: Caller, dora: Caller, charlie: Caller
) -> dict[str, str]:
    """Projects with members and tags; returns the titles by id."""
    for person, name in ((alice, "Ann"), (bob, "Bob"), (dora, "Dan"), (charlie, "Ann")):
        change_user(app, person.id, name=name)
    change_user(app, dora.id, is_active=False)
    make_collection(root, "areas", [TITLE])
    area = {"name": "area", "type": "reference", "collection": "areas"}
    loud = {"name": "loud", "type": "computed", "expression": "upper(title)"}
    make_collection(root, "tags", [TITLE, area, loud | {"return_type": "text"}])
    project = {"name": "project", "type": "reference", "collection": "projects"}
    make_collection(root, "projects", [TITLE, many("members"), many("tags", "tags")])
    make_collection(root, "tasks", [TITLE, project])
    areas = [make_record(alice, "areas", title=title)["id"] for title in ("north", "south")]
    tags = [
        make_record(alice, "tags", title=title, area=areas[n % 2])["id"]
        for n, title in enumerate(("new", "hot", "old"))
    ]
    made = {}
    for title, members, marks in (
        ("both", [alice.id, bob.id], tags[:2]),
        ("ann", [alice.id], tags[2:]),
        ("dan", [dora.id], []),
        ("none", [], tags),
        ("null", None, None),
    ):
        id = make_record(alice, "projects", title=title, members=members, tags=marks)["id"]
        make_record(alice, "tasks", title=title, project=id)
        made[title] = id
    make_record(charlie, "projects", title="theirs", members=[charlie.id])
    return made


VERDICTS = [
    ("@contains(members, @request.auth.id)", "both"),
    ("members = @request.auth.id", "both"),
    ("@request.auth.id = members", "both"),
    ("members != @request.auth.id", "both ann dan"),
    ("!(members = @request.auth.id)", "ann dan none null"),
    ("!@contains(members, @request.auth.id)", "ann dan none null"),
    ("members IN [@request.auth.id, 'x']", "both"),
    ("members NOT IN [@request.auth.id]", "both ann dan"),
    ("members = null", "null"),
    ("members IS NOT NULL", "both ann dan none"),
    ("members.name = 'Ann'", "both ann"),
    ('members.name != "Ann"', "both dan"),
    ('!(members.name = "Ann")', "dan none null"),
    ("!(members.name != 'Ann')", "ann none null"),
    ("members.name ~ 'b%' || members.name IN ['Dan']", "both dan"),
    ("members.name > 'Ann'", "both dan"),
    ("length(members.name) = 3 && title != 'ann'", "both dan"),
    ("members.role = @request.auth.role", "both"),
    ("members.email = @request.auth.email", "both"),
    ("members.is_active", "both ann"),
    ("!members.is_active", "dan none null"),
    ("members.is_active = false", "dan"),
    ("members.name = members.name", "both ann dan"),
    ("if(members.is_active, title, 'x') = 'both'", "both"),
    ("tags.title = 'hot'", "both none"),
    ("tags.loud = 'OLD'", "ann none"),
    ("tags.area.title = 'south'", "both none"),
    ("tags.area.title != 'north'", "both none"),
    ("tags.title = 'new' && members.name = 'Bob'", "both"),
    ("members.name = tags.title || tags.title < members.name", ""),
    ("tags.title > members.name && tags.area = null", ""),
    ("members.name = null", ""),
    ("@request.data.title = 'x' && members.id = 'y'", ""),
]


@pytest.mark.parametrize(("rule", "expected"), VERDICTS)
def test_names_through_lists_mean_any_alike_in_sql_and_python(
    team: dict[str, str], root: Caller, bob: Caller, rule: str, expected: str
) -> None:
    rules = dict.fromkeys(("list_rule", "view_rule", "update_rule"), rule)
    changed = root.put("collections/projects/rules", rules)
    assert changed.status_code == 200, changed.json
    seen = set(expected.split())
    assert {one["title"] for one in bob.get("records/projects").json["items"]} == seen
    for title, id in team.items():
        assert bob.get(f"records/projects/{id}").status_code == (200 if title in seen else 404)
        updated = bob.patch(f"records/projects/{id}", {"title": title})
        assert updated.status_code == (200 if title in seen else 404), (title, updated.json)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [(rule, expected) for rule, expected in VERDICTS if "tags" not in rule and "if(" not in rule],
)
def test_names_through_reference_and_list_mean_any(
    team: dict[str, str], root: Caller, bob: Caller, rule: str, expected: str
) -> None:
    rule = rule.replace("members", "project.members").replace("title", "project.title")
    if "@request.data" in rule:
        return
    rules = dict.fromkeys(("list_rule", "update_rule"), rule)
    changed = root.put("collections/tasks/rules", rules)
    assert changed.status_code == 200, changed.json
    listed = {one["title"]: one["id"] for one in bob.get("records/tasks").json["items"]}
    assert listed.keys() == set(expected.split())
    for one in root.acting_in("acme").get("records/tasks").json["items"]:
        updated = bob.patch(f"records/tasks/{one['id']}", {"title": one["title"]})
        assert updated.status_code == (200 if one["title"] in listed else 403)


def test_create_rule_judges_lists_that_are_not_stored(
    projects: None, root: Caller, alice: Caller, bob: Caller
) -> None:
    rule = "@contains(members, @request.auth.id) && !(members.role = 'admin')"
    root.put("collections/projects/rules", {"create_rule": rule})
    assert bob.post("records/projects", {"members": [bob.id]}).status_code == 201
    for members in ([], None, [alice.id], [bob.id, alice.id]):
        assert bob.post("records/projects", {"members": members}).status_code == 403


def test_filters_through_lists_see_what_callers_see(
    team: dict[str, str], root: Caller, bob: Caller
) -> None:
    def found(text: str) -> set[str]:
        answer = bob.get("records/projects", query_string={"filter": text})
        assert answer.status_code == 200, answer.json
        return {one["title"] for one in answer.json["items"]}

    assert found("members.name = 'Ann'") == {"both", "ann"}
    assert found(f"members = '{bob.id.upper()}'") == {"both"}
    assert found(f"@contains(members, '{bob.id}') && tags.title = 'hot'") == {"both"}
    refused = bob.get("records/projects", query_string={"filter": "members.email = 'x'"})
    assert problems(refused) == [("filter", "filter_invalid")]
    assert found("tags.title = 'hot'") == {"both", "none"}
    root.put("collections/tags/rules", {"view_rule": "title != 'hot'"})
    assert found("tags.title = 'hot'") == set()
    assert found("tags.title != 'x'") == {"both", "ann", "none"}


@pytest.mark.parametrize(
    "rule",
    ["members > 'x' + 1", "members.name", "concat(members.name, 'x')", "tags.projects.title = 'x'"],
)
def test_names_through_lists_out_of_place_are_400(root: Caller, projects: None, rule: str) -> None:
    root.patch("collections/tags", {"schema": [many("projects", "projects")]})
    assert root.put("collections/projects/rules", {"view_rule": rule}).status_code == 400
