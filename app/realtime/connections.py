"""Open streams: what both protocols share. Everything runs in the loop's thread, unless it says."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from app import config
from app.auth.stream_credentials import StreamCredential
from app.context.metrics import count
from app.errors import AppError
from app.realtime import limits
from app.web import sockets
from app.web.sockets import Registry

PIECE = 64 * 1024
# A client that vanished without a word is noticed after a minute. Not every system has all.
KEEPALIVE = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": limits.STALLED_SECONDS * 1000,
}


registry = Registry["Connection"]("streams")
_stopping = threading.Event()
OPERATIONS = frozenset({"create", "update", "delete"})


def key_of(collection: str | None) -> str:
    """The key of a stream's subscription to a collection, whose case does not matter."""
    return (collection or "").lower()


@dataclass(eq=False)
class Subscription:
    """One collection (None: all that the caller may view), and which of its changes."""

    collection: str | None
    operations: frozenset[str] = OPERATIONS
    filter: str = ""
    since: int | None = None
    """The last change that the client has; None for changes from now on."""
    position: int = 0
    """Changes up to this one are done; set by the hub."""
    is_reset: bool = False
    """Whether changes after `since` are missing."""


class Connection(asyncio.Protocol, ABC):
    """A stream. Bytes that the client has not read yet wait here, in pieces shared with others."""

    protocol: ClassVar[str]
    opening = b""
    """Sent right after the head of the response."""
    _transport: asyncio.Transport

    def __init__(self, credential: StreamCredential, subscriptions: Sequence[Subscription]) -> None:
        self.app = config.running()
        self.credential = credential
        self.account_id = credential.account_id
        self.subscriptions = {key_of(one.collection): one for one in subscriptions}
        self.head = b""
        self.closed = False
        self._waiting, self._waiting_bytes = deque[memoryview](), 0
        self._is_paused = False
        self._accepted = 0  # bytes that were written
        self._read, self._read_at = 0, time.monotonic()  # bytes that had left at a heartbeat
        self._timer: asyncio.TimerHandle | None = None
        self.is_connected = False
        self.lost: asyncio.Future[None] = sockets.current_loop().create_future()
        """Done when the connection is lost."""

    @property
    def buffered(self) -> int:
        """The bytes that the kernel has not taken yet."""
        return self._waiting_bytes + self._transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the head."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a socket, it is one
        self._transport = transport
        transport.set_write_buffer_limits(high=0)
        transport.pause_reading()  # until the hub knows this stream
        self.is_connected = True
        _keep_alive(transport.get_extra_info("socket"))
        count(limits.OPEN, self.protocol)
        self._send(self.head + self.opening)
        self._timer = sockets.current_loop().call_later(limits.HEARTBEAT_SECONDS, self._beat)
        if _stopping.is_set():
            self.stop()

    def start_reading(self) -> None:
        """Take what the client sends from now on."""
        self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Count the stream no more."""
        self.closed = True
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._timer:
            self._timer.cancel()
        count(limits.OPEN, self.protocol, amount=-1)
        registry.remove(self)
        self.lost.set_result(None)

    def add(self, subscription: Subscription) -> None:
        """Add a subscription; without `since`, it goes on where one that it replaces stands.

        In the hub's thread, which sends nothing meanwhile: no change is sent twice, or left out.
        """
        replaced = self.subscriptions.get(key_of(subscription.collection))
        if replaced and subscription.since is None:
            subscription.position = replaced.position
        subscription.since = subscription.position
        self.subscriptions[key_of(subscription.collection)] = subscription

    def write(self, data: bytes) -> None:
        """Send a message, or cut the client off if it reads too slowly."""
        if self.closed:
            return
        if self.buffered > limits.MAX_BUFFERED_BYTES:
            self.cut_off()
            return
        self._send(data)
        count(limits.SENT, self.protocol)

    def _send(self, data: bytes) -> None:
        self._waiting.append(memoryview(data))
        self._waiting_bytes += len(data)
        self._accepted += len(data)
        self._flush()

    def pause_writing(self) -> None:
        """Stop: the kernel takes no more."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Go on: the kernel has taken everything."""
        self._is_paused = False
        self._flush()

    def _flush(self) -> None:
        # Piece by piece, as the transport copies what the kernel does not take.
        while self._waiting and not self._is_paused:
            first = self._waiting.popleft()
            if len(first) > PIECE:
                self._waiting.appendleft(first[PIECE:])
            self._waiting_bytes -= len(first[:PIECE])
            self._transport.write(first[:PIECE])
        if self.closed and not self._waiting and not self._transport.is_closing():
            self._transport.write_eof()

    def cut_off(self) -> None:
        """Drop the connection at once, with all that waits."""
        if not self._transport.is_closing():
            count(limits.CUT_OFF, self.protocol)
        self.closed = True
        self._transport.abort()

    def close(self) -> None:
        """Close the connection once the client has read what waits, or after a moment."""
        if not self.closed:
            self.closed = True
            self._flush()
            # Until the client closes, too: unread bytes of its own would reset the connection.
            sockets.current_loop().call_later(limits.CLOSE_SECONDS, self._transport.abort)

    def _beat(self) -> None:
        now, read = time.monotonic(), self._accepted - self.buffered
        if read != self._read or not self.buffered:
            self._read, self._read_at = read, now
        elif now - self._read_at >= limits.STALLED_SECONDS:
            self.cut_off()
        if not self.closed:
            self._timer = sockets.current_loop().call_later(limits.HEARTBEAT_SECONDS, self._beat)
            if not self.buffered:
                self.send_heartbeat()

    @abstractmethod
    def send_heartbeat(self) -> None:
        """Show the client and all proxies that the stream is alive."""

    @abstractmethod
    def send_reset(self) -> None:
        """Tell the client that changes are missing: it has to read its state anew."""

    @abstractmethod
    def expire(self) -> None:
        """Tell the client that its credential has expired, and close."""

    def end(self) -> None:
        """Close a stream that its caller may not have any more."""
        self.close()

    def stop(self) -> None:
        """Close as the process stops: the client connects to another one."""
        self.close()

    def unsubscribed(self, collection: str | None, error: AppError) -> None:
        """End a subscription, or the stream if its kind has no way to tell."""
        self.end()


def _keep_alive(sock: socket.socket) -> None:
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def stop() -> None:
    """Begin to close all streams, also those that still open. Safe in all threads."""
    _stopping.set()
    if registry.all():
        sockets.current_loop().call_soon_threadsafe(_stop_connected)


def _stop_connected() -> None:
    for connection in registry.all():
        if connection.is_connected:  # the others stop as they connect
            connection.stop()
