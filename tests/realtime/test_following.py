"""What streams are sent: every change that the caller may view at that moment, once, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from flask import Flask
from sqlalchemy.exc import OperationalError

from app.auth.principal import Principal
from app.realtime import hub
from app.realtime.connections import Connection, Subscription
from app.realtime.feed import changes as changes_of_feed
from tests.builders import Caller, Cast, make_collection, make_record, make_user
from tests.realtime.clients import SECONDS, Events, Socket, until
from tests.sql import statements

WITHIN = 5  # seconds, after which a right must have ended


def changes(client: Events, count: int) -> list[dict[str, Any]]:
    """The next changes of records of a stream."""
    found = list[dict[str, Any]]()
    while len(found) < count:
        event = client.next()
        if event["event"] == "message" and "data" in event["data"]:
            assert event["id"] == str(event["data"]["change"])
            found.append(event["data"])
    return found


def messages(client: Socket, count: int) -> list[dict[str, Any]]:
    """The next changes of records that a WebSocket is sent."""
    found = list[dict[str, Any]]()
    while len(found) < count:
        message = client.next()
        if "change" in message and "data" in message:
            found.append(message)
    return found


def types(found: list[dict[str, Any]]) -> list[str]:
    """The types of changes."""
    return [one["type"] for one in found]


def test_event_stream_sends_each_change(cast: Cast, port: int) -> None:
    make_collection(cast.root)
    make_record(cast.alice, title="earlier")
    client = Events(port, "collections=posts", headers=cast.bob.headers)
    made = make_record(cast.alice, title="one")
    changed = cast.alice.patch(f"records/posts/{made['id']}", {"title": "two"}).json
    cast.alice.delete(f"records/posts/{made['id']}")
    found = changes(client, 3)
    assert [(one["type"], one["data"]) for one in found] == [
        ("posts.create", made),
        ("posts.update", changed),
        ("posts.delete", {"id": made["id"]}),
    ]
    assert found[0]["timestamp"] == made["created_at"]
    feed = cast.bob.get("changes").json["items"]
    assert [one["change"] for one in feed[1:]] == [one["change"] for one in found]


def test_websocket_sends_changes_of_its_subscriptions(cast: Cast, port: int) -> None:
    make_collection(cast.root)
    make_collection(cast.root, "notes")
    client = Socket(port, headers=cast.bob.headers)
    message = {"action": "subscribe", "collection": "posts", "operations": ["create", "delete"]}
    answer = client.ask(message)
    assert (answer["type"], answer["status"], answer["collection"]) == (
        *("subscribed", "subscribed"),
        "posts",
    )
    make_record(cast.alice, "notes", title="not followed")
    made = make_record(cast.alice, title="one")
    cast.alice.patch(f"records/posts/{made['id']}", {"title": "two"})
    cast.alice.delete(f"records/posts/{made['id']}")
    assert types(messages(client, 2)) == ["posts.create", "posts.delete"]
    assert client.ask({"action": "unsubscribe", "collection": "posts"})["type"] == "unsubscribed"
    make_record(cast.alice, title="unseen")
    assert client.ask({"action": "subscribe", "collection": "notes"})["type"] == "subscribed"
    make_record(cast.alice, "notes", title="seen")
    assert types(messages(client, 1)) == ["notes.create"]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"collection": "nothing"}, "not_found"),
        ({"collection": "closed"}, "rule_denied"),
        ({"collection": "posts", "filter": "title ="}, "validation_error"),
        ({"collection": "posts", "filter": "nothing = 1"}, "validation_error"),
    ],
)
def test_websocket_refused_subscription_keeps_connection_open(
    cast: Cast, port: int, message: dict[str, Any], error: str
) -> None:
    make_collection(cast.root)
    make_collection(cast.root, "closed", view_rule=None)
    client = Socket(port, headers=cast.bob.headers)
    answer = client.ask({"action": "subscribe", **message})
    assert answer["type"] == "error"
    expected = "filter_invalid" if "filter" in message else error
    assert answer["error"] == expected, answer
    assert client.ask({"action": "ping"})["type"] == "pong"


@pytest.mark.parametrize(
    ("query", "status", "error"),
    [
        ("collections=nothing", 404, "not_found"),
        ("collections=closed", 403, "rule_denied"),
        ("collections=posts&filter.posts=title%20=", 400, "validation_error"),
    ],
)
def test_event_stream_refusal_is_ordinary_error(
    cast: Cast, port: int, query: str, status: int, error: str
) -> None:
    make_collection(cast.root)
    make_collection(cast.root, "closed", view_rule=None)
    client = Events(port, query, headers=cast.bob.headers)
    body = client.json()
    assert (client.status, body["error"]) == (status, error)
    if "filter" in query:
        assert body["details"][0]["code"] == "filter_invalid"


def test_stream_filter_reports_entering_and_leaving_records(cast: Cast, port: int) -> None:
    make_collection(cast.root)
    query = "collections=posts:create,update&filter.posts=title%20=%20%22in%22"
    client = Events(port, query, headers=cast.bob.headers)
    made = make_record(cast.alice, title="out")
    path = f"records/posts/{made['id']}"
    for title in ("in", "out"):
        cast.alice.patch(path, {"title": title})
    cast.alice.delete(path)
    make_record(cast.alice, title="in")
    found = changes(client, 3)
    assert types(found) == ["posts.create", "posts.delete", "posts.create"]
    assert (found[1]["data"], found[1]["hidden"]) == ({"id": made["id"]}, True)


def test_stream_resumes_without_gap_or_repetition(cast: Cast, port: int) -> None:
    make_collection(cast.root)
    client = Events(port, "collections=posts", headers=cast.bob.headers)
    make_record(cast.alice, title="0")
    last = changes(client, 1)[0]["change"]
    client.socket.close()
    made = [make_record(cast.alice, title=str(n))["id"] for n in range(5)]
    resumed = {**cast.bob.headers, "Last-Event-ID": str(last)}
    for client in (
        Events(port, "collections=posts&since=0", headers=resumed),
        Events(port, f"collections=posts&since={last}", headers=cast.bob.headers),
    ):
        assert [one["data"]["id"] for one in changes(client, 5)] == made
    socket = Socket(port, headers=cast.bob.headers)
    socket.say({"action": "subscribe", "collection": "posts", "since": last})
    assert [one["data"]["id"] for one in messages(socket, 5)] == made


def test_stream_reports_its_start_position(cast: Cast, port: int) -> None:
    make_collection(cast.root)
    make_record(cast.alice, title="earlier")
    newest = cast.bob.get("changes").json["next"]
    opening = Events(port, "collections=posts", headers=cast.bob.headers).opening
    assert f"id: {newest}\nevent: heartbeat\n".encode() in opening
    client = Socket(port, headers=cast.bob.headers)
    message = {"action": "subscribe", "collection": "posts"}
    assert client.ask(message)["since"] == newest
    assert client.ask({**message, "since": 0})["since"] == 0
    assert "since" not in client.ask({**message, "since": 2**62})


@pytest.mark.parametrize("since", [2**62, "x"])
def test_stream_position_unknown_to_feed_is_reset(cast: Cast, port: int, since: object) -> None:
    make_collection(cast.root)
    headers = {**cast.bob.headers, "Last-Event-ID": str(since)}
    client = Events(port, "collections=posts", headers=headers)
    assert b"id: " not in client.opening
    assert client.next()["event"] == "reset"
    make_record(cast.alice, title="after it")
    assert types(changes(client, 1)) == ["posts.create"]


def test_stream_without_collections_follows_all_open_ones(cast: Cast, port: int) -> None:
    make_collection(cast.root)
    make_collection(cast.root, "closed", view_rule=None)
    client = Events(port, headers=cast.bob.headers)
    make_record(cast.alice, title="one")
    make_record(cast.alice, "closed", title="two")
    make_collection(cast.root, "new")
    make_record(cast.alice, "new", title="three")
    assert types(changes(client, 2)) == ["posts.create", "new.create"]


@pytest.mark.parametrize("length", [300_000, 9_500])
def test_websocket_change_of_two_subscriptions_is_sent_once(
    cast: Cast, port: int, length: int
) -> None:
    make_collection(cast.root)
    client = Socket(port, headers=cast.bob.headers)
    for about in ({}, {"collection": "posts"}, {"collection": "Posts"}):
        assert client.ask({"action": "subscribe", **about})["type"] == "subscribed"
    bodies = [{"title": f"{n}" + "x" * length} for n in range(20)]
    assert cast.alice.post("records/posts/batch", {"records": bodies}).status_code == 201
    sent = [one["change"] for one in messages(client, len(bodies))]
    assert sent == sorted(set(sent))
    make_record(cast.alice, title="the last one")
    assert messages(client, 1)[0]["data"]["title"] == "the last one"


def test_websocket_repeated_subscription_resumes_at_its_position(
    app: Flask, cast: Cast, port: int
) -> None:
    make_collection(cast.root)
    client, subscribe = Socket(port, headers=cast.bob.headers), {"action": "subscribe"}
    begun = client.ask(subscribe | {"collection": "posts"})["since"]
    is_free, judge = Event(), hub._hub(app)

    def hold() -> None:
        is_free.wait(SECONDS)
        raise OSError  # it begins anew: with the next request, before the change is sent

    judge.request(hold)
    made = make_record(cast.alice, title="between")
    client.say(subscribe | {"collection": "posts"})
    until(lambda: len(judge._requests) == 1)
    is_free.set()
    assert client.next()["since"] == begun
    assert messages(client, 1)[0]["data"] == made
    again = client.ask(subscribe | {"collection": "posts", "since": begun})
    assert again["since"] == begun
    assert messages(client, 1)[0]["data"] == made


def test_websocket_subscription_from_start_beside_current_misses_nothing(
    cast: Cast, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root)
    make_collection(cast.root, "notes")
    for number in range(30):
        make_record(cast.alice, title=str(number))
    client = Socket(port, headers=cast.bob.headers)
    assert client.ask({"action": "subscribe", "collection": "notes"})["type"] == "subscribed"
    make_record(cast.alice, "notes", title="now")
    assert types(messages(client, 1)) == ["notes.create"]
    monkeypatch.setattr(changes_of_feed, "ROOM", 500)
    # Scans that find nothing for it come first.
    about = {"collection": "posts", "filter": 'title = "29"', "since": 0}
    assert client.ask({"action": "subscribe", **about})["type"] == "subscribed"
    assert messages(client, 1)[0]["data"]["title"] == "29"


@pytest.mark.both_databases
def test_websocket_failed_subscription_does_not_block_others(
    cast: Cast, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root)
    open_stream = hub.open_stream

    def fail(caller: Principal, subscriptions: Sequence[Subscription]) -> None:
        if subscriptions and caller.user_id == cast.bob.id:
            raise OperationalError("SELECT", {}, Exception("away"))
        open_stream(caller, subscriptions)

    monkeypatch.setattr(hub, "open_stream", fail)
    talks = [Socket(port, headers=one.headers) for one in (cast.bob, cast.alice)]
    for talk in talks:
        talk.say({"action": "subscribe", "collection": "posts"})
    assert [talk.next().get("error") for talk in talks] == ["unavailable", None]


def test_websocket_forgets_views_of_former_subscriptions(
    cast: Cast, port: int, attached: list[Connection]
) -> None:
    make_collection(cast.root)
    client = Socket(port, headers=cast.bob.headers)
    for number in range(10):
        about = {"collection": "posts", "filter": f'title = "{number}"'}
        assert client.ask({"action": "subscribe", **about})["type"] == "subscribed"
    make_record(cast.alice, title="9")
    assert types(messages(client, 1)) == ["posts.create"]
    (stream,) = hub._hub(attached[0].app)._streams.values()
    until(lambda: len(stream._views) == 1)


def test_stream_excludes_changes_of_other_accounts(cast: Cast, port: int) -> None:
    make_collection(cast.root)
    theirs = Events(port, headers=cast.charlie.headers)
    mine = Events(port, headers=cast.bob.headers)
    make_record(cast.alice, title="mine")
    make_record(cast.charlie, title="theirs")
    assert changes(theirs, 1)[0]["data"]["title"] == "theirs"
    assert changes(mine, 1)[0]["data"]["title"] == "mine"


# --- Rights that end ----------------------------------------------------------


def deactivate(app: Flask, cast: Cast) -> None:
    """End the user."""
    cast.alice.patch(f"account/users/{cast.bob.id}", {"is_active": False})


def close_account(app: Flask, cast: Cast) -> None:
    """End the account."""
    assert (
        cast.root.patch(f"accounts/{cast.bob.account_id}", {"is_active": False}).status_code < 300
    )


def close_rule(app: Flask, cast: Cast) -> None:
    """Close the collection."""
    rules = {"view_rule": None, "list_rule": None}
    assert cast.root.put("collections/posts/rules", rules).status_code < 300


def change_role(app: Flask, cast: Cast) -> None:
    """Take the role that the rule asks for."""
    roles = {one["name"]: one["id"] for one in cast.root.get("roles").json["items"]}
    body = {"role_id": roles["editor"]}
    assert cast.alice.patch(f"account/users/{cast.bob.id}", body).status_code < 300


def narrow_rule(app: Flask, cast: Cast) -> None:
    """Have the rule ask for another role."""
    rules = {"view_rule": '@has_role("admin")'}
    assert cast.root.put("collections/posts/rules", rules).status_code < 300


@pytest.mark.parametrize(
    "end",
    [deactivate, close_account, close_rule, narrow_rule, change_role],
)
def test_stream_ends_with_loss_of_right(
    app: Flask, cast: Cast, port: int, end: Callable[[Flask, Cast], None]
) -> None:
    make_collection(cast.root, view_rule='@has_role("viewer")')
    client = Events(port, "collections=posts", headers=cast.bob.headers)
    make_record(cast.alice, title="seen")
    assert types(changes(client, 1)) == ["posts.create"]
    end(app, cast)
    started = time.monotonic()
    if end is not close_account:
        make_record(cast.alice, title="unseen")
    assert b"unseen" not in client.ended()
    assert time.monotonic() - started < WITHIN


def test_stream_ends_with_deleted_api_key(app: Flask, cast: Cast, port: int) -> None:
    make_collection(cast.root)
    made = cast.alice.post("api-keys", {"name": "follower"}).json
    client = Events(port, "collections=posts", headers={"X-API-Key": made["key"]})
    make_record(cast.alice, title="seen")
    assert types(changes(client, 1)) == ["posts.create"]
    assert cast.alice.delete(f"api-keys/{made['id']}").status_code < 300
    make_record(cast.alice, title="unseen")
    assert b"unseen" not in client.ended()


def test_stream_reports_expired_token_and_ends(
    cast: Cast, port: int, attached: list[Connection]
) -> None:
    make_collection(cast.root)
    client = Events(port, "collections=posts", headers=cast.bob.headers)
    until(lambda: attached)
    attached[0].credential = replace(attached[0].credential, expires_at=time.time() - 1)
    make_record(cast.alice, title="unseen")
    assert client.next()["event"] == "expired"
    assert b"unseen" not in client.ended()


@pytest.mark.both_databases
def test_stream_visibility_of_many_clients_takes_few_statements(
    app: Flask, cast: Cast, port: int, attached: list[Connection]
) -> None:
    make_collection(cast.root, "teams", schema=[{"name": "name", "type": "text"}])
    schema: list[dict[str, Any]] = [
        {"name": "title", "type": "text"},
        {"name": "team", "type": "reference", "collection": "teams", "on_delete": "set_null"},
    ]
    rule = 'team.name = "red" && created_by != @request.auth.id'
    make_collection(cast.root, schema=schema, view_rule=rule)
    team = make_record(cast.alice, "teams", name="red")["id"]
    users = [make_user(app, cast.bob.account_id, f"u{n}@acme.example") for n in range(20)]
    callers = [Caller(app, user) for user in users]
    clients = [Events(port, "collections=posts", headers=one.headers) for one in callers]
    make_record(cast.alice, title="warm", team=team)
    for client in clients:
        changes(client, 1)
    with statements(app) as sent:
        make_record(cast.alice, title="one", team=team)
        for client in clients:
            assert changes(client, 1)[0]["data"]["title"] == "one"
    reads = [one for one in sent if one.lstrip().upper().startswith(("SELECT", "WITH"))]
    # The sealer's own, which looks again while it waits for its turn, are not the clients'.
    reads = [one for one in reads if "audit_pending" not in one and "audit_heads" not in one]
    assert len(reads) < len(clients), reads


def test_websocket_subscription_ends_with_closed_rule(app: Flask, cast: Cast, port: int) -> None:
    make_collection(cast.root)
    make_collection(cast.root, "notes")
    client = Socket(port, headers=cast.bob.headers)
    for name in ("posts", "notes"):
        assert client.ask({"action": "subscribe", "collection": name})["type"] == "subscribed"
    close_rule(app, cast)
    ended = client.next()
    assert (ended["type"], ended["status"]) == ("unsubscribed", "unsubscribed")
    assert (ended["collection"], ended["error"]) == ("posts", "rule_denied")
    make_record(cast.alice, "notes", title="still")
    assert types(messages(client, 1)) == ["notes.create"]


def test_stream_masks_values_by_current_rights(cast: Cast, port: int, app: Flask) -> None:
    schema = [
        {"name": "title", "type": "text"},
        {"name": "mail", "type": "email", "pii": True, "mask_type": "full"},
    ]
    made = make_collection(cast.root, schema=schema)
    client = Events(port, "collections=posts", headers=cast.alice.headers)
    make_record(cast.alice, title="one", mail="ada@acme.example")
    assert changes(client, 1)[0]["data"]["mail"] == "ada@acme.example"
    group = next(
        one for one in cast.alice.get("groups").json["items"] if one["name"] == "pii_access"
    )
    removed = cast.alice.delete(f"groups/{group['id']}/members/{cast.alice.id}")
    assert removed.status_code < 300, removed.text
    make_record(cast.alice, title="two", mail="ada@acme.example")
    assert changes(client, 1)[0]["data"]["mail"] == "********"
    assert (
        cast.root.patch(f"collections/{made['id']}", {"view_fields": ["title"]}).status_code < 300
    )
    make_record(cast.alice, title="three")
    assert "mail" not in changes(client, 1)[0]["data"]


def test_stream_reports_record_leaving_view_as_delete(cast: Cast, port: int) -> None:
    make_collection(cast.root, view_rule='title != "secret"')
    client = Events(port, "collections=posts:update", headers=cast.bob.headers)
    made = make_record(cast.alice, title="open")
    cast.alice.patch(f"records/posts/{made['id']}", {"title": "secret"})
    (gone,) = changes(client, 1)
    assert gone["type"] == "posts.delete"
    assert (gone["data"], gone["hidden"]) == ({"id": made["id"]}, True)


def test_stream_ticket_opens_stream_for_its_caller(app: Flask, cast: Cast, port: int) -> None:
    make_collection(cast.root)
    ticket = cast.bob.post("realtime/tickets").json["ticket"]
    client = Events(port, f"collections=posts&ticket={ticket}")
    make_record(cast.alice, title="one")
    assert types(changes(client, 1)) == ["posts.create"]
    assert Events(port, f"collections=posts&ticket={ticket}").status == 401
