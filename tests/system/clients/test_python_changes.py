"""Changes by the Python client: followed through cuts, and polled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa

from app import db
from app.audit.entries import HEADS
from app.realtime import connections
from tests.builders import PASSWORD, Cast, make_record
from tests.realtime.clients import cut, until
from tests.system.clients.running import run_async
from tests.system.clients.stub import Answer, served

pytestmark = pytest.mark.usefixtures("tasks")


@contextmanager
def following(walk: Any, end: str = "end") -> Iterator[list[Any]]:
    """Follow in a thread up to the change whose title is `end`; the list of what came."""
    came = list[Any]()

    def follow() -> None:
        for event in walk:
            came.append(event)
            if getattr(event, "record", None) and event.record["title"] == end:
                return

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(follow)
        yield came
        running.result(10)


def titles(events: list[Any]) -> list[str]:
    return [event.record["title"] for event in events]


def expire_first_changes(cast: Cast) -> None:
    """Let the feed begin with the newest change."""
    last = cast.alice.get("changes").json["next"]
    mine = HEADS.c.account_id == cast.alice.account_id
    with cast.alice.app.app_context(), db.transaction() as session:
        session.execute(sa.update(HEADS).where(mine).values(expired_change=last))


def test_python_client_follow_yields_changes(client: Any, cast: Cast) -> None:
    with following(client.changes.follow("tasks")) as came:
        until(connections.registry.all)
        made = make_record(cast.alice, "tasks", title="line\u2028separator")
        cast.alice.patch(f"records/tasks/{made['id']}", {"title": "two"})
        cast.alice.delete(f"records/tasks/{made['id']}")
        make_record(cast.alice, "tasks", title="end")
    assert [event.operation for event in came] == ["create", "update", "delete", "create"]
    assert {event.collection for event in came} == {"tasks"}
    assert came[0].record == made
    assert (came[2].record, came[2].record_id, came[2].hidden) == (None, made["id"], False)


def test_python_client_follow_resumes_after_disconnect(
    atrium: ModuleType, address: str, key: str, cast: Cast
) -> None:
    client = atrium.Client(address, api_key=key, retries=atrium.Retries(first_delay=0.2))
    with client, following(client.changes.follow("tasks")) as came:
        until(connections.registry.all)
        cut()  # before any change
        until(connections.registry.all)
        make_record(cast.alice, "tasks", title="before")
        until(lambda: titles(came) == ["before"])
        cut()
        for title in ("meanwhile", "end"):
            make_record(cast.alice, "tasks", title=title)
    assert titles(came) == ["before", "meanwhile", "end"]


def test_python_client_follow_starts_at_given_position(client: Any, cast: Cast) -> None:
    for title in ("one", "two", "end"):
        make_record(cast.alice, "tasks", title=title)
    with following(client.changes.follow("tasks", since=0), "one") as came:
        pass
    with following(client.changes.follow("tasks", since=came[-1].change)) as rest:
        pass
    assert titles(came + rest) == ["one", "two", "end"]


def test_python_client_follow_chooses_operations_and_records(
    atrium: ModuleType, client: Any, cast: Cast
) -> None:
    filters = {"tasks": atrium.F.title != "no"}
    walk = client.changes.follow("tasks:create", since=0, filters=filters)
    for title in ("no", "yes"):
        made = make_record(cast.alice, "tasks", title=title)
    cast.alice.patch(f"records/tasks/{made['id']}", {"points": 1})
    make_record(cast.alice, "tasks", title="end")
    with following(walk) as came:
        pass
    assert titles(came) == ["yes", "end"]


def test_python_client_follow_reports_reset_for_expired_position(
    atrium: ModuleType, client: Any, cast: Cast
) -> None:
    make_record(cast.alice, "tasks", title="one")
    first = client.changes.poll().next
    make_record(cast.alice, "tasks", title="two")
    make_record(cast.alice, "tasks", title="three")
    expire_first_changes(cast)
    with pytest.raises(atrium.FeedExpired) as error:
        client.changes.poll(since=first)
    assert error.value.status == 410
    with following(client.changes.follow("tasks", since=first)) as came:
        until(lambda: came)
        make_record(cast.alice, "tasks", title="end")
    assert came[0] == atrium.Reset()
    assert titles(came[1:]) == ["end"]


def test_python_client_follow_renews_expired_session(
    atrium: ModuleType, address: str, cast: Cast
) -> None:
    with atrium.Client(address, retries=atrium.Retries(first_delay=0.05)) as client:
        client.sign_in("acme", "alice@acme.example", PASSWORD)
        with following(client.changes.follow("tasks")) as came:
            until(connections.registry.all)
            tokens = client.session.tokens
            client.session.store(replace(tokens, access_token="worn-out"))
            cut()
            make_record(cast.alice, "tasks", title="end")
        assert titles(came) == ["end"]
        assert client.session.tokens.refresh_token != tokens.refresh_token


@pytest.mark.parametrize(("collection", "error"), [("absent", "NotFound"), ("closed", "Forbidden")])
def test_python_client_follow_of_closed_collection_raises(
    atrium: ModuleType, client: Any, cast: Cast, collection: str, error: str
) -> None:
    closed = {"name": "closed", "schema": [{"name": "title", "type": "text"}]}
    cast.root.post("collections", closed)
    with pytest.raises(getattr(atrium, error)):
        next(client.changes.follow(collection))


def event(change: int) -> str:
    record = {"id": "1", "title": "x" * 200_000}  # which comes in pieces
    data = {"type": "tasks.create", "change": change, "timestamp": "", "data": record}
    return f"id: {change}\nevent: message\ndata: {json.dumps(data)}\n\n"


def test_python_client_follow_reconnects_silent_stream(atrium: ModuleType) -> None:
    answers = [Answer(body=event(change), cut=True, pause=1) for change in (7, 8)]
    with served(atrium, *answers) as (stub, client):
        walk = client.changes.follow("tasks", silence=0.1)
        assert [next(walk).change, next(walk).change] == [7, 8]
        walk.close()
    assert [request.headers["Last-Event-ID"] for request in stub.requests] == [None, "7"]


def test_python_client_follow_retries_failing_server(atrium: ModuleType) -> None:
    with served(atrium, Answer(500), Answer(503), Answer(body=event(7)), attempts=1) as (_, client):
        assert next(client.changes.follow("tasks")).change == 7


def test_python_client_follow_without_streams_raises_server_error(atrium: ModuleType) -> None:
    with served(atrium, Answer(501)) as (_, client), pytest.raises(atrium.ServerError):
        next(client.changes.follow("tasks"))


def test_python_client_poll_pages_through_changes(client: Any, cast: Cast) -> None:
    for title in ("one", "two", "three"):
        make_record(cast.alice, "tasks", title=title)
    page = client.changes.poll(collections=["tasks"], limit=2)
    assert (titles(page.items), page.has_more) == (["one", "two"], True)
    page = client.changes.poll(since=page.next)
    assert (titles(page.items), page.has_more) == (["three"], False)


def test_python_async_client_follow(atrium: ModuleType, address: str, key: str, cast: Cast) -> None:
    make_record(cast.alice, "tasks", title="one")

    async def use() -> str:
        async with atrium.AsyncClient(address, api_key=key) as client:
            async for change in client.changes.follow("tasks", since=0):
                return str(change.record["title"])
        raise AssertionError

    assert run_async(use()) == "one"
