"""Tells all processes which accounts have new changes (contract section 15).

By publish/subscribe of Redis, else by NOTIFY of PostgreSQL; on SQLite, other processes look often.
A lost message costs two seconds, until the hub looks by itself. No writer waits, or notices an
error.
"""

from __future__ import annotations

import os
import select
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
import structlog
from flask import Flask, current_app

from app import config, db, events
from app.db import has_one_writer, owner_connection
from app.jobs import rq_queues

if TYPE_CHECKING:
    from redis import Redis

log = structlog.get_logger()

OnChange = Callable[[set[str] | None], None]
"""Called with the accounts that have changes; None for all."""
POSTGRES_CHANNEL = "atrium_changes"
COMBINE_SECONDS = 0.005
IDLE_SECONDS = 10  # then the sender closes its connection to PostgreSQL
RETRY_SECONDS = 1
MAX_ACCOUNTS = 200  # in one message, as PostgreSQL takes 8,000 bytes
MAX_PENDING = 10_000  # accounts; the hub finds the others
QUIET_SECONDS = 1  # after nobody listened
LISTENING = 0x41747269  # the key of a lock that listeners share
NOTIFY = sa.text(
    f"SELECT pg_notify('{POSTGRES_CHANNEL}', :message) FROM pg_locks"  # noqa: S608 - constants
    f" WHERE locktype = 'advisory' AND classid = 0 AND objid = {LISTENING} AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1"
)


def announce(account_id: str) -> None:
    """Tell all processes soon that an account has changes; never blocks."""
    _sender(_app(), os.getpid()).add(account_id)


def listen(on_change: OnChange) -> None:
    """Call back, in other threads, for the changes of all processes from now on."""
    app = config.running()
    sender = _sender(app, os.getpid())
    sender.listeners.append(on_change)
    if config.current().redis_url or not has_one_writer():
        arguments = (app, sender, on_change)
        threading.Thread(target=_listen, args=arguments, name="changes", daemon=True).start()


def _app() -> Flask:
    # Not by `config`, as each write takes this way.
    return current_app._get_current_object()  # type: ignore[attr-defined, no-any-return]


@lru_cache
def _sender(app: Flask, process: int) -> Sender:
    # Per process, as threads do not survive a fork.
    return Sender(app)


class Sender:
    """A thread that announces accounts, combining what comes within a moment."""

    def __init__(self, app: Flask) -> None:
        self.listeners = list[OnChange]()
        self.id = uuid.uuid4().hex
        """Marks messages of this process, which has no need to hear them again."""
        self._app, self._pending = app, set[str]()
        self._is_failing = False
        self._lock, self._requested = threading.Lock(), threading.Event()
        self._quiet_until = 0.0
        threading.Thread(target=self._run, name="announce", daemon=True).start()

    def add(self, account_id: str) -> None:
        """Have an account announced, unless nobody listened a moment ago."""
        if time.monotonic() < self._quiet_until and not self.listeners:
            return
        with self._lock:
            if len(self._pending) < MAX_PENDING:
                self._pending.add(account_id)
        self._requested.set()

    def _run(self) -> None:
        with self._app.app_context():
            while self._requested.wait():
                try:
                    with _publisher() as publish:
                        self._send(publish)
                except Exception as error:  # noqa: BLE001 - the hub looks by itself, too
                    if not self._is_failing:  # else there would be a line for each moment
                        log.warning("changes are not announced", error=type(error).__name__)
                    self._is_failing = True

    def _send(self, publish: Callable[[str], bool]) -> None:
        pause = threading.Event()
        while self._requested.wait(IDLE_SECONDS):
            pause.wait(COMBINE_SECONDS)
            self._requested.clear()
            with self._lock:
                pending, self._pending = self._pending, set()
            for listener in self.listeners:
                listener(pending)
            accounts = sorted(pending)
            is_heard = False
            for i in range(0, len(accounts), MAX_ACCOUNTS):
                is_heard |= publish(" ".join([self.id, *accounts[i : i + MAX_ACCOUNTS]]))
            if accounts and not is_heard:  # writes that nobody follows should cost nothing
                self._quiet_until = time.monotonic() + QUIET_SECONDS
            self._is_failing = False


@contextmanager
def _publisher() -> Iterator[Callable[[str], bool]]:
    """A function that sends a message, over a connection that it opens when it is called first.

    It returns whether another process listens.
    """
    url = config.current().redis_url
    with ExitStack() as stack:
        connect = cache(lambda: stack.enter_context(owner_connection.connect()))
        if url:
            redis = rq_queues.redis_client(url)
            channel = _redis_channel(redis)
            yield lambda message: bool(redis.publish(channel, message))
        elif has_one_writer():
            yield lambda message: False
        else:
            yield lambda message: bool(connect().execute(NOTIFY, {"message": message}).all())


def _listen(app: Flask, sender: Sender, on_change: OnChange) -> None:
    pause = threading.Event()
    with app.app_context():
        url = config.current().redis_url
        while on_change in sender.listeners:
            try:
                for message in _redis_messages(url) if url else _postgres_messages():
                    sender_id, *accounts = message.split(" ")
                    if sender_id != sender.id:
                        on_change(set(accounts) or None)
            except Exception as error:  # noqa: BLE001 - it connects again
                log.warning("changes are not heard at once", error=type(error).__name__)
            pause.wait(RETRY_SECONDS)


def _redis_channel(redis: Redis) -> str:
    """With the number of the database, as channels are of the whole server."""
    return f"atrium:changes:{redis.get_connection_kwargs().get('db', 0)}"


def _redis_messages(url: str) -> Iterator[str]:
    """Yield messages; an empty one once it listens, as others may have been lost before."""
    redis = rq_queues.redis_client(url)
    with redis.pubsub() as channel:  # type: ignore[no-untyped-call]
        channel.subscribe(_redis_channel(redis))
        while True:
            message = channel.get_message(timeout=IDLE_SECONDS)
            if message is not None:
                yield message["data"].decode() if message["type"] == "message" else ""


def _postgres_messages() -> Iterator[str]:
    with owner_connection.connect() as connection:
        connection.exec_driver_sql(f"SELECT pg_advisory_lock_shared({LISTENING})")
        connection.exec_driver_sql(f"LISTEN {POSTGRES_CHANNEL}")
        driver: Any = connection.connection.driver_connection
        poll = select.poll()  # select() takes no descriptor beyond 1,023
        poll.register(driver, select.POLLIN)
        yield ""
        while True:
            poll.poll(IDLE_SECONDS * 1000)
            driver.poll()
            while driver.notifies:
                yield driver.notifies.pop(0).payload


@events.subscribe(events.RecordChanged)
def _on_record_changed(event: events.RecordChanged) -> None:
    db.on_commit(partial(announce, event.account_id))
