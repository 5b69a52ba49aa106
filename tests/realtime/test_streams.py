"""Server-sent events and WebSockets: handshakes, messages, limits and ends."""

from __future__ import annotations

import gc
import json
import socket
import ssl
import sys
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, request_started
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage

from app.errors import BadRequest, NotFound
from app.realtime import connections, hub, limits, sse, websocket
from app.realtime.connections import OPERATIONS, Connection, Subscription
from app.web import sockets
from app.web.app import get_request
from tests import certificates
from tests.builders import Caller, Cast
from tests.realtime.clients import UPGRADE, Events, Socket, Stream, until
from tests.realtime.conftest import serving

PAYLOAD = b'{"type":"posts.create","change":5,"timestamp":"2026-11-20T12:00:00Z","data":{}}'
WS = "realtime/ws"


def in_loop(call: Callable[..., object], *arguments: Any) -> None:
    """Have the loop's thread call something."""
    sockets.current_loop().call_soon_threadsafe(call, *arguments)


def subscribe(stream: Connection, one: Subscription, done: websocket.Done) -> None:
    """What an agreeable hub does with a subscription."""
    one.position = one.since or 0
    stream.add(one)
    done(None)


@pytest.fixture(autouse=True)
def agreeable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that knows every collection and sends nothing: these tests are of what is below it."""
    monkeypatch.setattr(hub, "open_stream", lambda caller, subscriptions: None)
    monkeypatch.setattr(hub, "subscribe", subscribe)
    for name in ("attach", "detach"):
        monkeypatch.setattr(hub, name, lambda stream: None)


@pytest.fixture
def events(bob: Caller, port: int, attached: list[Connection]) -> tuple[Events, Connection]:
    """A stream of events, from both sides."""
    client = Events(port, headers=bob.headers)
    until(lambda: attached)
    return client, attached[-1]


@pytest.fixture
def talk(bob: Caller, port: int) -> Socket:
    """A WebSocket of Bob."""
    return Socket(port, headers=bob.headers)


# --- Opening ------------------------------------------------------------------


def test_event_stream_begins_with_comment_and_headers(bob: Caller, port: int) -> None:
    client = Events(port, headers={**bob.headers, "Origin": "https://a.example"})
    assert client.status == 200
    assert client.opening.startswith(b": connected\n\n")
    assert client.opening.endswith(b"\n\nretry: 1000\n\n")
    expected = {
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-store",
        "Connection": "close",
        "X-Accel-Buffering": "no",
    }
    assert {name: client.headers[name] for name in expected} == expected
    assert client.headers["X-Correlation-ID"]
    assert client.headers["Content-Length"] is None
    assert "Origin" in client.headers["Vary"]


def test_event_stream_sends_cors_headers_to_allowed_origins(cast: Cast, port: int) -> None:
    origin = "https://app.example"
    assert cast.alice.patch("account", {"cors_origins": [origin]}).status_code == 200
    client = Events(port, headers={**cast.bob.headers, "Origin": origin})
    assert client.headers["Access-Control-Allow-Origin"] == origin
    other = Events(port, headers={**cast.bob.headers, "Origin": "https://other.example"})
    assert (other.status, other.headers["Access-Control-Allow-Origin"]) == (200, None)


@pytest.mark.long
def test_open_stream_keeps_no_reference_to_its_request(
    app: Flask, bob: Caller, port: int, attached: list[Connection]
) -> None:
    requests = list[weakref.ref[object]]()

    def note(sender: Flask) -> None:
        requests.append(weakref.ref(get_request()))

    with request_started.connected_to(note, app):
        client = Events(port, headers=bob.headers)
    until(lambda: attached)
    assert len(requests) == 1
    until(lambda: gc.collect() >= 0 and requests[0]() is None)
    assert client.status == 200
    assert not attached[0].closed


def test_event_stream_head_request_is_501(bob: Caller, port: int) -> None:
    before = len(connections.registry.all())
    assert bob("HEAD", "realtime/subscribe").status_code == 501
    assert len(connections.registry.all()) == before


def test_websocket_accept_key_equals_rfc_6455(bob: Caller, port: int) -> None:
    key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # RFC 6455, section 1.3
    # As Firefox sends it, from a page of any origin: no credential is one that a browser adds.
    browser = {"Connection": "keep-alive, Upgrade", "Origin": "https://any.example"}
    client = Socket(port, headers={**bob.headers, **key, **browser})
    assert client.status == 101
    assert client.headers["Sec-WebSocket-Accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert client.headers["Upgrade"] == "websocket"


@pytest.mark.parametrize(
    ("changed", "status", "error"),
    [
        ({"Upgrade": "h2c"}, 426, "upgrade_required"),
        ({"Connection": "close"}, 426, "upgrade_required"),
        ({"Sec-WebSocket-Version": "8"}, 426, "upgrade_required"),
        ({"Sec-WebSocket-Key": "short"}, 400, "bad_request"),
        ({"Sec-WebSocket-Key": "ä" * 24}, 400, "bad_request"),
        ({"Sec-WebSocket-Key": ""}, 400, "bad_request"),
        ({"Authorization": "Bearer x"}, 401, "unauthorized"),
        ({"Authorization": "Basic x"}, 401, "unauthorized"),
        ({"X-Account-ID": "globex"}, 403, "forbidden"),
    ],
)
def test_websocket_bad_handshake_is_ordinary_error(
    bob: Caller, port: int, changed: dict[str, str], status: int, error: str
) -> None:
    headers = {**UPGRADE, **bob.headers, **changed}
    client = Stream(port, "ws", headers)
    assert (client.status, client.json()["error"]) == (status, error)
    assert bool(client.headers["Sec-WebSocket-Version"]) == (status == 426)


def test_realtime_without_raw_socket_is_501(bob: Caller) -> None:
    for path, headers in (("realtime/subscribe", {}), (WS, UPGRADE)):
        answer = bob.get(path, headers=headers)
        assert (answer.status_code, answer.json["error"]) == (501, "realtime_unavailable")


def test_realtime_with_tls_in_server_is_501(app: Flask, bob: Caller, tmp_path: Path) -> None:
    pem = str(certificates.make(tmp_path))
    with serving(app, ssl_context=(pem, pem)) as port:
        context = ssl.create_default_context(cafile=pem)
        with socket.create_connection(("127.0.0.1", port)) as plain:
            secure = context.wrap_socket(plain, server_hostname="127.0.0.1")
            client = Stream(port, "subscribe", bob.headers, secure)
            assert (client.status, client.json()["error"]) == (501, "realtime_unavailable")


def test_event_stream_over_unix_socket(app: Flask, bob: Caller) -> None:
    # The path of a socket has 103 bytes at most on macOS, whose temporary folders have longer ones.
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        serving(app, host=f"unix://{folder}/s") as port,
    ):
        local = socket.socket(socket.AF_UNIX)
        local.connect(f"{folder}/s")
        client = Events(port, headers=bob.headers, sock=local)
        assert client.opening


def test_stream_socket_has_keepalive_and_user_timeout(events: tuple[Events, Connection]) -> None:
    sock = events[1]._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    for name, value in {"TCP_KEEPIDLE": 30, "TCP_USER_TIMEOUT": 30_000}.items():
        if sys.platform == "linux" or hasattr(socket, name):
            assert sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", [(None, OPERATIONS, "", None)]),
        ("since=7", [(None, OPERATIONS, "", 7)]),
        ("collections=posts", [("posts", OPERATIONS, "", None)]),
        ("collection=posts:create", [("posts", {"create"}, "", None)]),
        ("collections=a,b:delete", [("a", {"delete"}, "", None), ("b", {"delete"}, "", None)]),
        ("collections=a:create&collections=a:delete", [("a", {"create", "delete"}, "", None)]),
        (
            "collections=a&collection=b:update,create&filter.a=n%20%3D%201&since=3",
            [("a", OPERATIONS, "n = 1", 3), ("b", {"create", "update"}, "", 3)],
        ),
    ],
)
def test_subscribe_query_parsing(
    bob: Caller, port: int, attached: list[Connection], query: str, found: list[Any]
) -> None:
    assert Events(port, query, headers=bob.headers).status == 200
    until(lambda: attached)
    parsed = [
        (one.collection, one.operations, one.filter, one.since)
        for one in attached[0].subscriptions.values()
    ]
    assert parsed == found


@pytest.mark.parametrize(
    ("query", "status", "name"),
    [
        ("collections=posts:read", 422, "collections"),
        ("collections=posts:create,,", 422, "collections"),
        ("collection_s=posts", 422, "collection_s"),
        ("filter.posts=true", 422, "filter.posts"),
        ("filter=true", 422, "filter"),
        ("since=-1", 422, "since"),
        ("since=x", 422, "since"),
        ("since=9223372036854775808", 422, "since"),
        ("%00=1", 422, None),
        ("&".join(f"collections=c{n}" for n in range(101)), 400, None),
    ],
)
def test_subscribe_query_with_bad_value_names_parameter(
    bob: Caller, query: str, status: int, name: str | None
) -> None:
    answer = bob.get(f"realtime/subscribe?{query}")
    assert answer.status_code == status
    if name:
        assert answer.json["detail"][0]["loc"] == ["query", name]
    if status == 400:
        assert answer.json["error"] == "limit_reached"


@pytest.mark.parametrize(
    ("sent", "since", "resets"), [("5", 5, False), ("five", None, True), ("-1", None, True)]
)
def test_last_event_id_wins_over_since(
    bob: Caller, port: int, attached: list[Connection], sent: str, since: int, resets: bool
) -> None:
    client = Events(port, "since=3", headers={**bob.headers, "Last-Event-ID": sent})
    until(lambda: attached)
    assert attached[0].subscriptions[""].since == since
    if resets:
        assert client.next()["event"] == "reset"


def test_event_stream_refusal_by_hub_comes_before_head(
    bob: Caller, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NotFound("There is no such collection.")

    monkeypatch.setattr(hub, "open_stream", refuse)
    assert Events(port, "collections=nothing", headers=bob.headers).status == 404


# --- Events -------------------------------------------------------------------


def test_event_stream_frames_of_changes_and_ends(events: tuple[Events, Connection]) -> None:
    client, stream = events
    in_loop(stream.write, sse.frame(5, PAYLOAD))
    assert client.next() == {"id": "5", "event": "message", "data": json.loads(PAYLOAD)}
    in_loop(stream.write, sse.frame(6, PAYLOAD))
    assert client.next()["id"] == "6"
    in_loop(stream.send_reset)
    reset = client.next()
    assert (reset["event"], reset["data"]["type"], "id" in reset) == ("reset", "reset", False)
    in_loop(stream.expire)
    assert client.next()["event"] == "expired"
    assert client.ended() == b""
    client.socket.close()
    until(lambda: stream.closed and stream not in connections.registry.all())


def test_event_stream_ends_with_one_of_its_subscriptions(
    events: tuple[Events, Connection],
) -> None:
    client, stream = events
    in_loop(stream.unsubscribed, "posts", BadRequest("x", error="rule_denied"))
    assert client.ended() == b""


def test_event_stream_and_websocket_send_heartbeats(
    bob: Caller, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS", 0.05)
    client, talk = Events(port, headers=bob.headers), Socket(port, headers=bob.headers)
    for _ in range(2):
        beat = client.next()
        assert (beat["event"], beat["data"]["type"]) == ("heartbeat", "heartbeat")
        assert talk.next().keys() == {"type", "timestamp"}


def test_event_stream_closes_when_client_hangs_up(events: tuple[Events, Connection]) -> None:
    client, stream = events
    client.socket.shutdown(socket.SHUT_WR)
    until(lambda: stream not in connections.registry.all())
    assert stream.closed


def test_event_stream_ignores_input_of_client(events: tuple[Events, Connection]) -> None:
    client, stream = events
    client.socket.sendall(b"GET /api/v1/auth/me HTTP/1.1\r\nHost: a\r\n\r\n" * 100)
    in_loop(stream.write, sse.frame(5, PAYLOAD))
    assert client.next()["id"] == "5"
    with pytest.raises((ConnectionError, EOFError)):
        client.socket.sendall(b"x" * 2**26)


def test_stream_slow_reader_is_cut_off_with_bounded_memory(
    bob: Caller, port: int, attached: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_BUFFERED_BYTES", 2**18)
    slow, quick = (Events(port, headers=bob.headers) for _ in range(2))
    until(lambda: len(attached) == 2)
    stream, other = attached
    message, most = sse.frame(5, b'"' + b"x" * 2**17 + b'"'), 0

    def write() -> None:
        nonlocal most
        most = max(most, stream.buffered)
        stream.write(message)

    for _ in range(200):
        in_loop(write)
        in_loop(other.write, message)
        assert quick.next()["id"] == "5"
        if stream.closed:
            break
    assert stream.closed
    assert not other.closed
    assert most <= 2**18 + len(message)
    with pytest.raises((ConnectionResetError, EOFError)):
        slow.until(b"never")


def test_stream_stalled_reader_is_cut_off(
    bob: Caller, port: int, attached: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(limits, "STALLED_SECONDS", 0.3)
    monkeypatch.setattr(limits, "MAX_BUFFERED_BYTES", 2**30)
    assert Events(port, headers=bob.headers).status == 200
    until(lambda: attached)
    in_loop(attached[0].write, b"x" * 2**24)
    until(lambda: attached[0] not in connections.registry.all())


def test_stream_slow_reader_within_limits_gets_everything(
    bob: Caller, port: int, attached: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(limits, "STALLED_SECONDS", 20)
    monkeypatch.setattr(limits, "MAX_BUFFERED_BYTES", 2**30)
    client = Events(port, headers=bob.headers)
    until(lambda: attached)
    in_loop(attached[0].write, sse.frame(5, b'"' + b"x" * 2**23 + b'"'))
    event = client.next()
    while event["event"] == "heartbeat":
        event = client.next()
    assert len(event["data"]) == 2**23


# --- WebSockets ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "about"),
    [
        ({"action": "publish"}, None),
        ({}, None),
        ([], None),
        ("x", None),
        ({"action": "subscribe", "collection": 5}, None),
        ({"action": "subscribe", "collection": ""}, None),
        ({"action": "unsubscribe", "collection": {}}, None),
        ({"action": "subscribe", "collection": "a", "operations": "create"}, "a"),
        ({"action": "subscribe", "collection": "a", "operations": ["x"]}, "a"),
        ({"action": "subscribe", "collection": "a", "operations": [[]]}, "a"),
        ({"action": "subscribe", "collection": "a", "filter": 5}, "a"),
        ({"action": "subscribe", "collection": "a", "since": "5"}, "a"),
        ({"action": "subscribe", "collection": "a", "since": -1}, "a"),
        ({"action": "subscribe", "collection": "a", "since": True}, "a"),
    ],
)
def test_websocket_bad_message_is_error_and_keeps_connection(
    talk: Socket, message: Any, about: str | None
) -> None:
    answer = talk.ask(message)
    assert (answer["type"], answer["error"]) == ("error", "validation_error")
    assert answer.get("collection") == about
    assert answer["message"]
    assert talk.ask({"action": "ping"})["type"] == "pong"


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"action": "ping", "x": "\\u0000"}', "[" * 9999])
def test_websocket_malformed_json_is_validation_error(talk: Socket, text: str) -> None:
    talk.send(TextMessage(data=text))
    assert talk.next()["error"] == "validation_error"
    assert talk.ask({"action": "ping"})["type"] == "pong"


def test_websocket_subscribe_and_unsubscribe(talk: Socket, attached: list[Connection]) -> None:
    wanted = {"collection": "posts", "operations": ["create"], "filter": "n = 1", "since": 3}
    answer = talk.ask({"action": "subscribe", **wanted})
    expected = {"type": "subscribed", "status": "subscribed", "collection": "posts", "since": 3}
    assert answer == expected
    assert talk.ask({"action": "subscribe", "operations": []})["collection"] is None
    (stream,) = connections.registry.all()
    posts = stream.subscriptions["posts"]
    found = (posts.collection, posts.operations, posts.filter, posts.since)
    assert found == ("posts", {"create"}, "n = 1", 3)
    assert stream.subscriptions[""].operations == OPERATIONS
    for collection in ("posts", "posts", "never"):
        left = talk.ask({"action": "unsubscribe", "collection": collection})
        assert left == {"type": "unsubscribed", "status": "unsubscribed", "collection": collection}
    assert list(stream.subscriptions) == [""]


def test_websocket_subscriptions_are_answered_in_order(
    bob: Caller, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(stream: object, one: Subscription, done: websocket.Done) -> None:
        error = BadRequest("No.", error="filter_invalid", details=[1]) if one.filter else None
        sockets.current_loop().call_later(0.05, done, error)

    monkeypatch.setattr(hub, "subscribe", later)
    talk = Socket(port, headers=bob.headers)
    for name, filter in (("a", ""), ("b", "("), ("c", "")):
        talk.say({"action": "subscribe", "collection": name, "filter": filter})
    talk.say({"action": "unsubscribe", "collection": "a"})
    talk.say({"action": "ping"})
    answers = [talk.next() for _ in range(5)]
    kinds = [(answer["type"], answer.get("collection")) for answer in answers]
    assert kinds == [
        ("subscribed", "a"),
        ("error", "b"),
        ("subscribed", "c"),
        ("unsubscribed", "a"),
        ("pong", None),
    ]
    assert (answers[1]["error"], answers[1]["details"]) == ("filter_invalid", [1])


def test_websocket_subscription_limit_is_limit_reached(
    talk: Socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SUBSCRIPTIONS", 2)
    for name in ("a", "b", "a"):
        assert talk.ask({"action": "subscribe", "collection": name})["type"] == "subscribed"
    refused = talk.ask({"action": "subscribe", "collection": "c"})
    assert (refused["error"], refused["collection"]) == ("limit_reached", "c")


def test_websocket_accepts_all_allowed_subscriptions_in_a_burst(talk: Socket) -> None:
    count = limits.MAX_SUBSCRIPTIONS
    for n in range(count + 1):
        talk.say({"action": "subscribe", "collection": f"c{n}"})
    answers = [talk.next() for _ in range(count + 1)]
    assert [one["type"] for one in answers] == ["subscribed"] * count + ["error"]
    assert answers[-1]["error"] == "limit_reached"
    # What is too much is answered before anything is closed, and what was subscribed stays.
    for _ in range(limits.MAX_MESSAGES - count):
        talk.say({"action": "ping"})
    answers = [talk.next() for _ in range(limits.MAX_MESSAGES - count)]
    kinds = [(one["type"], one.get("error")) for one in answers]
    rest = limits.MAX_MESSAGES - count - 1
    assert sorted(kinds, key=str) == [("error", "rate_limited"), *[("pong", None)] * rest]
    talk.send(*[Ping()] * limits.FLOOD)
    assert talk.closed() == 1008


def test_websocket_messages_of_changes_and_close_codes(
    bob: Caller, port: int, attached: list[Connection]
) -> None:
    for end, code, farewell in (
        ("expire", 4401, ["expired"]),
        ("end", 1008, []),
        ("stop", 1001, []),
    ):
        talk = Socket(port, headers=bob.headers)
        until(lambda: attached)
        stream = attached.pop()
        assert talk.ask({"action": "subscribe", "collection": "posts"})["type"] == "subscribed"
        in_loop(stream.write, websocket.frame(PAYLOAD))
        assert talk.next() == json.loads(PAYLOAD)
        in_loop(stream.send_reset)
        assert talk.next()["type"] == "reset"
        in_loop(stream.unsubscribed, "posts", BadRequest("x", error="rule_denied"))
        ended = {"type": "unsubscribed", "status": "unsubscribed", "collection": "posts"}
        assert talk.next() == {**ended, "error": "rule_denied"}
        assert stream.subscriptions == {}
        in_loop(getattr(stream, end))
        assert [talk.next()["type"] for _ in farewell] == farewell
        assert talk.closed() == code
        assert talk.ended() == b""


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536, 300_000])
def test_websocket_frames_of_any_size(talk: Socket, attached: list[Connection], size: int) -> None:
    assert talk.ask({"action": "ping"})
    (stream,) = connections.registry.all()
    in_loop(stream.write, websocket.frame(b'"' + b"x" * size + b'"'))
    assert len(talk.next()) == size


def test_websocket_answers_ping_and_close(talk: Socket) -> None:
    talk.send(Ping(payload=b"abc"))
    answer = talk.event()
    assert isinstance(answer, Pong)
    assert answer.payload == b"abc"
    talk.send(CloseConnection(code=1000))
    assert talk.closed() == 1000
    assert talk.ended() == b""


LARGE = "x" * (limits.MAX_MESSAGE_BYTES + 1)
WIDE = "é" * (limits.MAX_MESSAGE_BYTES // 2 + 1)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([TextMessage(data=LARGE)], 1009),
        ([TextMessage(data=WIDE)], 1009),
        ([TextMessage(data="x" * 40_000, message_finished=False)] * 2, 1009),
        ([TextMessage(data="", message_finished=False)] * 2000, 1009),
        ([BytesMessage(data=b"{}")], 1003),
        ([Ping()] * 400, 1008),
        ([Pong()] * 400, 1008),
        ([TextMessage(data='{"action": "ping"}')] * 400, 1008),
    ],
    ids=["large", "wide", "fragmented", "empty fragments", "binary", "pings", "pongs", "messages"],
)
def test_websocket_protocol_violation_has_close_code(
    talk: Socket, frames: list[Any], code: int
) -> None:
    talk.send(*frames)
    assert talk.closed() == code
    assert talk.ended() == b""


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\x81\x02{}", 1002),  # not masked
        (b"\xc1\x82\0\0\0\0{}", 1002),  # a reserved bit
        (b"\x83\x80\0\0\0\0", 1002),  # a reserved opcode
        (b"\x80\x80\0\0\0\0", 1002),  # a continuation of nothing
        (b"\x81\x81\0\0\0\0\xff", 1007),  # not UTF-8
        (b"\x89\xfe\x00\x7e\0\0\0\0", 1002),  # a long ping
        (b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0", 1002),  # 2^64 - 1 bytes
        (b"\x81\xff\x00\x00\x10\x00\x00\x00\x00\x00\0\0\0\0" + b"x" * 70_000, 1009),
    ],
)
def test_websocket_broken_frame_has_close_code(talk: Socket, sent: bytes, code: int) -> None:
    talk.socket.sendall(sent)
    assert talk.closed() == code


# --- Limits -------------------------------------------------------------------


def test_stream_limits_per_account_and_process_are_429(
    cast: Cast, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_STREAMS_PER_ACCOUNT", 2)
    monkeypatch.setattr(limits, "MAX_STREAMS", 3)
    first = Events(port, headers=cast.alice.headers)
    assert Socket(port, headers=cast.bob.headers).status == 101
    refused = Events(port, headers=cast.bob.headers)
    assert (refused.status, refused.json()["error"]) == (429, "limit_reached")
    assert refused.headers["Retry-After"]
    assert Events(port, headers=cast.charlie.headers).status == 200
    refused = Events(port, headers=cast.charlie.headers)
    assert (refused.status, refused.json()["error"]) == (503, "unavailable")
    first.socket.close()
    until(lambda: len(connections.registry.all()) == 2)
    assert Events(port, headers=cast.bob.headers).status == 200


def test_streams_are_closed_by_stopping_process(
    bob: Caller, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk, client = Socket(port, headers=bob.headers), Events(port, headers=bob.headers)
    try:
        connections.stop()
        assert talk.closed() == 1001
        assert client.ended() == b""
        assert Socket(port, headers=bob.headers).closed() == 1001
    finally:
        connections._stopping.clear()
