"""Hands frames to the loop, and bounds what waits for clients that read slowly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from app.realtime import limits
from app.realtime.stream import Stream
from app.web import sockets

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
