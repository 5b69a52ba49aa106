"""Files in the console: plain forms that add, keep and remove them, and what the pages show."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from werkzeug.test import TestResponse

from app import db
from app.accounts.models import ADMIN
from app.files import storage
from app.files.models import FILES
from tests.builders import Caller, Cast, make_collection, make_drawer, make_record, make_user
from tests.console.browser import Browser, asks_to_sign_in, beside, token
from tests.files.test_files import SCHEMA, image, upload


@pytest.fixture
def place(cast: Cast) -> str:
    """The records of a collection with files."""
    make_collection(cast.root, schema=SCHEMA)
    return f"records/{cast.alice.account_id}/posts"


def records(cast: Cast) -> list[dict[str, Any]]:
    """The stored records."""
    found: list[dict[str, Any]] = cast.alice.get("records/posts").json["items"]
    return found


def test_console_record_form_adds_keeps_and_removes_files(
    cast: Cast, admin: Browser, place: str
) -> None:
    form = {"do": "save", "f_title": "a", "new_avatar": (io.BytesIO(image()), "cat.png")}
    form["new_papers"] = [(io.BytesIO(b"one"), "1.txt"), (io.BytesIO(b"two"), "2.txt")]
    assert "The record is created." in admin.done(f"{place}/new", **form)
    (record,) = records(cast)
    assert record["avatar"]["name"] == "cat.png"
    assert [one["name"] for one in record["papers"]] == ["1.txt", "2.txt"]
    page = admin.get(f"{place}/{record['id']}")
    seen = re.search(r'name="seen" value="([^"]*)"', page.text)
    assert seen is not None
    assert f"files/{record['avatar']['id']}?thumb=96x96" in page.text
    kept = record["papers"][1]["id"]
    sent = {"do": "save", "f_title": "a", "seen": seen[1].replace("&#34;", '"'), "f_papers": kept}
    sent["new_papers"] = (io.BytesIO(b"three"), "3.txt")
    assert "The record is saved." in admin.done(f"{place}/{record['id']}", **sent)
    (record,) = records(cast)
    assert record["avatar"] is None
    assert [one["name"] for one in record["papers"]] == ["2.txt", "3.txt"]
    assert re.findall(r">(\d\.txt)</a>", admin.get(place).text) == ["2.txt", "3.txt"]


def test_console_uploads_survive_errors_of_other_fields(
    cast: Cast, admin: Browser, place: str
) -> None:
    form = {"do": "save", "f_views": "many", "new_avatar": (io.BytesIO(image()), "cat.png")}
    answer = admin.send(f"{place}/new", **form)
    assert answer.status_code == 400
    found = re.search(r'name="f_avatar" value="([^"]+)" checked', answer.text)
    assert found is not None
    assert "cat.png" in answer.text
    admin.done(f"{place}/new", do="save", f_views="1", f_avatar=found[1])
    assert records(cast)[0]["avatar"]["id"] == found[1]


def test_console_file_of_wrong_type_is_error_beside_field(admin: Browser, place: str) -> None:
    form = {"do": "save", "new_avatar": (io.BytesIO(b"text"), "cat.png")}
    answer = admin.send(f"{place}/new", **form)
    assert "this field takes image/*" in beside(answer, "f_avatar")


def test_console_file_download_requires_view_right(
    cast: Cast, admin: Browser, superadmin: Browser, place: str
) -> None:
    mine, theirs = upload(cast.alice, b"<script>", "a.html"), upload(cast.charlie)
    own = f"accounts/{cast.alice.account_id}/files"
    answer = admin.get(f"{own}/{mine['id']}")
    assert (answer.data, answer.mimetype) == (b"<script>", "text/html")
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Content-Disposition"].startswith("attachment;")
    assert admin.get(f"{own}/{theirs['id']}").status_code == 404
    others = f"accounts/{cast.charlie.account_id}/files"
    assert admin.get(f"{others}/{theirs['id']}").status_code == 404
    assert superadmin.get(f"{own}/{mine['id']}").status_code == 404


FILE = "application/octet-stream"


def send_file(browser: Browser, account_id: str, data: bytes, **query: str) -> TestResponse:
    """Upload a file as the script of a form does."""
    headers = {"X-CSRFToken": token(browser.client)}
    path = f"/console/accounts/{account_id}/files"
    return browser.client.post(
        path, data=data, headers=headers, query_string=query, content_type=FILE
    )


def test_console_upload_by_script_is_kept_for_the_form(
    app: Flask, cast: Cast, admin: Browser, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = app.extensions["atrium.config"]
    monkeypatch.setitem(app.config, "MAX_CONTENT_LENGTH", 4096)  # of forms
    large = b"x" * 10_000
    answer = send_file(admin, cast.alice.account_id, large, field="f_papers", name='a/<b>".txt')
    assert answer.status_code == 201
    found = re.search(r'name="f_papers" value="([^"]+)" checked', answer.text)
    assert found is not None
    assert "&lt;b&gt;&#34;.txt" in answer.text
    assert 'data-type="text/plain"' in answer.text
    other = upload(cast.charlie, b"x", "secret.txt")["id"]
    form = {"do": "save", "f_views": "many", "f_papers": [found[1], other, "\0"]}
    again = admin.send(f"{place}/new", **form)
    assert again.status_code == 400
    assert "&lt;b&gt;&#34;.txt" in again.text
    assert "secret.txt" not in again.text
    admin.done(f"{place}/new", do="save", f_papers=found[1])
    (paper,) = records(cast)[0]["papers"]
    assert (paper["name"], paper["size"]) == ('<b>".txt', 10_000)
    limited = replace(settings, file_max_bytes=5000)
    monkeypatch.setitem(app.extensions, "atrium.config", limited)
    assert send_file(admin, cast.alice.account_id, large).status_code == 413


def test_console_upload_requires_admin_and_csrf_token(app: Flask, cast: Cast) -> None:
    acme, admin = cast.alice.account_id, Browser(app, cast.alice)
    refused = {
        403: send_file(Browser(app, cast.bob), acme, b"x"),
        404: send_file(Browser(app, cast.charlie), acme, b"x"),
        400: admin.client.post(f"/console/accounts/{acme}/files", data=b"x", content_type=FILE),
        415: admin.send(f"accounts/{acme}/files", file=(io.BytesIO(b"x"), "a.txt")),
    }
    assert {status: answer.status_code for status, answer in refused.items()} == {
        status: status for status in refused
    }
    assert asks_to_sign_in(send_file(Browser(app), acme, b"x"))
    with app.app_context():
        assert db.db.session.scalar(sa.select(sa.func.count()).select_from(FILES)) == 0


def test_console_upload_without_content_length_is_400(cast: Cast, admin: Browser) -> None:
    """Its end could not be told from a cut."""
    answer = admin.client.post(
        f"/console/accounts/{cast.alice.account_id}/files",
        headers={"X-CSRFToken": token(admin.client), "Transfer-Encoding": "chunked"},
        content_type=FILE,
        input_stream=io.BytesIO(b"x"),
        environ_overrides={"wsgi.input_terminated": True},
    )
    assert (answer.status_code, answer.text) == (400, "Send a Content-Length.")


def test_console_upload_with_full_storage_is_503(
    cast: Cast, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_drawer(cast.root)
    monkeypatch.setattr(storage, "free_bytes", lambda: 0)
    answer = send_file(admin, cast.alice.account_id, b"x")
    assert (answer.status_code, answer.mimetype) == (503, "text/plain")
    assert answer.text == storage.FULL


def test_console_record_table_shows_file_thumbnails(app: Flask, cast: Cast, admin: Browser) -> None:
    field = {"name": "papers", "type": "file", "pii": True, "options": {"max_files": 9}}
    make_collection(cast.root, schema=[field], list_rule="true")
    sent = [(image(), "<1>.png"), (b"two", f"{'2' * 40}.txt"), (image(), "3.png")]
    sent += [(image(), "4.png"), (image(), "5.png")]
    files = [upload(cast.alice, *one) for one in sent]
    make_record(cast.alice, papers=[one["id"] for one in files])
    account = cast.alice.account_id
    page = admin.get(f"records/{account}/posts").text
    cell = page[page.index('<td data-label="papers">') :].partition("</td>")[0]
    shown = re.findall(r'src="([^"]+)" width="40" height="40" alt="([^"]*)" loading="lazy"', cell)
    of = f"/console/accounts/{account}/files"
    assert shown == [
        (f"{of}/{files[0]['id']}?thumb=80x80&amp;fit=cover", "&lt;1&gt;.png"),
        (f"{of}/{files[2]['id']}?thumb=80x80&amp;fit=cover", "3.png"),
    ]
    assert f">{'2' * 29}…</a>" in cell
    assert "+2 more" in cell
    dora = Caller(app, make_user(app, account, "dora@acme.example", ADMIN))
    masked = Browser(app, dora).get(f"records/{account}/posts").text
    assert '<td data-label="papers">********</td>' in masked


PDF = b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n"


def previews(page: str) -> dict[str, str]:
    """What the previews of files refer to, by the name of the file."""
    pattern = r"(?s)<summary>Preview<span[^>]*> of ([^<]*)</span></summary>(.*?)</details>"
    found = re.findall(pattern, page)
    return {name: re.findall(r'(?:src|href)="([^"]*)"', shown)[0] for name, shown in found}


@pytest.mark.parametrize("update_rule", ["true", None], ids=["form", "facts"])
def test_console_record_page_previews_files(
    app: Flask,
    cast: Cast,
    admin: Browser,
    update_rule: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    field = {"name": "papers", "type": "file", "pii": True, "options": {"max_files": 9}}
    make_collection(cast.root, schema=[field], update_rule=update_rule)
    sent = [(b"<script>", "a.html"), (image(), "b.png"), (PDF, "c.pdf"), (b"PK\x03\x04", "d.zip")]
    files = [upload(cast.alice, *one)["id"] for one in [*sent, (b"{}", "e.json")]]
    record, account = make_record(cast.alice, papers=files)["id"], cast.alice.account_id
    path, of = f"records/{account}/posts/{record}", f"/console/accounts/{account}/files"
    answer = admin.get(path)
    assert answer.headers["Content-Security-Policy"].endswith("; frame-src 'self'")
    assert previews(answer.text) == {
        "a.html": f"{of}/{files[0]}?text",
        "b.png": f"{of}/{files[1]}?thumb=1024x1024",
        "c.pdf": f"{of}/{files[2]}",
        "e.json": f"{of}/{files[4]}?text",
    }
    dora = Browser(app, Caller(app, make_user(app, account, "d@acme.example", ADMIN)))
    assert "********" in dora.get(path).text
    assert previews(dora.get(path).text) == {}
    settings = app.extensions["atrium.config"]
    bucket = replace(settings, files_redirect=True, files_url="s3://key:secret@127.0.0.1:9/b")
    monkeypatch.setitem(app.extensions, "atrium.config", bucket)
    assert list(previews(admin.get(path).text)) == ["a.html", "b.png", "e.json"]


def test_console_text_preview_is_plain_text_of_first_bytes(cast: Cast, admin: Browser) -> None:
    make_drawer(cast.root)
    start = b"<script>alert(1)</script>\n"
    long = start.ljust(8191, b"x") + "é".encode() * 5000  # its limit is within é
    sent = {"a.html": long, "b.csv": b"a,b", "c.txt": b"", "d.zip": b"PK\x03\x04"}
    found = {}
    for name, data in sent.items():
        file = upload(cast.alice, data, name)["id"]
        answer = admin.get(f"accounts/{cast.alice.account_id}/files/{file}?text")
        found[name] = (answer.status_code, answer.text if answer.status_code == 200 else "")
        if answer.status_code == 200:
            assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
            assert "sandbox" in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
    cut = f"{long[:8191].decode()}…"
    assert found == {
        "a.html": (200, cut),
        "b.csv": (200, "a,b"),
        "c.txt": (400, ""),
        "d.zip": (400, ""),
    }


def test_console_files_are_cached_with_revalidation(cast: Cast, admin: Browser) -> None:
    make_drawer(cast.root)
    path = f"/console/accounts/{cast.alice.account_id}/files/{upload(cast.alice, image())['id']}"
    for query in ("", "?thumb=80x80"):
        answer = admin.client.get(path + query)
        assert answer.headers["Cache-Control"] == "private, no-cache"
        known = {"If-None-Match": answer.headers["ETag"]}
        again = admin.client.get(path + query, headers=known)
        assert (again.status_code, again.headers["Cache-Control"]) == (304, "private, no-cache")
    assert admin.client.get("/console").headers["Cache-Control"] == "no-store"
