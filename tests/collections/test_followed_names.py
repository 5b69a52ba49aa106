"""Names in stored expressions: whatever renames or removes one is followed everywhere, or refused.

A table of kinds of names by the places that store expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from app import db
from app.console.records.saved_views import SavedView
from app.context import tenancy
from tests.accounts.test_groups import make_group
from tests.accounts.test_roles import make_role
from tests.builders import Cast, make_collection
from tests.workflows.running import action, create

pytestmark = pytest.mark.both_databases
STATE = {"name": "state", "type": "select", "options": {"choices": ["open", "done"]}}
PROJECTS = [{"name": "label", "type": "text"}, STATE]
TASKS = [
    {"name": "title", "type": "text"},
    STATE,
    {"name": "assignee", "type": "user"},
    {"name": "helpers", "type": "user", "multiple": True},
    {"name": "project", "type": "reference", "collection": "projects"},
    {"name": "secret", "type": "text"},
]
USERS = [{"name": "team", "type": "select", "options": {"choices": ["red", "blue"]}}]
USERS[0]["visible_to"] = "members"
ACCOUNTS = [{"name": "plan", "type": "text"}]
LOOKS_BACK = re.compile("@old|@changed")
EVENT = {"type": "event", "event": "records.create", "collection": "tasks"}


class World:
    """The collections of the table, and what is renamed."""

    def __init__(self, cast: Cast) -> None:
        self.cast, self.root = cast, cast.root
        self.role = make_role(cast.root, "lead")["id"]
        self.group = make_group(cast.alice, name="crew")["id"]
        for kind, fields in (("users", USERS), ("accounts", ACCOUNTS)):
            assert cast.root.put(f"attributes/{kind}", {"fields": fields}).status_code == 200
        shown = {"fields": ["name", "role", "attributes.team"]}
        assert cast.root.put("directory/settings", shown).status_code == 200
        self.projects = make_collection(cast.root, "projects", PROJECTS)["id"]
        self.tasks = make_collection(cast.root, "tasks", TASKS)["id"]
        parts = {"part": "title != 'never'"}
        assert cast.root.put("rules/fragments", parts).status_code == 200
        self.ids: dict[str, str] = {}

    def change(self, kind: str, **body: Any) -> Any:
        return self.root.put(f"attributes/{kind}", body)

    def change_collection(self, id: str, **body: Any) -> Any:
        return self.root.patch(f"collections/{id}", body)


def write_right(world: World, text: str) -> Any:
    return world.change_collection(world.tasks, schema=[{"name": "secret", "readable_if": text}])


def read_right(world: World) -> Any:
    schema = world.root.get("collections/tasks").json["schema"]
    return next(one["readable_if"] for one in schema if one["name"] == "secret")


def write_default(world: World, text: str) -> Any:
    field = {"name": "chosen", "type": "boolean", "default": {"expression": text}}
    return world.change_collection(world.tasks, schema=[field])


def read_default(world: World) -> Any:
    schema = world.root.get("collections/tasks").json["schema"]
    return next(one["default"]["expression"] for one in schema if one["name"] == "chosen")


def write_fragment(world: World, text: str) -> Any:
    answer = world.root.put("rules/fragments", {"part": text})
    if answer.status_code != 200:
        return answer
    operation = "update" if LOOKS_BACK.search(text) else "view"
    return world.root.put("collections/tasks/rules", {f"{operation}_rule": "@rule(part)"})


def write_webhook(world: World, text: str) -> Any:
    body = {"url": "https://example.com", "collection": "tasks", "events": ["create"]}
    answer = world.cast.alice.post("webhooks", {**body, "filter": text})
    world.ids["webhook"] = answer.json.get("id", "")
    return answer


def write_flow(world: World, place: str, trigger: Any, steps: Any) -> Any:
    body = {"name": place, "trigger": trigger, "steps": steps}
    answer = world.cast.alice.post("workflows", body)
    world.ids[place] = answer.json.get("id", "")
    return answer


def write_query(world: World, text: str) -> Any:
    steps = [action("query", "query_records", collection="tasks", filter=text)]
    return write_flow(world, "query", {"type": "manual"}, steps)


def write_trigger(world: World, text: str) -> Any:
    return write_flow(world, "trigger", EVENT | {"condition": text}, [create("a")])


def read_flow(world: World, place: str) -> Any:
    return world.cast.alice.get(f"workflows/{world.ids[place]}").json


def write_view(world: World, text: str) -> Any:
    answer = world.cast.alice.get("records/tasks", query_string={"filter": text})
    if answer.status_code == 200:
        alice = world.cast.alice
        key = {"account_id": alice.account_id, "user_id": alice.id, "collection_id": world.tasks}
        with alice.app.app_context(), tenancy.across_accounts(), db.transaction() as session:
            session.add(
                SavedView(**key, name="v", is_shared=False, is_default=False, filter=text, state={})
            )
    return answer


def read_view(world: World) -> Any:
    with world.cast.alice.app.app_context(), tenancy.across_accounts():
        return db.db.session.query(SavedView).one().filter


def write_computed(world: World, text: str) -> Any:
    field = {"name": "sum", "type": "computed", "return_type": "boolean", "expression": text}
    return world.change_collection(world.tasks, schema=[field])


def read_computed(world: World) -> Any:
    return world.root.get("collections/tasks").json["schema"][-1]["expression"]


PLACES: dict[str, tuple[Callable[[World, str], Any], Callable[[World], Any], str]] = {
    "rule": (
        lambda world, text: world.root.put("collections/tasks/rules", {"list_rule": text}),
        lambda world: world.root.get("collections/tasks/rules").json["list_rule"],
        "tasks.list_rule",
    ),
    "right": (write_right, read_right, "tasks.secret.readable_if"),
    "default": (write_default, read_default, "tasks.chosen.default"),
    "fragment": (
        write_fragment,
        lambda world: world.root.get("rules/fragments").json["part"],
        "part",
    ),
    "webhook": (
        write_webhook,
        lambda world: world.cast.alice.get(f"webhooks/{world.ids['webhook']}").json["filter"],
        "webhooks[{id}].filter",
    ),
    "trigger": (
        write_trigger,
        lambda world: read_flow(world, "trigger")["trigger"]["condition"],
        "workflows[{id}].trigger",
    ),
    "query": (
        write_query,
        lambda world: read_flow(world, "query")["steps"][0]["config"]["filter"],
        "workflows[{id}].steps.query",
    ),
    "view": (write_view, read_view, "views"),
    "computed": (write_computed, read_computed, "sum"),
    "directory": (
        lambda world, text: world.root.put("directory/settings", {"rule": text}),
        lambda world: world.root.get("directory/settings").json["rule"],
        "directory.rule",
    ),
}
FEWER = [{"name": "state", "options": {"choices": ["done"]}}]
FEWER_TEAMS = [{"name": "team", "options": {"choices": ["blue"]}}]
TEAM, PLAN = "@request.auth.attributes.team", "@account.attributes.plan"


def rename(former: str, name: str) -> list[dict[str, str]]:
    return [{"name": name, "rename_from": former}]


NAMES: dict[str, tuple[str, str | None, Callable[[World], Any]]] = {
    "role": (
        "@has_role(lead)",
        "@has_role(boss)",
        lambda world: world.root.patch(f"roles/{world.role}", {"name": "boss"}),
    ),
    "role of a person": (
        "assignee.role = 'lead'",
        "assignee.role = 'boss'",
        lambda world: world.root.patch(f"roles/{world.role}", {"name": "boss"}),
    ),
    "role of people in @any": (
        "@any(tasks, helpers.role = 'lead')",
        "@any(tasks, helpers.role = 'boss')",
        lambda world: world.root.patch(f"roles/{world.role}", {"name": "boss"}),
    ),
    "group": (
        "@has_group(crew)",
        "@has_group(gang)",
        lambda world: world.cast.alice.patch(f"groups/{world.group}", {"name": "gang"}),
    ),
    "attribute": (
        f"{TEAM} = 'red'",
        "@request.auth.attributes.unit = 'red'",
        lambda world: world.change("users", fields=rename("team", "unit")),
    ),
    "attribute of a person": (
        "assignee.attributes.team = 'red'",
        "assignee.attributes.unit = 'red'",
        lambda world: world.change("users", fields=rename("team", "unit")),
    ),
    "attribute of people in @any": (
        "@any(tasks, helpers.attributes.team != 'red')",
        "@any(tasks, helpers.attributes.unit != 'red')",
        lambda world: world.change("users", fields=rename("team", "unit")),
    ),
    "attribute of an account": (
        f"{PLAN} = 'pro'",
        "@account.attributes.tariff = 'pro'",
        lambda world: world.change("accounts", fields=rename("plan", "tariff")),
    ),
    "choice of an attribute": (
        f"{TEAM} IN ['blue', 'red']",
        None,
        lambda world: world.change("users", fields=FEWER_TEAMS),
    ),
    "choice of a person's attribute": (
        "assignee.attributes.team IN ['blue', 'red']",
        None,
        lambda world: world.change("users", fields=FEWER_TEAMS),
    ),
    "field": (
        "length(title) > 1",
        "length(heading) > 1",
        lambda world: world.change_collection(world.tasks, schema=rename("title", "heading")),
    ),
    "field behind a reference": (
        "project.label = 'x'",
        "project.tag = 'x'",
        lambda world: world.change_collection(world.projects, schema=rename("label", "tag")),
    ),
    "field in @any": (
        "@any(projects, label = 'x')",
        "@any(projects, tag = 'x')",
        lambda world: world.change_collection(world.projects, schema=rename("label", "tag")),
    ),
    "field of the record in @any": (
        "@any(projects, label = @record.title)",
        "@any(projects, label = @record.heading)",
        lambda world: world.change_collection(world.tasks, schema=rename("title", "heading")),
    ),
    "field of the outer record in @any": (
        "@any(projects, @any(tasks, title = @outer.label))",
        "@any(projects, @any(tasks, title = @outer.tag))",
        lambda world: world.change_collection(world.projects, schema=rename("label", "tag")),
    ),
    "field in @count": (
        "@count(projects, label = 'x') > 1",
        "@count(projects, tag = 'x') > 1",
        lambda world: world.change_collection(world.projects, schema=rename("label", "tag")),
    ),
    "field that is a list": (
        "@contains(helpers, @request.auth.id)",
        "@contains(others, @request.auth.id)",
        lambda world: world.change_collection(world.tasks, schema=rename("helpers", "others")),
    ),
    "field as it was": (
        "@old.title = 'x'",
        "@old.heading = 'x'",
        lambda world: world.change_collection(world.tasks, schema=rename("title", "heading")),
    ),
    "field that has changed": (
        "@changed(title)",
        "@changed(heading)",
        lambda world: world.change_collection(world.tasks, schema=rename("title", "heading")),
    ),
    "collection in @any": (
        "@any(projects, label = 'x')",
        "@any(efforts, label = 'x')",
        lambda world: world.change_collection(world.projects, name="efforts"),
    ),
    "collection in @count": (
        "@count(projects, label = 'x') > 1",
        "@count(efforts, label = 'x') > 1",
        lambda world: world.change_collection(world.projects, name="efforts"),
    ),
    "choice": (
        "state = 'open'",
        None,
        lambda world: world.change_collection(world.tasks, schema=FEWER),
    ),
    "choice behind a reference": (
        "project.state = 'open'",
        None,
        lambda world: world.change_collection(world.projects, schema=FEWER),
    ),
    "fragment": ("@rule(part)", None, lambda world: world.root.put("rules/fragments", {})),
}
# F: it follows. R: the change is refused, which names the place. S: the change is made, and the
# text stays. -: no such text stands there.
TABLE = """
                           rule right fragment webhook trigger query view computed directory default
role                              F     F        F       F       F     F    F        -         F F
role of a person                  F     -        F       -       F     F    F        -         - -
role of people in @any            F     -        F       -       -     F    F        -         - -
group                             R     R        R       F       F     F    F        -         R R
attribute                         F     F        F       F       F     F    F        -         F F
attribute of a person             F     -        F       -       F     F    F        -         - -
attribute of people in @any       F     -        F       -       -     F    F        -         - -
attribute of an account           F     F        F       F       F     F    F        -         F F
choice of an attribute            R     R        R       R       R     R    S        -         R R
choice of a person's attribute    R     -        R       -       R     R    S        -         - -
field                             F     -        R       R       R     R    F        F         - -
field behind a reference          F     -        R       -       R     R    F        -         - -
field in @any                     F     -        R       -       -     R    F        -         - -
field of the record in @any       F     -        R       -       -     R    F        -         - -
field of the outer record in @any F     -        R       -       -     R    F        -         - -
field in @count                   F     -        R       -       -     R    F        -         - -
field that is a list              F     -        R       R       R     R    F        -         - -
field as it was                   -     -        R       R       R     -    -        -         - -
field that has changed            -     -        R       R       R     -    -        -         - -
collection in @any                F     -        R       -       -     R    F        -         - -
collection in @count              F     -        R       -       -     R    F        -         - -
choice                            R     -        R       R       R     R    S        R         - -
choice behind a reference         R     -        R       -       R     R    S        -         - -
fragment                          R     -        -       -       -     -    -        -         - -
"""
HEAD, *ROWS = TABLE.strip().splitlines()
OUTCOMES = {
    row[:33].strip(): dict(zip(HEAD.split(), row[33:].split(), strict=True)) for row in ROWS
}


def test_table_has_every_name_and_place() -> None:
    assert OUTCOMES.keys() == NAMES.keys()
    assert all(row.keys() == PLACES.keys() for row in OUTCOMES.values())


def written(world: World, name: str, outcomes: str) -> list[str]:
    """The places with these outcomes, where the name now stands."""
    places = [place for place, outcome in OUTCOMES[name].items() if outcome in outcomes]
    for place in places:
        write, read, _ = PLACES[place]
        answer = write(world, NAMES[name][0])
        assert answer.status_code in (200, 201), (place, answer.json)
        assert read(world) == NAMES[name][0], place
    return places


@pytest.mark.parametrize("name", NAMES)
def test_name_is_followed_where_it_can_be(cast: Cast, name: str) -> None:
    world, (text, after, change) = World(cast), NAMES[name]
    for place, outcome in OUTCOMES[name].items():
        if outcome == "-":
            answer = PLACES[place][0](world, text)
            assert answer.status_code == 400, (place, answer.json)
    places = written(world, name, "FS")
    answer = change(world)
    assert answer.status_code == 200, answer.json
    for place in places:
        expected = text if OUTCOMES[name][place] == "S" else after
        assert PLACES[place][1](world) == expected, place


@pytest.mark.parametrize("name", [one for one, row in OUTCOMES.items() if "R" in row.values()])
def test_change_of_name_is_refused_with_all_places_else(cast: Cast, name: str) -> None:
    world, (text, _, change) = World(cast), NAMES[name]
    refusing = written(world, name, "R")
    others = written(world, name, "FS")
    answer = change(world)
    assert answer.status_code in (400, 409), answer.json
    found = [str(one["field"]) for one in answer.json["details"]]
    for place in refusing:
        path = PLACES[place][2].format(id=world.ids.get(place))
        path = "rules of this service" if name == "group" else path
        assert any(path in one for one in found), (place, found)
    for place in (*refusing, *others):
        assert PLACES[place][1](world) == text, place
