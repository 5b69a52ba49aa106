"""Files of records: uploaded, taken, downloaded, replaced and removed."""

from __future__ import annotations

import hashlib
import io
import struct
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask
from PIL import Image

from app import clock, db
from app.auth import principal as principals
from app.auth.guard.fair_turns import PLACES
from app.files import purge, storage, thumbnails
from app.files.models import FILES
from app.records.history import service as history
from app.types import JSONMapping
from tests.builders import Caller, Cast, make_collection

PNG = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + b"\0" * 40
SCHEMA: list[dict[str, Any]] = [
    {"name": "title", "type": "text"},
    {"name": "views", "type": "number"},
    {"name": "avatar", "type": "file", "options": {"mime_types": ["image/*"], "max_bytes": 5000}},
    {"name": "papers", "type": "file", "options": {"max_files": 3}},
]


def image(width: int = 64, height: int = 48, format: str = "PNG") -> bytes:
    """A real image."""
    target = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(target, format)
    return target.getvalue()


def upload(caller: Caller, data: bytes = PNG, name: str = "cat.png") -> dict[str, Any]:
    """An uploaded file."""
    answer = caller.post("files/upload", data={"file": (io.BytesIO(data), name)})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json["file"]
    return found


@pytest.fixture
def posts(cast: Cast) -> dict[str, Any]:
    """A collection with files."""
    return make_collection(cast.root, schema=SCHEMA)


@pytest.mark.usefixtures("posts")
def test_file_upload_becomes_file_of_one_record(cast: Cast) -> None:
    file = upload(cast.alice)
    assert file["sha256"] == hashlib.sha256(PNG).hexdigest()
    assert (file["name"], file["size"], file["mime_type"]) == ("cat.png", len(PNG), "image/png")
    made = cast.alice.post("records/posts", json={"title": "a", "avatar": file["id"]})
    assert made.status_code == 201, made.text
    value = made.json["avatar"]
    assert value == {
        **{name: file[name] for name in ("id", "name", "size", "mime_type", "sha256")},
        "url": f"http://atrium.test/api/v1/files/{file['id']}",
    }
    assert cast.bob.get(f"records/posts/{made.json['id']}").json["avatar"] == value
    again = cast.alice.post("records/posts", json={"avatar": file["id"]})
    assert (again.status_code, again.json["details"][0]["code"]) == (400, "file_unknown")
    got = cast.bob.get(f"files/{file['id']}")
    assert (got.status_code, got.data, got.mimetype) == (200, PNG, "image/png")


@pytest.mark.usefixtures("posts")
def test_file_parts_and_values_in_one_multipart_request(cast: Cast) -> None:
    form = {
        "data": '{"title": "a"}',
        "views": "7",
        "avatar": (io.BytesIO(PNG), "cat.png"),
        "papers": [(io.BytesIO(b"one"), "1.txt"), (io.BytesIO(b"two"), "2.csv")],
    }
    made = cast.alice.post("records/posts", data=form)
    assert made.status_code == 201, made.text
    record = made.json
    assert (record["title"], record["views"]) == ("a", 7)
    types = [one["mime_type"] for one in record["papers"]]
    assert types == ["text/plain", "text/csv"]
    path = f"records/posts/{record['id']}"
    more = {"papers": [record["papers"][1]["id"], (io.BytesIO(b"three"), "3.txt")]}
    changed = cast.alice.patch(path, data=more)
    assert [one["name"] for one in changed.json["papers"]] == ["2.csv", "3.txt"]
    assert cast.alice.get(f"files/{record['papers'][0]['id']}").status_code == 404
    assert cast.alice.get(f"files/{record['avatar']['id']}").data == PNG
    emptied = cast.alice.patch(path, json={"avatar": None, "papers": []})
    assert (emptied.json["avatar"], emptied.json["papers"]) == (None, None)


@pytest.mark.usefixtures("posts")
@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("019a9f00-0000-7000-8000-000000000001", "file_unknown"),
        ("../../etc/passwd", "file_unknown"),
        (7, "invalid_type"),
        ({"name": "cat.png"}, "invalid_type"),
        (["a", "b"], "too_many_files"),
        (f"{'a' * 5000}", "file_unknown"),
    ],
)
def test_file_field_with_other_value_is_file_unknown_or_invalid_type(
    cast: Cast, value: object, code: str
) -> None:
    answer = cast.alice.post("records/posts", json={"avatar": value})
    assert (answer.status_code, answer.json["details"][0]["code"]) == (400, code)


@pytest.mark.usefixtures("posts")
@pytest.mark.parametrize(
    ("data", "code"),
    [(PNG + b"\0" * 5000, "file_too_large"), (b"<html>", "file_type_not_allowed")],
)
def test_file_field_limits_apply_to_uploads_and_parts(
    cast: Cast, app: Flask, data: bytes, code: str
) -> None:
    file = upload(cast.alice, data)
    answer = cast.alice.post("records/posts", json={"avatar": file["id"]})
    assert [one["code"] for one in answer.json["details"]] == [code]
    form = {"avatar": (io.BytesIO(data), "cat.png"), "views": "many"}
    answer = cast.alice.post("records/posts", data=form)
    assert {one["code"] for one in answer.json["details"]} == {code, "invalid_type"}
    assert cast.alice.get("records/posts").json["items"] == []


@pytest.mark.usefixtures("posts")
def test_file_upload_is_visible_to_its_uploader_only(cast: Cast) -> None:
    file = upload(cast.bob)
    for caller in (cast.alice, cast.charlie):
        assert caller.get(f"files/{file['id']}").status_code == 404
        assert caller.post(f"files/{file['id']}/link", json={}).status_code == 404
        answer = caller.post("records/posts", json={"avatar": file["id"]})
        assert answer.json["details"][0]["code"] == "file_unknown"
    for path in (file["path"], file["path"].upper()):
        assert cast.bob.get(f"files/{path}").data == PNG
    own = upload(cast.alice)
    for caller, other in ((cast.charlie, file), (cast.bob, own)):
        assert caller.delete(f"files/{other['id']}").status_code == 404
    assert cast.bob.delete(f"files/{upload(cast.bob)['path'].upper()}").status_code == 204
    assert cast.bob.delete(f"files/{file['path']}").status_code == 204
    assert cast.bob.get(f"files/{file['id']}").status_code == 404
    assert cast.bob.delete(f"files/{file['id']}").status_code == 404


def test_file_download_follows_rules_field_lists_and_masks(cast: Cast) -> None:
    schema = [*SCHEMA, {"name": "secret", "type": "file", "pii": True, "mask_type": "full"}]
    made = make_collection(cast.root, schema=schema)
    ids = [upload(cast.alice)["id"] for _ in range(2)]
    record = cast.alice.post("records/posts", json={"avatar": ids[0], "secret": ids[1]}).json
    assert cast.bob.get(f"records/posts/{record['id']}").json["secret"] == "********"
    assert [cast.bob.get(f"files/{id}").status_code for id in ids] == [200, 404]
    assert cast.charlie.get(f"files/{ids[0]}").status_code == 404
    assert cast.root.acting_in("acme").get(f"files/{ids[0]}").status_code == 200
    path = f"collections/{made['id']}"
    assert cast.root.patch(path, json={"view_fields": ["title"]}).status_code == 200
    assert cast.bob.get(f"files/{ids[0]}").status_code == 404
    rule = {"view_fields": "*", "view_rule": "created_by = @request.auth.id"}
    assert cast.root.patch(path, json=rule).status_code == 200
    assert cast.bob.get(f"files/{ids[0]}").status_code == 404
    assert cast.alice.get(f"files/{ids[0]}").status_code == 200


@pytest.mark.usefixtures("posts")
@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("avatar = null", ["none"]),
        ("avatar != null && papers = null", ["cat"]),
        ("avatar.size > 40 && avatar.mime_type = 'image/png'", ["cat"]),
        ('avatar.name ~ "c%"', ["cat"]),
        ("avatar.size < 40 || avatar.size = null", ["none"]),
    ],
)
def test_file_properties_in_filters(cast: Cast, filter: str, expected: list[str]) -> None:
    cast.alice.post("records/posts", json={"title": "cat", "avatar": upload(cast.alice)["id"]})
    cast.alice.post("records/posts", json={"title": "none"})
    found = cast.alice.get("records/posts", query_string={"filter": filter})
    assert found.status_code == 200, found.text
    assert [one["title"] for one in found.json["items"]] == expected


def test_file_properties_in_view_rule(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA, view_rule='avatar.mime_type = "image/png"')
    record = cast.alice.post("records/posts", json={"avatar": upload(cast.alice)["id"]})
    assert cast.bob.get(f"records/posts/{record.json['id']}").status_code == 200
    items = cast.bob.get("changes").json["items"]
    assert [one["record"]["avatar"]["name"] for one in items] == ["cat.png"]


@pytest.mark.usefixtures("posts")
@pytest.mark.parametrize(
    ("header", "status", "data"),
    [
        ("bytes=0-3", 206, PNG[:4]),
        ("bytes=-4", 206, PNG[-4:]),
        ("bytes=4-", 206, PNG[4:]),
        (f"bytes=4-{10**18}", 206, PNG[4:]),
        ("bytes=0-0,2-2", 200, PNG),
        ("chars=1-2", 200, PNG),
        ("bytes=x", 200, PNG),
    ],
)
def test_file_range_request_is_206(cast: Cast, header: str, status: int, data: bytes) -> None:
    file = upload(cast.alice)
    answer = cast.alice.get(f"files/{file['id']}", headers={"Range": header})
    assert (answer.status_code, answer.data) == (status, data)
    assert answer.headers["Content-Length"] == str(len(data))
    etag = answer.headers["ETag"]
    again = cast.alice.get(f"files/{file['id']}", headers={"If-None-Match": etag})
    assert (again.status_code, again.data) == (304, b"")
    other = {"Range": "bytes=0-3", "If-Range": '"other"'}
    assert cast.alice.get(f"files/{file['id']}", headers=other).data == PNG


def test_file_range_beyond_end_is_416(cast: Cast) -> None:
    file = upload(cast.alice)
    answer = cast.alice.get(f"files/{file['id']}", headers={"Range": f"bytes={10**18}-"})
    assert (answer.status_code, answer.json["error"]) == (416, "range_not_satisfiable")
    assert answer.headers["Content-Range"] == f"bytes */{len(PNG)}"


@pytest.mark.parametrize(
    ("data", "name", "mime_type", "is_shown"),
    [
        (PNG, "cat.exe", "image/png", True),
        (image(format="JPEG"), "x", "image/jpeg", True),
        (b"%PDF-1.7\n", "a.pdf", "application/pdf", True),
        (b"plain", "a.html", "text/plain", True),
        (b"a,b\n", "a.csv", "text/csv", False),
        (b"<svg xmlns='x'/>", "a.png", "image/svg+xml", False),
        (b"<?xml version='1.0'?><svg onload='x' ></svg>", "a.txt", "image/svg+xml", False),
        (b"  <ScRiPt >alert(1)</script>", "a.txt", "text/html", False),
        (b"<!DOCTYPE html >", "a.png", "text/html", False),
        (b"PK\3\4" + b"\0" * 40, "a.docx", "application/zip", False),
        (b"\0\1\2", "a.png", "application/octet-stream", False),
        (b"", "a.png", "application/octet-stream", False),
    ],
)
def test_file_type_is_detected_from_content(
    cast: Cast, data: bytes, name: str, mime_type: str, is_shown: bool
) -> None:
    file = upload(cast.alice, data, name)
    assert file["mime_type"] == mime_type
    answer = cast.alice.get(f"files/{file['id']}")
    assert (answer.mimetype, answer.data) == (mime_type, data)
    kind = answer.headers["Content-Disposition"].partition(";")[0]
    assert kind == ("inline" if is_shown else "attachment")
    assert answer.headers.getlist("X-Content-Type-Options") == ["nosniff"]
    assert "sandbox" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("../../etc/passwd", "passwd"),
        ("..", "file"),
        ("\u202etxt.exe", "txt.exe"),
        ("ä" * 300 + ".txt", "ä" * 251 + ".txt"),
        ("n" * 10_000, "n" * 255),
        ("катя.png", "катя.png"),
    ],
)
def test_file_name_is_sanitized(cast: Cast, sent: str, stored: str) -> None:
    file = upload(cast.alice, name=sent)
    assert file["name"] == stored
    header = cast.alice.get(f"files/{file['id']}").headers["Content-Disposition"]
    assert header.isascii()
    assert header.count('"') == 2


def test_file_over_size_limit_is_413(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(app.extensions["atrium.config"], file_max_bytes=1024, max_body_bytes=4096)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    for size in (1025, 100_000):
        form = {"file": (io.BytesIO(b"x" * size), "a")}
        answer = cast.alice.post("files/upload", data=form)
        assert (answer.status_code, answer.json["error"]) == (413, "payload_too_large")
    assert blobs(app) == []


def test_file_upload_with_full_disk_is_503(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "free_bytes", lambda: 0)
    answer = cast.alice.post("files/upload", data={"file": (io.BytesIO(PNG), "a")})
    assert (answer.status_code, answer.json["error"]) == (503, "unavailable")
    assert blobs(app) == []


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({}, "file_required"),
        ({"other": ["a"]}, "file_required"),
        ({"file": ["a", "b"]}, "file_required"),
    ],
)
def test_file_upload_needs_exactly_one_file_part(
    cast: Cast, app: Flask, form: dict[str, Any], error: str
) -> None:
    form = {part: [(io.BytesIO(b"x"), one) for one in names] for part, names in form.items()}
    answer = cast.alice.post("files/upload", data=form, content_type="multipart/form-data")
    assert (answer.status_code, answer.json["error"]) == (400, error)
    run(app, purge.remove)
    assert blobs(app) == []


def part(name: str = "file", data: bytes = b"x", *, file: bool = True, more: bytes = b"") -> bytes:
    """A part of a form whose boundary is `x`."""
    kind = '; filename="a.txt"' if file else ""
    head = f'--x\r\nContent-Disposition: form-data; name="{name}"{kind}\r\n'.encode()
    return head + more + b"\r\n" + data + b"\r\n"


FORM, END = {"content_type": "multipart/form-data; boundary=x"}, b"--x--\r\n"


@pytest.mark.usefixtures("posts")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (part("title", b"a\0b", file=False) + END, 422),
        (part("avatar", b"a\0b", file=False) + END, 422),
        (part("ti\0tle", b"ab", file=False) + END, 422),
        (part("title", b"caf\xe9", file=False) + END, 422),
        (b"--x\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END, 422),
        (b"--x\r\nX-A: b\r\n\r\nx\r\n" + END, 422),
        (part("papers")[:-2], 422),
        (part("papers"), 422),
        (part("papers", more=b"X-A: b\r\n" * 17) + END, 422),
        (part("papers", more=b"X-A: b\r\n" * 50_000) + END, 413),
        (part("papers", more=b"X-A: " + b"b" * 200_000 + b"\r\n") + END, 413),
        (part("papers", file=False) * 1001 + END, 413),
        (b"z" * 200_000 + part("papers") + END, 413),
        (part("papers") + END + b"z" * 200_000, 413),
        (part("papers", more=b"Content-Type: text/html\r\n") + END, 201),
    ],
)
def test_multipart_form_with_malformed_parts_is_handled(
    cast: Cast, app: Flask, body: bytes, status: int
) -> None:
    answer = cast.alice.post("records/posts", data=body, **FORM)
    assert answer.status_code == status, answer.text
    run(app, purge.remove)
    assert len(blobs(app)) == (status == 201)


@pytest.mark.usefixtures("posts")
def test_multipart_form_texts_share_body_limit(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(app.extensions["atrium.config"], max_body_bytes=4096)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    fields = [{"name": f"text_{number}", "type": "text"} for number in range(5)]
    make_collection(cast.root, "texts", fields)
    for count, status in ((4, 201), (5, 413)):
        parts = (part(f"text_{number}", b"a" * 1000, file=False) for number in range(count))
        body = b"".join(parts) + END
        assert cast.alice.post("records/texts", data=body, **FORM).status_code == status


@pytest.mark.usefixtures("posts")
def test_multipart_form_over_file_count_is_413(cast: Cast, app: Flask) -> None:
    form = {"papers": [(io.BytesIO(b"x"), str(n)) for n in range(101)]}
    answer = cast.alice.post("records/posts", data=form)
    assert (answer.status_code, answer.json["error"]) == (413, "payload_too_large")
    assert blobs(app) == []
    form = {"papers": [(io.BytesIO(b"x"), str(n)) for n in range(100)]}
    answer = cast.alice.post("records/posts", data=form)
    assert answer.json["details"][0]["code"] == "too_many_files"


def test_record_with_files_without_write_right_uploads_nothing(cast: Cast, app: Flask) -> None:
    make_collection(cast.root, schema=SCHEMA, create_rule=None, update_rule=None)
    for method, path in (("POST", "records/posts"), ("PATCH", f"records/posts/{cast.alice.id}")):
        form = {"avatar": (io.BytesIO(PNG), "cat.png")}
        answer = cast.alice(method, path, data=form)
        assert (answer.status_code, answer.json["error"]) == (403, "rule_denied")
        assert blobs(app) == []


def test_file_upload_without_credential_is_401(anyone: Caller, cast: Cast) -> None:
    form = {"file": (io.BytesIO(b"x"), "a")}
    answer = anyone.post("files/upload", data=form, headers={"X-Account-ID": "acme"})
    assert answer.status_code == 401


@pytest.mark.usefixtures("posts")
def test_file_link_works_without_credential_until_record_drops_file(
    cast: Cast, anyone: Caller, app: Flask
) -> None:
    file = upload(cast.alice)
    record = cast.alice.post("records/posts", json={"avatar": file["id"]}).json
    made = cast.bob.post(f"files/{file['id']}/link", json={"expires_in": 60})
    assert made.status_code == 201, made.text
    path = made.json["url"].partition("/api/v1/")[2]
    assert anyone.get(path).data == PNG
    for seconds in (59, 7 * 24 * 3600 + 1):
        body = {"expires_in": seconds}
        assert cast.bob.post(f"files/{file['id']}/link", json=body).status_code == 422
    other = "A" if path[-9] != "A" else "B"
    for altered in (f"{path[:-9]}{other}{path[-8:]}", "files/link/x"):
        answer = anyone.get(altered)
        assert (answer.status_code, answer.json["error"]) == (403, "link_invalid")
    with time_machine.travel(clock.now() + timedelta(seconds=61)):
        assert anyone.get(path).status_code == 403
    cast.alice.patch(f"records/posts/{record['id']}", json={"avatar": None})
    assert anyone.get(path).status_code == 404


@pytest.mark.usefixtures("posts")
def test_file_link_ends_with_its_account(cast: Cast, anyone: Caller) -> None:
    file = upload(cast.alice)["id"]
    cast.alice.post("records/posts", json={"avatar": file})
    path = cast.alice.post(f"files/{file}/link").json["url"].partition("/api/v1/")[2]
    account = f"accounts/{cast.alice.account_id}"
    for is_active, status in ((False, 404), (True, 200)):
        changed = cast.root.patch(account, json={"is_active": is_active})
        assert (changed.status_code, anyone.get(path).status_code) == (200, status)
    assert cast.root.delete(account).status_code == 204
    assert anyone.get(path).status_code == 404


@pytest.mark.one_database
@pytest.mark.usefixtures("posts")
@pytest.mark.parametrize(
    ("scopes", "status"),
    [
        ({"operations": ["list", "view"]}, 403),
        ({"operations": ["update"]}, 201),
        ({"collections": ["posts"]}, 201),
    ],
)
def test_file_upload_and_deletion_by_key_need_write_scope(
    cast: Cast, app: Flask, scopes: dict[str, Any], status: int
) -> None:
    file = upload(cast.alice)["id"]
    made = cast.alice.post("api-keys", json={"name": "key", "scopes": scopes})
    key = Caller(app, **{"X-API-Key": made.json["key"]})
    answer = key.post("files/upload", data={"file": (io.BytesIO(PNG), "cat.png")})
    assert answer.status_code == status, answer.text
    deleted = key.delete(f"files/{file}")
    assert deleted.status_code == (204 if status == 201 else 403)
    if status == 403:
        assert {answer.json["error"], deleted.json["error"]} == {"scope_denied"}


@pytest.mark.parametrize(("format", "mime_type"), [("PNG", "image/png"), ("GIF", "image/gif")])
def test_thumbnail_fits_requested_size(cast: Cast, format: str, mime_type: str) -> None:
    file = upload(cast.alice, image(400, 200, format))
    assert file["mime_type"] == mime_type
    answer = cast.alice.get(f"files/{file['id']}?thumb=100x100")
    assert (answer.status_code, answer.mimetype) == (200, "image/webp")
    assert Image.open(io.BytesIO(answer.data)).size == (100, 50)
    etag = {"If-None-Match": answer.headers["ETag"]}
    assert cast.alice.get(f"files/{file['id']}?thumb=100x100", headers=etag).status_code == 304


def test_thumbnail_respects_exif_orientation(cast: Cast) -> None:
    target, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    Image.new("RGB", (400, 200)).save(target, "JPEG", exif=exif.tobytes())
    file = upload(cast.alice, target.getvalue())
    answer = cast.alice.get(f"files/{file['id']}?thumb=100x100")
    assert Image.open(io.BytesIO(answer.data)).size == (50, 100)


def bomb() -> bytes:
    """A small file that stands for an image of 400 million pixels."""
    target = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(target, "PNG")
    return target.getvalue()


def scans() -> bytes:
    """A JPEG of 9 million pixels, which are gone through a thousand times: 10 seconds of work."""
    target = io.BytesIO()
    Image.new("L", (3000, 3000), 128).save(target, "JPEG", progressive=True)
    data = target.getvalue()
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * 1000 + data[-2:]


def profiles() -> bytes:
    """A PNG with 400 compressed colour profiles of 1 MB each: a second of work."""
    profile = b"iCCPa\0\0" + zlib.compress(bytes(1_000_000))
    chunk = struct.pack(">I", len(profile) - 4) + profile + struct.pack(">I", zlib.crc32(profile))
    data = image()
    return data[:33] + chunk * 400 + data[33:]


@pytest.mark.parametrize(
    ("data", "thumb"),
    [
        (b"text", "64x64"),
        (b"<svg xmlns='x'/>", "64x64"),
        (PNG, "64x64"),
        (image(), "15x64"),
        (image(), "64x2049"),
        (image(), "64"),
        (image(), f"{'9' * 400}x1"),
        (bomb, "64x64"),  # made by the test, as not all processes that load this run it
        (scans, "64x64"),
        (profiles, "64x64"),
    ],
)
def test_thumbnail_of_unsupported_file_or_size_is_thumb_invalid(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, data: bytes | Callable[[], bytes], thumb: str
) -> None:
    monkeypatch.setattr(thumbnails, "CPU_SECONDS", 0.2)
    file = upload(cast.alice, data if isinstance(data, bytes) else data())
    began = time.thread_time()
    answer = cast.alice.get(f"files/{file['id']}?thumb={thumb}")
    assert (answer.status_code, answer.json["error"]) == (400, "thumb_invalid")
    assert time.thread_time() - began < 1


@pytest.mark.one_database
def test_thumbnail_work_leaves_a_thread_free(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    file, seconds, free = upload(cast.alice, image()), list[float](), threading.Event()
    monkeypatch.setattr(thumbnails, "_scaled", lambda *_: free.wait(20) and b"webp")

    def thumbnail(_: int) -> int:
        began = time.monotonic()
        status = cast.alice.get(f"files/{file['id']}?thumb=64x64").status_code
        seconds.append(time.monotonic() - began)
        if status == 503:
            free.set()
        return status

    with ThreadPoolExecutor(PLACES) as pool:
        answers = sorted(pool.map(thumbnail, range(PLACES)))
    assert answers == [200] * (PLACES - 1) + [503]
    assert max(seconds) < thumbnails.WAIT_SECONDS


@pytest.mark.usefixtures("posts")
def test_file_bytes_are_removed_when_unreferenced(cast: Cast, app: Flask) -> None:
    untaken, first = upload(cast.alice), upload(cast.alice)
    record = cast.alice.post("records/posts", json={"avatar": first["id"]}).json
    path = f"records/posts/{record['id']}"
    second = upload(cast.alice)
    cast.alice.patch(path, json={"avatar": second["id"]})
    ids = {untaken["id"], first["id"], second["id"]}
    run(app, purge.expire)
    assert names(app) == ids
    with time_machine.travel(clock.now() + timedelta(hours=25)):
        run(app, purge.expire)
    assert names(app) == {first["id"], second["id"]}
    changes = cast.alice.get(f"{path}/history").json["items"]
    audit_id = changes[-1]["audit_id"]
    back = cast.alice.post(f"{path}/restore", json={"audit_id": audit_id})
    assert back.json["avatar"]["id"] == first["id"], back.text
    with time_machine.travel(clock.now() + timedelta(days=31)):
        run(app, purge.expire)
    assert names(app) == {first["id"]}
    assert cast.bob.get(f"files/{first['id']}").data == PNG
    assert cast.alice.delete(path).status_code == 204
    assert cast.bob.get(f"files/{first['id']}").status_code == 404
    with app.app_context():
        by = principals.for_user(cast.alice.account_id, cast.alice.id)
        assert by is not None
        history.undelete("posts", record["id"], by=by)
    assert cast.bob.get(f"files/{first['id']}").data == PNG


@pytest.mark.usefixtures("posts")
def test_file_bytes_are_removed_by_record_erasure(cast: Cast, app: Flask) -> None:
    first, second = upload(cast.alice), upload(cast.alice)
    record = cast.alice.post("records/posts", json={"avatar": first["id"]}).json
    cast.alice.patch(f"records/posts/{record['id']}", json={"avatar": second["id"]})
    erased = cast.root.acting_in("acme").post(f"records/posts/{record['id']}/erase")
    assert erased.status_code == 200, erased.text
    run(app, purge.remove)
    assert names(app) == set()
    with app.app_context():
        assert db.connection().scalar(sa.select(sa.func.count()).select_from(FILES)) == 0


def test_file_sweep_removes_orphans_in_folder(cast: Cast, app: Flask) -> None:
    file = upload(cast.alice)
    with app.app_context():
        place = storage.current()
        for key in (f"{cast.alice.account_id}/orphan", "incoming/upload-x", "x/y/z"):
            path = place.root.joinpath(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
    run(app, purge.sweep)
    assert len(blobs(app)) == 3
    with app.app_context():
        assert [path.name for path in storage.incoming().iterdir()] == ["upload-x"]
    with time_machine.travel(clock.now() + timedelta(hours=23)):  # an import may still be under way
        run(app, purge.sweep)
    assert len(blobs(app)) == 3
    with time_machine.travel(clock.now() + timedelta(hours=25)):
        run(app, purge.sweep)
    assert names(app) == {file["id"]}
    with app.app_context():
        assert list(storage.incoming().iterdir()) == []


@pytest.mark.usefixtures("posts")
def test_file_bytes_of_failed_record_creation_are_removed(cast: Cast, app: Flask) -> None:
    form = {"avatar": (io.BytesIO(PNG), "cat.png"), "views": "many"}
    assert cast.alice.post("records/posts", data=form).status_code == 400
    run(app, purge.remove)
    assert blobs(app) == []


def test_file_upload_with_idempotency_key_happens_once(cast: Cast, app: Flask) -> None:
    key = {"Idempotency-Key": "upload-1"}
    forms = ({"file": (io.BytesIO(PNG), "cat.png")} for _ in range(2))
    answers = [cast.alice.post("files/upload", data=form, headers=key) for form in forms]
    assert answers[0].json == answers[1].json
    assert names(app) == {answers[0].json["file"]["id"]}


@pytest.mark.usefixtures("posts")
def test_file_of_record_cannot_be_deleted_directly(cast: Cast) -> None:
    file = upload(cast.alice)
    cast.alice.post("records/posts", json={"avatar": file["id"]})
    assert cast.alice.delete(f"files/{file['id']}").status_code == 404
    assert cast.alice.get(f"files/{file['id']}").status_code == 200


@pytest.mark.parametrize(
    "options",
    [
        {"max_bytes": 0},
        {"max_bytes": 2**40},
        {"max_files": 101},
        {"max_files": True},
        {"mime_types": "image/png"},
        {"mime_types": ["image"]},
        {"mime_types": ["*/*"]},
        {"index": True},
    ],
)
def test_file_field_options_out_of_range_are_invalid_option(
    cast: Cast, options: dict[str, Any]
) -> None:
    field = {"name": "a", "type": "file", "options": options}
    answer = cast.root.post("collections", json={"name": "posts", "schema": [field]})
    assert (answer.status_code, answer.json["details"][0]["code"]) == (400, "invalid_option")


def test_collection_deletion_releases_files(cast: Cast, app: Flask) -> None:
    made = make_collection(cast.root, schema=SCHEMA)
    file = upload(cast.alice)
    cast.alice.post("records/posts", json={"avatar": file["id"]})
    assert cast.root.delete(f"collections/{made['id']}").status_code == 200
    assert cast.alice.get(f"files/{file['id']}").status_code == 404
    with time_machine.travel(clock.now() + timedelta(days=31)):
        run(app, purge.expire)
    assert names(app) == set()


def test_file_field_rename_keeps_files_and_removal_releases_them(cast: Cast, app: Flask) -> None:
    made = make_collection(cast.root, schema=SCHEMA)
    files = [upload(cast.alice)["id"] for _ in range(2)]
    record = cast.alice.post("records/posts", json={"avatar": files[0], "papers": [files[1]]}).json
    title, views, avatar, papers = SCHEMA
    renamed = {**avatar, "name": "portrait", "rename_from": "avatar"}
    path = f"collections/{made['id']}"
    changed = cast.root.patch(path, json={"schema": [title, views, renamed, papers]})
    assert changed.status_code == 200, changed.text
    assert [cast.bob.get(f"files/{file}").status_code for file in files] == [200, 200]
    shown = cast.bob.get(f"records/posts/{record['id']}").json
    assert shown["portrait"] == record["avatar"]
    schema = [title, views, {**avatar, "name": "portrait"}]
    body = {"schema": schema, "remove_fields": ["papers"]}
    planned = cast.root.post(f"{path}/plan", json=body).json["plan_hash"]
    removed = cast.root.patch(path, json={**body, "plan_hash": planned})
    assert removed.status_code == 200, removed.text
    assert [cast.bob.get(f"files/{file}").status_code for file in files] == [200, 404]
    with time_machine.travel(clock.now() + timedelta(days=31)):
        run(app, purge.expire)
    assert names(app) == {files[0]}


def test_cascading_deletes_and_batches_claim_and_release_files(cast: Cast, app: Flask) -> None:
    make_collection(cast.root, "owners", schema=[{"name": "name", "type": "text"}])
    owner = {"name": "owner", "type": "reference", "collection": "owners", "on_delete": "cascade"}
    make_collection(cast.root, schema=[*SCHEMA, owner])
    first = cast.alice.post("records/owners", json={"name": "o"}).json["id"]
    files = [upload(cast.alice)["id"] for _ in range(3)]
    bodies = [{"avatar": file, "owner": first} for file in files]
    made = cast.alice.post("records/posts/batch", json={"records": bodies})
    assert made.status_code == 201, made.text
    assert [cast.bob.get(f"files/{file}").status_code for file in files] == [200] * 3
    twice = cast.alice.post("records/posts/batch", json={"records": [bodies[0], bodies[0]]})
    assert {one["code"] for one in twice.json["details"]} == {"file_unknown"}
    assert cast.alice.delete(f"records/owners/{first}").status_code == 204
    assert [cast.bob.get(f"files/{file}").status_code for file in files] == [404] * 3
    with time_machine.travel(clock.now() + timedelta(days=31)):
        run(app, purge.expire)
    assert names(app) == set()


def test_file_upload_used_twice_in_batch_is_file_unknown(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA)
    file = upload(cast.alice)
    bodies = [{"avatar": file["id"]}, {"avatar": file["id"]}]
    answer = cast.alice.post("records/posts/batch", json={"records": bodies})
    assert [(one["index"], one["code"]) for one in answer.json["details"]] == [(1, "file_unknown")]


def test_file_of_one_field_in_another_field_is_file_unknown(cast: Cast) -> None:
    secret = {"name": "secret", "type": "file", "pii": True}
    make_collection(cast.root, schema=[*SCHEMA, secret])
    file = upload(cast.alice)["id"]
    record = cast.alice.post("records/posts", json={"secret": file}).json["id"]
    answer = cast.bob.patch(f"records/posts/{record}", json={"papers": [file]})
    assert [(one["field"], one["code"]) for one in answer.json["details"]] == [
        ("papers", "file_unknown")
    ]
    assert cast.bob.get(f"files/{file}").status_code == 404


def test_account_deletion_removes_file_bytes(cast: Cast, app: Flask) -> None:
    own, others = upload(cast.alice), upload(cast.charlie)
    assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code in (200, 204)
    with app.app_context():
        purge.remove_account({"prefix": f"{cast.alice.account_id}/"})
    assert own["id"] != others["id"]
    assert names(app) == {others["id"]}


@pytest.mark.usefixtures("posts")
def test_record_history_and_export_show_former_files(cast: Cast) -> None:
    first, second = upload(cast.alice), upload(cast.alice, name="second.png")
    made = cast.alice.post("records/posts", json={"avatar": first["id"]}).json
    path = f"records/posts/{made['id']}"
    changed = cast.alice.patch(path, json={"avatar": second["id"]}).json
    assert cast.alice.get(f"{path}?as_of={made['created_at']}").json["avatar"] == made["avatar"]
    latest = cast.alice.get(f"{path}/history").json["items"][0]["changes"]
    shown = next(one for one in latest if one["field"] == "avatar")
    assert without_url(made["avatar"]) == shown["old_value"]
    assert without_url(changed["avatar"]) == shown["new_value"]
    exported = cast.alice.get("records/posts/export?format=csv&fields=avatar").text
    assert second["id"] in exported


@pytest.mark.usefixtures("posts")
def test_record_import_may_name_uploads(cast: Cast) -> None:
    file = upload(cast.alice)
    lines = f'title,avatar\r\na,"{{""id"":""{file["id"]}""}}"\r\n'
    answer = cast.alice.post("records/posts/import", data=lines.encode(), content_type="text/csv")
    assert answer.status_code == 200, answer.text
    assert cast.bob.get("records/posts").json["items"][0]["avatar"]["id"] == file["id"]


def without_url(value: dict[str, Any]) -> dict[str, Any]:
    """What a record stores of a file."""
    return {name: one for name, one in value.items() if name != "url"}


def run(app: Flask, job: Callable[[JSONMapping], None]) -> None:
    """Run a job."""
    with app.app_context():
        job({})


def blobs(app: Flask) -> list[str]:
    """The keys of all blobs."""
    with app.app_context():
        return [blob.key for blob in storage.current().blobs()]


def names(app: Flask) -> set[str]:
    """The ids of all stored files."""
    return {key.rpartition("/")[2] for key in blobs(app)}
