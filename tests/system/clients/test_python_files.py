"""Uploads and downloads by the Python client."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO, RawIOBase
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import urlopen

import pytest

from tests.builders import PASSWORD, Cast
from tests.system.clients.running import run_async
from tests.system.clients.stub import Answer, served

pytestmark = pytest.mark.usefixtures("tasks")
CONTENT = os.urandom(300_000)


class Pipe(RawIOBase):
    """A stream that can be read once."""

    def __init__(self) -> None:
        self._chunks: Iterator[bytes] = iter([CONTENT[:100], CONTENT[100:], b""])

    def read(self, size: int = -1) -> bytes:
        """The next chunk."""
        return next(self._chunks, b"")


def test_python_client_file_upload_and_download_with_progress(client: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "photo.bin", tmp_path / "copy.bin"
    source.write_bytes(CONTENT)
    sent, received = list[tuple[int, int]](), list[tuple[int, int]]()
    uploaded = client.files.upload(source, progress=lambda *done: sent.append(done))
    assert (uploaded["name"], uploaded["size"]) == ("photo.bin", len(CONTENT))
    task = client.records("tasks").create({"title": "x", "cover": uploaded["id"]})
    client.files.download(task["cover"], target, progress=lambda *done: received.append(done))
    assert target.read_bytes() == CONTENT
    for steps in (sent, received):
        assert steps[-1] == (len(CONTENT), len(CONTENT))
        assert len(steps) > 2  # in pieces
        assert steps == sorted(steps)


@pytest.mark.parametrize("make_source", [lambda: CONTENT, lambda: BytesIO(CONTENT), Pipe])
def test_python_client_uploads_bytes_and_streams(
    client: Any, make_source: Callable[[], Any]
) -> None:
    uploaded = client.files.upload(make_source(), progress=lambda done, size: None)
    assert (uploaded["name"], uploaded["size"]) == ("file", len(CONTENT))
    copy = BytesIO()
    client.files.download(uploaded["id"], copy)
    assert copy.getvalue() == CONTENT


def test_python_client_pipe_upload_is_not_repeated_after_renewal(
    atrium: ModuleType, address: str, cast: Cast
) -> None:
    with atrium.Client(address) as client:
        client.sign_in("acme", "alice@acme.example", PASSWORD)
        client.session.store(replace(client.session.tokens, access_token="worn-out"))
        with pytest.raises(atrium.Unauthorized):
            client.files.upload(Pipe())
        assert client.files.upload(Pipe())["size"] == len(CONTENT)
        client.session.store(replace(client.session.tokens, access_token="worn-out"))
        assert client.files.upload(BytesIO(CONTENT))["size"] == len(CONTENT)


def test_python_client_deletes_unused_upload(atrium: ModuleType, client: Any) -> None:
    uploaded = client.files.upload(b"x", name="x.txt")
    assert uploaded["name"] == "x.txt"
    client.files.delete(uploaded)
    with pytest.raises(atrium.NotFound):
        client.files.download(uploaded, BytesIO())


def test_python_client_file_link_needs_no_credential(client: Any, address: str) -> None:
    cover = client.files.upload(b"hello", name="x.txt")["id"]
    client.records("tasks").create({"title": "x", "cover": cover})
    link = client.files.link(cover, expires_in=60)
    path = link.url.partition("/api/")[2]
    with urlopen(f"{address}/api/{path}") as answer:  # noqa: S310 - loopback
        assert answer.read() == b"hello"
    assert link.expires_at.endswith("Z")


def test_python_client_interrupted_download_keeps_former_file(
    atrium: ModuleType, tmp_path: Path
) -> None:
    target = tmp_path / "photo.bin"
    target.write_bytes(b"former")
    half = served(atrium, Answer(body="half", cut=True))
    with half as (_, client), pytest.raises(atrium.NetworkError):
        client.files.download("1", target)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"former"]


def test_python_async_client_transfers_files(atrium: ModuleType, address: str, key: str) -> None:
    async def use() -> bytes:
        async with atrium.AsyncClient(address, api_key=key) as client:
            uploaded = await client.files.upload(CONTENT)
            await client.files.download(uploaded, copy := BytesIO())
            return copy.getvalue()

    assert run_async(use()) == CONTENT
