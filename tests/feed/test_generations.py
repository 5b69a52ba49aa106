"""Readers of the change feed after the database went back in time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from flask import Flask

from app import clock
from app.realtime.feed import changes
from tests import builders
from tests.builders import Caller, Cast, make_collection, make_record
from tests.conftest import make_own_app
from tests.feed.test_changes import now, reported
from tests.realtime.clients import Events, Socket
from tests.realtime.conftest import serving


def refusal(caller: Caller, since: int) -> tuple[int, str]:
    response = caller.get("changes", query_string={"since": since})
    return response.status_code, (response.json or {}).get("error", "")


@pytest.fixture
def own(database: str, tmp_path: Path) -> tuple[Flask, Cast]:
    """An instance of its own, with a collection."""
    app = make_own_app(database, tmp_path)
    cast = builders.make_cast(app)
    make_collection(cast.root)
    return app, cast


@pytest.fixture
def backup(own: tuple[Flask, Cast], tmp_path: Path) -> Callable[[], None]:
    """Makes a backup; what it returns restores it."""
    app, file = own[0], tmp_path / "atrium.backup"

    def run(*arguments: str) -> None:
        result = app.test_cli_runner().invoke(args=list(arguments))
        assert result.exit_code == 0, result.output

    run("backup", str(file))
    return lambda: run("restore", str(file), "--replace")


@pytest.mark.parametrize("restores", [1, 2])
@pytest.mark.parametrize("backwards", [0, 400], ids=["", "clock set back"])
def test_change_feed_position_before_database_restore_is_410(
    own: tuple[Flask, Cast],
    backup: Callable[[], None],
    restores: int,
    backwards: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, cast = own
    for _ in range(restores):
        lost = [make_record(cast.alice, title="lost")["id"] for _ in range(5)]
        position = now(cast.alice)
        real = clock.now
        monkeypatch.setattr(clock, "now", lambda real=real: real() - timedelta(days=backwards))
        backup()
        monkeypatch.setattr(clock, "now", real)
        assert refusal(cast.alice, position) == (410, "feed_expired")
        made = [make_record(cast.alice, title="new")["id"] for _ in range(8)]
        assert refusal(cast.alice, position) == (410, "feed_expired")
        assert [id for _, id in reported(cast.alice)] == made
        assert position < now(cast.alice) < 2**53  # what JavaScript's numbers hold
        assert not {*lost} & {one["id"] for one in cast.alice.get("records/posts").json["items"]}


def test_change_feed_of_account_created_after_restore(
    own: tuple[Flask, Cast], backup: Callable[[], None]
) -> None:
    app, cast = own
    backup()
    with app.app_context():
        changes.start_generation(always=True)
    made = make_record(cast.charlie, title="theirs")
    assert reported(cast.charlie) == [("records.create", made["id"])]
    assert refusal(cast.charlie, 1) == (410, "feed_expired")


def test_change_feed_expiry_command_covers_all_accounts(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    callers = (cast.alice, cast.charlie)
    positions = []
    for caller in callers:
        make_record(caller, title="before")
        positions.append(now(caller))
    result = app.test_cli_runner().invoke(args=["expire-changes"])
    assert result.exit_code == 0, result.output
    for caller, position in zip(callers, positions, strict=True):
        assert refusal(caller, position) == (410, "feed_expired")
        begun = now(caller)
        assert str(begun) in result.output
        made = make_record(caller, title="after")
        assert reported(caller, since=begun) == [("records.create", made["id"])]


def test_change_feed_expiry_resets_open_streams(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    make_record(cast.alice, title="before")
    with serving(app) as port:
        events = Events(port, "collections=posts", headers=cast.alice.headers)
        socket = Socket(port, headers=cast.alice.headers)
        subscribed = socket.ask({"action": "subscribe", "collection": "posts"})
        assert subscribed["status"] == "subscribed"
        with app.app_context():
            changes.start_generation(always=True)
        assert events.next()["event"] == "reset"
        assert socket.next()["type"] == "reset"
        made = make_record(cast.alice, title="after")
        assert events.next()["data"]["data"]["id"] == made["id"]
        assert socket.next()["data"]["id"] == made["id"]
