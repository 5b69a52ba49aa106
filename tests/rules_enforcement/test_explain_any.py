"""`rules/explain` of rules over other records names the `@any` that failed, and tells no more."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from flask import Flask

from tests.builders import OPEN, Caller, Cast, make_collection, make_record, make_user

MEMBERS = [
    {"name": "project", "type": "text"},
    {"name": "user", "type": "user"},
    {"name": "level", "type": "text"},
    {"name": "note", "type": "text"},
]
GRANTS = [{"name": "state", "type": "text"}, {"name": "user", "type": "user"}]
TASKS = [{"name": name, "type": "text"} for name in ("name", "project", "state")]
MEMBER = "@any(members, project = @record.project && user = @request.auth.id && level = 'in')"
GRANT = "@any(grants, user = @request.auth.id && state = @record.state)"
RULE = f"{MEMBER} && !@has_role(editor) && {GRANT}"
SECRET = "nobody reads this"
# Who is a member of which project, at which level, and whom which state is granted.
JOINED = [("ann", "p1", "in"), ("ann", "p2", "out"), ("ben", "p1", "in"), ("ben", "p2", "in")]
JOINED += [("cleo", "p1", "out"), ("cleo", "p1", "in"), ("dan", "p3", "in")]
GRANTED = [("ann", "open"), ("ben", "done"), ("cleo", "open"), ("cleo", "done"), ("eve", "open")]
PEOPLE = ("ann", "ben", "cleo", "dan", "eve")
RECORDS = list(product(("p1", "p2", "p3"), ("open", "done")))


class World:
    """Tasks of three projects and people with memberships."""

    def __init__(self, app: Flask, cast: Cast) -> None:
        self.root, self.acme = cast.root, cast.root.acting_in("acme")
        closed = dict.fromkeys(OPEN)
        make_collection(cast.root, "members", MEMBERS, **closed)
        make_collection(cast.root, "grants", GRANTS, **closed)
        make_collection(cast.root, "tasks", TASKS, **{**OPEN, "view_rule": RULE})
        account = cast.alice.account_id
        self.people = {
            name: Caller(app, make_user(app, account, f"{name}@acme.example")) for name in PEOPLE
        }
        for name, project, level in JOINED:
            member = {"project": project, "user": self.people[name].id, "level": level}
            make_record(self.acme, "members", **member, note=SECRET)
        for name, state in GRANTED:
            make_record(self.acme, "grants", state=state, user=self.people[name].id)
        self.tasks = {
            key: make_record(self.acme, "tasks", name="x", project=key[0], state=key[1])["id"]
            for key in RECORDS
        }

    def explained(self, name: str, task: str) -> Any:
        body = {"operation": "view", "record_id": task, "user_id": self.people[name].id}
        answer = self.root.post("collections/tasks/rules/explain", body)
        assert answer.status_code == 200, answer.json
        return answer


def counts(name: str, project: str, state: str) -> dict[str, list[int]]:
    """How many rows meet the conditions of each `@any` so far."""
    of_project = [one for one in JOINED if one[1] == project]
    own = [one for one in of_project if one[0] == name]
    granted = [one for one in GRANTED if one[0] == name]
    return {
        MEMBER: [len(of_project), len(own), sum(one[2] == "in" for one in own)],
        GRANT: [len(granted), sum(one[1] == state for one in granted)],
    }


@pytest.mark.long
@pytest.mark.both_databases
def test_explain_names_the_failed_any_of_thirty_triples(app: Flask, cast: Cast) -> None:
    world, outcomes = World(app, cast), list[Any]()
    ids = {one["id"] for one in world.acme.get("records/members?limit=100").json["items"]}
    for name, key in product(PEOPLE, RECORDS):
        answer = world.explained(name, world.tasks[key])
        told, expected = answer.json, counts(name, *key)
        failed = next((text for text, found in expected.items() if not found[-1]), None)
        seen = world.people[name].get(f"records/tasks/{world.tasks[key]}")
        assert told["allowed"] is (seen.status_code == 200) is (failed is None)
        if failed:
            assert told["clause"]["text"] == failed
            assert told["reason"] == f"`{failed}` does not hold."
        shown = {
            one["text"]: [part["records"] for part in one["conditions"]]
            for one in told["clause"]["subqueries"]
        }
        assert shown == ({failed: expected[failed]} if failed else expected)
        assert SECRET not in answer.text
        assert not [id for id in ids if id in answer.text]
        outcomes.append(failed)
    assert len(outcomes) == 30
    assert set(outcomes) == {MEMBER, GRANT, None}


def test_explain_counts_no_rows_of_other_accounts(app: Flask, cast: Cast) -> None:
    world = World(app, cast)
    globex = cast.root.acting_in("globex")
    before = world.explained("dan", world.tasks["p1", "open"]).json["clause"]
    for _ in range(3):
        make_record(globex, "members", project="p1", user=cast.charlie.id, level="in")
        make_record(globex, "grants", state="open", user=cast.charlie.id)
    assert world.explained("dan", world.tasks["p1", "open"]).json["clause"] == before
    body = {"operation": "view", "user_id": world.people["dan"].id}
    for caller in (cast.alice, cast.bob, cast.charlie):
        assert caller.post("collections/tasks/rules/explain", body).status_code == 403
