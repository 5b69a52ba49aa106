"""A wrong passphrase, a cut, altered or killed import: refused, and nothing is changed."""

from __future__ import annotations

import io
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app.accounts.models import Account
from app.context import tenancy
from app.db import db
from app.errors import Conflict
from app.files import storage
from app.portability.bundle import frames, importing, snapshot
from tests.builders import Cast, make_record
from tests.bundle.accounts import PASSPHRASE, export, furnish, hashes, import_, run
from tests.mailbox import run_jobs

ROOT = ("--as", "root@system.example")
LINES: list[Any] = [{"a": 1}, ["ü", None, 2**53 + 1, 0.1], "x" * 700_000, [], "end"]


def written(lines: list[Any] = LINES) -> bytes:
    target, header = io.BytesIO(), frames.new_header()
    writer = frames.Writer(target, header, frames.derive_key(PASSPHRASE, header))
    for line in lines:
        writer.write(line)
    writer.close()
    return target.getvalue()


def test_bundle_reader_separates_bytes_from_lines() -> None:
    target, header = io.BytesIO(), frames.new_header()
    writer = frames.Writer(target, header, frames.derive_key(PASSPHRASE, header))
    whole = os.urandom(frames.FRAME_BYTES)
    for line in (["a" * frames.FRAME_BYTES], {"blob": 1}):
        writer.write(line)
    writer.write_bytes(whole)
    writer.write_bytes(b"\n")
    writer.write("end")
    writer.close()
    found = read(target.getvalue())
    assert found == [["a" * frames.FRAME_BYTES], {"blob": 1}, whole, b"\n", "end"]


def read(data: bytes, passphrase: str = PASSPHRASE) -> list[object]:
    return list(frames.Reader(io.BytesIO(data), passphrase).lines())


def frames_of(data: bytes) -> tuple[bytes, list[bytes]]:
    """The header of a bundle, and its frames."""
    start = data.index(b"\n", len(frames.MAGIC)) + 1
    head, rest, found = data[:start], data[start:], []
    while rest:
        size = 4 + int.from_bytes(rest[:4], "big")
        found.append(rest[:size])
        rest = rest[size:]
    return head, found


def test_bundle_reader_returns_written_lines() -> None:
    assert read(written()) == LINES
    assert read(written([])) == []


def noise(count: int = 3) -> list[Any]:
    """Lines that take more than a frame, as they do not compress."""
    return [os.urandom(frames.FRAME_BYTES).hex() for _ in range(count)]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda head, found: head + b"".join(found[:-1]), id="last frame missing"),
        pytest.param(lambda head, found: head + b"".join(found[1:]), id="first frame missing"),
        pytest.param(lambda head, found: head + b"".join(found[::-1]), id="reordered"),
        pytest.param(lambda head, found: head + b"".join([*found, found[-1]]), id="repeated"),
        pytest.param(lambda head, found: head + b"".join(found)[:-1], id="a byte short"),
        pytest.param(lambda head, found: head + b"".join(found) + b"x", id="a byte more"),
        pytest.param(lambda head, found: head[:-3] + b" }\n" + b"".join(found), id="other header"),
        pytest.param(lambda head, found: head, id="header only"),
        pytest.param(lambda head, found: b"x" + head, id="another format"),
        pytest.param(lambda head, found: frames.MAGIC + b"{}\n", id="no parameters"),
        pytest.param(lambda head, found: frames.MAGIC + b"[" * 9000, id="no header"),
        pytest.param(
            lambda head, found: (
                re.sub(rb'("n": ?)\d+', rb"\g<1>1073741824", head) + b"".join(found)
            ),
            id="costly key",
        ),
    ],
)
def test_bundle_with_altered_frames_is_refused(
    change: Callable[[bytes, list[bytes]], bytes],
) -> None:
    head, found = frames_of(written(noise()))
    assert len(found) > 2
    with pytest.raises(Conflict):
        read(change(head, found))


def test_bundle_with_any_altered_byte_is_refused() -> None:
    data = written([["a"] * 5])
    for place in range(len(frames.MAGIC), len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(Conflict):
            read(bytes(changed))


def test_bundle_with_wrong_passphrase_is_refused() -> None:
    with pytest.raises(Conflict, match="passphrase is wrong"):
        read(written(), "another passphrase")


def test_bundle_decompression_bomb_has_bounded_memory() -> None:
    data = written(["x" * 2**20] * 100)
    assert len(data) < 2 * 2**20
    tracemalloc.start()
    for _ in frames.Reader(io.BytesIO(data), PASSPHRASE).lines():
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20


def everything(app: Flask) -> dict[str, str]:
    """The hash of all rows of all accounts."""
    with app.app_context(), tenancy.as_owner():
        db.session.rollback()
        account_ids = db.session.scalars(sa.select(Account.id)).all()
    return hashes(app, *account_ids)


@pytest.mark.parametrize("place", [0.2, 0.9, 1.0])
def test_bundle_import_of_damaged_file_changes_nothing(
    cast: Cast, app: Flask, tmp_path: Path, place: float
) -> None:
    furnish(cast)
    file = export(app, tmp_path)
    before, data = everything(app), bytearray(file.read_bytes())
    data[int((len(data) - 1) * place)] ^= 1
    file.write_bytes(bytes(data))
    assert import_(app, file, *ROOT, "--slug", "new").exit_code == 1
    file.write_bytes(bytes(data[: int(len(data) * place)]))
    assert import_(app, file, *ROOT, "--slug", "new").exit_code == 1
    assert everything(app) == before


def test_bundle_import_refusals_name_their_reason(cast: Cast, app: Flask, tmp_path: Path) -> None:
    furnish(cast)
    file = export(app, tmp_path)
    before = everything(app)
    taken = import_(app, file, *ROOT)
    assert (taken.exit_code, "slug acme is taken" in taken.output) == (1, True)
    file.with_name("passphrase").write_text("another passphrase")
    wrong = import_(app, file, *ROOT, "--slug", "new")
    assert (wrong.exit_code, "passphrase is wrong" in wrong.output) == (1, True)
    file.with_name("passphrase").write_text("short")
    assert "at least 12 characters" in import_(app, file, *ROOT).output
    secret = file.with_name("passphrase")
    secret.write_text(PASSPHRASE)
    system = run(app, "account", "export", "system", tmp_path / "x", "--passphrase-file", secret)
    clone = run(app, "account", "clone", "system", "system-copy", *ROOT)
    for refused in (system, clone):
        assert (refused.exit_code, snapshot.SYSTEM in refused.output) == (1, True)
    assert everything(app) == before


def test_bundle_import_with_different_definitions_is_refused(
    cast: Cast, app: Flask, tmp_path: Path
) -> None:
    furnish(cast)
    file = export(app, tmp_path)
    changed = cast.root.put("collections/posts/rules", {"list_rule": "title != ''"})
    assert changed.status_code == 200, changed.json
    before = everything(app)
    refused = import_(app, file, *ROOT, "--slug", "new")
    assert refused.exit_code == 1
    assert "collection posts" in refused.output
    assert everything(app) == before


def test_bundle_import_failure_leaves_no_files(
    cast: Cast, app: Flask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(cast)
    file = export(app, tmp_path)
    before = everything(app)
    with app.app_context():
        blobs = {blob.key for blob in storage.current().blobs()}

    def fail(self: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(importing._Import, "_record", fail)
    assert import_(app, file, *ROOT, "--slug", "new").exit_code == 1
    assert everything(app) == before
    with app.app_context():
        assert {blob.key for blob in storage.current().blobs()} == blobs


def test_bundle_import_during_account_deletion_is_refused(
    cast: Cast, app: Flask, tmp_path: Path
) -> None:
    furnish(cast)
    file = export(app, tmp_path)
    assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
    refused = import_(app, file, *ROOT)
    assert (refused.exit_code, "still being deleted" in refused.output) == (1, True)
    run_jobs(app)
    assert import_(app, file, *ROOT).exit_code == 0
    assert make_record(cast.alice, title="again")
