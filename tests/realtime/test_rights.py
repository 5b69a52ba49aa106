"""Streams of readers whose rights change."""

from __future__ import annotations

import time
from typing import Any

import pytest
from flask import Flask

from app.realtime import audience
from app.realtime.feed.members import Outlook
from app.realtime.feed.visibility import View
from tests.builders import Caller, Cast, make_collection, make_record, make_user
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


def revoke(app: Flask, cast: Cast, port: int, streams: int, *, rejoins: bool = True) -> None:
    """Take a membership while so many streams run, of members and of one who was removed."""
    user = {"name": "user", "type": "user"}
    make_collection(cast.root)
    post = {"name": "post", "type": "reference", "collection": "posts", "on_delete": "cascade"}
    make_collection(cast.root, "members", [post, user], view_rule=None)
    assert rules("posts", view_rule=MEMBER, list_rule=MEMBER)(cast).status_code == 200
    operator = cast.root.acting_in("acme")
    made = make_record(operator, title="first")["id"]
    others = [make_user(app, cast.bob.account_id, f"m{n}@acme.example") for n in range(streams)]
    for other in others:
        make_record(operator, "members", post=made, user=other.id)
    own = make_record(operator, "members", post=made, user=cast.bob.id)["id"]
    callers = [Caller(app, other) for other in others]
    clients = [Events(port, "collections=posts", headers=one.headers) for one in callers]
    mine = Events(port, "collections=posts", headers=cast.bob.headers)
    assert operator.delete(f"records/members/{own}").status_code < 300
    (gone,) = events(mine, "posts.delete")
    assert (gone["data"], gone["hidden"]) == ({"id": made}, True)
    assert operator.patch(f"records/posts/{made}", {"title": "secret"}).status_code == 200
    for client in clients:  # who is a member sees it, and who was does not
        (seen,) = events(client, "posts.update")
        assert seen["data"]["title"] == "secret"
    if not rejoins:
        return
    assert make_record(operator, "members", post=made, user=cast.bob.id)
    assert [one["type"] for one in events(mine, "posts.create")] == ["posts.create"]


@pytest.mark.both_databases
def test_revoked_membership_hides_records_of_streams(app: Flask, cast: Cast, port: int) -> None:
    revoke(app, cast, port, streams=3)


def test_streams_of_slow_turns_are_all_sent_what_memberships_give(
    app: Flask, cast: Cast, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn has time for one of them."""
    judge = Outlook.of

    def slow(outlook: Outlook, view: View) -> Any:
        time.sleep(0.03)
        return judge(outlook, view)

    monkeypatch.setattr(audience, "TURN_SECONDS", 0.02)
    monkeypatch.setattr(Outlook, "of", slow)
    revoke(app, cast, port, streams=3, rejoins=False)


@pytest.mark.slow
def test_revoked_membership_hides_records_of_many_streams(
    app: Flask, cast: Cast, port: int
) -> None:
    revoke(app, cast, port, streams=200)
