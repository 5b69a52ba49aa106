"""An open stream as the hub sees it."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from app.auth.principal import Principal
from app.collections.definitions import Definition
from app.db.versioned_cache import VersionCheck
from app.realtime.connections import Subscription, key_of
from app.realtime.feed import visibility
from app.realtime.feed.visibility import View
from app.web import sockets

if TYPE_CHECKING:
    from app.realtime.connections import Connection
import threading
from collections.abc import Callable, Sequence

from app.realtime import limits


class Stream:
    """A connection, and what the hub knows of it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.caller: Principal | None = None
        self.buffered = 0
        """The bytes that the client has not read yet, as last measured."""
        self.waiting_since: float | None = None
        """Since when the client has always had something to read."""
        self.stopped_at: int | None = None
        """The last change before the one that it was not ready for."""
        self.sent = 0
        """The last change that it was sent."""
        self._views: dict[tuple[str, str], View] = {}

    @property
    def subscriptions(self) -> list[Subscription]:
        """The client's subscriptions."""
        return list(self.connection.subscriptions.values())

    def measure(self) -> None:
        """Note what the client has not read yet. In the loop's thread."""
        self.buffered = 0 if self.connection.closed else self.connection.buffered
        if not self.buffered:
            self.waiting_since = None
        elif self.waiting_since is None:
            self.waiting_since = time.monotonic()

    @property
    def position(self) -> int | None:
        """The lowest position of its subscriptions."""
        return min((one.position for one in self.subscriptions), default=None)

    def go_on_from(self, begun: int) -> None:
        """Leave positions of an earlier generation of changes: the client reads anew."""
        former = [one for one in self.subscriptions if one.position < begun]
        for one in former:
            one.position = begun
        if former:
            self.call("send_reset")

    @property
    def definitions(self) -> list[Definition]:
        """The collections whose rules it has been judged by."""
        return [view.definition for view in self._views.values()]

    @property
    def version_checks(self) -> set[VersionCheck]:
        """The version checks of the caller, and of what its filters refer to."""
        of_caller = self.caller.version_checks if self.caller else ()
        of_views = (view.version_checks for view in self._views.values() if view.referenced)
        return {*of_caller, *chain.from_iterable(of_views)}

    def view(self, definition: Definition, filter: str = "") -> View:
        """The caller's view of a collection. Raises AppError."""
        key = (definition.table_name, filter)
        known = self._views.get(key)
        caller = self.caller
        assert caller is not None  # noqa: S101 - identified before
        if not (
            known
            and known.definition is definition
            and known.access.caller is caller
            and known.is_current
        ):
            self._views[key] = known = visibility.view_of(caller, definition, filter)
        return known

    def forget_views(self, current: Collection[Definition]) -> None:
        """Keep only views of current collections that a subscription needs."""
        wanted = {(key_of(one.collection), one.filter) for one in self.subscriptions}
        self._views = {
            key: view
            for key, view in self._views.items()
            if view.definition in current
            and (("", key[1]) in wanted or (view.definition.name.lower(), key[1]) in wanted)
        }

    def call(self, method: str, *arguments: object) -> None:
        """Call a method of the connection in the loop's thread."""
        sockets.current_loop().call_soon_threadsafe(
            partial(getattr(self.connection, method), *arguments)
        )


BATCH_FRAMES, BATCH_BYTES = 500, 2**20
CALL_SECONDS = 5


class Outbox:
    """Frames for the streams of this process, sent in batches."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = streams
        self._frames = list[tuple[Stream, bytes]]()
        self._bytes = 0
        waiting = [stream for stream in streams if stream.buffered]
        if waiting:
            call(lambda: _measure(waiting))
        self._unread = sum(stream.buffered for stream in streams)
        self._make_room()

    def is_ready(self, stream: Stream) -> bool:
        """Whether a client has read enough to be sent more, and all others together, too."""
        is_full = self._unread >= limits.MAX_UNREAD_BYTES and stream.buffered > 0
        return not (stream.connection.closed or is_full or stream.buffered >= limits.PAUSE_BYTES)

    def add(self, stream: Stream, frame: bytes) -> None:
        """Send a frame soon."""
        if self._bytes + len(frame) > BATCH_BYTES or len(self._frames) >= BATCH_FRAMES:
            self.flush()
        self._frames.append((stream, frame))
        self._bytes += len(frame)
        stream.buffered += len(frame)
        self._unread += len(frame)

    def flush(self) -> None:
        """Send all frames now."""
        frames, self._frames, self._bytes = self._frames, [], 0
        if frames:
            call(lambda: _write(frames))
            self._unread = sum(stream.buffered for stream in self._streams)
            self._make_room()

    def _make_room(self) -> None:
        """Cut off clients that have read too slowly, the largest first, if too much is unread."""
        if self._unread < limits.MAX_UNREAD_BYTES:
            return
        long_ago = time.monotonic() - limits.GRACE_SECONDS
        slow = [one for one in self._streams if one.waiting_since and one.waiting_since < long_ago]
        for stream in sorted(slow, key=lambda stream: -stream.buffered):
            if self._unread < limits.MAX_UNREAD_BYTES * limits.ROOM_SHARE:
                break
            stream.call("cut_off")
            self._unread -= stream.buffered
            stream.buffered = 0


def call(function: Callable[[], None]) -> None:
    """Call a function in the loop's thread, and wait for it."""
    done = threading.Event()

    def run() -> None:
        try:
            function()
        finally:
            done.set()

    sockets.current_loop().call_soon_threadsafe(run)
    done.wait(CALL_SECONDS)


def _write(frames: Sequence[tuple[Stream, bytes]]) -> None:
    for stream, frame in frames:
        stream.connection.write(frame)
    _measure([stream for stream, _ in frames])


def _measure(streams: Sequence[Stream]) -> None:
    for stream in streams:
        stream.measure()
