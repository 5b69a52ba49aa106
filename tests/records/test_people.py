"""Fields of type `user`: the people of an account in its records."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from app import events
from app.accounts.models import EDITOR, User
from app.db import db
from app.events import RecordChanged
from app.records import leaving
from app.records.history import erasure
from app.records.write import changes as write_changes
from tests.builders import OPEN, Caller, change_user, make_collection, make_record, make_user
from tests.mailbox import run_jobs

TITLE = {"name": "title", "type": "text"}


def user(name: str, on_delete: str | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "user", "on_delete": on_delete, **more}


@pytest.fixture
def dora(app: Flask, alice: Caller) -> Caller:
    """An editor of acme, whom tests delete."""
    return Caller(app, make_user(app, alice.account_id, "dora@acme.example", EDITOR))


@pytest.fixture
def changes() -> Iterator[list[RecordChanged]]:
    """The changes of records that are announced meanwhile."""
    heard: list[RecordChanged] = []
    listeners = events._subscribers.setdefault(RecordChanged, [])
    listeners.append(heard.append)
    yield heard
    listeners.remove(heard.append)


@pytest.fixture
def tasks(root: Caller) -> None:
    make_collection(root, "tasks", [TITLE, user("assignee")])


def problems(answer: Any) -> list[tuple[str | None, str]]:
    assert answer.status_code == 400, answer.json
    return [(one["field"], one["code"]) for one in answer.json["details"]]


def test_user_field_takes_user_of_account_and_nobody_else(
    tasks: None, alice: Caller, bob: Caller, charlie: Caller, root: Caller
) -> None:
    made = make_record(alice, "tasks", assignee=bob.id.upper())
    assert made["assignee"] == bob.id
    for id in (charlie.id, root.id, alice.account_id, "nobody", ""):
        refused = alice.post("records/tasks", {"assignee": id})
        assert problems(refused) == [("assignee", "invalid_reference")]
        assert refused.json["details"][0]["message"] == "There is no such user in this account."
        changed = alice.patch(f"records/tasks/{made['id']}", {"assignee": id})
        assert problems(changed) == [("assignee", "invalid_reference")]
    for value in (7, True, [bob.id], {"id": bob.id}):
        wrong = alice.post("records/tasks", {"assignee": value})
        assert problems(wrong) == [("assignee", "invalid_type")]
    there = root.acting_in("acme")
    assert make_record(there, "tasks", assignee=alice.id)["assignee"] == alice.id
    assert alice.patch(f"records/tasks/{made['id']}", {"assignee": None}).json["assignee"] is None


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"collection": "tasks"}, "invalid_option"),
        ({"on_delete": "explode"}, "on_delete_invalid"),
        ({"required": True}, "on_delete_invalid"),
        ({"required": True, "on_delete": "set_null"}, "on_delete_invalid"),
        ({"default": "x"}, "invalid_reference"),
        ({"options": {"choices": ["x"]}}, "invalid_option"),
    ],
)
def test_user_field_definition_problems(root: Caller, more: dict[str, Any], code: str) -> None:
    body = {"name": "tasks", "schema": [{"name": "owner", "type": "user"} | more]}
    assert problems(root.post("collections", body)) == [("owner", code)]


def test_user_field_empties_by_default(root: Caller) -> None:
    made = make_collection(root, "tasks", [{"name": "owner", "type": "user"}])
    assert made["schema"][0]["on_delete"] == "set_null"
    field = user("owner", "restrict", required=True)
    changed = root.patch(f"collections/{made['id']}", {"schema": [field]})
    assert changed.status_code == 200, changed.json


def test_filters_read_names_of_people_that_callers_see(
    app: Flask, tasks: None, alice: Caller, bob: Caller
) -> None:
    change_user(app, bob.id, name="Bob")
    his = make_record(alice, "tasks", assignee=bob.id)
    make_record(alice, "tasks", assignee=alice.id)
    make_record(alice, "tasks")

    def found(text: str) -> list[str]:
        answer = alice.get("records/tasks", query_string={"filter": text})
        assert answer.status_code == 200, answer.json
        return [one["id"] for one in answer.json["items"]]

    assert found(f"assignee = '{bob.id.upper()}'") == [his["id"]]
    assert found(f"assignee.id = '{bob.id.upper()}'") == [his["id"]]
    assert found("assignee.name = 'Bob'") == [his["id"]]
    assert found("assignee.name ~ 'b%'") == [his["id"]]
    assert len(found("assignee.name != 'Bob'")) == 2
    for hidden in ("email", "role", "is_active", "password_hash", "account_id"):
        refused = alice.get("records/tasks", query_string={"filter": f"assignee.{hidden} = null"})
        assert problems(refused) == [("filter", "filter_invalid")]
    deep = alice.get("records/tasks", query_string={"filter": "assignee.id.name = 'x'"})
    assert problems(deep) == [("filter", "filter_invalid")]
    by_value = alice.get("records/tasks", query_string={"assignee": bob.id.upper()}).json["items"]
    assert [one["id"] for one in by_value] == [his["id"]]


def test_anonymous_filters_read_no_names_of_people(
    anyone: Caller, root: Caller, alice: Caller
) -> None:
    make_collection(root, "tasks", [user("assignee")], **dict.fromkeys(OPEN, ""))
    make_record(alice, "tasks", assignee=alice.id)
    stranger = anyone.acting_in("acme")
    refused = stranger.get("records/tasks", query_string={"filter": "assignee.name = 'x'"})
    assert problems(refused) == [("filter", "filter_invalid")]
    (shown,) = stranger.get("records/tasks?expand=assignee,created_by").json["items"]
    assert shown["expand"] == {"assignee": alice.id, "created_by": alice.id}


RULES = [
    ("assignee = @request.auth.id", {"mine"}),
    ("assignee.id = @request.auth.id", {"mine"}),
    ("assignee.email = @request.auth.email", {"mine"}),
    ("assignee.role = 'admin'", {"hers"}),
    ("assignee.role = @request.auth.role", {"mine"}),
    ("assignee.role != 'admin'", {"mine", "nobody's"}),
    ("assignee.is_active", {"mine", "hers"}),
    ("!assignee.is_active", {"nobody's"}),
    ("assignee.name = null", {"hers", "nobody's"}),
    ("assignee.name ~ 'b%' || assignee.role IN ['admin']", {"mine", "hers"}),
]


@pytest.mark.parametrize(("rule", "seen"), RULES)
def test_rules_read_people_alike_in_lists_and_writes(
    app: Flask, root: Caller, alice: Caller, bob: Caller, rule: str, seen: set[str]
) -> None:
    change_user(app, bob.id, name="Bob")
    made = make_collection(root, "tasks", [TITLE, user("assignee")])
    ids = {
        title: make_record(alice, "tasks", title=title, assignee=person)["id"]
        for title, person in (("mine", bob.id), ("hers", alice.id), ("nobody's", None))
    }
    rules = dict.fromkeys(("list_rule", "view_rule", "update_rule"), rule)
    changed = root.put(f"collections/{made['id']}/rules", rules)
    assert changed.status_code == 200, changed.json
    assert {one["title"] for one in bob.get("records/tasks").json["items"]} == seen
    for title, id in ids.items():
        assert bob.get(f"records/tasks/{id}").status_code == (200 if title in seen else 404)
        updated = bob.patch(f"records/tasks/{id}", {"title": title})
        assert updated.status_code == (200 if title in seen else 404)


def test_expand_shows_people_by_name(
    app: Flask, tasks: None, alice: Caller, bob: Caller, root: Caller
) -> None:
    change_user(app, bob.id, name="Bob")
    made = make_record(alice, "tasks", assignee=bob.id)
    names = "assignee,created_by,updated_by"
    shown = bob.get(f"records/tasks/{made['id']}?expand={names}").json["expand"]
    her = {"id": alice.id, "name": None}
    assert shown == {
        "assignee": {"id": bob.id, "name": "Bob"},
        "created_by": her,
        "updated_by": her,
    }
    change_user(app, bob.id, is_active=False)
    (listed,) = alice.get(f"records/tasks?expand={names}").json["items"]
    assert listed["expand"] == shown
    elsewhere = root.acting_in("acme").patch(f"records/tasks/{made['id']}", {"assignee": None})
    assert elsewhere.status_code == 200
    there = alice.get(f"records/tasks/{made['id']}?expand={names}").json["expand"]
    assert there == {"created_by": her, "updated_by": None}  # the operator is no user of acme
    for wrong in ("assignee.name", "created_by.id", "account_id"):
        assert problems(alice.get(f"records/tasks?expand={wrong}"))[0][0] == "expand"


def test_expand_and_filters_show_of_people_what_the_directory_shows(
    tasks: None, alice: Caller, bob: Caller, root: Caller, dora: Caller
) -> None:
    schema = {"fields": [{"name": "team", "type": "text", "visible_to": "members"}]}
    assert root.put("attributes/users", schema).status_code == 200
    given = root.patch(f"users/{dora.id}", {"attributes": {"team": "Sales"}})
    assert given.status_code == 200, given.json
    make_record(alice, "tasks", title="a", assignee=dora.id)
    url, by_role = "records/tasks?expand=assignee", 'records/tasks?filter=assignee.role="editor"'
    assert bob.get(url).json["items"][0]["expand"]["assignee"].keys() == {"id", "name"}
    assert bob.get(by_role).status_code == 400

    fields = ["role", "attributes.team"]
    assert root.put("directory/settings", {"fields": fields}).status_code == 200
    shown = {"id": dora.id, "role": "editor", "attributes": {"team": "Sales"}}
    assert bob.get(url).json["items"][0]["expand"] == {"assignee": shown}
    assert bob.get(by_role).json["total"] == 1
    assert bob.get('records/tasks?filter=assignee.name="x"').status_code == 400

    assert root.put("directory/settings", {"rule": "@has_role(admin)"}).status_code == 200
    assert bob.get(url).json["items"][0]["expand"] == {"assignee": dora.id}
    assert bob.get(by_role).status_code == 400
    assert alice.get(by_role).json["total"] == 1


def test_deleted_user_leaves_records_as_on_delete_says(
    root: Caller, alice: Caller, dora: Caller, charlie: Caller, changes: list[RecordChanged]
) -> None:
    fields = [TITLE, user("assignee"), user("owner", "cascade"), user("reviewer")]
    make_collection(root, "tasks", fields)
    loose = make_record(alice, "tasks", title="x", assignee=dora.id, reviewer=alice.id)
    both = make_record(alice, "tasks", assignee=dora.id, reviewer=dora.id)
    hers = make_record(alice, "tasks", owner=dora.id, assignee=dora.id)
    other = make_record(alice, "tasks", assignee=alice.id)
    theirs = make_record(charlie, "tasks", assignee=charlie.id)
    changes.clear()
    assert alice.delete(f"account/users/{dora.id}").status_code == 204
    assert [(one.operation, (one.record or one.previous)["id"]) for one in changes] == [
        ("delete", hers["id"]),
        ("update", loose["id"]),
        ("update", both["id"]),
    ]
    assert {one.by.user_id for one in changes} == {alice.id}
    left = {one["id"]: one for one in alice.get("records/tasks").json["items"]}
    assert left.keys() == {loose["id"], both["id"], other["id"]}
    assert (left[loose["id"]]["assignee"], left[loose["id"]]["reviewer"]) == (None, alice.id)
    assert left[loose["id"]]["updated_by"] == alice.id
    assert (left[both["id"]]["assignee"], left[both["id"]]["reviewer"]) == (None, None)
    assert left[other["id"]] == other
    assert charlie.get(f"records/tasks/{theirs['id']}").json == theirs
    history = alice.get(f"records/tasks/{loose['id']}/history").json["items"]
    assert history[0]["changes"] == [
        {"field": "assignee", "old_value": dora.id, "new_value": None}
        | {"masked": False, "erased": False}
    ]
    assert alice.get(f"account/users/{dora.id}").status_code == 404
    restored = alice.post(
        f"records/tasks/{loose['id']}/restore", {"audit_id": history[-1]["audit_id"]}
    )
    assert problems(restored) == [("assignee", "invalid_reference")]


def test_restricting_user_field_keeps_user_and_names_places(
    root: Caller, alice: Caller, dora: Caller
) -> None:
    make_collection(root, "tasks", [TITLE, user("owner", "restrict", required=True)])
    make_collection(root, "notes", [user("writer", "restrict"), user("reader")])
    task = make_record(alice, "tasks", owner=dora.id)
    note = make_record(alice, "notes", writer=dora.id, reader=dora.id)
    refused = alice.delete(f"account/users/{dora.id}")
    assert refused.status_code == 409
    places = [(one["field"], one["code"]) for one in refused.json["details"]]
    assert places == [("notes.writer", "in_use"), ("tasks.owner", "in_use")]
    assert refused.json["message"] == "Records refer to this user, in notes.writer, tasks.owner."
    assert alice.get(f"records/notes/{note['id']}").json["reader"] == dora.id
    assert dora.get("auth/me").status_code == 200
    alice.delete(f"records/tasks/{task['id']}")
    alice.patch(f"records/notes/{note['id']}", {"writer": None})
    assert alice.delete(f"account/users/{dora.id}").status_code == 204


def test_cascade_of_user_that_another_record_restricts_is_refused(
    root: Caller, alice: Caller, dora: Caller
) -> None:
    make_collection(root, "tasks", [user("owner", "cascade")])
    kept = {"name": "task", "type": "reference", "collection": "tasks"}
    make_collection(root, "notes", [kept])
    task = make_record(alice, "tasks", owner=dora.id)
    make_record(alice, "notes", task=task["id"])
    assert alice.delete(f"account/users/{dora.id}").status_code == 409
    assert dora.get("auth/me").status_code == 200
    assert alice.get(f"records/tasks/{task['id']}").json == task


def test_user_of_many_records_leaves_by_job(
    app: Flask,
    root: Caller,
    alice: Caller,
    dora: Caller,
    changes: list[RecordChanged],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaving, "AT_ONCE", 4)
    monkeypatch.setattr(leaving, "PIECE", 2)
    make_collection(root, "tasks", [user("assignee"), user("owner", "cascade")])
    made = [make_record(alice, "tasks", assignee=dora.id)["id"] for _ in range(3)]
    made += [make_record(alice, "tasks", owner=dora.id)["id"] for _ in range(3)]
    changes.clear()
    assert alice.delete(f"account/users/{dora.id}").status_code == 204
    assert (changes, dora.get("auth/me").status_code) == ([], 401)
    # She is gone for everybody, and her address is free.
    assert alice.get(f"account/users/{dora.id}").status_code == 404
    assert alice.delete(f"account/users/{dora.id}").status_code == 404
    assert dora.id not in {one["id"] for one in alice.get("account/users").json["items"]}
    refused = alice.post("records/tasks", {"assignee": dora.id})
    assert problems(refused) == [("assignee", "invalid_reference")]
    shown = alice.get(f"records/tasks/{made[0]}?expand=assignee").json
    assert (shown["assignee"], shown["expand"]) == (dora.id, {"assignee": None})
    again = alice.post("account/users", {"email": "dora@acme.example", "name": "Dora"})
    assert again.status_code == 201, again.json
    run_jobs(app)
    assert [one.operation[0] for one in changes] == [*"dduudu"]
    left = alice.get("records/tasks?sort=created_at").json["items"]
    assert [(one["id"], one["assignee"]) for one in left] == [(id, None) for id in made[:3]]
    with app.app_context():
        assert db.session.get(User, (alice.account_id, dora.id)) is None


def test_import_takes_ids_and_addresses_of_people(
    tasks: None, alice: Caller, bob: Caller, charlie: Caller
) -> None:
    lines = f"title,assignee\na,{bob.id}\nb,BOB@acme.example\nc,\n"
    sent = alice("POST", "records/tasks/import", data=lines, content_type="text/csv")
    assert sent.json["imported"] == 3, sent.json
    found = {one["title"]: one["assignee"] for one in alice.get("records/tasks").json["items"]}
    assert found == {"a": bob.id, "b": bob.id, "c": None}
    for person in (charlie.email, charlie.id, "nobody@acme.example"):
        rows = [{"title": "x", "assignee": person}]
        assert problems(alice.post("records/tasks/import", rows)) == [
            ("assignee", "invalid_reference")
        ]
    # Elsewhere a person is named by id.
    by_address = alice.post("records/tasks", {"assignee": bob.email})
    assert problems(by_address) == [("assignee", "invalid_reference")]
    shown = alice.get("records/tasks/export?format=csv&filter=title='b'").text
    assert bob.id in shown


def test_erased_user_leaves_no_name_once_job_has_cleared_records(
    app: Flask,
    tasks: None,
    alice: Caller,
    dora: Caller,
    root: Caller,
    monkeypatch: pytest.MonkeyPatch,
    time_machine: Any,
) -> None:
    monkeypatch.setattr(leaving, "AT_ONCE", 1)
    monkeypatch.setattr(erasure, "LEAVING_SECONDS", 0)
    for _ in range(2):
        make_record(alice, "tasks", assignee=dora.id)
    erased = root.post(f"users/{dora.id}/erase")
    assert erased.status_code == 200, erased.json
    run_jobs(app)
    run_jobs(app)
    entries = root.acting_in("acme").get("audit-logs?page_size=100").text
    assert dora.email not in entries
    assert [one["assignee"] for one in alice.get("records/tasks").json["items"]] == [None, None]


def test_batch_masks_and_undo_of_user_fields(
    root: Caller, alice: Caller, bob: Caller, charlie: Caller
) -> None:
    make_collection(root, "tasks", [TITLE, user("assignee"), user("patient", pii=True)])
    items = [{"assignee": bob.id}, {"assignee": charlie.id}, {"patient": bob.id}]
    refused = alice.post("records/tasks/batch", {"records": items})
    assert [(one["index"], one["code"]) for one in refused.json["details"]] == [
        (1, "invalid_reference")
    ]
    made = alice.post("records/tasks/batch", {"records": [items[0], items[2]]}).json["created"]
    seen = bob.get(f"records/tasks/{made[1]['id']}").json
    assert seen["patient"] == "********"
    assert problems(bob.get("records/tasks?expand=patient")) == [("expand", "invalid_option")]
    guess = bob.get("records/tasks", query_string={"filter": "patient.name = 'x'"})
    assert problems(guess) == [("filter", "filter_invalid")]
    path = f"records/tasks/{made[0]['id']}"
    alice.patch(path, {"assignee": alice.id})
    first = alice.get(f"{path}/history").json["items"][-1]["audit_id"]
    assert alice.post(f"{path}/restore", {"audit_id": first}).json["assignee"] == bob.id


def test_user_field_in_description_of_own_collections(tasks: None, alice: Caller) -> None:
    shown = alice.get("/openapi.json?collections=1").json
    text = json.dumps(shown)
    assert "The id of a user of the account." in text


@pytest.mark.parametrize("first", ["assignment", "deletion"])
def test_user_who_is_deleted_during_an_assignment_leaves_no_id_behind(
    tasks: None, alice: Caller, dora: Caller, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The first one has written and not committed when the other one begins."""
    made = make_record(alice, "tasks", title="a")
    written, begun = threading.Event(), threading.Event()

    def hold(real: Any) -> Any:
        def wait(*what: Any) -> Any:
            result = real(*what)
            written.set()
            assert begun.wait(20)
            return result

        return wait

    def assign() -> list[TestResponse]:
        body = {"assignee": dora.id}
        return [
            alice.patch(f"records/tasks/{made['id']}", body),
            alice.post("records/tasks", body),
        ]

    def delete() -> list[TestResponse]:
        return [alice.delete(f"account/users/{dora.id}")]

    calls = [assign, delete]
    if first == "assignment":
        monkeypatch.setattr(write_changes, "announce", hold(write_changes.announce))
    else:
        calls.reverse()
        listeners = [*events._subscribers.get(events.AdminLeft, []), hold(lambda _: None)]
        monkeypatch.setitem(events._subscribers, events.AdminLeft, listeners)
    with ThreadPoolExecutor(2) as pool:
        earlier = pool.submit(calls[0])
        assert written.wait(20)
        later = pool.submit(calls[1])
        begun.set()
        answers = [*earlier.result(), *later.result()]
    assert {one.status_code for one in answers} <= {200, 201, 204, 400}, answers
    refused = [one for one in answers if one.status_code == 400]
    assert all(problems(one) == [("assignee", "invalid_reference")] for one in refused)
    assert len(refused) == 2 if first == "deletion" else answers[0].status_code == 200
    assert alice.get(f"account/users/{dora.id}").status_code == 404
    left = alice.get("records/tasks").json["items"]
    assert {one["assignee"] for one in left} == {None}


ATTRIBUTES = [
    {"name": "department", "type": "text", "visible_to": "members"},
    {"name": "level", "type": "number"},
    {"name": "since", "type": "date"},
    {"name": "seen", "type": "datetime"},
    {"name": "remote", "type": "boolean"},
    {"name": "team", "type": "select", "options": {"choices": ["red", "blue"]}},
    {"name": "tags", "type": "multi_select", "options": {"choices": ["a", "b"]}},
]
BOB = {
    "department": "Sales",
    "level": 2,
    "since": "2026-01-02",
    "seen": "2026-01-02T03:04:05Z",
    "remote": True,
    "team": "red",
    "tags": ["a"],
}
OF_BOB, OF_ALL = {"his", "both"}, {"his", "hers", "both", "none"}
RULES_BY_ATTRIBUTES = [
    ("assignee.attributes.department = 'Sales'", OF_BOB),
    ("assignee.attributes.department = @request.auth.attributes.department", OF_BOB),
    ("assignee.attributes.department != 'Sales'", OF_ALL - OF_BOB),
    ("assignee.attributes.level >= 2 && assignee.attributes.level < 2.5", OF_BOB),
    ("assignee.attributes.since > '2026-01-01' && assignee.attributes.since < @now", OF_BOB),
    ("assignee.attributes.seen = '2026-01-02T03:04:05Z'", OF_BOB),
    ("assignee.attributes.remote", OF_BOB),
    ("assignee.attributes.team IN ['red', 'blue']", OF_BOB),
    ("@contains(assignee.attributes.tags, 'a')", OF_BOB),
    ("assignee.attributes.team = null", OF_ALL - OF_BOB),
    ("members.attributes.department = 'Sales'", {"both", "hers"}),
    ("members.attributes.level = 2 && title = 'both'", {"both"}),
    ("members.attributes.department != 'Sales'", {"both"}),
    ("!(members.attributes.department = 'Sales')", {"his", "none"}),
    ("@any(tasks, assignee.attributes.team = 'red' && title = @record.title)", OF_BOB),
    ("@any(tasks, title = 'his' && assignee = @record.assignee)", OF_BOB),
]


@pytest.fixture
def attributed(root: Caller, alice: Caller, bob: Caller) -> dict[str, str]:
    """Tasks of people with attributes: their ids by title."""
    assert root.put("attributes/users", {"fields": ATTRIBUTES}).status_code == 200
    assert root.patch(f"users/{bob.id}", {"attributes": BOB}).status_code == 200
    members = user("members", multiple=True)
    make_collection(
        root, "tasks", [TITLE, user("assignee"), members], **dict.fromkeys(OPEN, "true")
    )
    both = [alice.id, bob.id]
    made = [
        ("his", bob.id, []),
        ("hers", alice.id, [bob.id]),
        ("both", bob.id, both),
        ("none", None, []),
    ]
    return {
        title: make_record(alice, "tasks", title=title, assignee=one, members=some)["id"]
        for title, one, some in made
    }


@pytest.mark.parametrize(("rule", "seen"), RULES_BY_ATTRIBUTES)
def test_rules_read_attributes_of_people_alike_in_lists_and_writes(
    attributed: dict[str, str], root: Caller, bob: Caller, rule: str, seen: set[str]
) -> None:
    rules = dict.fromkeys(("list_rule", "view_rule", "update_rule"), rule)
    changed = root.put("collections/tasks/rules", rules)
    assert changed.status_code == 200, changed.json
    assert {one["title"] for one in bob.get("records/tasks").json["items"]} == seen
    for title, id in attributed.items():
        assert bob.get(f"records/tasks/{id}").status_code == (200 if title in seen else 404)
        updated = bob.patch(f"records/tasks/{id}", {"title": title})
        assert updated.status_code == (200 if title in seen else 404)


def test_filters_read_attributes_of_people_that_callers_see(
    attributed: dict[str, str], root: Caller, bob: Caller
) -> None:
    def found(text: str) -> Any:
        return bob.get("records/tasks", query_string={"filter": text})

    by_department = "assignee.attributes.department = 'Sales'"
    unknown = found("assignee.attributes.unknown = 'x'")
    assert (unknown.status_code, problems(unknown)) == (400, [("filter", "filter_invalid")])
    assert problems(found(by_department)) == [("filter", "filter_invalid")]
    shown = {"fields": ["name", "attributes.department"]}
    assert root.put("directory/settings", shown).status_code == 200
    assert {one["title"] for one in found(by_department).json["items"]} == OF_BOB
    through_list = "members.attributes.department = 'Sales'"
    assert {one["title"] for one in found(through_list).json["items"]} == {"both", "hers"}
    for name in ("level", "team", "unknown", "seen"):
        answer = found(f"assignee.attributes.{name} = null")
        assert problems(answer) == [("filter", "filter_invalid")]
        expected = found("assignee.attributes.unknown = null").json["details"][0]["message"]
        message = answer.json["details"][0]["message"]
        assert message.replace(name, "unknown") == expected, "it is told from one that there is not"


def test_attributes_in_names_of_people_are_checked_and_followed(
    attributed: dict[str, str], root: Caller
) -> None:
    rule = "(assignee.attributes.department) = 'x' || members.attributes.team = 'red'"
    answer = root.put("collections/tasks/rules", {"list_rule": rule.replace("'red'", "'green'")})
    assert [one["code"] for one in answer.json["details"]] == ["unknown_choice"]
    answer = root.put("collections/tasks/rules", {"list_rule": "assignee.attributes.nothing = 1"})
    assert answer.status_code == 400
    assert root.put("collections/tasks/rules", {"list_rule": rule}).status_code == 200
    renamed = {"fields": [{"name": "unit", "rename_from": "department"}]}
    assert root.put("attributes/users", renamed).status_code == 200
    stored = root.get("collections/tasks/rules").json["list_rule"]
    assert stored == rule.replace("department", "unit")
    for body in (
        {"remove_fields": ["unit"]},
        {"fields": [{"name": "team", "options": {"choices": ["blue", "pink"]}}]},
    ):
        plan = root.post("attributes/users/plan", body).json
        assert [(one["place"], one["refused"]) for one in plan["effect"]] == [
            ("collections.tasks.list_rule", True)
        ]


def test_rules_by_attributes_that_users_write_themselves_are_warned_of(
    attributed: dict[str, str], root: Caller
) -> None:
    opened = {"fields": [{"name": "team", "writable_by": "self"}]}
    assert root.put("attributes/users", opened).status_code == 200

    def warned(rule: str) -> list[tuple[str, int]]:
        answer = root.post("rules/validate", {"rule": rule, "collection": "tasks"}).json
        assert answer["valid"], answer
        return [(one["code"], one["position"]) for one in answer["warnings"]]

    own, theirs = "@request.auth.attributes.team", "assignee.attributes.team"
    assert warned("@request.auth.attributes.department = title") == []
    assert warned(f"{own} = title") == [("self_written", 0)]
    assert warned(f"title = 'x' && {theirs} = 'red'") == [("self_written", 15)]
    text = f"version: 1\ncollections: [{{name: tasks, rules: {{list_rule: {theirs} = title}}}}]\n"
    plan = root.post("manifest/plan", {"yaml": text}).json
    assert [(one["field"], one["code"]) for one in plan["warnings"]] == [
        ("tasks.list_rule", "self_written")
    ]
    settings = root.put("directory/settings", {"rule": f"{own} = 'red'"}).json
    assert [(one["field"], one["code"]) for one in settings["warnings"]] == [
        ("rule", "self_written")
    ]
