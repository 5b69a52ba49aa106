"""Where requests may go, and what they survive on the way (checks of outgoing requests)."""

from __future__ import annotations

import gzip
import socket
import ssl
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Thread

import pytest
from flask import Flask

from app.outbound import address_policy, client
from app.outbound.address_policy import RequestFailed, RequestRefused, Rules
from tests import certificates
from tests.project import on_linux
from tests.receivers import Receiver, hang, hostile, receiving

PUBLIC_ONLY = Rules(allow_private=False, seconds=5)
ANYWHERE = Rules(allow_private=True, seconds=1)
OK = b"HTTP/1.1 200 OK\r\n"


def post(
    url: str, rules: Rules, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> client.Response:
    """Send a request as webhooks do."""
    return client.send(client.Request("POST", url, headers or {}, body), rules)


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


PRIVATE = words("""
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254
    169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.8 192.0.2.1 192.88.99.1
    192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.255
    240.0.0.1 255.255.255.255
    :: ::1 ::127.0.0.1 ::10.0.0.1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::ffff:0:127.0.0.1
    64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b:1::a00:1 100::1 2001::1 2001:0:4136:e378::1
    2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1::1 2002:808:808::1 3fff::1 5f00::1
    fc00::1 fd12:3456::1 fe80::1 fe80::1%eth0 fec0::1 ff02::1 ff0e::1 4000::1
""")
OPEN = words("""
    1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.1 100.63.255.255 100.128.0.1 126.0.0.1 128.0.0.1
    169.253.0.1 172.15.255.255 172.32.0.1 192.0.1.1 192.167.1.1 192.169.0.1 198.17.0.1 198.20.0.1
    223.255.255.255 2606:4700::1111 2a00:1450::1 2001:4860:4860::8888 2400:cb00::1
""")
SPELLINGS = words("""
    http://127.0.0.1/ http://127.1/ http://0177.0.0.1/ http://0x7f.0.0.1/ http://0x7f000001/
    http://2130706433/ http://017700000001/ http://localhost/ http://LOCALHOST./ http://[::1]/
    http://[::]/ http://0/ http://[::ffff:127.0.0.1]/ http://[::ffff:7f00:1]/
    http://[::127.0.0.1]/ http://[64:ff9b::7f00:1]/ http://[2002:7f00:1::]/
    http://①②⑦.⓪.⓪.①/ http://127。0。0。1/ http://169.254.169.254/latest/meta-data
""")
MALFORMED = [
    *("", "x", "//a.example/", "ftp://a.example/", "file:///etc/passwd", "gopher://a.example/"),
    *("javascript:alert(1)", "http://", "http:///x", "http://user@a.example/"),
    *("http://user:pw@a.example/", "http://a.example:0/", "http://a.example:99999/"),
    *("http://a.example:x/", "http://a example/", "http://a.example/\r\nX: y", "http://[::1"),
    *("http://a.example\\@127.0.0.1/", "http://a.example/\x00", "http://[fe80::1%25eth0]/"),
    *("http://" + "a" * 64 + ".example/", "https://a.example/" + "x" * 2048, "http://a..example/"),
    *("http://a\u200db.example/", "http://ß..example/"),
    *("http://-/", "http://a_b;c/", "http://a.example%2f@127.0.0.1/"),
]


HOSTS = {
    "bücher.example": "xn--bcher-kva.example",
    "BÜCHER.example.": "xn--bcher-kva.example",
    "straße.example": "xn--strae-oqa.example",
    "STRAẞE.example.": "xn--strae-oqa.example",
    "ρς.example": "xn--2xac.example",
    "straße.local": "xn--strae-oqa.local",
    "straße": "xn--strae-oqa",
}


@pytest.mark.parametrize("host", HOSTS)
def test_outbound_host_name_is_normalized_like_browsers(host: str) -> None:
    assert address_policy.parse_target(f"https://{host}/", ANYWHERE).host == HOSTS[host]


@pytest.mark.parametrize("address", PRIVATE)
def test_outbound_private_address_is_not_public(address: str) -> None:
    assert not address_policy.is_public(address)


@pytest.mark.parametrize("address", OPEN)
def test_outbound_public_address_is_public(address: str) -> None:
    assert address_policy.is_public(address)


@pytest.mark.parametrize("url", SPELLINGS)
def test_outbound_request_to_own_network_is_refused_in_any_spelling(url: str) -> None:
    assert client.url_problem(url, PUBLIC_ONLY)
    with pytest.raises(RequestRefused):
        post(url, PUBLIC_ONLY)


@pytest.mark.parametrize("url", MALFORMED)
def test_outbound_malformed_url_is_refused(url: str) -> None:
    assert client.url_problem(url, ANYWHERE)
    with pytest.raises(RequestRefused):
        post(url, ANYWHERE)


def resolving(*answers: list[str]) -> Callable[[str, int], list[str]]:
    """A name server that changes its mind: each question gets the next answer."""
    left = list(answers)
    return lambda host, port: left.pop(0) if len(left) > 1 else left[0]


def test_outbound_dns_rebinding_is_refused() -> None:
    with receiving() as receiver:
        rebound = resolving(["93.184.216.34"], ["127.0.0.1"])
        rules = Rules(allow_private=False, seconds=2, resolve=rebound)
        url = f"http://hooks.example:{receiver.port}/"
        assert client.url_problem(url, rules) is None
        with pytest.raises(RequestRefused):
            post(url, rules)
        assert receiver.requests == []


def test_outbound_connection_uses_checked_address() -> None:
    # Were the name resolved once more to connect, the second answer would be taken.
    with receiving() as receiver:
        once = resolving(["127.0.0.1"], ["192.0.2.1"])
        rules = Rules(allow_private=True, seconds=2, resolve=once)
        url = f"http://hooks.example:{receiver.port}/x%2fy?z=%2f1"
        assert post(url, rules, body=b"{}").status == 200
        (request,) = receiver.requests
        assert (request.path, request.headers["host"]) == (
            "/x%2fy?z=%2f1",
            f"hooks.example:{receiver.port}",
        )


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    """A server's context, with a certificate for hooks.example that nobody trusts yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.make(tmp_path))
    return context


@pytest.fixture
def trusted(tls: ssl.SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine trusts that certificate."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "both.pem"))
    client._tls.cache_clear()
    yield
    client._tls.cache_clear()


def by_tls(host: str, port: int, *addresses: str) -> client.Response:
    rules = Rules(allow_private=True, seconds=5, resolve=resolving(list(addresses)))
    return post(f"https://{host}:{port}/", rules, body=b"{}")


@pytest.mark.usefixtures("trusted")
def test_outbound_trusted_certificate_is_valid_for_own_host_only(tls: ssl.SSLContext) -> None:
    with receiving(tls=tls) as receiver:
        assert by_tls("hooks.example", receiver.port, "127.0.0.1").status == 200
        with pytest.raises(RequestFailed, match="TLS failed: CERTIFICATE_VERIFY_FAILED"):
            by_tls("other.example", receiver.port, "127.0.0.1")
        assert len(receiver.requests) == 1


def test_outbound_untrusted_certificate_is_refused(tls: ssl.SSLContext) -> None:
    with receiving(tls=tls) as receiver:
        with pytest.raises(RequestFailed, match="TLS failed: CERTIFICATE_VERIFY_FAILED"):
            by_tls("hooks.example", receiver.port, "127.0.0.1")
        assert receiver.requests == []


@on_linux  # 127.0.0.2
@pytest.mark.usefixtures("trusted")
def test_outbound_address_without_tls_falls_back_to_next(tls: ssl.SSLContext) -> None:
    with (
        receiving(tls=tls) as receiver,
        socket.create_server(("127.0.0.2", receiver.port)) as plain,
    ):
        Thread(target=lambda: plain.accept()[0].close(), daemon=True).start()
        assert by_tls("hooks.example", receiver.port, "127.0.0.2", "127.0.0.1").status == 200


def test_outbound_header_values_are_stripped() -> None:
    with receiving() as receiver:
        url = f"http://127.0.0.1:{receiver.port}/"
        headers = {"X-Padded": " \tone two ", "X-Blank": "  "}
        assert post(url, ANYWHERE, headers, body=b"{}").status == 200
        (request,) = receiver.requests
    assert (request.headers["x-padded"], request.headers["x-blank"]) == ("one two", "")


def test_outbound_malformed_response_logs_no_url(
    app: Flask, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = b"HTTP/1.1 200 OK\r\nno header\r\nX: y\r\n\r\nok"
    with hostile(lambda connection: connection.sendall(answer)) as url:
        assert post(f"{url}?key=hidden", ANYWHERE, body=b"{}").status == 200
    assert "hidden" not in caplog.text + "".join(capfd.readouterr())


HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
INTERIM = HINTS + b"HTTP/1.1 102 Processing\r\n\r\n" + b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize("size", [1, 1000])
def test_outbound_interim_responses_are_skipped(size: int) -> None:
    sent = INTERIM + OK + b"X: y\r\n\r\nHTTP/1.1 103 as the body"

    def behave(connection: socket.socket) -> None:
        for place in range(0, len(sent), size):
            connection.sendall(sent[place : place + size])

    with hostile(behave) as url:
        answer = post(url, ANYWHERE)
    assert (answer.status, answer.body) == (200, "HTTP/1.1 103 as the body")


def test_outbound_status_101_is_final_response() -> None:
    sent = b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + OK + b"\r\n"
    with hostile(lambda connection: connection.sendall(sent)) as url:
        assert post(url, ANYWHERE).status == 101


@pytest.mark.parametrize(("start", "more"), [(b"", HINTS), (HINTS[:-2], b"Link: </x>\r\n")])
def test_outbound_interim_responses_are_limited(start: bytes, more: bytes) -> None:
    with (
        hostile(lambda connection: connection.sendall(start + more * 10_000)) as url,
        pytest.raises(RequestFailed, match="not valid HTTP"),
    ):
        post(url, ANYWHERE)


@pytest.mark.parametrize("private", ["127.0.0.1", "fd00::1", "::ffff:10.0.0.1"])
def test_outbound_host_with_one_private_address_is_refused(private: str) -> None:
    rules = Rules(
        allow_private=False, seconds=1, resolve=lambda host, port: ["93.184.216.34", private]
    )
    assert client.url_problem("https://hooks.example/", rules)
    with pytest.raises(RequestRefused):
        post("https://hooks.example/", rules)


def unknown(host: str, port: int) -> list[str]:
    raise socket.gaierror


def test_outbound_unknown_and_internal_host_have_same_error() -> None:
    told = set()
    for resolve in (unknown, lambda host, port: ["10.0.0.7"]):
        rules = Rules(allow_private=False, seconds=1, resolve=resolve)
        told.add(client.url_problem("https://git.internal/", rules))
        with pytest.raises(RequestRefused) as refused:
            post("https://git.internal/", rules)
        told.add(str(refused.value))
    assert told == {address_policy.NOT_OPEN}


def test_outbound_unknown_host_is_saved_when_private_is_allowed() -> None:
    rules = Rules(allow_private=True, seconds=1, resolve=unknown)
    assert client.url_problem("https://soon.example/", rules) is None
    with pytest.raises(RequestFailed, match="cannot be resolved"):
        post("https://soon.example/", rules)


def test_outbound_dns_lookup_times_out() -> None:
    def never(host: str, port: int) -> list[str]:
        time.sleep(5)
        return ["127.0.0.1"]

    rules = Rules(allow_private=True, seconds=0.5, resolve=never)
    started = time.monotonic()
    with pytest.raises(RequestFailed):
        post("http://slow.example/", rules)
    assert time.monotonic() - started < 4


def test_outbound_https_only_refuses_http() -> None:
    rules = Rules(allow_private=True, https_only=True)
    assert client.url_problem("http://a.example/", rules)
    assert client.url_problem("https://a.example/", rules) is None


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_outbound_redirects_are_not_followed(status: int) -> None:
    with receiving(lambda request: (status, "")) as receiver:
        assert post(receiver.url, ANYWHERE).status == status
        assert len(receiver.requests) == 1


def test_outbound_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with receiving() as receiver:
        assert post(receiver.url, ANYWHERE).status == 200


def drip(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"H")
        time.sleep(0.1)


def drip_headers(connection: socket.socket) -> None:
    connection.sendall(OK)
    while True:
        connection.sendall(b"X: y\r\n")
        time.sleep(0.1)


def continue_for_ever(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.02)


@pytest.mark.parametrize("behave", [hang, drip, drip_headers, continue_for_ever])
def test_outbound_receiver_without_response_times_out(
    behave: Callable[[socket.socket], None],
) -> None:
    with hostile(behave) as url:
        started = time.monotonic()
        with pytest.raises(RequestFailed):
            post(url, ANYWHERE, body=b"x" * 100)
        assert time.monotonic() - started < 4


def test_outbound_receiver_that_reads_nothing_times_out() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        started = time.monotonic()
        with pytest.raises(RequestFailed):
            post(url, ANYWHERE, body=b"x" * 50_000_000)
        assert time.monotonic() - started < 4


def drip_body(connection: socket.socket) -> None:
    connection.sendall(OK + b"\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.1)


def never_close(connection: socket.socket) -> None:
    connection.sendall(OK + b"\r\nhello")
    hang(connection)


@pytest.mark.parametrize(("behave", "start"), [(drip_body, "xxx"), (never_close, "hello")])
def test_outbound_endless_body_keeps_status(
    behave: Callable[[socket.socket], None], start: str
) -> None:
    with hostile(behave) as url:
        started = time.monotonic()
        answer = post(url, ANYWHERE)
        assert time.monotonic() - started < 4
    assert answer.status == 200
    assert answer.body.startswith(start)


def flood(connection: socket.socket) -> None:
    connection.sendall(OK + b"Content-Length: 10000000000\r\n\r\n")
    while True:
        connection.sendall(b"x" * 2**20)


def flood_chunked(connection: socket.socket) -> None:
    connection.sendall(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"100000\r\n" + b"x" * 2**20 + b"\r\n")


BOMB = gzip.compress(b"\0" * 2**24)


def bomb(connection: socket.socket) -> None:
    connection.sendall(OK + b"Content-Encoding: gzip\r\n\r\n" + BOMB)


@pytest.mark.parametrize("behave", [flood, flood_chunked, bomb])
def test_outbound_response_body_is_read_to_limit(
    behave: Callable[[socket.socket], None],
) -> None:
    with hostile(behave) as url:
        tracemalloc.start()
        answer = post(url, ANYWHERE)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(answer.body) == 5000
    assert "\0" not in answer.body
    assert peak < 6_000_000  # the server's own buffers are in this process, too


def test_outbound_response_keeps_5000_characters() -> None:
    with receiving(lambda request: (200, "ü€😀" * 5000)) as receiver:
        body = post(receiver.url, ANYWHERE).body
    assert body == ("ü€😀" * 5000)[:5000]


@pytest.mark.parametrize(
    "answer",
    [
        *(b"nonsense\r\n\r\n", b"HTTP/1.1 abc OK\r\n\r\n", b"\x16\x03\x01"),
        *(OK + b"X: " + b"y" * 70_000, OK + b"X: y\r\n" * 2000 + b"\r\n"),
        *(b"HTTP/2.0 200 OK\r\n\r\n", b"HTTP/1.1 " + b"2" * 70_000),
        OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    ],
)
def test_response_that_is_not_http_is_a_failure(answer: bytes) -> None:
    with (
        hostile(lambda connection: connection.sendall(answer)) as url,
        pytest.raises(RequestFailed, match="not valid HTTP"),
    ):
        post(url, ANYWHERE)


@pytest.mark.parametrize("sent", [b"", HINTS, HINTS[:-2]])
def test_closed_connection_is_told_from_invalid_http(sent: bytes) -> None:
    with (
        hostile(lambda connection: connection.sendall(sent)) as url,
        pytest.raises(RequestFailed, match="closed without a response"),
    ):
        post(url, ANYWHERE)


@pytest.mark.parametrize("count", [60, 101, 900])
@pytest.mark.parametrize(
    ("last", "body"),
    [
        (b"Content-Length: 2\r\nRetry-After: 7\r\n", b"okmore"),
        (b"Transfer-Encoding: chunked\r\nRetry-After: 7\r\n", b"2\r\nok\r\n0\r\n\r\n"),
    ],
)
def test_response_with_many_headers_is_read(count: int, last: bytes, body: bytes) -> None:
    many = b"".join(b"X-%d: v\r\n" % number for number in range(count))
    with hostile(lambda connection: connection.sendall(OK + many + last + b"\r\n" + body)) as url:
        response = post(url, ANYWHERE)
    assert (response.status, response.body, response.retry_after) == (200, "ok", 7)


@pytest.mark.parametrize(
    "broken",
    [
        b"Content-Length: 9\r\n\r\nok",
        *(b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n" + end for end in (b"", b"x\r\n")),
    ],
)
def test_outbound_response_body_that_breaks_off_is_kept(broken: bytes) -> None:
    with hostile(lambda connection: connection.sendall(OK + broken)) as url:
        assert post(url, ANYWHERE) == client.Response(200, "ok")


def test_outbound_connection_refused_is_named() -> None:
    receiver = Receiver()
    receiver.close()
    with pytest.raises(RequestFailed, match="refused"):
        post(receiver.url, ANYWHERE)


def test_outbound_self_signed_certificate_is_failure() -> None:
    with receiving() as receiver, pytest.raises(RequestFailed):
        post(f"https://127.0.0.1:{receiver.port}/", ANYWHERE)
