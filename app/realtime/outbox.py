"""Hands frames to the loop, and bounds what waits for clients that read slowly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from app.realtime import limits, loop
from app.realtime.stream import Stream

BATCH_FRAMES, BATCH_BYTES = 500, 2**20
CALL_SECONDS = 5
STEP_SECONDS = 0.02


class Outbox:
    """Frames for the streams of this process, sent in batches."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = streams
        self._frames = list[tuple[Stream, bytes]]()
        self._bytes = 0
        self._measure([stream for stream in streams if stream.buffered])

    def add(self, stream: Stream, frame: bytes) -> None:
        """Send a frame soon."""
        if self._bytes + len(frame) > BATCH_BYTES or len(self._frames) >= BATCH_FRAMES:
            self.flush()
        self._frames.append((stream, frame))
        self._bytes += len(frame)
        stream.buffered += len(frame)

    def flush(self) -> None:
        """Send all frames now; waits while too much waits for clients."""
        frames, self._frames, self._bytes = self._frames, [], 0
        if frames:
            call(lambda: _write(frames))
            self._make_room()

    def _make_room(self) -> None:
        deadline = time.monotonic() + limits.FULL_SECONDS
        while self._waiting() > limits.MAX_WAITING_BYTES and time.monotonic() < deadline:
            time.sleep(STEP_SECONDS)
            self._measure(self._streams)
        by_size = sorted(self._streams, key=lambda stream: stream.buffered)
        while self._waiting() > limits.MAX_WAITING_BYTES:
            slowest = by_size.pop()
            call(slowest.connection.cut_off)
            slowest.buffered = 0

    def _waiting(self) -> int:
        return sum(stream.buffered for stream in self._streams)

    def _measure(self, streams: Sequence[Stream]) -> None:
        if streams:
            call(lambda: _measure(streams))


def call(function: Callable[[], None]) -> None:
    """Call a function in the loop's thread, and wait for it."""
    done = threading.Event()

    def run() -> None:
        try:
            function()
        finally:
            done.set()

    loop.current().call_soon_threadsafe(run)
    done.wait(CALL_SECONDS)


def _write(frames: Sequence[tuple[Stream, bytes]]) -> None:
    for stream, frame in frames:
        stream.connection.write(frame)
    _measure([stream for stream, _ in frames])


def _measure(streams: Sequence[Stream]) -> None:
    for stream in streams:
        stream.buffered = 0 if stream.connection.closed else stream.connection.buffered
