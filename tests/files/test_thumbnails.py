"""Thumbnails are made once, kept beside their file, and stop nobody."""

from __future__ import annotations

import io
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import time_machine
from flask import Flask
from PIL import Image

from app import clock
from app.errors import Unavailable
from app.files import purge, storage, thumbnails
from app.files.purge import UNDER_WAY
from app.files.thumbnails import Turns
from tests.builders import Caller, Cast, make_collection
from tests.files.test_files import SCHEMA, blobs, image, names, run, upload
from tests.realtime.clients import until


def thumb(caller: Caller, file: str, size: str = "64x64") -> Any:
    """The answer to a request for a thumbnail."""
    return caller.get(f"files/{file}?thumb={size}")


def kept(app: Flask) -> list[str]:
    """The sizes of the thumbnails that are kept."""
    return sorted(key.rpartition("/")[2] for key in blobs(app) if storage.THUMBNAILS in key)


def noise(side: int, quality: int = 95) -> bytes:
    """An image whose thumbnails are large."""
    target = io.BytesIO()
    pixels = random.Random(1).randbytes(side * side * 3)
    Image.frombytes("RGB", (side, side), pixels).save(target, "JPEG", quality=quality)
    return target.getvalue()


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.needs_servers)])
def place(request: pytest.FixtureRequest) -> str:
    """Where files are."""
    if request.param == "bucket":
        request.getfixturevalue("in_bucket")
    return str(request.param)


@pytest.mark.usefixtures("place")
def test_thumbnail_is_made_once_in_few_sizes(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root, schema=SCHEMA)
    file = upload(cast.alice, image(300, 300))["id"]
    record = cast.alice.post("records/posts", {"papers": [file]}).json
    first = thumb(cast.alice, file, "200x200")
    assert (first.status_code, first.mimetype) == (200, "image/webp")
    assert Image.open(io.BytesIO(first.data)).size == (200, 200)
    made = list[object]()
    scaled = thumbnails._scaled
    monkeypatch.setattr(thumbnails, "_scaled", lambda *of: made.append(of) or scaled(*of))
    for size in ("200x200", "255x201", "201x255", "200x200"):
        again = thumb(cast.bob, file, size)
        assert (again.data, again.headers["ETag"]) == (first.data, first.headers["ETag"])
    assert made == []
    for width in range(1600, 1700):
        assert thumb(cast.bob, file, f"{width}x2047").status_code == 200
    assert len(made) == 1
    assert kept(app) == ["1600x1600", "200x200"]

    removed = cast.alice.patch(f"records/posts/{record['id']}", {"papers": None})
    assert removed.status_code == 200, removed.text
    assert thumb(cast.bob, file, "200x200").status_code == 404
    assert (
        cast.root.acting_in("acme").post(f"records/posts/{record['id']}/erase").status_code == 200
    )
    run(app, purge.remove)
    assert blobs(app) == []


@pytest.mark.long
@pytest.mark.usefixtures("place")
def test_thumbnails_take_no_more_room_than_their_file(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thumbnails, "KEPT_BYTES", 0)
    file = upload(cast.alice, noise(700, quality=20))
    for step in thumbnails.STEPS[4:]:
        answer = thumb(cast.alice, file["id"], f"{step}x{step}")
        assert answer.status_code == 200
    with app.app_context():
        sizes = [blob.size for blob in storage.current().blobs() if "x" in blob.key[-9:]]
    assert 1 < len(sizes) < 16
    assert sum(sizes) <= file["size"]
    assert cast.alice.get("account/usage").json["meters"]["file_bytes"]["used"] == file["size"]


@pytest.mark.usefixtures("place")
def test_thumbnail_sweep_keeps_those_of_existing_files_only(cast: Cast, app: Flask) -> None:
    file = upload(cast.alice, image(300, 300))["id"]
    assert thumb(cast.alice, file).status_code == 200
    with app.app_context():
        gone = storage.thumbnails_of(cast.alice.account_id, cast.alice.id)
        storage.put_stream(f"{gone}64x64", io.BytesIO(b"x"))
    with time_machine.travel(clock.now() + 2 * UNDER_WAY):
        run(app, purge.sweep)
    assert (names(app), kept(app)) == ({file, "64x64"}, ["64x64"])
    assert cast.alice.delete(f"files/{file}").status_code == 204
    run(app, purge.remove)
    assert blobs(app) == []


def test_thumbnail_folders_are_removed_when_empty(cast: Cast, app: Flask) -> None:
    file = upload(cast.alice, image(300, 300))["id"]
    assert thumb(cast.alice, file).status_code == 200
    cast.alice.delete(f"files/{file}")
    run(app, purge.remove)
    with app.app_context():
        root = storage.current().root
    assert list((root / cast.alice.account_id / storage.THUMBNAILS).iterdir()) == []


def test_thumbnails_of_deleted_account_are_removed(cast: Cast, app: Flask) -> None:
    file = upload(cast.alice, image(300, 300))["id"]
    assert thumb(cast.alice, file).status_code == 200
    assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code in (200, 204)
    with app.app_context():
        purge.remove_account({"prefix": f"{cast.alice.account_id}/"})
    assert blobs(app) == []


def test_thumbnail_of_file_removed_meanwhile_is_not_kept(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, scaled = upload(cast.alice, image(300, 300))["id"], thumbnails._scaled

    def remove_first(*of: Any) -> bytes:
        with ThreadPoolExecutor() as pool:
            path = f"files/{file}"
            assert pool.submit(lambda: cast.alice.delete(path).status_code).result() == 204
        return scaled(*of)

    monkeypatch.setattr(thumbnails, "_scaled", remove_first)
    assert thumb(cast.alice, file).status_code == 200
    assert kept(app) == []


def test_thumbnail_with_full_disk_is_not_kept(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = upload(cast.alice, image(300, 300))["id"]
    monkeypatch.setattr(storage, "free_bytes", lambda: 0)
    assert thumb(cast.alice, file).status_code == 200
    assert kept(app) == []


@pytest.mark.long
@pytest.mark.one_database
def test_thumbnail_requests_of_one_account_do_not_block_another(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = upload(cast.charlie, image(400, 400))["id"], upload(cast.alice, image())["id"]
    scaled, ended = thumbnails._scaled, threading.Event()

    def make(data: bytes, file: Any, size: tuple[int, int]) -> bytes:
        if file.id == slow:
            ended.wait(0.2)
        return scaled(data, file, size)

    def attack(number: int) -> None:
        while not ended.is_set():
            size = random.Random(number).choice(thumbnails.STEPS)
            with app.app_context():
                place = storage.current()
                for blob in place.blobs(storage.thumbnails_of(cast.charlie.account_id, slow)):
                    place.delete(blob.key)  # as another image would be
            thumb(Caller(app, **cast.charlie.headers), slow, f"{size}x{size}")

    monkeypatch.setattr(thumbnails, "_scaled", make)
    with ThreadPoolExecutor(8) as pool:
        attacks = [pool.submit(attack, number) for number in range(8)]
        try:
            statuses = [
                thumb(cast.alice, quick, f"{step}x{step}").status_code
                for step in thumbnails.STEPS[:8]
            ]
        finally:
            ended.set()
        for one in attacks:
            one.result()
    assert set(statuses) == {200}


def test_thumbnail_queue_is_fair_and_refuses_busiest_account() -> None:
    turns, order, refused = Turns(2, 20), list[str](), list[str]()
    free = threading.Event()

    def take(account: str) -> None:
        try:
            with turns.taken(account):
                order.append(account)
                free.wait(20)
        except Unavailable:
            refused.append(account)

    for account in ("mallory", "eve"):
        with turns.taken(account):
            pass
    with ThreadPoolExecutor(8) as pool:
        pool.submit(take, "eve")
        until(lambda: order == ["eve"])
        for count in (1, 2):
            pool.submit(take, "eve")
            until(lambda count=count: len(turns._waiting) == count)  # type: ignore[misc]
        for account, gone in (
            ("mallory", "eve"),
            ("alice", "eve"),
            ("alice", "alice"),  # who has two by now
            ("bob", "mallory"),  # the last of whom had a turn; neither alice nor bob had one
            ("eve", "eve"),
        ):
            before = len(refused)
            pool.submit(take, account)
            until(lambda before=before: len(refused) == before + 1)  # type: ignore[misc]
            assert refused[-1] == gone
        free.set()
    assert order == ["eve", "alice", "bob"]


def test_thumbnail_queue_wait_times_out() -> None:
    turns = Turns(2, 0.05)
    with turns.taken("eve"), pytest.raises(Unavailable), turns.taken("alice"):
        pass
    with turns.taken("alice"):
        pass


def test_backup_excludes_thumbnails(cast: Cast, app: Flask, tmp_path: Path) -> None:
    if app.extensions["atrium.config"].database_url.startswith("postgresql"):
        pytest.skip("the folder is saved alike")
    file = upload(cast.alice, image(300, 300))["id"]
    assert thumb(cast.alice, file).status_code == 200
    saved = str(tmp_path / "a.backup")
    result = app.test_cli_runner().invoke(args=["backup", saved, "--verify"])
    assert result.exit_code == 0, result.output
    result = app.test_cli_runner().invoke(args=["restore", saved, "--replace"])
    assert (result.exit_code, "Files restored: 1" in result.output) == (0, True)
    assert thumb(cast.alice, file).status_code == 200


def shaped(caller: Caller, file: str, query: str) -> Image.Image:
    """A thumbnail, which is what its type says."""
    answer = caller.get(f"files/{file}?{query}")
    assert answer.status_code == 200, answer.text
    opened = Image.open(io.BytesIO(answer.data))
    assert f"image/{(opened.format or '').lower()}" == answer.mimetype
    assert f".{(opened.format or '').lower()}" in answer.headers["Content-Disposition"]
    return opened


def striped(width: int, height: int, format: str, **options: Any) -> bytes:
    """An image whose left and right fifth are blue, the rest red."""
    target, made = io.BytesIO(), Image.new("RGB", (width, height), "red")
    for left in (0, width - width // 5):
        made.paste("blue", (left, 0, left + width // 5, height))
    made.save(target, format, **options)
    return target.getvalue()


@pytest.mark.parametrize(
    ("query", "size"),
    [
        ("thumb=100x100", (100, 50)),
        ("thumb=100x100&fit=contain&format=webp", (100, 50)),
        ("thumb=100x100&fit=cover", (100, 100)),
        ("thumb=64x200&fit=cover&format=png", (64, 200)),
        ("thumb=400x200&fit=cover", (400, 200)),
        ("thumb=800x800&fit=cover", (200, 200)),  # never larger than it is
        ("thumb=2048x1024&fit=cover", (400, 200)),
        ("thumb=2048x16&fit=cover", (400, 3)),
        ("thumb=2048x2048", (400, 200)),
    ],
)
def test_thumbnail_fits_or_covers(cast: Cast, query: str, size: tuple[int, int]) -> None:
    make_collection(cast.root, schema=SCHEMA)
    for format in ("PNG", "JPEG", "GIF", "WEBP"):
        file = upload(cast.alice, striped(400, 200, format), f"a.{format}")["id"]
        assert shaped(cast.alice, file, query).size == size


def test_thumbnail_that_covers_shows_the_middle_upright(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    data = striped(800, 400, "JPEG", exif=exif)
    file = upload(cast.alice, data, "a.jpg")["id"]
    whole = shaped(cast.alice, file, "thumb=400x400&format=png")
    assert whole.size == (200, 400)
    red, _, blue = whole.convert("RGB").getpixel((100, 10))  # type: ignore[misc]
    assert blue > red
    middle = shaped(cast.alice, file, "thumb=200x200&fit=cover&format=png").convert("RGB")
    assert middle.size == (200, 200)
    for at in ((0, 0), (199, 199), (100, 100)):
        red, _, blue = middle.getpixel(at)  # type: ignore[misc]
        assert red > 200 > 100 > blue


def test_thumbnail_of_transparent_image_is_white_in_jpeg(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA)
    target = io.BytesIO()
    Image.new("RGBA", (100, 100), (0, 0, 0, 0)).save(target, "PNG")
    file = upload(cast.alice, target.getvalue(), "a.png")["id"]
    assert shaped(cast.alice, file, "thumb=64x64&format=jpeg").getpixel((5, 5)) == (255, 255, 255)
    for format in ("webp", "png"):
        clear = shaped(cast.alice, file, f"thumb=64x64&format={format}").getpixel((5, 5))
        assert clear[3] == 0  # type: ignore[index]


def test_forms_of_thumbnails_are_few_and_kept_apart(
    cast: Cast, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root, schema=SCHEMA)
    file = upload(cast.alice, image(300, 200))["id"]
    tags = set()
    for query in ("", "&fit=cover", "&format=jpeg", "&fit=cover&format=png"):
        answer = cast.alice.get(f"files/{file}?thumb=64x64{query}")
        tags.add(answer.headers["ETag"])
        again = cast.alice.get(
            f"files/{file}?thumb=64x64{query}", headers={"If-None-Match": answer.headers["ETag"]}
        )
        assert again.status_code == 304
    assert len(tags) == 4
    assert kept(app) == ["64x64", "64x64-cover", "64x64-cover-png", "64x64-jpeg"]
    monkeypatch.setattr(thumbnails, "MOST_KEPT", 6)
    for step in thumbnails.STEPS[:8]:
        assert cast.alice.get(f"files/{file}?thumb={step}x16&fit=cover").status_code == 200
    assert len(kept(app)) == 6


@pytest.mark.parametrize(
    "query",
    [
        *("thumb=64x64&fit=fill", "thumb=64x64&fit=", "thumb=64x64&format=avif"),
        *("thumb=64x64&format=WEBP", "fit=cover", "format=png", "thumb=64x64&format=../x"),
    ],
)
def test_form_of_thumbnail_that_is_unknown_is_refused(cast: Cast, query: str) -> None:
    make_collection(cast.root, schema=SCHEMA)
    file = upload(cast.alice, image())["id"]
    answer = cast.alice.get(f"files/{file}?{query}")
    assert (answer.status_code, answer.json["error"]) == (400, "thumb_invalid")


def test_image_that_describes_too_much_has_no_thumbnail_in_any_form(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA)
    target = io.BytesIO()
    Image.new("1", (6000, 5000)).save(target, "PNG")
    file = upload(cast.alice, target.getvalue(), "bomb.png")["id"]
    for query in ("", "&fit=cover", "&fit=cover&format=jpeg"):
        answer = cast.alice.get(f"files/{file}?thumb=64x64{query}")
        assert (answer.status_code, answer.json["error"]) == (400, "thumb_invalid")
