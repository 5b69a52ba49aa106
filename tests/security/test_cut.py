"""A security log that was cut still verifies, and loses nothing that a receiver has not got."""

from __future__ import annotations

import json
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
from app.audit.chain import cut, signing
from app.audit.security_log import sealing, service
from app.audit.security_log.entries import EVENTS, HEADS, STARTS
from app.audit.security_log.log import SECURITY
from app.context import tenancy
from app.errors import Conflict
from tests.audit.chains import stand_alone
from tests.audit.test_cut import new_key
from tests.builders import Cast
from tests.console.browser import Browser
from tests.logs import unguarded
from tests.receivers import receiving
from tests.security.reading import events
from tests.security.test_streams import STREAM, ZEROS, proved, send, start

alone = stand_alone()
LOG = "account/security-log"


@pytest.fixture
def account(app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of an account with a key, events, and few of them in each piece."""
    settings = replace(app.extensions["atrium.config"], audit_checkpoint_key=(new_key(),))
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    monkeypatch.setattr(cut, "PIECE", 3)
    for number in range(7):
        cast.alice.post("groups", {"name": str(number)})
    events(cast.alice)
    return cast.alice.account_id


@pytest.fixture
def acme(app: Flask, account: str) -> Iterator[str]:
    """The same, in a context of the application."""
    with app.app_context(), tenancy.in_account(account):
        yield account


def end() -> datetime:
    return clock.now() + timedelta(days=1)


def cut_now(app: Flask, account_id: str) -> int:
    with app.app_context():
        return cut.cut(SECURITY, account_id, end())


def report(account_id: str) -> dict[str, Any]:
    return dict(service.verify_chain(account_id))


def numbers(account_id: str) -> list[int]:
    query = sa.select(EVENTS.c.number).where(EVENTS.c.account_id == account_id)
    return list(db.connection().scalars(query.order_by(EVENTS.c.number)))


def test_security_log_cut_leaves_valid_chain(app: Flask, account: str, cast: Cast) -> None:
    before = events(cast.alice)
    assert cast.alice.put("account/retention", {"security_days": 400}).status_code == 200
    with app.app_context(), tenancy.in_account(account):
        sealing.seal(account)
        expected = cut.count(SECURITY, account, end())
    assert expected == len(before)  # but for the newest one, the change of the settings
    assert cut_now(app, account) == expected
    found = cast.alice.get(f"{LOG}/verify").json
    assert found["valid"], found
    assert found["start"]["removed"] == found["start"]["entry_id"] == expected
    assert found["start"]["account_id"] == f"{account}/security"
    cuts = events(cast.alice, kind="log.cut")
    assert sum(event["details"]["count"] for event in cuts) == expected
    assert cuts[-1]["target_id"] == str(expected)
    cast.alice.post("groups", {"name": "later"})
    second = cut_now(app, account)
    found = cast.alice.get(f"{LOG}/verify").json
    assert (found["valid"], found["start"]["removed"]) == (True, expected + second)
    assert found["checkpoint"]["entry_id"] == found["head"]["id"]
    run = app.test_cli_runner().invoke(args=["audit", "verify-security"])
    assert f"{account}/security: valid up to {found['head']['id']}" in run.output
    page = Browser(app, cast.alice).get(f"security-log/{account}").text
    assert f"The log begins after entry {expected + second}" in page
    assert "after 400 days" in page
    assert "signature valid" in page


def test_security_log_cut_removes_only_events_before_the_moment(acme: str) -> None:
    moment = db.connection().scalar(
        sa.select(EVENTS.c.occurred_at).where(EVENTS.c.account_id == acme, EVENTS.c.number == 5)
    )
    assert cut.count(SECURITY, acme, moment) == cut.cut(SECURITY, acme, moment) == 4
    assert numbers(acme)[0] == 5
    assert cut.cut(SECURITY, acme, moment) == cut.count(SECURITY, acme, moment) == 0
    assert report(acme)["valid"]


def test_security_log_cut_killed_between_batches_leaves_valid_chain(
    acme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = iter([True, False])
    cut_piece = cut._cut_piece

    def killed(*args: Any) -> int:
        if not next(pieces):
            raise KeyboardInterrupt
        return cut_piece(*args)

    with monkeypatch.context() as patch:
        patch.setattr(cut, "_cut_piece", killed)
        with pytest.raises(KeyboardInterrupt):
            cut.cut(SECURITY, acme, end())
    assert report(acme)["valid"]
    assert report(acme)["start"]["removed"] == 3


def test_security_log_cut_without_checkpoint_key_is_refused(
    app: Flask, acme: str, monkeypatch: Any
) -> None:
    settings = replace(app.extensions["atrium.config"], audit_checkpoint_key=())
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    with pytest.raises(Conflict, match="SERVICE_AUDIT_CHECKPOINT_KEY"):
        cut.cut(SECURITY, acme, end())
    assert numbers(acme)[0] == 1


@pytest.mark.parametrize("broken", ["the piece", "the signed end"])
def test_security_log_cut_of_broken_chain_is_refused(acme: str, broken: str) -> None:
    assert report(acme)["valid"]
    with db.transaction(), unguarded():
        own = EVENTS.c.account_id == acme
        if broken == "the piece":
            edit = sa.update(EVENTS).where(own, EVENTS.c.number == 2).values(kind="x")
            db.connection().execute(edit)
        else:
            query = sa.select(EVENTS).where(own).order_by(EVENTS.c.number)
            rows = [dict(row) for row in db.connection().execute(query).mappings()]
            db.connection().execute(sa.delete(EVENTS).where(own))
            rewritten = [row | {"path": "/other"} for row in rows]
            sealing.append(acme, rewritten, 0, ZEROS)
    with pytest.raises(Conflict):
        cut.cut(SECURITY, acme, end())
    assert signing.start_of(SECURITY, acme) is None
    assert not report(acme)["valid"]


@pytest.mark.parametrize("forgery", ["key", "checkpoint", "moved", "removed", "missing"])
def test_security_log_cut_start_cannot_be_forged(acme: str, forgery: str) -> None:
    checkpoint = report(acme)["checkpoint"]
    cut.cut(SECURITY, acme, end())
    assert report(acme)["valid"]
    mine = STARTS.c.account_id == acme
    signed = signing.start_of(SECURITY, acme) or {}
    signer = Ed25519PrivateKey.generate()
    forged: dict[str, dict[str, Any]] = {
        "key": {
            "signature": signer.sign(signing.message(signed)).hex(),
            "public_key": signer.public_key().public_bytes_raw().hex(),
        },
        "checkpoint": {
            "entry_id": checkpoint["entry_id"],
            "checksum": bytes.fromhex(checkpoint["checksum"]),
            "created_at": clock.parse(checkpoint["created_at"]),
            "signature": checkpoint["signature"],
        },
        "moved": {"entry_id": signed["entry_id"] + 1},
        "removed": {"removed": 0},
    }
    with db.transaction() as session:
        if forgery == "missing":
            session.execute(sa.delete(STARTS).where(mine))
        else:
            session.execute(sa.update(STARTS).where(mine).values(forged[forgery]))
    assert not report(acme)["valid"]


def test_security_log_delete_after_cut_start_is_refused_by_database(acme: str) -> None:
    cut.cut(SECURITY, acme, end())
    with pytest.raises(DBAPIError, match="append-only"), db.transaction() as session:
        session.execute(sa.delete(EVENTS).where(EVENTS.c.account_id == acme))


@pytest.mark.parametrize("format", ["json", "csv", "jsonl"])
def test_security_log_export_after_cut_verifies_offline(
    app: Flask, account: str, cast: Cast, tmp_path: Path, format: str
) -> None:
    cut_now(app, account)
    path = tmp_path / f"export.{format}"
    path.write_bytes(cast.alice.get(f"{LOG}/export?format={format}").data)
    signed = cast.alice.get(f"{LOG}/verify").json["start"]
    given = [] if format == "json" else [json.loads(json.dumps(signed))]
    (chain,) = alone.verify(alone.read(str(path)), given, signed["public_key"]).values()
    assert chain.fault is None
    (chain,) = alone.verify(alone.read(str(path)), given, "00" * 32).values()
    assert "start" in chain.fault


def test_security_log_cut_keeps_events_not_confirmed_by_receiver(
    app: Flask, account: str, cast: Cast
) -> None:
    confirmed = 4
    with receiving(lambda request: (503, "no")) as receiver:
        start(cast.alice, receiver.url, after=confirmed)
        assert cut_now(app, account) == confirmed
        receiver.answer = lambda request: (200, "ok")
        count = len(receiver.requests)
        send(app, later=4000)
        first = receiver.requests[count].json
        assert (first["first_number"], first.get("start")) == (confirmed + 1, None)
        assert cut_now(app, account) > 0


def test_security_log_batch_after_cut_has_signed_start(
    app: Flask, account: str, cast: Cast
) -> None:
    with receiving() as receiver:
        start(cast.alice, receiver.url)
        send(app)
        sent = cast.alice.get(STREAM).json["sent_number"]
        start(cast.alice, receiver.url, is_enabled=False)
        for number in range(4):
            cast.alice.post("groups", {"name": f"later {number}"})
        cut_now(app, account)
        count = len(receiver.requests)
        start(cast.alice, receiver.url)
        send(app, later=4000)
        batch = receiver.requests[count].json
        signed = batch["start"]
        assert signed["entry_id"] > sent
        assert signing.is_signed(signing.message(signed), signed["public_key"], signed["signature"])
        after = {"after": signed["entry_id"], "checksum": signed["checksum"]}
        found = proved(receiver.requests[count:], **after)
        assert [entry["id"] for entry in found] == [one["number"] for one in events(cast.alice)]


def test_security_log_cut_keeps_head_and_other_accounts(
    app: Flask, account: str, cast: Cast
) -> None:
    cast.charlie.post("groups", {"name": "theirs"})
    theirs = events(cast.charlie)
    cut_now(app, account)
    assert events(cast.charlie)[: len(theirs)] == theirs
    with app.app_context(), tenancy.in_account(account):
        head = sa.select(HEADS.c.number).where(HEADS.c.account_id == account)
        assert numbers(account)[-1] == db.connection().scalar(head)
