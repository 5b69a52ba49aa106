"""Static files are versioned, cached for good and compressed; pages are compressed."""

import gzip
import re
from pathlib import Path

import pytest
from flask import Flask

from app.web import html
from tests.builders import Caller
from tests.console.browser import Browser

pytestmark = pytest.mark.parametrize("database", ["sqlite"])
GZIP = {"Accept-Encoding": "gzip, br"}


def test_static_files_of_page_are_immutable_and_compressed(app: Flask) -> None:
    client = app.test_client()
    page = client.get("/console/sign-in").text
    loaded = set(re.findall(r'(?:href|src)="(/static/[^"]+)"', page))
    assert len(loaded) > 2
    for path in loaded:
        answer = client.get(path.partition("#")[0], headers=GZIP, buffered=True)
        assert answer.status_code == 200, path
        assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert answer.headers["Vary"] == "Accept-Encoding"
        plain = client.get(path.partition("#")[0], buffered=True)
        assert plain.headers.get("Content-Encoding") is None
        assert gzip.decompress(answer.data) == plain.data
        assert plain.headers["Cache-Control"] == "public, max-age=31536000, immutable"


@pytest.mark.parametrize("name", ["pages/pages.css", "0123456789ab/pages/pages.css"])
def test_static_file_without_current_version_is_revalidated(app: Flask, name: str) -> None:
    client = app.test_client()
    first = client.get(f"/static/{name}", headers=GZIP, buffered=True)
    assert first.headers["Cache-Control"] == "no-cache"
    again = client.get(
        f"/static/{name}", headers={**GZIP, "If-None-Match": first.headers["ETag"]}, buffered=True
    )
    assert (again.status_code, again.data) == (304, b"")


@pytest.mark.parametrize(
    "name", ["../wsgi.py", "{version}/../../wsgi.py", "{version}/", "{version}", "console", "a\0b"]
)
def test_static_path_outside_folder_is_404(app: Flask, name: str) -> None:
    version = html.static_version(Path(app.static_folder or ""))
    for headers in (GZIP, {}):
        answer = app.test_client().get(f"/static/{name.format(version=version)}", headers=headers)
        assert answer.status_code == 404


def test_static_version_changes_with_any_file(app: Flask, tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("a")
    (tmp_path / "b.js").write_text("b")
    html._static_version.cache_clear()
    before = html.static_version(tmp_path)
    (tmp_path / "b.js").write_text("c")
    html._static_version.cache_clear()
    assert html.static_version(tmp_path) != before


def test_console_pages_are_compressed_with_random_padding(app: Flask, alice: Caller) -> None:
    browser = Browser(app, alice)
    plain = browser.client.get("/console")
    assert plain.headers.get("Content-Encoding") is None
    packed = [browser.client.get("/console", headers=GZIP) for _ in range(8)]
    assert {one.headers["Content-Encoding"] for one in packed} == {"gzip"}
    assert {one.headers["Vary"] for one in packed} == {"Accept-Encoding, Cookie"}
    assert b"<h1>" in gzip.decompress(packed[0].data)
    assert len({len(one.data) for one in packed}) > 3
