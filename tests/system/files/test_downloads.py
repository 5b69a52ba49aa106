"""Downloads of slow readers from a server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import IncompleteRead
from pathlib import Path

import pytest
from flask import Flask

from app.auth.guard.fair_turns import PLACES
from tests.files.test_downloads import DATA, Reader, path, port  # noqa: F401
from tests.system.site import ROOT, Client
from tests.system.test_servers import serving

READERS = 16


def close_all(readers: Sequence[Reader]) -> None:
    for reader in readers:
        reader.close()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("cast")
def test_file_download_of_slow_readers_holds_no_thread(app: Flask, tmp_path: Path) -> None:
    with (
        serving(app, tmp_path, processes=1) as server,
        closing(Client(f"http://127.0.0.1:{server.port}", Path(), "127.0.0.1")) as client,
        ExitStack() as readers_open,
    ):
        client.sign_in("system", ROOT)
        bearer = {"Authorization": f"Bearer {client.token}"}
        url = f"{client.base}/api/v1/files/upload"
        made = client.post(url, files={"file": ("a.bin", DATA)}, headers=bearer).json()
        path = f"/api/v1/files/{made['file']['id']}"
        readers = [Reader(server.port, path, bearer) for _ in range(READERS)]
        readers_open.callback(close_all, readers)
        assert {one.response.status for one in readers} == {200}

        began = time.monotonic()
        with ThreadPoolExecutor(PLACES * 2) as pool:
            answers = pool.map(lambda _: client("GET", "auth/me", **bearer).status_code, range(40))
            assert set(answers) == {200}
        assert time.monotonic() - began < 5

        *patient, cut = readers
        for reader in patient:
            assert reader.response.read() == DATA
            assert reader.socket.recv(1) == b""  # closed, as announced
        server.process.terminate()
        assert server.process.wait(10) == 0  # once the time to stop is over
        with pytest.raises((ConnectionError, IncompleteRead)):
            cut.response.read()
        text = server.log.read_text()
        assert text.count('"route":"/api/v1/files/<file_id>","status":200') == READERS
        assert '"level":"error"' not in text
