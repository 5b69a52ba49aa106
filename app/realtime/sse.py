"""Server-sent events, as browsers' EventSource reads them."""

from __future__ import annotations

from app import clock
from app.realtime import limits
from app.realtime.connections import Connection
from app.rest.serialization import dumps

RETRY_MILLISECONDS = 1000


def frame(change: int, payload: bytes) -> bytes:
    """Return a change as an event."""
    return b"id: %d\nevent: message\ndata: %b\n\n" % (change, payload)


def event(name: str) -> bytes:
    """Return an event about the stream itself."""
    data = dumps({"type": name, "timestamp": clock.iso(clock.now())})
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


class EventStream(Connection):
    """A stream of server-sent events."""

    protocol = "sse"
    opening = b": connected\n\nretry: %d\n\n" % RETRY_MILLISECONDS

    _received = 0

    def data_received(self, data: bytes) -> None:
        """Ignore what a client sends, which is nothing, but no flood."""
        self._received += len(data)
        if self._received > limits.MAX_MESSAGE_BYTES:
            self._transport.abort()

    def send_change(self, change: int, payload: bytes) -> None:
        """Send a change."""
        self.write(frame(change, payload))

    def send_heartbeat(self) -> None:
        """Send a heartbeat."""
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
