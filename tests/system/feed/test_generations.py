"""Positions of the feed after a failover."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg2

from app import create_app, db
from app.realtime.feed import changes
from tests import builders
from tests.builders import Caller, make_collection, make_record
from tests.conftest import make_app, settings_for
from tests.feed.test_changes import now, reported
from tests.feed.test_generations import refusal
from tests.services import Postgres, Replica


def wait_until(is_reached: Callable[[], bool]) -> None:
    started = time.monotonic()
    while not is_reached():
        assert time.monotonic() - started < 20
        time.sleep(0.05)


def has_caught_up(primary: Any) -> bool:
    query = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"
    primary.autocommit = True
    with primary.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone() == (1,)


def stop_following(replica: Replica) -> None:
    """Cut the replica off from its primary."""
    with closing(psycopg2.connect(replica.url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute("ALTER SYSTEM SET primary_conninfo = ''")
        cursor.execute("SELECT pg_reload_conf()")
        receivers = "SELECT count(*) FROM pg_stat_wal_receiver"

        def is_cut_off() -> bool:
            cursor.execute(receivers)
            return cursor.fetchone() == (0,)

        wait_until(is_cut_off)


def test_failover_that_loses_commits_expires_positions(tmp_path: Path) -> None:
    with Postgres(private=True) as primary:
        primary.create_database("atrium")
        with Replica(primary) as replica:
            urls = [
                urlunsplit(urlsplit(one.url)._replace(scheme="postgresql+psycopg2", path="/atrium"))
                for one in (primary, replica)
            ]
            settings = settings_for("sqlite", tmp_path, database_url=urls[0])
            app = make_app(settings)
            cast = builders.make_cast(app)
            make_collection(cast.root)
            first = make_record(cast.alice, title="replicated")
            with closing(psycopg2.connect(primary.url)) as watcher:
                wait_until(lambda: has_caught_up(watcher))
            stop_following(replica)
            for _ in range(3):
                make_record(cast.alice, title="lost")
            position = now(cast.alice)
            with app.app_context():
                db.db.engine.dispose()
            primary.stop()
            replica.promote()
            promoted = create_app(replace(settings, database_url=urls[1]))
            alice = Caller(promoted, **cast.alice.headers)
            assert refusal(alice, position) == (410, "feed_expired")
            made = [make_record(alice, title="new")["id"] for _ in range(8)]
            assert refusal(alice, position) == (410, "feed_expired")
            assert [id for _, id in reported(alice)] == made
            listed = {one["id"] for one in alice.get("records/posts").json["items"]}
            assert listed == {first["id"], *made}
            with promoted.app_context():
                assert changes.start_generation() == changes.present_generation()  # only one begins
                db.db.engine.dispose()
