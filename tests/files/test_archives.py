"""Archives: records with the bytes of their files."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import stat
import struct
import tracemalloc
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from werkzeug.test import TestResponse

from app import db
from app.errors import Unavailable
from app.files import purge, storage
from app.files.models import FILES
from app.records.transfer import archives, imports
from app.records.transfer.archives import Entry
from tests.builders import Caller, Cast, make_collection
from tests.files.test_files import PNG, SCHEMA, upload

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
def test_archive_export_has_records_and_file_bytes(cast: Cast) -> None:
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
def test_archive_export_without_records_is_an_archive(cast: Cast) -> None:
    archive = export(cast.alice)
    assert (archive.namelist(), archive.read(RECORDS)) == ([RECORDS], b"")


@pytest.mark.usefixtures("posts")
def test_archive_export_of_all_accounts_has_files_of_each(cast: Cast) -> None:
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
def test_archive_export_has_only_downloadable_files(
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
def test_archive_export_with_unreadable_first_file_is_503(cast: Cast, app: Flask) -> None:
    made = make_post(cast.alice, "a", ("a.txt", b"paper"))
    with app.app_context():
        storage.current().delete(storage.key_of(cast.alice.account_id, made["papers"][0]["id"]))
    answer = cast.alice.get("records/posts/export?format=zip")
    assert (answer.status_code, answer.json["error"]) == (503, "unavailable")
    assert cast.alice.get("records/posts/export?format=zip&fields=title").status_code == 200


@pytest.mark.usefixtures("posts")
@pytest.mark.one_database
@pytest.mark.parametrize("left", [None, b"pap"])
def test_archive_export_with_unreadable_later_file_breaks_off(
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


@pytest.mark.usefixtures("posts")
def test_archive_export_over_file_limit_is_limit_reached(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    for title in "ab":
        make_post(cast.alice, title, ("a.txt", b"x"))
    monkeypatch.setattr(archives, "MOST_FILES", 2)
    assert cast.alice.get("records/posts/export?format=zip").status_code == 200
    monkeypatch.setattr(archives, "MOST_FILES", 1)
    refused = cast.alice.get("records/posts/export?format=zip")
    assert (refused.status_code, refused.json["error"]) == (400, "limit_reached")


@pytest.mark.one_database
def test_archive_export_memory_does_not_grow_with_files(tmp_path: Path) -> None:
    def peak(chunks: int) -> int:
        path, size = tmp_path / "zip", 2**20
        tracemalloc.start()
        with path.open("wb") as file:
            contents = (bytes(size) for _ in range(chunks))
            file.writelines(archives.write_zip([Entry("files/a", contents)]))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        with zipfile.ZipFile(path) as archive:
            assert archive.getinfo("files/a").file_size == chunks * size
        return most

    assert peak(40) < 1.5 * peak(4)


# --- import ---

Entries = list[tuple[str | zipfile.ZipInfo, bytes]]


def pack(
    *entries: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED
) -> bytes:
    """An archive of these entries."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of duplicate names
        for name, data in entries:
            archive.writestr(name, data)
    return target.getvalue()


def lines(*records: dict[str, Any]) -> tuple[str, bytes]:
    """The entry of records."""
    return RECORDS, b"\n".join(json.dumps(one).encode() for one in records)


def send(caller: Caller, archive: bytes, query: str = "", name: str = "posts") -> TestResponse:
    """Import an archive."""
    path = f"records/{name}/import{query}"
    return caller.post(path, data=archive, content_type="application/zip")


def stored_files(app: Flask) -> int:
    """How many files are stored, those that are to be removed included."""
    with app.app_context():
        purge.remove({})
        rows = db.connection().scalar(sa.select(sa.func.count()).select_from(FILES))
        blobs = sum(1 for _ in storage.current().blobs())
        assert list(storage.incoming().iterdir()) == []
    assert rows == blobs
    return blobs


def contents(caller: Caller, name: str = "posts") -> list[list[Any]]:
    """Title, avatar and papers of all records, with the bytes."""
    found = caller.get(f"records/{name}?sort=title").json["items"]
    return [
        [
            one["title"],
            *[
                (file["name"], file["mime_type"], file["sha256"], downloaded(caller, file))
                for file in [*filter(None, [one["avatar"]]), *(one["papers"] or [])]
            ],
        ]
        for one in found
    ]


def downloaded(caller: Caller, file: dict[str, Any]) -> bytes:
    """The bytes of a file."""
    answer = caller.get(f"files/{file['id']}")
    assert answer.status_code == 200
    assert hashlib.sha256(answer.data).hexdigest() == file["sha256"]
    return answer.data


@pytest.mark.usefixtures("posts")
def test_archive_export_can_be_imported_in_other_account(cast: Cast, app: Flask) -> None:
    make_post(cast.alice, "a", ("a.txt", b"one"), ("b.csv", b"x,y\n"), avatar=PNG)
    make_post(cast.alice, "b", ("ü/ä.txt", b""))
    make_post(cast.alice, "c")
    exported = cast.alice.get("records/posts/export?format=zip").data
    for query, total in (("?dry_run=true", 0), ("", 3)):
        answer = send(cast.charlie, exported, query)
        ignored = {"ignored": ["created_by"]}  # of the other account
        assert answer.json == {"imported": 3, "count": 3, "dry_run": not total, **ignored}
        assert cast.charlie.get("records/posts").json["total"] == total
    assert contents(cast.charlie) == contents(cast.alice)
    assert stored_files(app) == 8
    part = {"file": (io.BytesIO(exported), "posts.zip")}
    form = {"data": part, "content_type": "multipart/form-data"}
    assert cast.charlie.post("records/posts/import", **form).json["imported"] == 3
    again = cast.charlie.get("records/posts/export?format=zip").data
    assert send(cast.alice, again).json["imported"] == 6


@pytest.mark.usefixtures("posts")
@pytest.mark.one_database
@pytest.mark.parametrize(
    "records",
    [
        lines({"title": "a", "avatar": "x", "papers": [{"id": "y", "name": "p.md"}, "z"]}),
        (
            "records.json",
            b'{"records": [{"title": "a", "avatar": {"id": "x"}, "papers": ["y", "z"]}]}',
        ),
        ("records.csv", b'title,avatar,papers\na,x,"[""y"", ""z""]"\n'),
    ],
)
def test_archive_import_accepts_hand_made_archive(cast: Cast, records: tuple[str, bytes]) -> None:
    files: Entries = [("files/x/cat.png", PNG), ("files/y/p.md", b"# p"), ("files/z/q", b"q")]
    folders: Entries = [("files/", b""), ("files/x/", b"")]
    unused: Entries = [("files/w/unused.txt", b"w")]
    answer = send(cast.alice, pack(*folders, *files, *unused, records))
    dialect = {"encoding": "UTF-8", "separator": ","} if records[0] == "records.csv" else {}
    assert (answer.status_code, answer.json) == (
        200,
        {"imported": 1, "count": 1, "dry_run": False, **dialect},
    ), answer.text
    ((title, *found),) = contents(cast.alice)
    assert (title, [(name, data) for name, _, _, data in found]) == (
        "a",
        [("cat.png", PNG), ("p.md", b"# p"), ("q", b"q")],
    )


# Archives whose records are refused, with the status and the first problem.
REFUSED: list[tuple[str, list[dict[str, Any]], int, tuple[int, str, str]]] = [
    ("an unknown field", [{"nope": 1, "papers": ["x"]}], 400, (1, "nope", "unknown_field")),
    ("a file twice", [{"papers": ["x"]}, {"papers": ["x"]}], 400, (2, "papers", "file_unknown")),
    ("a file that is missing", [{"papers": ["x", "y"]}], 400, (1, "papers", "file_unknown")),
    ("a file of a wrong type", [{"avatar": "x"}], 400, (1, "avatar", "file_type_not_allowed")),
    ("a file that is too large", [{"avatar": "big"}], 400, (1, "avatar", "file_too_large")),
    ("too many files", [{"avatar": ["x", "z"]}], 400, (1, "avatar", "too_many_files")),
]


@pytest.mark.usefixtures("posts")
@pytest.mark.parametrize(("records", "status", "first"), [row[1:] for row in REFUSED])
def test_archive_import_with_invalid_record_stores_nothing(
    cast: Cast, app: Flask, records: list[dict[str, Any]], status: int, first: tuple[int, str, str]
) -> None:
    files: Entries = [("files/x/x.txt", b"x"), ("files/z/z.txt", b"z")]
    files += [("files/big/big.png", PNG + bytes(5000))]
    answer = send(cast.alice, pack(lines({"title": "fine"}, *records), *files))
    problem = answer.json["details"][0]
    assert (answer.status_code, answer.json["error"]) == (status, "validation_error")
    assert (problem["line"] - 1, problem["field"], problem["code"]) == first
    assert problem["index"] == first[0]
    assert stored_files(app) == 0
    assert cast.alice.get("records/posts").json["total"] == 0


@pytest.mark.usefixtures("posts")
def test_archive_import_cannot_use_files_of_others(cast: Cast, app: Flask) -> None:
    foreign = make_post(cast.charlie, "theirs", ("a.txt", b"secret"))["papers"][0]["id"]
    waiting = upload(cast.charlie)["id"]
    for id in (foreign, waiting):
        answer = send(cast.alice, pack(lines({"papers": [id]})))
        assert answer.json["details"][0]["code"] == "file_unknown"
    own = upload(cast.alice, b"own", "own.txt")["id"]
    assert send(cast.alice, pack(lines({"papers": [own]}))).json["imported"] == 1
    renamed = pack(lines({"title": "b", "papers": [foreign]}), (f"files/{foreign}/b.txt", b"b"))
    assert send(cast.alice, renamed).json["imported"] == 1
    assert [data for *_, data in contents(cast.alice)[0][1:]] == [b"b"]
    assert downloaded(cast.charlie, foreign_file(cast.charlie)) == b"secret"


def foreign_file(caller: Caller) -> dict[str, Any]:
    """The only file of an account."""
    found: dict[str, Any] = caller.get("records/posts").json["items"][0]["papers"][0]
    return found


@pytest.mark.usefixtures("posts")
def test_archive_import_without_create_right_stores_nothing(cast: Cast, app: Flask) -> None:
    cast.root.put("collections/posts/rules", {"create_rule": None})
    answer = send(cast.bob, pack(lines({"papers": ["x"]}), ("files/x/x.txt", b"x")))
    assert (answer.status_code, answer.json["error"]) == (403, "rule_denied")
    assert send(cast.bob, b"no archive").status_code == 403
    anyone = Caller(cast.bob.app).acting_in("acme")
    assert send(anyone, pack(lines({"title": "a"}))).status_code in (401, 403)
    assert stored_files(app) == 0


@pytest.mark.usefixtures("posts")
def test_archive_import_of_masked_file_is_invalid_option(cast: Cast) -> None:
    masked = [*SCHEMA[:-1], {**SCHEMA[-1], "pii": True}]
    make_collection(cast.root, "secrets", schema=masked)
    archive = pack(lines({"papers": "********"}), ("files/********/x.txt", b"x"))
    assert send(cast.bob, archive, name="secrets").status_code == 400
    refused = send(cast.bob, pack(lines({"papers": "********"})), name="secrets")
    assert refused.json["details"][0]["code"] == "invalid_option"


def special(name: str, mode: int = 0, flags: int = 0) -> zipfile.ZipInfo:
    """An entry with a file type, as of Unix."""
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def patched(archive: bytes, old: bytes, new: bytes, count: int = -1) -> bytes:
    """An archive with changed bytes."""
    assert old in archive
    return archive.replace(old, new, count)


def lying(size: int) -> bytes:
    """An archive that states another size of a file of 5 bytes than it has."""
    archive = bytearray(pack(lines({"papers": ["x"]}), ("files/x/x.txt", b"12345")))
    central = archive.rindex(b"PK\1\2")
    archive[central + 24 : central + 28] = struct.pack("<L", size)
    return bytes(archive)


def flagged(flags: int) -> bytes:
    """An archive whose last entry has these flags."""
    archive = bytearray(pack(lines({}), ("files/x/x.txt", b"12345")))
    central = archive.rindex(b"PK\1\2")
    archive[central + 8 : central + 10] = struct.pack("<H", flags)
    return bytes(archive)


FILE: tuple[str, bytes] = ("files/x/x.txt", b"12345")
USING = lines({"papers": ["x"]})
WHOLE = pack(USING, FILE)
LAYOUT = "An archive has records.jsonl"
BAD: list[tuple[str, bytes, str | None, str]] = [
    ("no archive", b"no archive", None, "This is no ZIP archive"),
    ("nothing", b"", None, "This is no ZIP archive"),
    ("a part of one", WHOLE[:-30], None, "This is no ZIP archive"),
    ("no records", pack(FILE), None, LAYOUT),
    ("two of records", pack(lines({}), ("records.csv", b"title\n")), "records", "more than once"),
    ("two of one name", pack(lines({}), FILE, FILE), "files/x", "more than once"),
    ("two of one id", pack(lines({}), FILE, ("files/x/y", b"")), "files/x", "more than once"),
    ("a climbing path", pack(lines({}), ("../x.txt", b"")), "../x.txt", LAYOUT),
    ("a climbing file", pack(lines({}), ("files/x/..", b"")), "files/x/..", LAYOUT),
    ("an absolute path", pack(lines({}), ("/files/x/x", b"")), "/files/x/x", LAYOUT),
    ("a Windows path", pack(lines({}), ("files\\x\\x", b"")), "files\\x\\x", LAYOUT),
    ("a deeper path", pack(lines({}), ("files/x/y/z", b"")), "files/x/y/z", LAYOUT),
    ("another file", pack(lines({}), ("readme.txt", b"")), "readme.txt", LAYOUT),
    (
        "a link",
        pack(lines({}), (special("files/x/x", stat.S_IFLNK | 0o777), b"/etc/passwd")),
        "files/x/x",
        "This is a link",
    ),
    ("an encrypted file", flagged(1), "files/x/x.txt", "This is encrypted."),
    ("bzip2", pack(USING, FILE, method=zipfile.ZIP_BZIP2), RECORDS, "another method"),
    ("lzma", pack(USING, FILE, method=zipfile.ZIP_LZMA), RECORDS, "another method"),
    ("a wrong sum", patched(pack(USING, FILE, method=0), b"12345", b"12346"), FILE[0], "damaged"),
    ("less than it has", lying(4), FILE[0], "This is damaged."),
    ("more than it has", lying(6), FILE[0], "This is damaged."),
    ("a huge file", lying(2**31), FILE[0], "more than 104,857,600 bytes"),
    (
        "huge records",
        pack((RECORDS, b"\n" * (10 * 2**20 + 1))),
        RECORDS,
        "more than 10,485,760 bytes",
    ),
    (
        "too many files",
        pack(lines({}), *((f"files/{n}/x", b"") for n in range(1001))),
        None,
        "at most 1,000 files",
    ),
    (
        "far too many entries",
        pack(lines({}), *((f"files/{n}/", b"") for n in range(2100))),
        None,
        "at most 1,000 files",
    ),
]


@pytest.mark.usefixtures("posts")
@pytest.mark.one_database
def test_archive_import_of_malformed_archive_is_400_with_entry(cast: Cast, app: Flask) -> None:
    for name, archive, entry, message in BAD:
        answer = send(cast.alice, archive)
        assert (answer.status_code, answer.json["error"]) == (400, "validation_error"), name
        problem = answer.json["details"][0]
        assert (problem["code"], problem["field"]) == ("archive_invalid", entry), name
        assert message in problem["message"], name
    assert stored_files(app) == 0
    assert cast.alice.get("records/posts").json["total"] == 0


@pytest.mark.usefixtures("posts")
@pytest.mark.one_database
def test_archive_import_of_zip_bomb_is_refused_before_unpacking(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(
        app.extensions["atrium.config"], file_max_bytes=50_000, max_body_bytes=10_000
    )
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    records = lines({"papers": ["0", "1"]})
    together: Entries = [(f"files/{n}/x.txt", bytes(30_001)) for n in range(2)]
    answer = send(cast.alice, pack(records, *together))
    assert answer.json["details"][0]["message"].startswith("The files of an archive have at most")
    # Two entries of the directory share the contents of one.
    shared = pack(records, ("files/0/x.txt", b"0" * 20_000), ("files/1/x.txt", b""), method=0)
    infos = zipfile.ZipFile(io.BytesIO(shared)).infolist()
    first, second = (shared.rindex(info.filename.encode()) - 46 for info in infos[1:])
    overlapping = bytearray(shared)
    overlapping[second + 16 : second + 28] = shared[first + 16 : first + 28]
    overlapping[second + 42 : second + 46] = shared[first + 42 : first + 46]
    answer = send(cast.alice, bytes(overlapping))
    assert answer.json["details"][0]["message"] == "The files of the archive overlap."
    too_large = send(cast.alice, pack(lines({}), ("files/x/x", os.urandom(50_001)), method=0))
    assert (too_large.status_code, too_large.json["error"]) == (413, "payload_too_large")
    assert stored_files(app) == 0


@pytest.mark.usefixtures("posts")
@pytest.mark.one_database
def test_archive_import_with_oversized_directory_is_refused(cast: Cast) -> None:
    entries: Entries = [(f"files/{'a' * 100}/{n:0254}", b"") for n in range(3000)]
    tracemalloc.start()
    answer = send(cast.alice, pack(lines({}), *entries))
    tracemalloc.stop()
    assert answer.json["details"][0]["message"] == "This is no ZIP archive, or it is damaged."


@pytest.mark.usefixtures("posts")
@pytest.mark.one_database
def test_archive_import_with_any_byte_changed_is_handled(cast: Cast, app: Flask) -> None:
    rng = random.Random(7)
    count = int(os.environ.get("ARCHIVE_EXAMPLES", "60"))
    for _ in range(count):
        archive = bytearray(WHOLE)
        for _ in range(rng.choice((1, 1, 2, 8))):
            archive[rng.randrange(len(archive))] = rng.randrange(256)
        answer = send(cast.alice, bytes(archive), "?dry_run=true")
        assert answer.status_code in (200, 400, 422), (answer.text, bytes(archive))
    assert stored_files(app) == 0


@pytest.mark.usefixtures("posts")
@pytest.mark.one_database
def test_archive_import_with_idempotency_key_stores_files_once(cast: Cast, app: Flask) -> None:
    key = {"Idempotency-Key": "import-1"}
    for _ in range(2):
        answer = cast.alice.post(
            "records/posts/import", data=WHOLE, content_type="application/zip", headers=key
        )
        assert answer.json["imported"] == 1
    assert cast.alice.get("records/posts").json["total"] == 1
    assert stored_files(app) == 1


@pytest.mark.usefixtures("posts")
@pytest.mark.one_database
def test_archive_import_in_batches_stores_files_of_each(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "BATCH_SIZE", 2)
    records = [{"title": f"t{n}", "papers": [f"f{n}"]} for n in range(5)]
    files: Entries = [(f"files/f{n}/{n}.txt", str(n).encode()) for n in range(5)]
    assert send(cast.alice, pack(lines(*records), *files)).json["imported"] == 5
    found = contents(cast.alice)
    assert [(title, data) for title, (_, _, _, data) in found] == [
        (f"t{n}", str(n).encode()) for n in range(5)
    ]
    assert stored_files(app) == 5


@pytest.mark.usefixtures("posts")
@pytest.mark.one_database
def test_archive_import_in_batches_with_repeated_upload_stores_nothing(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "BATCH_SIZE", 2)
    own = upload(cast.alice, b"own", "own.txt")["id"]
    records: list[dict[str, Any]] = [{"papers": [own]}, {"title": "b"}, {"papers": [own]}]
    answer = send(cast.alice, pack(lines(*records)))
    assert (answer.status_code, answer.json["error"]) == (400, "validation_error"), answer.text
    assert [(one["index"], one["code"]) for one in answer.json["details"]] == [(2, "file_unknown")]
    assert cast.alice.get("records/posts").json["total"] == 0
    assert send(cast.alice, pack(lines(*records[:2]))).json["imported"] == 2
