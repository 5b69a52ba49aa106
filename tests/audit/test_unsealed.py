"""An account whose changes cannot be sealed holds up nobody but its readers."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from sqlalchemy.exc import IntegrityError, InternalError, OperationalError

from app import clock, db
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.audit import sealing
from app.audit.entries import CHANGES
from app.context import tenancy
from app.errors import Unavailable
from tests.builders import Caller, Cast, make_collection, make_record, make_user
from tests.mailbox import run_jobs


def test_account_with_unreadable_change_is_503_for_its_readers_only(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    assert cast.root.get("audit-logs").status_code == 200
    make_record(cast.alice, title="one")
    foreign = {"account_id": cast.alice.account_id, "operation": "UPDATE", "size": 1, "user_id": ""}
    foreign |= {"table_name": "col_posts", "record_id": "x", "columns": "no JSON", "id": 10**6}
    foreign |= {"salts": b"", "actor_salts": b"", "occurred_at": clock.now()}
    with app.app_context(), tenancy.as_owner(), db.transaction():
        db.connection().execute(sa.insert(sealing.PENDING).values(**foreign))
    make_record(cast.charlie, title="two")
    found = cast.root.get("audit-logs", query_string={"table_name": "col_posts"})
    assert [one["account_id"] for one in found.json["items"]] == [cast.charlie.account_id] * 2
    assert cast.root.get("audit-logs/export").status_code == 200
    report = cast.root.get("audit-logs/verify").json
    assert (report["valid"], report["unsealed"]) == (True, 2)
    for path in ("changes", "audit-logs"):
        own = {"account_id": cast.alice.account_id} if path == "audit-logs" else {}
        answer = (cast.root if own else cast.alice).get(path, query_string=own)
        assert (answer.status_code, answer.headers.get("Retry-After")) == (503, "1")
    assert cast.charlie.get("changes").status_code == 200
    assert cast.alice.get("records/posts").status_code == 200


@pytest.mark.parametrize("kind", [IntegrityError, InternalError, OperationalError])
def test_change_that_the_database_does_not_seal_is_503_until_it_does(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    make_collection(cast.root)
    id = make_record(cast.alice, title="one")["id"]
    present = cast.alice.get(f"records/posts/{id}")

    def refuse(*change: Any) -> None:
        raise kind("INSERT", {}, Exception("it takes no writes"))

    monkeypatch.setattr(sealing, "_link", refuse)
    for path in ("changes", f"records/posts/{id}/history"):
        assert cast.alice.get(path).status_code == 503
    assert cast.alice.get(f"records/posts/{id}").json == present.json
    monkeypatch.undo()
    assert [one["record_id"] for one in cast.alice.get("changes").json["items"]] == [id]


def test_user_is_erased_beside_an_account_that_cannot_be_sealed(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root)
    make_record(cast.root.acting_in("globex"), title="by root")
    make_record(cast.root.acting_in("acme"), title="by root")
    with app.app_context():
        mine = make_user(app, SYSTEM_ACCOUNT_ID, "leaver@system.example", "admin")
    leaver = Caller(app, mine)
    make_record(leaver.acting_in("acme"), title="one")
    make_record(leaver.acting_in("globex"), title="two")
    settle = sealing.settle

    def settle_others(account_id: str | None) -> None:
        if account_id in (None, cast.charlie.account_id):
            raise Unavailable
        settle(account_id)

    monkeypatch.setattr(sealing, "settle", settle_others)
    erased = cast.root.post(f"users/{leaver.id}/erase")
    assert erased.status_code == 200, erased.json
    assert erased.json["unfinished_accounts"] == [cast.charlie.account_id]
    assert entries_by(app, leaver.id) == set()  # the other account's are not sealed yet
    monkeypatch.undo()
    assert cast.root.get("audit-logs").status_code == 200
    assert entries_by(app, leaver.id) == {cast.charlie.account_id}
    run_jobs(app)
    assert entries_by(app, leaver.id) == set()
    assert cast.root.get("audit-logs/verify").json["valid"]


def entries_by(app: Flask, user_id: str) -> set[str]:
    """The accounts whose sealed changes name a user as their actor."""
    with app.app_context(), tenancy.as_owner():
        named = (CHANGES.c.user_id == user_id, CHANGES.c.actor_salts.is_not(None))
        acted = sa.select(CHANGES.c.account_id).where(*named)
        return {*db.connection().scalars(acted)}
