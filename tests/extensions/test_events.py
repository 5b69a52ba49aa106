"""Handlers of events: what `GET /operator/events` lists, once for each."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from app.extend import Caller, Forbidden, on
from app.extensions.loading import loaded
from app.extensions.registry import LoadError
from app.operator.types import EventType
from tests.builders import Caller as Client
from tests.builders import Cast, make_collection, make_record
from tests.extensions.running import jobs_of, run_due

Heard = list[tuple[dict[str, Any], Caller]]


def hears(heard: Heard, *written: str) -> Any:
    """An extension that keeps the events of these types."""

    def shop() -> None:
        def keep(caller: Caller, event: dict[str, Any]) -> None:
            heard.append((event, caller))

        for one in written:
            on(one)(keep)

    return shop


def test_handler_gets_the_event_as_it_is_listed(app: Flask, cast: Cast) -> None:
    heard: Heard = []
    with loaded(hears(heard, "user.created", "group.*")):
        group = cast.alice.post("groups", {"name": "sales"}).json["id"]
        cast.alice.post(f"groups/{group}/users", {"user_id": cast.bob.id})
        cast.alice.post("account/users", {"email": "zoe@acme.example"})
        assert run_due(app) == 2
    listed = cast.root.get("operator/events?types=user.created,group.member_added").json["items"]
    known = {one["id"]: one for one in listed}
    assert [event for event, _ in heard] == [known[event["id"]] for event, _ in heard]
    assert sorted(event["type"] for event, _ in heard) == ["group.member_added", "user.created"]
    assert {caller.user and caller.user.id for _, caller in heard} == {cast.alice.id}


@pytest.mark.parametrize("is_announced", [False, True])
def test_changes_of_records_are_heard_once(app: Flask, cast: Cast, is_announced: bool) -> None:
    heard: Heard = []
    make_collection(cast.root)
    if is_announced:
        hook = {"url": "https://example.com/", "types": ["records.create"]}
        made = cast.root.post("operator/webhooks", {**hook, "collections": ["posts"]})
        assert made.status_code == 201, made.json
    with loaded(hears(heard, "records.*")):
        record = make_record(cast.alice, title="a")
        run_due(app)
    ((event, _),) = heard
    assert event["data"] == {"collection": "posts", "record_id": record["id"]}
    assert (event["type"], event["account_id"]) == ("records.create", cast.alice.account_id)
    listed = cast.root.get("operator/events?types=records.create").json["items"]
    assert [one for one in listed if one == event] == ([event] if is_announced else [])


def test_nobody_acts_for_a_key_or_a_stranger(app: Flask, cast: Cast) -> None:
    heard: Heard = []
    refused = list[str]()

    def shop() -> None:
        @on("user.created")
        def look(caller: Caller, event: dict[str, Any]) -> None:
            heard.append((event, caller))
            try:
                caller.records("posts").list()
            except Forbidden as error:
                refused.append(str(error))

    make_collection(cast.root, list_rule='@request.auth.id != ""')
    key = cast.alice.post("api-keys", {"name": "k"}).json["key"]
    program = Client(app, **{"X-API-Key": key})
    with loaded(shop):
        made = program.post("account/users", {"email": "zoe@acme.example"})
        assert made.status_code == 201, made.json
        run_due(app)
    ((event, caller),) = heard
    assert event["actor"]["kind"] == "api_key"
    assert (caller.user, caller.kind) == (None, "anonymous")


@pytest.mark.parametrize("written", ["user.jonied", "users.*", "", "*"])
def test_unknown_type_is_refused_at_load(app: Flask, written: str) -> None:
    with (
        pytest.raises(LoadError, match="there is no event"),
        loaded(hears([], written)),
    ):
        pass


def test_every_type_can_be_heard(app: Flask) -> None:
    with loaded(hears([], *EventType)):
        assert jobs_of(app) == []
