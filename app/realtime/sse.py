"""Server-sent events, as browsers' EventSource reads them."""

from __future__ import annotations

from app import clock
from app.realtime import limits
from app.realtime.connections import Connection
from app.web.serialization import dumps

RETRY_MILLISECONDS = 1000


def frame(change: int | None, payload: bytes) -> bytes:
    """Return a change as an event; without its number, if more of it follows."""
    return b"%bevent: message\ndata: %b\n\n" % (_id_line(change), payload)


def _id_line(change: int | None) -> bytes:
    return b"" if change is None else b"id: %d\n" % change


def event(name: str, change: int | None = None) -> bytes:
    """Return an event about the stream itself."""
    data = dumps({"type": name, "timestamp": clock.iso(clock.now())})
    return b"%bevent: %b\ndata: %b\n\n" % (_id_line(change), name.encode(), data)


def opening(position: int | None) -> bytes:
    """Return what a stream begins with.

    The position comes as an id, so that a client that is cut off before the first change misses
    nothing. A client that is sent `reset` gets none: a reconnect must lead to `reset` again.
    """
    first = b"" if position is None else event("heartbeat", position)
    return b": connected\n\n%bretry: %d\n\n" % (first, RETRY_MILLISECONDS)


class EventStream(Connection):
    """A stream of server-sent events."""

    protocol = "sse"
    _received = 0

    def data_received(self, data: bytes) -> None:
        """Ignore what a client sends, which is nothing, but no flood."""
        self._received += len(data)
        if self._received > limits.MAX_MESSAGE_BYTES:
            self._transport.abort()

    def send_heartbeat(self) -> None:
        self._send_event("heartbeat")

    def send_reset(self) -> None:
        """Send `reset`. It has no id: until a change arrives, a reconnect must lead here again."""
        self._send_event("reset")

    def expire(self) -> None:
        """Send `expired`, and close."""
        self._send_event("expired")
        self.close()

    def _send_event(self, name: str) -> None:
        self.write(event(name))
