"""A worker seals what is committed, without anybody who reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.audit import sealing
from app.audit.append import PENDING
from app.audit.chain.sealing import Head
from app.audit.entries import CHANGES
from app.context import tenancy
from app.types import JSONObject
from tests.builders import Cast, make_collection, make_record
from tests.feed.test_changes import reported


@contextmanager
def worker(app: Flask) -> Iterator[None]:
    """The loop of a worker."""
    stop, woken = threading.Event(), threading.Event()

    def work() -> None:
        with app.app_context():
            sealing.work(stop, woken)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        woken.set()
        thread.join()


def counts(app: Flask) -> tuple[int, ...]:
    """The numbers of pending and of sealed changes of records."""
    with app.app_context(), tenancy.across_accounts():
        return tuple(
            db.connection().scalar(
                sa.select(sa.func.count()).where(table.c.table_name == "col_posts")
            )
            or 0
            for table in (PENDING, CHANGES)
        )


@pytest.mark.both_databases
def test_worker_seals_changes_soon_after_their_commit(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    make_record(cast.alice, title="before it starts")
    before = counts(app)
    assert before[0] >= 1
    with worker(app):
        for number in range(3):  # idle in between
            make_record(cast.alice, title=f"{number}")
            end = time.monotonic() + 10
            while counts(app)[0]:
                assert time.monotonic() < end
                time.sleep(0.01)
    assert counts(app) == (0, sum(before) + 3)


@pytest.mark.both_databases
def test_change_of_many_large_values_is_sealed_in_batches(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root)
    text = "x" * 900_000
    made = [make_record(cast.alice, title=text)["id"] for _ in range(6)]
    link, sealed = sealing.SEALER._link, list[int]()

    def note(account_id: str, rows: list[JSONObject], head: Head) -> None:
        sealed.append(len(rows))
        link(account_id, rows, head)

    monkeypatch.setattr(sealing.SEALER, "_link", note)
    with app.app_context():
        sealing.seal(cast.alice.account_id)
    assert len(sealed) > 1
    assert all(sealed)
    assert reported(cast.alice) == [("records.create", id) for id in made]
