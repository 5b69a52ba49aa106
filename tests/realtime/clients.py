"""Clients of streams, close enough to the socket to be rude."""

from __future__ import annotations

import json
import socket
import time
from base64 import b64encode
from collections.abc import Mapping
from http.client import HTTPMessage, parse_headers
from io import BytesIO
from typing import Any, ClassVar

from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, Event, Message, Ping, Pong, TextMessage

from app.realtime import connections
from app.web import sockets

UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": b64encode(bytes(16)).decode(),
}
SECONDS = 10


class Stream:
    """A connection on which a request was sent."""

    opened: ClassVar[list[Stream]] = []

    def __init__(
        self, port: int, path: str, headers: Mapping[str, str] = {}, sock: Any = None
    ) -> None:
        self.socket = sock or socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self.opened.append(self)
        lines = [f"GET /api/v1/realtime/{path} HTTP/1.1", "Host: 127.0.0.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self.received = b""
        head = self.until(b"\r\n\r\n")
        status, _, rest = head.partition(b"\r\n")
        self.status = int(status.split()[1])
        self.headers: HTTPMessage = parse_headers(BytesIO(rest))

    def until(self, end: bytes) -> bytes:
        """What comes, up to and with `end`. Raises EOFError if it never does."""
        while end not in self.received:
            chunk = self.socket.recv(2**20)
            if not chunk:
                raise EOFError(self.received[:1000])
            self.received += chunk
        found, _, self.received = self.received.partition(end)
        return found + end

    def json(self) -> Any:
        """The body of an error."""
        length = int(self.headers["Content-Length"])
        while len(self.received) < length:
            self.received += self.socket.recv(65536)
        return json.loads(self.received[:length])

    def ended(self) -> bytes:
        """What still comes until the server closes."""
        while chunk := self.socket.recv(65536):
            self.received += chunk
        return self.received

    @classmethod
    def close_all(cls) -> None:
        """Hang up everywhere."""
        while cls.opened:
            cls.opened.pop().socket.close()


class Events(Stream):
    """A client of server-sent events."""

    def __init__(self, port: int, query: str = "", **options: Any) -> None:
        super().__init__(port, f"subscribe?{query}", **options)
        self.opening = self.until(b"retry: 1000\n\n") if self.status == 200 else b""

    def next(self) -> dict[str, Any]:
        """The next event, by the names of its lines."""
        lines = self.until(b"\n\n").decode().splitlines()
        event: dict[str, Any] = dict(line.split(": ", 1) for line in lines if line)
        return event | {"data": json.loads(event["data"])}


class Socket(Stream):
    """A WebSocket client."""

    def __init__(
        self, port: int, query: str = "", headers: Mapping[str, str] = {}, sock: Any = None
    ) -> None:
        super().__init__(port, f"ws?{query}", {**UPGRADE, **headers}, sock)
        self._frames = Connection(ConnectionType.CLIENT)
        self._events = list[Event]()

    def send(self, *events: Event) -> None:
        """Send frames."""
        self.socket.sendall(b"".join(map(self._frames.send, events)))

    def say(self, message: Any) -> None:
        """Send a message of JSON."""
        self.send(TextMessage(data=json.dumps(message)))

    def event(self) -> Event:
        """The next frame or piece of one."""
        while not self._events:
            if not self.received:
                self.received = self.socket.recv(65536)
            self._frames.receive_data(self.received or None)
            self.received = b""
            self._events += self._frames.events()
        return self._events.pop(0)

    def next(self) -> Any:
        """The next message."""
        text, event = "", self.event()
        while isinstance(event, Message):
            text += str(event.data)
            if event.message_finished:
                return json.loads(text)
            event = self.event()
        raise AssertionError(event)

    def ask(self, message: Any) -> Any:
        """Send a message; returns the answer."""
        self.say(message)
        return self.next()

    def closed(self) -> int:
        """The code with which the server closes."""
        while not isinstance(event := self.event(), CloseConnection):
            assert isinstance(event, Message | Ping | Pong)
        return event.code


def cut() -> None:
    """Close all streams of this process from the server's side, once there are any."""
    until(lambda: any(one.is_connected for one in connections.registry.all()))
    for connection in connections.registry.all():
        sockets.current_loop().call_soon_threadsafe(connection.stop)
    until(lambda: not connections.registry.all())


def until(happens: Any, seconds: float = SECONDS) -> None:
    """Wait for something."""
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.01)
