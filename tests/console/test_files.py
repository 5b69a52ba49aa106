"""Files in the console: plain forms that add, keep and remove them, and what the pages show."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from tests.builders import Cast, make_collection
from tests.console.browser import Browser, beside
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


def test_a_form_adds_keeps_and_removes_files(cast: Cast, admin: Browser, place: str) -> None:
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
    assert "2.txt, 3.txt" in admin.get(place).text


def test_uploads_outlive_an_error_elsewhere(cast: Cast, admin: Browser, place: str) -> None:
    form = {"do": "save", "f_views": "many", "new_avatar": (io.BytesIO(image()), "cat.png")}
    answer = admin.send(f"{place}/new", **form)
    assert answer.status_code == 400
    found = re.search(r'name="f_avatar" value="([^"]+)" checked', answer.text)
    assert found is not None
    assert "cat.png" in answer.text
    admin.done(f"{place}/new", do="save", f_views="1", f_avatar=found[1])
    assert records(cast)[0]["avatar"]["id"] == found[1]


def test_what_a_field_does_not_allow_is_said_beside_it(admin: Browser, place: str) -> None:
    form = {"do": "save", "new_avatar": (io.BytesIO(b"text"), "cat.png")}
    answer = admin.send(f"{place}/new", **form)
    assert "this field takes image/*" in beside(answer, "f_avatar")


def test_bytes_are_for_those_who_may_view_them(
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
