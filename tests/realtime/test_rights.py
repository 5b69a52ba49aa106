"""Streams of readers whose rights change."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from flask import Flask

from app.realtime import audience
from app.realtime.feed.members import Outlook
from app.realtime.feed.visibility import View
from app.realtime.hub import Hub
from tests.builders import Caller, Cast, make_collection, make_record, make_user
from tests.feed.test_changes import now
from tests.feed.test_rights import Change, group, role, rules
from tests.realtime.clients import Events, Socket

STAFF: dict[str, Any] = {"view_rule": '@has_group("staff") || title = "seen"'}


def events(client: Events, last: str) -> list[dict[str, Any]]:
    """What a stream is sent, up to an event of this type; each has its position at its end."""
    found = list[dict[str, Any]]()
    while not found or found[-1]["type"] != last:
        event = client.next()
        if event["event"] == "message":
            found.append(event["data"])
            if "id" in event:
                assert event["id"] == str(event["data"]["change"])
    return found


@pytest.mark.parametrize(
    ("made", "change"),
    [
        ({}, rules("posts", view_rule='title = "seen"')),
        (STAFF, group("staff", joins=True)),
        ({"view_rule": '@has_role("viewer") || title = "seen"'}, role("editor")),
    ],
    ids=["rule", "group", "role"],
)
@pytest.mark.parametrize(
    "query", ["", "collections=posts:delete&filter.posts=title%20!%3D%20%22%22"]
)
def test_streams_are_told_of_changed_rights(
    cast: Cast, port: int, made: dict[str, Any], change: Change, query: str
) -> None:
    assert cast.alice.post("groups", {"name": "staff"}).status_code == 201
    make_collection(cast.root, **made)
    client = Events(port, query, headers=cast.bob.headers)
    socket = Socket(port, headers=cast.bob.headers)
    assert socket.ask({"action": "subscribe", "collection": "posts"})["type"] == "subscribed"
    answer = change(cast)
    assert answer.status_code < 300, answer.text
    (told,) = events(client, "posts.reset")
    assert told.keys() == {"type", "change"}
    assert socket.next() == told
    # A reader that was cut off is told again, from where it was.
    again = Events(port, f"{query}&since={told['change'] - 1}", headers=cast.bob.headers)
    assert events(again, "posts.reset") == [told]


def test_stream_of_everything_is_told_of_collection_that_opens_or_closes(
    cast: Cast, port: int
) -> None:
    make_collection(cast.root, view_rule=None)
    make_collection(cast.root, "notes")
    client = Events(port, headers=cast.bob.headers)
    make_record(cast.alice, "notes", title="first")
    assert events(client, "notes.create")
    assert rules("posts", view_rule="true")(cast).status_code == 200
    make_record(cast.alice, title="seen")
    assert [one["type"] for one in events(client, "posts.create")] in (
        ["posts.reset", "posts.create"],
        ["posts.create"],
    )
    assert rules("posts", view_rule=None, list_rule=None)(cast).status_code == 200
    assert events(client, "posts.reset")


def test_stream_position_comes_with_the_last_event_of_a_change(cast: Cast, port: int) -> None:
    names = ["letters", "notes", "posts"]
    for name in names:
        make_collection(cast.root, name, view_rule='@has_role("viewer") || title = "a"')
    client = Events(port, headers=cast.bob.headers)
    assert role("editor")(cast).status_code < 300
    told = [client.next() for _ in names]
    assert [one["data"]["type"] for one in told] == [f"{name}.reset" for name in names]
    assert [one.get("id") for one in told] == [None, None, str(told[-1]["data"]["change"])]


def test_rights_of_another_account_leave_streams_alone(app: Flask, cast: Cast, port: int) -> None:
    make_collection(cast.root, **STAFF)
    assert cast.alice.post("groups", {"name": "staff"}).status_code == 201
    client = Events(port, headers=cast.charlie.headers)
    assert group("staff", joins=True)(cast).status_code < 300
    make_record(cast.charlie, title="seen")
    assert [one["type"] for one in events(client, "posts.create")] == ["posts.create"]


MEMBER = "@any(members, post = @record.id && user = @request.auth.id)"


class Told(NamedTuple):
    """What those who were members are sent, and how long after the commit all of them have it."""

    events: set[str]
    seconds: float


def revoke(
    app: Flask,
    cast: Cast,
    port: int,
    members: int,
    *,
    own: int = 1,
    everybody: bool = False,
    rejoins: bool = True,
) -> Told:
    """Take a membership, or all, while streams of so many other members and of one's own run."""
    user = {"name": "user", "type": "user"}
    make_collection(cast.root)
    post = {"name": "post", "type": "reference", "collection": "posts", "on_delete": "cascade"}
    make_collection(cast.root, "members", [post, user], view_rule=None)
    assert rules("posts", view_rule=MEMBER, list_rule=MEMBER)(cast).status_code == 200
    operator = cast.root.acting_in("acme")
    made, kept = (make_record(operator, title=title)["id"] for title in ("first", "kept"))
    people = [make_user(app, cast.bob.account_id, f"m{n}@acme.example") for n in range(members)]
    bodies = [{"post": made, "user": id} for id in (cast.bob.id, *(one.id for one in people))]
    ids = list[str]()
    for start in range(0, len(bodies), 500):
        part = {"records": bodies[start : start + 500]}
        answer = operator.post("records/members/batch", part)
        assert answer.status_code == 201, answer.text
        ids += [one["id"] for one in answer.json["created"]]
    make_record(operator, "members", post=kept, user=cast.bob.id)
    others = [Events(port, "collections=posts", headers=Caller(app, one).headers) for one in people]
    mine = [Events(port, "collections=posts", headers=cast.bob.headers) for _ in range(own)]
    change(operator, made, "seen", [*mine, *others])
    if everybody:
        answer = operator.delete("records/members/batch", json={"ids": ids})
    else:
        answer = operator.delete(f"records/members/{ids[0]}")
    assert answer.status_code < 300, answer.text
    committed = time.monotonic()
    told = Told(set(), 0)
    for client in (*mine, *others) if everybody else mine:
        first = next(one for one in iter(client.next, None) if one["event"] == "message")["data"]
        told.events.add(first["type"])
        if first["type"] != "posts.reset":
            assert (first["data"], first["hidden"]) == ({"id": made}, True)
    told = told._replace(seconds=time.monotonic() - committed)
    # Who is a member sees what follows, and who was does not.
    change(operator, made, "secret", [] if everybody else others)
    change(operator, kept, "for me", mine)
    if rejoins:
        assert make_record(operator, "members", post=made, user=cast.bob.id)
        for client in mine:
            assert [one["type"] for one in events(client, "posts.create")] == ["posts.create"]
    return told


def change(operator: Caller, post: str, title: str, clients: Sequence[Events]) -> None:
    """Change a post; all of these streams are sent it next."""
    assert operator.patch(f"records/posts/{post}", {"title": title}).status_code == 200
    for client in clients:
        (seen,) = events(client, "posts.update")
        assert (seen["data"]["id"], seen["data"]["title"]) == (post, title)


@pytest.mark.both_databases
def test_revoked_membership_hides_records_of_streams(app: Flask, cast: Cast, port: int) -> None:
    revoke(app, cast, port, members=3)


def test_streams_at_different_positions_are_told_what_each_has_missed(
    cast: Cast, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One listed while it was a member, the other before."""
    user = {"name": "user", "type": "user"}
    post = {"name": "post", "type": "reference", "collection": "posts", "on_delete": "cascade"}
    make_collection(cast.root)
    make_collection(cast.root, "members", [post, user], view_rule=None)
    assert rules("posts", view_rule=MEMBER, list_rule=MEMBER)(cast).status_code == 200
    operator, positions = cast.root.acting_in("acme"), list[int]()
    made = make_record(operator)["id"]
    positions.append(now(cast.bob))
    member = make_record(operator, "members", post=made, user=cast.bob.id)["id"]
    positions.append(now(cast.bob))
    assert operator.delete(f"records/members/{member}").status_code < 300
    look, may_look = Hub._look, threading.Event()
    monkeypatch.setattr(Hub, "_look", lambda hub: look(hub) if may_look.is_set() else None)
    clients = [
        Events(port, f"collections=posts&since={since}", headers=cast.bob.headers)
        for since in positions
    ]
    Events(port, "collections=posts", headers=cast.bob.headers)  # has all: the others are behind
    may_look.set()
    for client in clients:
        (gone,) = events(client, "posts.delete")
        assert (gone["data"], gone["hidden"]) == ({"id": made}, True)


@pytest.mark.parametrize("patient", [True, False])
def test_streams_of_slow_turns_are_all_told_of_memberships(
    app: Flask, cast: Cast, port: int, monkeypatch: pytest.MonkeyPatch, patient: bool
) -> None:
    """Each turn has time for one of them; the others wait for the next, or list again."""
    judge = Outlook.of

    def slow(outlook: Outlook, view: View) -> Any:
        time.sleep(0.03)
        return judge(outlook, view)

    monkeypatch.setattr(audience, "TURN_SECONDS", 0.02)
    monkeypatch.setattr(audience, "PATIENCE", timedelta(seconds=60 * patient))
    monkeypatch.setattr(Outlook, "of", slow)
    told = revoke(app, cast, port, members=3, everybody=True, rejoins=False).events
    assert told == ({"posts.delete"} if patient else {"posts.delete", "posts.reset"})


@pytest.mark.slow
@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("members", "own", "everybody"),
    [(1000, 1, False), (0, 1000, False), (999, 1, True)],
    ids=["one of a thousand", "one of a thousand streams", "a thousand"],
)
def test_revoked_membership_hides_records_of_a_thousand_streams_within_a_second(
    app: Flask, cast: Cast, port: int, members: int, own: int, everybody: bool
) -> None:
    told = revoke(app, cast, port, members, own=own, everybody=everybody)
    assert told.seconds < 1
    assert everybody or told.events == {"posts.delete"}
