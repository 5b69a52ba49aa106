"""Sends the changes of the feed to the streams of this process.

One thread reads new changes account by account, then verifies callers and collections, and only
then judges what each stream may be sent: a right that was withdrawn before a change is not used for
it. The feed is the queue: a stream has a position in it, and a client that reads slowly stays
behind. The thread looks when a change is announced, and every two seconds by itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog
from flask import Flask

from app import clock, config, db
from app.audit import append, sealing
from app.auth.principal import Principal
from app.collections import definitions
from app.context import tenancy
from app.db import has_one_writer, versioned_cache
from app.db.versioned_cache import VersionCheck
from app.errors import AppError, BadRequest, FeedExpired, InvalidValues, Unavailable, error_location
from app.jobs import wakeups
from app.realtime.audience import Audience
from app.realtime.connections import Subscription
from app.realtime.feed import changes, marks, service, visibility
from app.realtime.feed.changes import Newest
from app.realtime.stream import Outbox, Stream
from app.web import sockets

if TYPE_CHECKING:
    from app.realtime.connections import Connection

log = structlog.get_logger()

LOOK_SECONDS = 2
SQLITE_LOOK_SECONDS = 0.3  # other processes have no way to announce changes
ACCOUNTS = 500  # of a statement
TURNS_SECONDS = 1  # for all accounts; then rights are looked at again
BEHIND_SECONDS = 0.05  # while a client has not read what waits for it
NOTHING = Newest(0, False)
Done = Callable[[AppError | None], None]


def open_stream(caller: Principal, subscriptions: Sequence[Subscription]) -> None:
    """Check what a caller subscribes to, and fix the positions. Raises AppError."""
    _hub(config.running())
    account_id = service.require_account(caller)
    with tenancy.in_account(account_id):
        bounds = changes.bounds(account_id)
    for one in subscriptions:
        if one.collection is not None:
            visibility.view_of(caller, definitions.get(one.collection), one.filter)
        try:
            since = bounds.newest if one.since is None else one.since
            one.position = service.start(bounds, since)
        except (FeedExpired, InvalidValues):
            one.position, one.is_reset = bounds.newest, True


def attach(connection: Connection) -> None:
    """Send changes to a connection from now on."""
    if any(one.is_reset for one in connection.subscriptions.values()):
        connection.send_reset()
    _hub(connection.app).add(Stream(connection))


def detach(connection: Connection) -> None:
    """Forget a connection."""
    _hub(connection.app).remove(connection)


def subscribe(connection: Connection, subscription: Subscription, done: Done) -> None:
    """Add a subscription to a connection; calls back in the loop's thread."""
    _hub(connection.app).request(partial(_subscribe, connection, subscription, done))


def _subscribe(connection: Connection, subscription: Subscription, done: Done) -> None:
    error: AppError | None = None
    try:
        with versioned_cache.reloading(), sealing.brief():
            open_stream(connection.credential.principal(), [subscription])
        connection.add(subscription)
    except InvalidValues as refusal:
        error = BadRequest(refusal.details[0]["message"], error=refusal.details[0]["code"])
    except AppError as refusal:
        error = refusal
    except Exception as failure:  # noqa: BLE001 - the client may ask again
        log.warning("no subscription", **error_location(failure))
        error = Unavailable()
    sockets.current_loop().call_soon_threadsafe(_subscribed, connection, subscription, done, error)


def _subscribed(
    connection: Connection, subscription: Subscription, done: Done, error: AppError | None
) -> None:
    done(error)
    if error is None:
        _hub(connection.app).on_change({connection.account_id})
        if subscription.is_reset:
            connection.send_reset()


class Hub:
    """The thread that judges, and what it has to do."""

    def __init__(self, app: Flask) -> None:
        self._app, self._lock = app, threading.Lock()
        self._streams: dict[Connection, Stream] = {}
        self._followed = Counter[str]()
        self._due = set[str]()
        """Accounts that may have changes for a stream."""
        self._behind = set[str]()
        """Accounts with a stream whose client has yet to read."""
        self._unmarked = set[str]()
        """Accounts whose feed lacks a mark of changed rights."""
        self._requests = deque[Callable[[], None]]()
        self._woken = threading.Event()
        self._looked_at = 0.0

    def start(self) -> None:
        """Start the thread, and hear of changes."""
        with self._app.app_context():
            wakeups.listen(append.NEWS, self.on_change)
            self._interval = SQLITE_LOOK_SECONDS if has_one_writer() else LOOK_SECONDS
        threading.Thread(target=self._run, name="hub", daemon=True).start()

    def add(self, stream: Stream) -> None:
        """Send changes to a stream from now on."""
        with self._lock:
            self._streams[stream.connection] = stream
            self._followed[stream.connection.account_id] += 1
            self._due.add(stream.connection.account_id)
        self._woken.set()

    def remove(self, connection: Connection) -> None:
        """Forget a stream."""
        with self._lock:
            if self._streams.pop(connection, None):
                self._followed[connection.account_id] -= 1
                self._followed += Counter()  # drops zeros

    def request(self, work: Callable[[], None]) -> None:
        """Have something done in the thread, which may use the database."""
        with self._lock:
            self._requests.append(work)
        self._woken.set()

    def _run(self) -> None:
        with self._app.app_context():
            while True:
                is_behind = self._behind or self._requests
                self._woken.wait(BEHIND_SECONDS if is_behind else self._interval)
                self._woken.clear()
                try:
                    self._look()
                except Exception as error:  # noqa: BLE001 - the database may be away for a while
                    log.warning("streams wait", **error_location(error))
                    time.sleep(BEHIND_SECONDS)
                finally:
                    db.db.session.remove()

    def on_change(self, accounts: set[str] | None) -> None:
        """Look at the streams of these accounts, or of all."""
        is_marked = accounts is not None and marks.EVERYBODY in accounts
        with self._lock:
            due = self._followed.keys() if accounts is None else self._followed.keys() & accounts
            self._due |= due
            if is_marked:  # rights of all accounts may have changed
                self._looked_at = 0.0
        if due or is_marked:
            self._woken.set()

    def _look(self) -> None:
        with self._lock:
            requests = len(self._requests)
            streams = [one for one in self._streams.values() if not one.connection.closed]
            due, self._due = self._due | self._behind, set()
        for _ in range(requests):  # those behind one that fails wait for the next look
            self._requests.popleft()()
        if not streams:
            return
        urgent = set[str]()
        if time.monotonic() - self._looked_at >= self._interval:
            self._looked_at = time.monotonic()
            begun = changes.present_generation()
            for stream in streams:
                stream.go_on_from(begun)
            urgent, late, self._unmarked = _find_due(streams)
            due |= late
        by_account: dict[str, list[Stream]] = {}
        for stream in streams:
            by_account.setdefault(stream.connection.account_id, []).append(stream)
        outbox, self._behind = Outbox(streams), set()
        deadline = time.monotonic() + TURNS_SECONDS
        waiting = deque([*urgent, *(due - urgent)])
        while waiting and time.monotonic() < deadline:
            account_id = waiting.popleft()
            self._send(account_id, by_account.get(account_id, []), outbox)
        self.on_change(set(waiting))

    def _send(self, account_id: str, streams: Sequence[Stream], outbox: Outbox) -> None:
        try:
            if account_id in self._unmarked:
                marks.settle(account_id)
                self._unmarked.discard(account_id)
            for audience in _audiences(account_id, streams):
                audience.send_next(outbox)
                if audience.is_behind:
                    self._behind.add(account_id)
                if audience.has_more:
                    self.on_change({account_id})
        except Exception as error:  # noqa: BLE001 - the next look begins where this one ended
            log.warning("streams wait", account=account_id, **error_location(error))
            db.db.session.remove()


def _audiences(account_id: str, streams: Sequence[Stream]) -> list[Audience]:
    """Split streams: those that have all changes do not wait for those that have to catch up."""
    positions = [one.position for one in streams]
    newest = max((position for position in positions if position is not None), default=0)
    live, late = list[Stream](), list[Stream]()
    for stream, position in zip(streams, positions, strict=True):
        (live if position is None or position == newest else late).append(stream)
    return [Audience(account_id, group) for group in (live, late) if group]


_hubs: dict[tuple[Flask, int], Hub] = {}
_starting = threading.Lock()


def _hub(app: Flask) -> Hub:
    """The hub of this process, started with its first stream, as threads do not survive a fork."""
    with _starting:
        key = (app, os.getpid())
        if key not in _hubs:
            hub = Hub(app)
            hub.start()
            _hubs[key] = hub
        return _hubs[key]


def _find_due(streams: Sequence[Stream]) -> tuple[set[str], set[str], set[str]]:
    """The accounts whose streams may have lost a right, with new changes, and without a mark.

    The look every two seconds, for what was not announced: a few statements for all streams.
    """
    now = clock.now().timestamp()
    with tenancy.across_accounts():
        account_ids = sorted({stream.connection.account_id for stream in streams})
        newest = dict[str, Newest]()
        for start in range(0, len(account_ids), ACCOUNTS):
            newest |= changes.newest(account_ids[start : start + ACCOUNTS])
        outdated = versioned_cache.outdated(
            check for stream in streams for check in _version_checks(stream)
        )
    unmarked = {account_id for account_id, one in newest.items() if one.is_unmarked}
    urgent, late = set[str](), unmarked.copy()
    for stream in streams:
        account_id = stream.connection.account_id
        expires_at = stream.connection.credential.expires_at
        is_expired = expires_at is not None and expires_at <= now
        if is_expired or not outdated.isdisjoint(_version_checks(stream)):
            urgent.add(account_id)
        elif stream.caller is None or (
            stream.position is not None and stream.position < newest.get(account_id, NOTHING).change
        ):
            late.add(account_id)
    return urgent, late, unmarked


def _version_checks(stream: Stream) -> Iterator[VersionCheck]:
    if stream.caller is not None:
        yield from stream.caller.version_checks
    for definition in stream.definitions:
        yield from definition.version_checks
