"""WebSocket streams: the handshake, and a protocol of JSON messages."""

from __future__ import annotations

import binascii
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha1
from typing import Any

from werkzeug.datastructures import Headers
from wsproto.connection import Connection as Frames
from wsproto.connection import ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason

from app import clock
from app.auth.stream_credentials import StreamCredential
from app.errors import AppError, BadRequest, TooManyRequests, UpgradeRequired
from app.realtime import limits
from app.realtime.connections import OPERATIONS, Connection, Subscription, key_of
from app.web import serialization
from app.web.serialization import dumps

VERSION = "13"
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
EXPIRED = 4401  # the close code of an expired credential
TOO_MANY_MESSAGES = (
    f"Send at most {limits.MAX_MESSAGES} messages in {limits.WINDOW_SECONDS} seconds."
)
CLOSING = (ConnectionState.LOCAL_CLOSING, ConnectionState.CLOSED)


def handshake(headers: Headers) -> dict[str, str]:
    """The headers of the response to a handshake. Raises UpgradeRequired or BadRequest.

    Any `Origin` may open a WebSocket: credentials are never cookies, which a browser would send for
    a foreign page, too.
    """
    upgrade, version = headers.get("Upgrade", ""), headers.get("Sec-WebSocket-Version")
    tokens = {token.strip().lower() for token in headers.get("Connection", "").split(",")}
    if upgrade.lower() != "websocket" or "upgrade" not in tokens or version != VERSION:
        raise UpgradeRequired
    key = headers.get("Sec-WebSocket-Key", "")
    if not _is_key(key):
        raise BadRequest("Sec-WebSocket-Key must be 16 bytes in base64.")
    digest = sha1((key + GUID).encode(), usedforsecurity=False).digest()
    return {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Accept": b64encode(digest).decode(),
    }


def _is_key(text: str) -> bool:
    try:
        return len(b64decode(text, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def frame(payload: bytes) -> bytes:
    """Return a message as a frame of text."""
    length = len(payload)
    if length < 126:
        head = bytes((0x81, length))
    elif length < 2**16:
        head = b"\x81\x7e" + length.to_bytes(2, "big")
    else:
        head = b"\x81\x7f" + length.to_bytes(8, "big")
    return head + payload


Done = Callable[[AppError | None], None]
Subscribe = Callable[["WebSocket", Subscription, Done], None]
"""Checks and adds a subscription, and calls back in the loop's thread."""


class WebSocket(Connection):
    """A WebSocket, whose client subscribes and unsubscribes by messages."""

    protocol = "websocket"

    def __init__(self, credential: StreamCredential, subscribe: Subscribe) -> None:
        super().__init__(credential, ())
        self._request_subscription = subscribe
        self._frames = Frames(ConnectionType.SERVER)
        self._parts, self._size = list[str](), 0  # of an unfinished message
        self._messages = deque[str]()
        self._is_subscribing = False
        self._window, self._count = 0.0, 0

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        if self._frames.state in CLOSING:
            return  # until it closes, too
        self._frames.receive_data(data)
        for event in self._frames.events():
            self._take(event)
            if self._frames.state in CLOSING:
                return
        self._answer_messages()

    def _take(self, event: Event) -> None:
        if isinstance(event, CloseConnection):
            self._close(event.code, event.reason or "")
        elif isinstance(event, BytesMessage):
            self._close(CloseReason.UNSUPPORTED_DATA, "Send text.")
        elif isinstance(event, Ping | Pong):
            if self._count_message() and isinstance(event, Ping):
                self.write(self._frames.send(event.response()))
        elif isinstance(event, TextMessage):
            self._parts.append(event.data)
            self._size += len(event.data.encode())
            if self._size > limits.MAX_MESSAGE_BYTES or len(self._parts) > limits.MAX_FRAGMENTS:
                self._close(CloseReason.MESSAGE_TOO_BIG, "The message is too big.")
            elif event.message_finished:
                text = "".join(self._parts)
                self._parts, self._size = [], 0
                if self._count_message():
                    self._messages.append(text)

    def _count_message(self) -> bool:
        """Whether the client may send one more; tells it if not, and cuts off a flood."""
        now = time.monotonic()
        if now - self._window >= limits.WINDOW_SECONDS:
            self._window, self._count = now, 0
        self._count += 1
        if self._count > limits.FLOOD:
            self._close(CloseReason.POLICY_VIOLATION, "Too many messages.")
        elif self._count > limits.MAX_MESSAGES:
            self._send_error(TooManyRequests(limits.WINDOW_SECONDS, TOO_MANY_MESSAGES))
        return self._count <= limits.MAX_MESSAGES

    def _answer_messages(self) -> None:
        # One after the other: a subscription is answered before the next message is read.
        while self._messages and not self._is_subscribing and not self.closed:
            try:
                self._answer(self._messages.popleft())
            except AppError as error:
                self._send_error(error)
        if self.closed:
            return
        if self._is_subscribing:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _answer(self, text: str) -> None:
        message = serialization.parse(text.encode())
        if not isinstance(message, dict):
            raise _invalid("Send a JSON object.")
        action = message.get("action")
        if action == "ping":
            self._send_message("pong", timestamp=clock.iso(clock.now()))
        elif action == "subscribe":
            self._subscribe(message)
        elif action == "unsubscribe":
            collection = _collection_of(message)
            self.subscriptions.pop(key_of(collection), None)
            self._send_status("unsubscribed", collection)
        else:
            raise _invalid("`action` must be subscribe, unsubscribe or ping.")

    def _subscribe(self, message: Mapping[str, Any]) -> None:
        collection = _collection_of(message)
        try:
            operations, filter = message.get("operations"), message.get("filter")
            if operations is not None and not isinstance(operations, list):
                raise _invalid("`operations` must be a list.")
            if not all(isinstance(one, str) and one in OPERATIONS for one in operations or ()):
                raise _invalid("`operations` may have create, update and delete.")
            if filter is not None and not isinstance(filter, str):
                raise _invalid("`filter` must be a text.")
            since = message.get("since")
            if since is not None and (type(since) is not int or since < 0):
                raise _invalid("`since` must be the number of a change.")
            subscription = Subscription(
                collection, frozenset(operations or OPERATIONS), filter or "", since
            )
            is_new = key_of(collection) not in self.subscriptions
            if is_new and len(self.subscriptions) >= limits.MAX_SUBSCRIPTIONS:
                raise too_many_subscriptions()
        except AppError as error:
            self._send_error(error, collection)
            return
        self._is_subscribing = True
        done = partial(self._subscribed, collection, subscription)
        self._request_subscription(self, subscription, done)

    def _subscribed(
        self, collection: str | None, subscription: Subscription, error: AppError | None
    ) -> None:
        self._is_subscribing = False
        if self.closed:
            return
        if error is None:
            since = {} if subscription.is_reset else {"since": subscription.since}
            self._send_status("subscribed", collection, **since)
        else:
            self._send_error(error, collection)
        self._answer_messages()

    def send_heartbeat(self) -> None:
        self._send_message("heartbeat", timestamp=clock.iso(clock.now()))

    def send_reset(self, collection: str | None = None) -> None:
        """Send `reset`, of one subscription or of all."""
        more = {} if collection is None else {"collection": collection}
        self._send_message("reset", timestamp=clock.iso(clock.now()), **more)

    def expire(self) -> None:
        """Send `expired`, and close."""
        self._send_message("expired", timestamp=clock.iso(clock.now()))
        self._close(EXPIRED, "The credential has expired.")

    def end(self) -> None:
        """Close a stream that its caller may not have any more."""
        self._close(CloseReason.POLICY_VIOLATION, "The credential is no longer valid.")

    def stop(self) -> None:
        """Close as the process stops."""
        self._close(CloseReason.GOING_AWAY, "The server restarts.")

    def unsubscribed(self, collection: str | None, error: AppError) -> None:
        """Tell the client that a subscription has ended."""
        self.subscriptions.pop(key_of(collection), None)
        self._send_status("unsubscribed", collection, error=error.error)

    def _close(self, code: int, reason: str) -> None:
        if not self.closed:
            if self._frames.state not in CLOSING:
                self._send(self._frames.send(CloseConnection(code, reason)))
            self.close()

    def _send_message(self, kind: str, **more: object) -> None:
        self.write(frame(dumps({"type": kind, **more})))

    def _send_status(self, status: str, collection: str | None, **more: object) -> None:
        self._send_message(status, status=status, collection=collection, **more)

    def _send_error(self, error: AppError, collection: str | None = None) -> None:
        about = {} if collection is None else {"collection": collection}
        self._send_message("error", **error.body(), **about)


def too_many_subscriptions() -> BadRequest:
    """The error for one subscription too many."""
    message = f"A stream has at most {limits.MAX_SUBSCRIPTIONS} subscriptions."
    return BadRequest(message, error="limit_reached")


def _collection_of(message: Mapping[str, Any]) -> str | None:
    collection = message.get("collection")
    if collection is not None and not (isinstance(collection, str) and collection):
        raise _invalid("`collection` must be the name of a collection.")
    return collection


def _invalid(message: str) -> BadRequest:
    return BadRequest(message, error="validation_error")
