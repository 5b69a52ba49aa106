"""Archives: records with the bytes of their files (contract sections 5, 16)."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from app.errors import Unavailable
from app.files import storage
from app.records.transfer.zip_writer import ZipWriter
from tests.builders import Caller, Cast, make_collection
from tests.files.test_files import PNG, SCHEMA

RECORDS = "records.jsonl"


@pytest.fixture
def posts(cast: Cast) -> dict[str, Any]:
    """A collection with files."""
    return make_collection(cast.root, schema=SCHEMA)


def make_post(
    caller: Caller, title: str, *papers: tuple[str, bytes], avatar: bytes | None = None
) -> Any:
    """A record with files."""
    form: dict[str, Any] = {
        "title": title,
        "papers": [(io.BytesIO(data), name) for name, data in papers],
    }
    form |= {"avatar": (io.BytesIO(avatar), "cat.png")} if avatar else {}
    made = caller.post("records/posts", data=form, content_type="multipart/form-data")
    assert made.status_code == 201, made.text
    return made.json


def export(caller: Caller, query: str = "", name: str = "posts") -> zipfile.ZipFile:
    """An exported archive."""
    answer = caller.get(f"records/{name}/export?format=zip{query}")
    assert answer.status_code == 200, answer.text
    return zipfile.ZipFile(io.BytesIO(answer.data))


def records_of(archive: zipfile.ZipFile) -> list[dict[str, Any]]:
    """The records of an archive."""
    return [json.loads(line) for line in archive.read(RECORDS).splitlines()]


# --- export ---


@pytest.mark.usefixtures("posts")
def test_an_archive_has_the_records_of_the_export_and_the_bytes_of_their_files(cast: Cast) -> None:
    make_post(cast.alice, "none")
    made = make_post(cast.alice, "some", ("a.txt", b"one"), ("b:c?.txt", b""), avatar=PNG)
    long = make_post(cast.alice, "long", (f"{'ü' * 250}.txt", b"x"))
    answer = cast.bob.get("records/posts/export?format=zip&sort=title")
    assert answer.mimetype == "application/zip"
    assert answer.headers["Content-Disposition"] == "attachment; filename=posts.zip"
    archive = zipfile.ZipFile(io.BytesIO(answer.data))
    lines = cast.bob.get("records/posts/export?format=jsonl&sort=title").data
    assert archive.read(RECORDS) == lines
    avatar, (one, two) = made["avatar"], made["papers"]
    cut = f"files/{long['papers'][0]['id']}/{'ü' * 98}.txt"
    expected = {
        cut: b"x",
        f"files/{avatar['id']}/cat.png": PNG,
        f"files/{one['id']}/a.txt": b"one",
        f"files/{two['id']}/b_c_.txt": b"",
    }
    assert {name: archive.read(name) for name in archive.namelist()[1:]} == expected
    assert answer.data == cast.bob.get("records/posts/export?format=zip&sort=title").data


@pytest.mark.usefixtures("posts")
def test_an_empty_export_is_an_archive(cast: Cast) -> None:
    archive = export(cast.alice)
    assert (archive.namelist(), archive.read(RECORDS)) == ([RECORDS], b"")


@pytest.mark.usefixtures("posts")
def test_an_export_of_all_accounts_finds_the_bytes_of_each(cast: Cast) -> None:
    make_post(cast.alice, "acme", ("a.txt", b"of acme"))
    make_post(cast.charlie, "globex", ("a.txt", b"of globex"))
    assert len(export(cast.alice).namelist()) == 2
    archive = export(cast.root.acting_in("*"), "&fields=papers")
    assert {archive.read(name) for name in archive.namelist()[1:]} == {b"of acme", b"of globex"}


# What bob, a viewer, gets of a record with title "a", an avatar and a paper.
SIGHTS: list[tuple[str, dict[str, Any], dict[str, Any], str, set[bytes]]] = [
    ("all", {}, {}, "", {PNG, b"paper"}),
    ("a masked field", {}, {"pii": True}, "", {PNG}),
    ("a field that lists hide", {"list_fields": ["title", "avatar"]}, {}, "", {PNG}),
    ("a field that views hide", {"view_fields": ["title", "avatar"]}, {}, "", {PNG}),
    ("a field that is not asked for", {}, {}, "&fields=title,papers", {b"paper"}),
    ("records that the caller may not view", {"view_rule": 'title = "b"'}, {}, "", set()),
    ("a closed view", {"view_rule": None}, {}, "", set()),
    ("records that the filter leaves out", {}, {}, "&title=b", set()),
]


@pytest.mark.parametrize(("rules", "papers", "query", "files"), [row[1:] for row in SIGHTS])
def test_an_archive_has_only_the_bytes_that_the_caller_may_download(
    cast: Cast, rules: dict[str, Any], papers: dict[str, Any], query: str, files: set[bytes]
) -> None:
    schema = [*SCHEMA[:-1], {**SCHEMA[-1], **papers}]
    make_collection(cast.root, schema=schema, **rules)
    made = make_post(cast.root.acting_in("acme"), "a", ("a.txt", b"paper"), avatar=PNG)
    archive = export(cast.bob, query)
    assert {archive.read(name) for name in archive.namelist()[1:]} == files
    ids = {made["avatar"]["id"]: PNG, made["papers"][0]["id"]: b"paper"}
    readable = {data for id, data in ids.items() if cast.bob.get(f"files/{id}").status_code == 200}
    assert files <= readable


@pytest.mark.usefixtures("posts")
@pytest.mark.one_database
def test_an_export_whose_first_file_cannot_be_read_is_503(cast: Cast, app: Flask) -> None:
    made = make_post(cast.alice, "a", ("a.txt", b"paper"))
    with app.app_context():
        storage.current().delete(storage.key_of(cast.alice.account_id, made["papers"][0]["id"]))
    answer = cast.alice.get("records/posts/export?format=zip")
    assert (answer.status_code, answer.json["error"]) == (503, "unavailable")
    assert cast.alice.get("records/posts/export?format=zip&fields=title").status_code == 200


@pytest.mark.usefixtures("posts")
@pytest.mark.one_database
@pytest.mark.parametrize("left", [None, b"pap"])
def test_an_export_whose_later_file_cannot_be_read_breaks_off(
    cast: Cast, app: Flask, left: bytes | None
) -> None:
    make_post(cast.alice, "a", ("a.txt", b"first"))
    made = make_post(cast.alice, "b", ("b.txt", b"paper"))
    key = f"{cast.alice.account_id}/{made['papers'][0]['id']}"
    with app.app_context():
        storage.current().delete(key)
        if left:
            storage.put_stream(key, io.BytesIO(left))
    client, pieces = app.test_client(use_cookies=False), list[bytes]()
    url = "/api/v1/records/posts/export?format=zip&sort=title"
    answer = client.get(url, headers=cast.alice.headers, buffered=False)
    assert answer.status_code == 200
    with pytest.raises(Unavailable):
        pieces.extend(answer.response)
    answer.close()
    text = b"".join(pieces)
    assert b"first" in text
    assert not zipfile.is_zipfile(io.BytesIO(text))


@pytest.mark.one_database
def test_an_archive_takes_no_more_memory_for_more_files(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        path = tmp_path / "zip"
        with (tmp_path / f"{count}").open("w+b") as directory, path.open("wb") as file:
            tracemalloc.start()
            writer = ZipWriter(directory)
            for number in range(count):
                file.writelines(writer.entry(f"files/{number}", [b"x"], 0))
            file.writelines(writer.end())
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        with zipfile.ZipFile(path) as archive:
            assert len(archive.infolist()) == count
        return most

    few = peak(100)
    assert peak(1000) < 2 * few
