"""Large downloads hold no thread of the server, and end with the process."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPResponse, IncompleteRead

import pytest
from flask import Flask

from app.files import downloads, storage
from tests.builders import Cast
from tests.realtime.clients import until
from tests.realtime.conftest import serving as serving_here

DATA = random.Random(1).randbytes(2**20) * 8  # more than the system buffers


class Reader:
    """A client that reads when it is told to."""

    def __init__(self, port: int, path: str, headers: Mapping[str, str] = {}) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        self.socket.settimeout(20)
        self.socket.connect(("127.0.0.1", port))
        lines = [f"GET {path} HTTP/1.1", "Host: atrium.test"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self.response = HTTPResponse(self.socket)
        self.response.begin()

    def close(self) -> None:
        """Hang up."""
        self.response.close()
        self.socket.close()


@pytest.fixture
def path(cast: Cast) -> str:
    """The path of a large file that alice has uploaded."""
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n\r\n'
    body, kind = head + DATA + b"\r\n--x--\r\n", "multipart/form-data; boundary=x"
    answer = cast.alice.post("files/upload", data=body, content_type=kind)
    return f"/api/v1/files/{answer.json['file']['id']}"


@pytest.fixture
def port(app: Flask) -> Iterator[int]:
    """The port of a server within the process of the test."""
    with serving_here(app) as found:
        yield found
    until(lambda: not downloads.registry.all())


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("headers", "status", "data"),
    [
        ({}, 200, DATA),
        ({"Range": "bytes=1000000-"}, 206, DATA[1_000_000:]),
        ({"Range": "bytes=100-600000"}, 206, DATA[100:600_001]),
        ({"Range": "bytes=-300000"}, 206, DATA[-300_000:]),
        ({"Range": "bytes=0-9"}, 206, DATA[:10]),
    ],
)
def test_file_download_of_large_ranges_is_complete(
    cast: Cast, path: str, port: int, headers: dict[str, str], status: int, data: bytes
) -> None:
    with closing(Reader(port, path, {**cast.alice.headers, **headers})) as reader:
        assert (reader.response.status, reader.response.read()) == (status, data)
        assert reader.response.headers["X-Content-Type-Options"] == "nosniff"
        assert reader.response.headers["X-Correlation-ID"]


@pytest.mark.one_database
def test_file_download_by_stalled_reader_is_cut_off(
    cast: Cast, path: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "STALLED_SECONDS", 0.2)
    with closing(Reader(port, path, cast.alice.headers)) as reader:
        until(lambda: not downloads.registry.all())
        with pytest.raises((ConnectionError, IncompleteRead)):
            reader.response.read()


@pytest.mark.one_database
def test_file_download_limits_per_account_and_process_are_429(
    cast: Cast, path: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "MAX_DOWNLOADS_PER_ACCOUNT", 1)
    with closing(Reader(port, path, cast.alice.headers)) as first:
        with closing(Reader(port, path, cast.alice.headers)) as second:
            assert second.response.status == 429
            assert json.loads(second.response.read())["error"] == "limit_reached"
        monkeypatch.setattr(downloads, "MAX_DOWNLOADS", 1)
        with closing(Reader(port, path, cast.alice.headers)) as third:
            assert third.response.status == 503
        assert first.response.read() == DATA
    until(lambda: not downloads.registry.all())
    with closing(Reader(port, path, cast.alice.headers)) as again:
        assert again.response.read() == DATA


@pytest.mark.one_database
def test_file_download_of_damaged_file_is_503(cast: Cast, app: Flask, path: str, port: int) -> None:
    with app.app_context():
        (blob,) = storage.current().blobs()
        (app.extensions["atrium.config"].instance_dir / "files" / blob.key).write_bytes(b"short")
    for headers in ({}, {"Range": "bytes=0-9"}):
        with closing(Reader(port, path, {**cast.alice.headers, **headers})) as reader:
            assert reader.response.status == 503
