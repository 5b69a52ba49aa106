"""Announcements of changes: all processes hear them soon, and no writer notices a failure."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import psycopg2
import pytest
from flask import Flask

from app.db import engine
from app.jobs import rq_queues, wakeups
from tests import services
from tests.realtime.clients import until

Heard = list[set[str] | None]
TOPIC, OTHER = wakeups.Topic("test", lock=1), wakeups.Topic("other", lock=2)
CUT = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE left(query, 6) = 'LISTEN' AND datname = current_database()
"""


@pytest.fixture(params=["alone", pytest.param("redis", marks=pytest.mark.needs_servers)])
def channel(app: Flask, request: pytest.FixtureRequest) -> Iterator[Flask]:
    """The application, with Redis or without."""
    settings = app.extensions["atrium.config"]
    url = services.Redis().emptied() if request.param == "redis" else ""
    app.extensions["atrium.config"] = replace(settings, redis_url=url)
    wakeups._sender.cache_clear()
    yield app
    app.extensions["atrium.config"] = settings
    wakeups._sender.cache_clear()


@contextmanager
def listening(app: Flask) -> Iterator[Heard]:
    """What a process hears."""
    heard: Heard = []
    with app.app_context():
        wakeups.listen(TOPIC, heard.append)
        yield heard
        wakeups._sender(app, os.getpid()).listeners.clear()
        cut_off(app)


def cut_off(app: Flask) -> None:
    """Cut all connections that listen."""
    url = app.extensions["atrium.config"].redis_url
    if url:
        redis = rq_queues.redis_client(url)
        for client in redis.client_list(_type="pubsub"):
            if client["db"] == str(redis.get_connection_kwargs()["db"]):  # other tests listen, too
                redis.client_kill_filter(_id=client["id"])
    elif reaches_others(app):
        with engine.owner_connection() as connection:
            connection.exec_driver_sql(CUT)


def reaches_others(app: Flask) -> bool:
    """Whether messages go to other processes: on SQLite alone, they look by themselves."""
    settings = app.extensions["atrium.config"]
    return bool(settings.redis_url) or not settings.database_url.startswith("sqlite")


def test_wakeup_is_heard_by_own_process_once(channel: Flask) -> None:
    with listening(channel) as heard:
        if reaches_others(channel):
            until(lambda: heard == [None])
        for account in ("a", "b", "a"):
            wakeups.News(TOPIC, account)()
        until(lambda: {"a", "b"} == set().union(*(one or () for one in heard)))
        count = len(heard)
        time.sleep(0.1)
        assert len(heard) == count


@pytest.mark.timing
def test_wakeup_is_heard_by_other_processes(channel: Flask) -> None:
    if not reaches_others(channel):
        return
    other = wakeups.Sender(channel)
    accounts = {f"{number:036}" for number in range(1000)}
    with listening(channel) as heard:
        until(lambda: heard == [None])
        began = time.monotonic()
        other.add(TOPIC, "a")
        until(lambda: {"a"} in heard)
        assert time.monotonic() - began < 1
        for account in accounts:
            other.add(TOPIC, account)
        until(lambda: accounts <= set().union(*(one or () for one in heard)))


def test_wakeup_listener_after_lost_connection_checks_everything(channel: Flask) -> None:
    if not reaches_others(channel):
        return
    other = wakeups.Sender(channel)
    with listening(channel) as heard:
        until(lambda: heard == [None])
        cut_off(channel)
        until(lambda: heard == [None, None])
        other.add(TOPIC, "a")
        until(lambda: {"a"} in heard)


@pytest.mark.timing
def test_wakeup_to_silent_server_does_not_delay_writer(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(topic: wakeups.Topic, message: str) -> None:
        time.sleep(0.2)
        raise psycopg2.OperationalError

    monkeypatch.setattr(wakeups, "_publisher", lambda: nullcontext(fail))
    sender, heard = wakeups.Sender(app), Heard()
    sender.listeners[TOPIC].append(heard.append)
    began = time.perf_counter()
    for number in range(20_000):
        sender.add(TOPIC, str(number))
    assert time.perf_counter() - began < 1
    assert len(sender._pending[TOPIC]) <= wakeups.MAX_PENDING
    until(lambda: not sender._pending[TOPIC])
    sender.add(TOPIC, "after a failure")
    until(lambda: any("after a failure" in (one or ()) for one in heard))


def test_wakeup_topics_are_independent(channel: Flask) -> None:
    if not reaches_others(channel):
        return
    other = wakeups.Sender(channel)
    with listening(channel) as heard:
        until(lambda: heard == [None])
        for topic, name in ((OTHER, "a"), (TOPIC, "b"), (OTHER, "c")):
            other.add(topic, name)
        until(lambda: heard == [None, {"b"}])
        until(lambda: other._quiet_until.keys() >= {OTHER})  # nobody hears of that one
        assert other._quiet_until[TOPIC] == 0


def test_wakeup_listener_that_leaves_closes_its_connection(
    channel: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "IDLE_SECONDS", 0.1)
    hears, heard = threading.Event(), Heard()
    with channel.app_context():
        with wakeups.listening(TOPIC, heard.append, hears):
            assert hears.wait(5) is reaches_others(channel)
            until(lambda: not reaches_others(channel) or listeners() == 1)
        assert not hears.is_set()
        until(lambda: listeners() == 0)


def listeners() -> int:
    """The threads that hear of the topic."""
    return sum(thread.name == TOPIC.name for thread in threading.enumerate())
