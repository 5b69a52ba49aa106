"""Tells all processes soon that there is something to look for.

By publish/subscribe of Redis, else by NOTIFY of PostgreSQL; on SQLite, other processes look often.
A lost message costs seconds, until a listener looks by itself. No writer waits, or notices an
error: messages leave after the commit, by a thread with a connection of its own, as PostgreSQL
commits transactions with a NOTIFY one after another.
"""

from __future__ import annotations

import os
import select
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
import structlog
from flask import Flask, current_app

from app import config
from app.db import engine, has_one_writer
from app.jobs import rq_queues

if TYPE_CHECKING:
    from redis import Redis

log = structlog.get_logger()

OnNews = Callable[[set[str] | None], None]
"""Called with the names that there is news of; None for all."""
Publish = Callable[["Topic", str], bool]
"""Sends a message; whether another process listens."""
COMBINE_SECONDS = 0.005
IDLE_SECONDS = 10  # then the sender closes its connection to PostgreSQL
RETRY_SECONDS = 1
MAX_NAMES = 200  # in one message, as PostgreSQL takes 8,000 bytes
MAX_PENDING = 10_000  # names; listeners find the others
QUIET_SECONDS = 1  # after nobody listened
NOTIFY = sa.text(
    "SELECT pg_notify(:channel, :message) FROM pg_locks"
    " WHERE locktype = 'advisory' AND classid = 0 AND objid = :lock AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1"
)


class Topic(NamedTuple):
    """A channel of messages, with the key of a lock that its listeners share."""

    name: str
    lock: int


@dataclass(frozen=True)
class News:
    """Tells all processes soon of a name when it is called; never blocks."""

    topic: Topic
    name: str

    def __call__(self) -> None:
        """Hand the name to the thread that announces."""
        _sender(_app(), os.getpid()).add(self.topic, self.name)


@contextmanager
def listening(topic: Topic, on_news: OnNews, hears: threading.Event) -> Iterator[None]:
    """Call back inside the block as `listen` does."""
    listen(topic, on_news, hears)
    try:
        yield
    finally:
        _sender(config.running(), os.getpid()).listeners[topic].remove(on_news)
        hears.clear()


def listen(topic: Topic, on_news: OnNews, hears: threading.Event | None = None) -> None:
    """Call back, in other threads, for what any process announces from now on.

    `hears` is set while other processes are heard.
    """
    app = config.running()
    sender = _sender(app, os.getpid())
    sender.listeners[topic].append(on_news)
    if config.current().redis_url or not has_one_writer():
        arguments = (app, sender, topic, on_news, hears or threading.Event())
        threading.Thread(target=_listen, args=arguments, name=topic.name, daemon=True).start()


def _app() -> Flask:
    # Not by `config`, as each write takes this way.
    return current_app._get_current_object()  # type: ignore[attr-defined, no-any-return]


@lru_cache
def _sender(app: Flask, process: int) -> Sender:
    # Per process, as threads do not survive a fork.
    return Sender(app)


class Sender:
    """A thread that announces names, combining what comes within a moment."""

    def __init__(self, app: Flask) -> None:
        self.listeners = defaultdict[Topic, list[OnNews]](list)
        self.id = uuid.uuid4().hex
        """Marks messages of this process, which has no need to hear them again."""
        self._app, self._pending = app, defaultdict[Topic, set[str]](set)
        self._is_failing = False
        self._lock, self._requested = threading.Lock(), threading.Event()
        self._quiet_until = defaultdict[Topic, float](float)
        threading.Thread(target=self._run, name="announce", daemon=True).start()

    def add(self, topic: Topic, name: str) -> None:
        """Have a name announced, unless nobody listened a moment ago."""
        if time.monotonic() < self._quiet_until[topic] and not self.listeners[topic]:
            return
        with self._lock:
            if len(self._pending[topic]) < MAX_PENDING:
                self._pending[topic].add(name)
        self._requested.set()

    def _run(self) -> None:
        with self._app.app_context():
            while self._requested.wait():
                try:
                    with _publisher() as publish:
                        self._send(publish)
                except Exception as error:  # noqa: BLE001 - listeners look by themselves, too
                    if not self._is_failing:  # else there would be a line for each moment
                        log.warning("news is not announced", error=type(error).__name__)
                    self._is_failing = True

    def _send(self, publish: Publish) -> None:
        pause = threading.Event()
        while self._requested.wait(IDLE_SECONDS):
            pause.wait(COMBINE_SECONDS)
            self._requested.clear()
            with self._lock:
                pending, self._pending = self._pending, defaultdict(set)
            for topic, names in pending.items():
                for listener in self.listeners[topic]:
                    listener(names)
            for topic, names in pending.items():
                ordered, is_heard = sorted(names), False
                for start in range(0, len(ordered), MAX_NAMES):
                    part = ordered[start : start + MAX_NAMES]
                    is_heard |= publish(topic, " ".join([self.id, *part]))
                if not is_heard:
                    # Writes that nobody follows should cost nothing.
                    self._quiet_until[topic] = time.monotonic() + QUIET_SECONDS
            self._is_failing = False


@contextmanager
def _publisher() -> Iterator[Publish]:
    """Yield a function that sends messages, over a connection that its first call opens."""
    url = config.current().redis_url
    with ExitStack() as stack:
        connect = cache(lambda: stack.enter_context(engine.owner_connection()))
        if url:
            redis = rq_queues.redis_client(url)
            yield lambda topic, message: bool(redis.publish(_redis_channel(redis, topic), message))
        elif has_one_writer():
            yield lambda topic, message: False
        else:

            def notify(topic: Topic, message: str) -> bool:
                named = {"channel": _postgres_channel(topic), "lock": topic.lock}
                return bool(connect().execute(NOTIFY, {**named, "message": message}).all())

            yield notify


def _listen(
    app: Flask, sender: Sender, topic: Topic, on_news: OnNews, hears: threading.Event
) -> None:
    pause = threading.Event()
    with app.app_context():
        url = config.current().redis_url
        while on_news in sender.listeners[topic]:
            try:
                for message in _redis_messages(url, topic) if url else _postgres_messages(topic):
                    if on_news not in sender.listeners[topic]:
                        return
                    hears.set()
                    if message is not None:
                        sender_id, *names = message.split(" ")
                        if sender_id != sender.id:
                            on_news(set(names) or None)
            except Exception as error:  # noqa: BLE001 - it connects again
                log.warning("news is not heard", topic=topic.name, error=type(error).__name__)
            hears.clear()
            pause.wait(RETRY_SECONDS)


def _redis_channel(redis: Redis, topic: Topic) -> str:
    """With the number of the database, as channels are of the whole server."""
    return f"atrium:{topic.name}:{redis.get_connection_kwargs().get('db', 0)}"


def _postgres_channel(topic: Topic) -> str:
    return f"atrium_{topic.name}"


def _redis_messages(url: str, topic: Topic) -> Iterator[str | None]:
    """Yield messages, and None now and then; first an empty one, as others may have been lost."""
    redis = rq_queues.redis_client(url)
    with redis.pubsub() as channel:  # type: ignore[no-untyped-call]
        channel.subscribe(_redis_channel(redis, topic))
        while True:
            message = channel.get_message(timeout=IDLE_SECONDS)
            if message is None:
                yield None
            else:
                yield message["data"].decode() if message["type"] == "message" else ""


def _postgres_messages(topic: Topic) -> Iterator[str | None]:
    with engine.owner_connection() as connection:
        connection.exec_driver_sql(f"SELECT pg_advisory_lock_shared({topic.lock})")
        connection.exec_driver_sql(f"LISTEN {_postgres_channel(topic)}")
        driver: Any = connection.connection.driver_connection
        poll = select.poll()  # select() takes no descriptor beyond 1,023
        poll.register(driver, select.POLLIN)
        yield ""
        while True:
            poll.poll(IDLE_SECONDS * 1000)
            driver.poll()
            while driver.notifies:
                yield driver.notifies.pop(0).payload
            yield None
