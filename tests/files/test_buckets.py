"""Files in a bucket of an S3-compatible service."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
import requests
import time_machine
from flask import Flask

from app import clock
from app.files import purge, storage
from app.files.purge import UNDER_WAY
from tests.builders import Caller, Cast, make_collection, make_record
from tests.files.test_files import PNG, SCHEMA, blobs, image, names, run, upload
from tests.security.reading import reads
from tests.services import S3

pytestmark = [pytest.mark.one_database, pytest.mark.needs_servers]
LARGE = b"0123456789abcdef" * 2**16 * 20  # 20 MiB: several parts


def upload_large(caller: Caller) -> dict[str, Any]:
    """An uploaded file of several parts."""
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="large.txt"\r\n\r\n'
    body, kind = head + LARGE + b"\r\n--x--\r\n", "multipart/form-data; boundary=x"
    answer = caller.post("files/upload", data=body, content_type=kind)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json["file"]
    return found


@pytest.mark.usefixtures("in_bucket")
def test_file_storage_in_bucket(cast: Cast, app: Flask) -> None:
    papers = {**SCHEMA[3], "options": {"max_files": 2, "max_bytes": len(LARGE)}}
    make_collection(cast.root, schema=[papers])
    file = upload_large(cast.alice)
    assert blobs(app) == [file["path"]]
    record = cast.alice.post("records/posts", {"papers": [file["id"]]})
    assert record.status_code == 201, record.text
    assert cast.bob.get(f"files/{file['id']}").data == LARGE
    middle = {"Range": f"bytes=8388600-{8388600 + 16}"}
    assert cast.bob.get(f"files/{file['id']}", headers=middle).data == LARGE[8388600:8388617]
    picture = upload(cast.alice, image(), "cat.png")
    assert cast.alice.get(f"files/{picture['id']}?thumb=16x16").mimetype == "image/webp"
    assert cast.alice.delete(f"files/{picture['id']}").status_code == 204
    run(app, purge.remove)
    assert names(app) == {file["id"]}


@pytest.mark.usefixtures("in_bucket")
def test_file_sweep_removes_orphans_in_bucket(cast: Cast, app: Flask) -> None:
    file = upload(cast.alice)
    with app.app_context():
        orphan = storage.incoming() / "orphan"
        orphan.write_bytes(b"x")
        storage.current().put(f"{cast.alice.account_id}/orphan", orphan, {})
    run(app, purge.sweep)
    assert len(blobs(app)) == 2
    with time_machine.travel(clock.now() + 2 * UNDER_WAY):
        run(app, purge.sweep)
    assert names(app) == {file["id"]}


def test_file_download_redirect_to_bucket(
    cast: Cast, app: Flask, in_bucket: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(app.extensions["atrium.config"], files_redirect=True)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    file = upload(cast.alice)
    answer = cast.alice.get(f"files/{file['id']}")
    assert answer.status_code == 302
    sent = requests.get(answer.headers["Location"], timeout=10)
    assert (sent.content, sent.headers["Content-Type"]) == (PNG, "image/png")
    assert sent.headers["Content-Disposition"].startswith("inline;")


def test_file_download_redirect_of_personal_field_is_recorded(
    cast: Cast, app: Flask, in_bucket: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(app.extensions["atrium.config"], files_redirect=True)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    make_collection(cast.root, "people", [{"name": "passport", "type": "file", "pii": True}])
    made = make_record(cast.alice, "people", passport=upload(cast.alice)["id"])
    path = f"files/{made['passport']['id']}"
    answer = cast.alice.get(path)
    assert answer.status_code == 302
    assert [event["target_id"] for event in reads(cast.alice, path="file")] == [made["id"]]
    current = {"If-None-Match": answer.headers["ETag"]}
    assert cast.alice.get(path, headers=current).status_code == 304
    assert len(reads(cast.alice, path="file")) == 1


@pytest.mark.long
@pytest.mark.usefixtures("cast")
def test_file_storage_outage_is_503_and_stores_nothing(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    with S3(private=True) as server:
        settings = replace(app.extensions["atrium.config"], files_url=server.url)
        monkeypatch.setitem(app.extensions, "atrium.config", settings)
        file = upload(cast.alice)
        server.kill()
        form = {"file": (io.BytesIO(PNG), "cat.png")}
        answer = cast.alice.post("files/upload", data=form)
        assert (answer.status_code, answer.json["error"]) == (503, "unavailable")
        assert cast.alice.get(f"files/{file['id']}").status_code == 503
        assert cast.alice.get(f"files/{file['id']}?thumb=16x16").status_code == 503
        server.start()  # empty
        assert cast.alice.get(f"files/{file['id']}").status_code == 404
        assert upload(cast.alice)["id"] in names(app)
