"""Filters that follow references: streams include what lists with the same filter include."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from flask import Flask

from app.realtime.feed import visibility
from tests.builders import Caller, Cast, make_collection, make_record, make_user
from tests.realtime.clients import Events, Socket
from tests.realtime.test_following import changes, messages, types
from tests.sql import statements


def reference(name: str, collection: str) -> dict[str, Any]:
    """A field that refers to a collection."""
    return {"name": name, "type": "reference", "collection": collection, "on_delete": "set_null"}


TEXT: dict[str, Any] = {"name": "name", "type": "text"}
LOUD = {
    "name": "loud",
    "type": "computed",
    "expression": "upper(name)",
    "return_type": "text",
}
SECRET = {"name": "mail", "type": "email", "pii": True, "mask_type": "full"}


@pytest.fixture
def collections(cast: Cast) -> dict[str, Any]:
    """People, their teams and the posts of these; some are hidden from all but Alice."""
    people = make_collection(cast.root, "people", schema=[TEXT, SECRET])
    teams = make_collection(
        cast.root,
        "teams",
        schema=[TEXT, LOUD, reference("lead", "people")],
        view_rule='lead.name != "eve" || created_by = @request.auth.id',
    )
    several = reference("teams", "teams") | {"multiple": True}
    people = {"name": "members", "type": "user", "multiple": True}
    own = [{"name": "title", "type": "text"}, reference("team", "teams"), several, people]
    return {"people": people, "teams": teams, "posts": make_collection(cast.root, schema=own)}


def make_posts(cast: Cast) -> None:
    """A post of each team, and one of none."""
    teams: list[str] = []
    for person in ("ann", "eve", None):
        lead = person and make_record(cast.alice, "people", name=person)["id"]
        for name in ("red", "blue"):
            team = make_record(cast.alice, "teams", name=name, lead=lead)["id"]
            values = {"team": team, "teams": [*teams, team], "members": [cast.bob.id]}
            make_record(cast.alice, title=f"{person} {name}", **values)
            teams = [team] if name == "red" else []
    make_record(cast.alice, title="alone")


def followed(collection: str, filter: str, **more: object) -> str:
    """The query of a stream."""
    rest = "".join(f"&{name}={one}" for name, one in more.items())
    return f"collections={collection}&filter.{collection}={quote(filter)}{rest}"


@pytest.mark.usefixtures("collections")
@pytest.mark.parametrize(
    "filter",
    [
        'team.name = "red"',
        'team.loud = "RED" && title != "nothing"',
        'team.lead.name = "ann"',
        "team.name = null",
        "team.lead.name = null && team != null",
        '!(team.name = "red")',
        'team.lead.name = "eve" || team.lead = null',
        "team.created_by = @request.auth.id",
        'teams.name = "red"',
        '!(teams.loud = "RED") || teams.name != "red"',
        'teams.lead.name = "eve" || teams.lead.name = null',
        'teams.name != "blue" && teams.created_by != @request.auth.id && members.id = "x"',
        "@contains(members, @request.auth.id) && members.name = null",
    ],
)
def test_stream_filter_equals_list_filter(
    cast: Cast, port: int, filter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visibility, "MAX_PATHS", 2)  # more than one statement where there are more
    make_posts(cast)
    last = make_record(cast.alice, title="last")
    for caller in (cast.alice, cast.bob):
        within = f'({filter}) || title = "last"'
        listed = caller.get("records/posts", query_string={"filter": within, "sort": "created_at"})
        titles = [one["title"] for one in listed.json["items"]]
        client = Events(port, followed("posts", within, since=0), headers=caller.headers)
        found = [one["data"]["title"] for one in changes(client, len(titles))]
        assert found == titles
        assert found[-1] == last["title"]


@pytest.mark.parametrize("filter", ["team.lead.mail = null", "team.nothing = 1", "title.name = 1"])
@pytest.mark.usefixtures("collections")
def test_stream_filter_refused_by_lists_is_filter_invalid(
    cast: Cast, port: int, filter: str
) -> None:
    assert cast.bob.get("records/posts", query_string={"filter": filter}).status_code == 400
    answer = cast.bob.get(f"realtime/subscribe?{followed('posts', filter)}")
    assert (answer.status_code, answer.json["details"][0]["code"]) == (400, "filter_invalid")
    client = Socket(port, headers=cast.bob.headers)
    said = client.ask({"action": "subscribe", "collection": "posts", "filter": filter})
    assert said["error"] == "filter_invalid"


@pytest.mark.parametrize("function", ["any", "count"])
@pytest.mark.usefixtures("collections")
def test_stream_filter_looks_at_no_other_records(cast: Cast, port: int, function: str) -> None:
    filter = {"any": "@any(teams, id = @record.team)", "count": "@count(teams, true) > 0"}[function]
    assert cast.bob.get("records/posts", query_string={"filter": filter}).status_code == 200
    answer = cast.bob.get(f"realtime/subscribe?{followed('posts', filter)}")
    assert answer.status_code == 400
    (found,) = answer.json["details"]
    assert (found["code"], found["message"]) == (
        "filter_invalid",
        f"@{function} cannot be used here.",
    )
    client = Socket(port, headers=cast.bob.headers)
    said = client.ask({"action": "subscribe", "collection": "posts", "filter": filter})
    assert said["error"] == "filter_invalid"
    assert f"@{function} cannot be used here" in str(said)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ('!(members.name = "eve")', "The rule behind teams goes through a list, too."),
        ("@any(people, name = @record.name)", "The rule behind teams uses @any"),
    ],
)
def test_stream_filter_through_lists_refuses_rules_that_lead_further(
    cast: Cast, rule: str, reason: str, collections: dict[str, Any]
) -> None:
    path = f"collections/{collections['teams']['id']}"
    members = {"name": "members", "type": "user", "multiple": True}
    schema = [*collections["teams"]["schema"], members]
    changed = cast.root.patch(path, {"schema": schema, "view_rule": rule})
    assert changed.status_code == 200, changed.json
    answer = cast.bob.get(f"realtime/subscribe?{followed('posts', 'teams.name = null')}")
    assert answer.status_code == 400
    assert reason in answer.json["details"][0]["message"]


def test_stream_filter_applies_current_rules_to_references(
    cast: Cast, port: int, collections: dict[str, Any]
) -> None:
    make_posts(cast)
    client = Socket(port, headers=cast.bob.headers)
    wanted = {"action": "subscribe", "collection": "posts", "filter": 'team.name = "red"'}
    assert client.ask(wanted)["type"] == "subscribed"
    teams = cast.alice.get("records/teams", query_string={"sort": "created_at"}).json["items"]
    make_record(cast.alice, title="seen", team=teams[0]["id"])
    make_record(cast.alice, title="other", team=teams[1]["id"])
    assert [one["data"]["title"] for one in messages(client, 1)] == ["seen"]
    path = f"collections/{collections['teams']['id']}"
    assert cast.root.patch(path, {"view_rule": "created_by = @request.auth.id"}).status_code == 200
    hidden = make_record(cast.alice, title="unseen", team=teams[0]["id"])
    own = make_record(cast.bob, "teams", name="red")["id"]
    made = make_record(cast.bob, title="own", team=own)
    assert [one["data"]["title"] for one in messages(client, 1)] == ["own"]
    assert cast.root.patch(path, {"view_rule": ""}).status_code == 200
    cast.alice.patch(f"records/posts/{hidden['id']}", {"title": "seen now"})
    assert [one["data"]["title"] for one in messages(client, 1)] == ["seen now"]
    # Moved to a team that the filter excludes, it is gone.
    cast.alice.patch(f"records/posts/{made['id']}", {"team": teams[1]["id"]})
    assert types(messages(client, 1)) == ["posts.delete"]
    assert cast.root.patch(path, {"view_rule": None}).status_code == 200
    make_record(cast.alice, title="unseen")
    ended = client.next()
    assert (ended["type"], ended["collection"]) == ("unsubscribed", "posts")


@pytest.mark.long
@pytest.mark.usefixtures("collections")
def test_stream_filters_of_many_callers_take_few_statements(
    app: Flask, cast: Cast, port: int
) -> None:
    make_posts(cast)
    team = cast.alice.get("records/teams?limit=1&sort=created_at").json["items"][0]["id"]
    users = [make_user(app, cast.bob.account_id, f"u{n}@acme.example") for n in range(20)]
    query = followed("posts", 'team.name = "red" && team.lead.name = "ann"')
    clients = [Events(port, query, headers=Caller(app, user).headers) for user in users]
    make_record(cast.alice, title="warm", team=team)
    for client in clients:
        changes(client, 1)
    with statements(app) as sent:
        make_record(cast.alice, title="one", team=team)
        for client in clients:
            assert changes(client, 1)[0]["data"]["title"] == "one"
    reads = [one for one in sent if one.lstrip().upper().startswith(("SELECT", "WITH"))]
    assert len(reads) < len(clients), reads
