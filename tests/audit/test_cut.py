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
from app.audit import checkpoints, erase, exports, sealing
from app.audit.chain import cut, signing, verify
from app.audit.entries import CHANGES, HEADS, STARTS
from app.audit.log import AUDIT
from app.errors import Conflict
from app.realtime.feed import changes as feed
from tests.audit.chains import entries, stand_alone, verified
from tests.builders import Caller, Cast, make_collection, make_record
from tests.console.browser import Browser
from tests.logs import unguarded

alone = stand_alone()


def new_key() -> str:
    return urlsafe_b64encode(Ed25519PrivateKey.generate().private_bytes_raw()).decode()


@pytest.fixture
def account(app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of an account with a key, records, and few changes in each piece."""
    settings = replace(app.extensions["atrium.config"], audit_checkpoint_key=(new_key(),))
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    monkeypatch.setattr(cut, "PIECE", 3)
    make_collection(cast.root, schema=[{"name": "title", "type": "text"}])
    for number in range(5):
        make_record(cast.alice, title=str(number))
    return cast.alice.account_id


@pytest.fixture
def acme(app: Flask, account: str) -> Iterator[str]:
    """The same, in a context of the application."""
    with app.app_context():
        yield account


def end() -> datetime:
    return clock.now() + timedelta(days=1)


def console(app: Flask, caller: Caller, path: str) -> str:
    """A page of the console, which needs a context of its own."""
    return Browser(app, caller).get(path).text


def cut_now(app: Flask, account_id: str, before: datetime | None = None) -> int:
    with app.app_context():
        return cut.cut(AUDIT, account_id, before or end())


def start_of(app: Flask, account_id: str) -> dict[str, Any]:
    with app.app_context():
        return signing.start_of(AUDIT, account_id) or {}


def report(account_id: str) -> dict[str, Any]:
    return dict(verify.verify_all(AUDIT, account_id))


def test_audit_cut_leaves_valid_chain(acme: str, cast: Cast) -> None:
    before = len(entries(cast.root, account_id=acme))
    expected = cut.count(AUDIT, acme, end())
    assert 0 < expected < before
    assert cut.cut(AUDIT, acme, end()) == expected
    found = verified(cast.root, acme)
    assert found["valid"], found
    assert found["start"]["removed"] == expected
    told = entries(cast.root, account_id=acme, table_name="audit_log", operation="DELETE")
    assert sum(entry["extra_metadata"]["count"] for entry in told) == expected
    assert told[-1]["record_id"] == str(found["start"]["entry_id"])
    make_record(cast.alice, title="later")
    assert verified(cast.root, acme)["valid"]
    assert verified(cast.root)["valid"]


def test_audit_cut_can_be_repeated(acme: str, cast: Cast) -> None:
    first = cut.cut(AUDIT, acme, end())
    make_record(cast.alice, title="later")
    second = cut.cut(AUDIT, acme, end())
    assert report(acme)["valid"]
    assert report(acme)["start"]["removed"] == first + second


def test_audit_cut_removes_only_entries_before_the_moment(acme: str, cast: Cast) -> None:
    moment = clock.now()
    make_record(cast.alice, title="new")
    sealing.settle(acme)
    ids = sa.select(CHANGES.c.first_id).where(CHANGES.c.account_id == acme)
    newer = set(db.db.session.scalars(ids.where(CHANGES.c.occurred_at >= moment)))
    cut.cut(AUDIT, acme, moment)
    assert newer
    assert newer <= set(db.db.session.scalars(ids))
    assert cut.cut(AUDIT, acme, moment) == cut.count(AUDIT, acme, moment) == 0
    assert report(acme)["valid"]


def test_audit_cut_killed_between_batches_leaves_valid_chain(
    acme: str, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, pieces = cut.count(AUDIT, acme, end()), iter([True, False])
    cut_piece = cut._cut_piece

    def killed(*args: Any) -> int:
        if not next(pieces):
            raise KeyboardInterrupt
        return cut_piece(*args)

    with monkeypatch.context() as patch:
        patch.setattr(cut, "_cut_piece", killed)
        with pytest.raises(KeyboardInterrupt):
            cut.cut(AUDIT, acme, end())
    removed = report(acme)["start"]["removed"]
    assert report(acme)["valid"]
    assert 0 < removed < total


def test_audit_cut_without_checkpoint_key_is_refused(
    app: Flask, acme: str, monkeypatch: Any
) -> None:
    settings = replace(app.extensions["atrium.config"], audit_checkpoint_key=())
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    with pytest.raises(Conflict, match="SERVICE_AUDIT_CHECKPOINT_KEY"):
        cut.cut(AUDIT, acme, end())
    assert report(acme)["start"] is None


def test_audit_cut_of_broken_chain_is_refused(acme: str) -> None:
    sealing.settle(acme)
    with unguarded_transaction():
        first = sa.select(sa.func.min(CHANGES.c.first_id)).where(CHANGES.c.account_id == acme)
        change = sa.update(CHANGES).where(CHANGES.c.first_id == first.scalar_subquery())
        db.connection().execute(change.values(record_id="another"))
    with pytest.raises(Conflict, match="broken"):
        cut.cut(AUDIT, acme, end())
    assert report(acme)["start"] is None


@pytest.mark.parametrize("forgery", ["key", "checkpoint", "moved", "removed", "missing"])
def test_audit_cut_start_cannot_be_forged(acme: str, forgery: str) -> None:
    checkpoints.create(acme)
    checkpoint = next(iter(checkpoints.for_account(acme)))
    cut.cut(AUDIT, acme, end())
    assert report(acme)["valid"]
    mine = STARTS.c.account_id == acme
    start = signing.start_of(AUDIT, acme) or {}
    signer = Ed25519PrivateKey.generate()
    signature = signer.sign(signing.message(start)).hex()
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


def test_audit_delete_after_cut_start_is_refused_by_database(acme: str) -> None:
    cut.cut(AUDIT, acme, end())
    with pytest.raises(DBAPIError, match="append-only"), db.transaction() as session:
        session.execute(sa.delete(CHANGES).where(CHANGES.c.account_id == acme))


@pytest.mark.parametrize("format", ["json", "csv", "jsonl"])
def test_audit_export_after_cut_verifies_offline(
    acme: str, cast: Cast, tmp_path: Path, format: str
) -> None:
    cut.cut(AUDIT, acme, end())
    query = {"account_id": acme, "format": format}
    path = tmp_path / f"export.{format}"
    path.write_bytes(cast.root.get("audit-logs/export", query_string=query).data)
    start = signing.start_of(AUDIT, acme) or {}
    starts = [] if format == "json" else [json.loads(json.dumps(start))]
    (chain,) = alone.verify(alone.read(str(path)), starts, start["public_key"]).values()
    assert chain.fault is None
    assert verify.verify_export(exports.read(path), starts)["valid"]
    (chain,) = alone.verify(alone.read(str(path)), starts, "00" * 32).values()
    assert "start" in chain.fault
    bare = [entry for entry in exports.read(path) if not signing.is_start(entry)]
    assert not verify.verify_export(bare)["valid"]
    (chain,) = alone.verify(bare).values()
    assert chain.fault


def test_audit_erasure_works_after_cut(acme: str, cast: Cast) -> None:
    moment = clock.now()
    made = make_record(cast.alice, title="secret")
    cut.cut(AUDIT, acme, moment)
    assert erase.erase_values(acme, "col_posts", made["id"]) > 0
    assert report(acme)["valid"]


def test_change_feed_after_audit_cut_reports_expired_changes(acme: str) -> None:
    cut.cut(AUDIT, acme, end())
    last = (signing.start_of(AUDIT, acme) or {})["entry_id"]
    assert feed.bounds(acme)[0] >= last
    head = sa.select(HEADS.c.expired_change).where(HEADS.c.account_id == acme)
    assert db.connection().scalar(head) == last


def test_record_history_after_audit_cut_has_truncated_before(
    app: Flask, account: str, cast: Cast
) -> None:
    made = make_record(cast.alice, title="one")
    path = f"records/posts/{made['id']}"
    (created,) = cast.alice.get(f"{path}/history").json["items"]
    cast.alice.patch(path, {"title": "two"})
    assert cast.alice.get(f"{path}/history").json["truncated_before"] is None
    moment = clock.now()
    cast.alice.patch(path, {"title": "three"})
    cast.alice.patch(path, {"title": "four"})
    cut_now(app, account, moment)
    later = make_record(cast.alice, title="later")
    assert cast.alice.get(f"records/posts/{later['id']}/history").json["truncated_before"] is None
    found = cast.alice.get(f"{path}/history").json
    _, three = found["items"]
    assert (found["total"], found["truncated_before"]) == (2, three["occurred_at"])
    gone = {"as_of": created["occurred_at"]}
    for answer in (
        cast.alice.get(path, query_string=gone),
        cast.alice.post(f"{path}/restore", {"audit_id": created["audit_id"]}),
    ):
        assert (answer.status_code, answer.json["error"]) == (404, "history_truncated")
        assert answer.json["truncated_before"] == three["occurred_at"]
    was = cast.alice.get(path, query_string={"as_of": three["occurred_at"]})
    assert was.json["title"] == "three"
    cast.alice.delete(path)
    assert cast.charlie.get(path, query_string=gone).json["error"] == "not_found"
    assert cast.alice.get(path, query_string=gone).json["error"] == "history_truncated"
    assert cast.alice.get(f"{path}/history").json["truncated_before"] == three["occurred_at"]
    for id, is_cut in ((made["id"], True), (later["id"], False)):
        page = console(app, cast.alice, f"records/{account}/posts/{id}/history")
        assert ("were removed by retention" in page) == is_cut


def test_record_restore_after_audit_cut(acme: str, cast: Cast) -> None:
    path = f"records/posts/{make_record(cast.alice, title='one')['id']}"
    moment = clock.now()
    cast.alice.patch(path, {"title": "two"})
    cast.alice.patch(path, {"title": "three"})
    cut.cut(AUDIT, acme, moment)
    _, two = cast.alice.get(f"{path}/history").json["items"]
    restored = cast.alice.post(f"{path}/restore", {"audit_id": two["audit_id"]})
    assert (restored.status_code, restored.json["title"]) == (200, "two")
    missing = cast.alice.post(f"{path}/restore", {"audit_id": 2**62})
    assert (missing.status_code, missing.json["error"]) == (404, "not_found")


def test_console_audit_page_shows_where_log_begins(app: Flask, account: str, cast: Cast) -> None:
    assert "The log begins after" not in console(app, cast.alice, "audit")
    assert cast.alice.put("account/retention", {"audit_days": 400}).status_code == 200
    removed = cut_now(app, account)
    start = start_of(app, account)
    for caller, path in ((cast.alice, "audit"), (cast.root, f"audit?account={cast.alice.slug}")):
        page = console(app, caller, path)
        assert f"The log begins after entry {start['entry_id']}" in page
        assert f"{removed} older entries" in page
        assert "after 400 days" in page
        assert "signature valid" in page
    assert str(start["entry_id"]) in console(app, cast.root, "audit/chains")
    with app.app_context(), db.transaction() as session:
        session.execute(sa.update(STARTS).values(removed=0))
    for caller, path in ((cast.alice, "audit"), (cast.root, "audit/chains")):
        assert "signature invalid" in console(app, caller, path)


class unguarded_transaction:
    """A transaction of the database's owner."""

    def __enter__(self) -> None:
        self._stack = [db.transaction(), unguarded()]
        for manager in self._stack:
            manager.__enter__()

    def __exit__(self, *error: Any) -> None:
        for manager in reversed(self._stack):
            manager.__exit__(*error)
