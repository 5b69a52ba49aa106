"""A log that was cut still verifies, and nobody without the key can cut it."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flask import Flask
from sqlalchemy.exc import DBAPIError

from app import clock, db
from app.audit import checkpoints, cut, erase, exports, verify
from app.audit.entries import CHANGES, HEADS, STARTS
from app.errors import Conflict
from app.feed import changes as feed
from tests.audit.chains import entries, stand_alone, verified
from tests.builders import Cast, make_collection, make_record
from tests.logs import unguarded

alone = stand_alone()


def new_key() -> str:
    return urlsafe_b64encode(Ed25519PrivateKey.generate().private_bytes_raw()).decode()


@pytest.fixture
def acme(app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The id of an account with a key, records, and few changes in each piece."""
    settings = replace(app.extensions["atrium.config"], audit_checkpoint_key=(new_key(),))
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    monkeypatch.setattr(cut, "PIECE", 3)
    make_collection(cast.root, schema=[{"name": "title", "type": "text"}])
    for number in range(5):
        make_record(cast.alice, title=str(number))
    with app.app_context():
        yield cast.alice.account_id


def end() -> datetime:
    return clock.now() + timedelta(days=1)


def report(account_id: str) -> dict[str, Any]:
    return dict(verify.verify_all(account_id))


def test_what_is_left_verifies(acme: str, cast: Cast) -> None:
    before = len(entries(cast.root, account_id=acme))
    expected = cut.count(acme, end())
    assert 0 < expected < before
    assert cut.cut(acme, end()) == expected
    found = verified(cast.root, acme)
    assert found["valid"], found
    assert found["start"]["removed"] == expected
    told = entries(cast.root, account_id=acme, table_name="audit_log", operation="DELETE")
    assert sum(entry["extra_metadata"]["count"] for entry in told) == expected
    assert told[-1]["record_id"] == str(found["start"]["entry_id"])
    make_record(cast.alice, title="later")
    assert verified(cast.root, acme)["valid"]
    assert verified(cast.root)["valid"]


def test_it_can_be_cut_again(acme: str, cast: Cast) -> None:
    first = cut.cut(acme, end())
    make_record(cast.alice, title="later")
    second = cut.cut(acme, end())
    assert report(acme)["valid"]
    assert report(acme)["start"]["removed"] == first + second


def test_only_what_is_before_the_moment_goes(acme: str, cast: Cast) -> None:
    moment = clock.now()
    make_record(cast.alice, title="new")
    ids = sa.select(CHANGES.c.first_id).where(CHANGES.c.account_id == acme)
    newer = set(db.db.session.scalars(ids.where(CHANGES.c.occurred_at >= moment)))
    cut.cut(acme, moment)
    assert newer
    assert newer <= set(db.db.session.scalars(ids))
    assert cut.cut(acme, moment) == cut.count(acme, moment) == 0
    assert report(acme)["valid"]


def test_a_kill_between_pieces_leaves_a_log_that_verifies(
    acme: str, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, pieces = cut.count(acme, end()), iter([True, False])
    cut_piece = cut._cut_piece

    def killed(*args: Any) -> int:
        if not next(pieces):
            raise KeyboardInterrupt
        return cut_piece(*args)

    with monkeypatch.context() as patch:
        patch.setattr(cut, "_cut_piece", killed)
        with pytest.raises(KeyboardInterrupt):
            cut.cut(acme, end())
    removed = report(acme)["start"]["removed"]
    assert report(acme)["valid"]
    assert 0 < removed < total


def test_without_a_key_nothing_is_cut(app: Flask, acme: str, monkeypatch: Any) -> None:
    settings = replace(app.extensions["atrium.config"], audit_checkpoint_key=())
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    with pytest.raises(Conflict, match="SERVICE_AUDIT_CHECKPOINT_KEY"):
        cut.cut(acme, end())
    assert report(acme)["start"] is None


def test_a_broken_piece_is_not_cut(acme: str) -> None:
    with unguarded_transaction():
        first = sa.select(sa.func.min(CHANGES.c.first_id)).where(CHANGES.c.account_id == acme)
        change = sa.update(CHANGES).where(CHANGES.c.first_id == first.scalar_subquery())
        db.connection().execute(change.values(record_id="another"))
    with pytest.raises(Conflict, match="broken"):
        cut.cut(acme, end())
    assert report(acme)["start"] is None


@pytest.mark.parametrize("forgery", ["key", "checkpoint", "moved", "removed", "missing"])
def test_a_start_cannot_be_forged(acme: str, forgery: str) -> None:
    checkpoints.create(acme)
    checkpoint = next(iter(checkpoints.for_account(acme)))
    cut.cut(acme, end())
    assert report(acme)["valid"]
    mine = STARTS.c.account_id == acme
    start = checkpoints.start_of(acme) or {}
    signer = Ed25519PrivateKey.generate()
    signature = signer.sign(checkpoints.message(start)).hex()
    public = signer.public_key().public_bytes_raw().hex()
    forged: dict[str, dict[str, Any]] = {
        "key": {"signature": signature, "public_key": public},
        "checkpoint": {
            "entry_id": checkpoint["entry_id"],
            "checksum": bytes.fromhex(str(checkpoint["checksum"])),
            "created_at": clock.parse(str(checkpoint["created_at"])),
            "signature": checkpoint["signature"],
        },
        "moved": {"entry_id": start["entry_id"] + 1},
        "removed": {"removed": 0},
    }
    with db.transaction() as session:
        if forgery == "missing":
            session.execute(sa.delete(STARTS).where(mine))
        else:
            session.execute(sa.update(STARTS).where(mine).values(forged[forgery]))
    assert not report(acme)["valid"]


def test_the_database_refuses_to_delete_what_is_after_the_start(acme: str) -> None:
    cut.cut(acme, end())
    with pytest.raises(DBAPIError, match="append-only"), db.transaction() as session:
        session.execute(sa.delete(CHANGES).where(CHANGES.c.account_id == acme))


@pytest.mark.parametrize("format", ["json", "csv", "jsonl"])
def test_exports_verify_offline(acme: str, cast: Cast, tmp_path: Path, format: str) -> None:
    cut.cut(acme, end())
    query = {"account_id": acme, "format": format}
    path = tmp_path / f"export.{format}"
    path.write_bytes(cast.root.get("audit-logs/export", query_string=query).data)
    start = checkpoints.start_of(acme) or {}
    starts = [] if format == "json" else [json.loads(json.dumps(start))]
    (chain,) = alone.verify(alone.read(str(path)), starts, start["public_key"]).values()
    assert chain.fault is None
    assert verify.verify_export(exports.read(path), starts)["valid"]
    (chain,) = alone.verify(alone.read(str(path)), starts, "00" * 32).values()
    assert "start" in chain.fault
    bare = [entry for entry in exports.read(path) if not checkpoints.is_start(entry)]
    assert not verify.verify_export(bare)["valid"]
    (chain,) = alone.verify(bare).values()
    assert chain.fault


def test_values_can_be_erased_after_a_cut(acme: str, cast: Cast) -> None:
    moment = clock.now()
    made = make_record(cast.alice, title="secret")
    cut.cut(acme, moment)
    assert erase.erase_values(acme, "col_posts", made["id"]) > 0
    assert report(acme)["valid"]


def test_the_change_feed_says_that_changes_expired(acme: str) -> None:
    cut.cut(acme, end())
    last = (checkpoints.start_of(acme) or {})["entry_id"]
    assert feed.bounds(acme)[0] >= last
    head = sa.select(HEADS.c.expired_change).where(HEADS.c.account_id == acme)
    assert db.connection().scalar(head) == last


class unguarded_transaction:
    """A transaction of the database's owner."""

    def __enter__(self) -> None:
        self._stack = [db.transaction(), unguarded()]
        for manager in self._stack:
            manager.__enter__()

    def __exit__(self, *error: Any) -> None:
        for manager in reversed(self._stack):
            manager.__exit__(*error)
