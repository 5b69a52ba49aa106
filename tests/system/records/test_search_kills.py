"""Processes are killed while they write records, or store words of all: none is left behind."""

from __future__ import annotations

import os
import random
import signal
import time
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import create_app
from app.collections import definitions, search_words
from app.config import Config
from app.context import tenancy
from app.db import db
from tests.builders import Caller, Cast, make_collection
from tests.conftest import WHOLE
from tests.mailbox import run_jobs
from tests.processes import forked
from tests.records.test_search import path_of
from tests.records.test_search_index import (
    PLAIN,
    SEARCHABLE,
    SEARCHED,
    add_many,
    check_index,
    collection,
)

PIECE = 5


def write(settings: Config, number: int, token: dict[str, str]) -> None:
    """Create, change and delete records, one by one and many at once."""
    alice, ids = Caller(create_app(settings), **token), list[str]()
    for n in count():
        made = alice.post("records/notes", {"title": f"w{number}n{n} tail"}).json
        ids.append(made["id"])
        if n % 3 == 2:
            alice.patch(f"records/notes/{ids[-2]}", {"title": f"w{number}c{n} head"})
        if n % 5 == 4:
            alice.delete(f"records/notes/{ids[-4]}")
        if n % 7 == 6:
            rows = [{"title": f"b{number}x{n}y{place}"} for place in range(20)]
            alice.post("records/notes/batch", {"records": rows})


@WHOLE
def test_index_equals_records_whoever_is_killed(app: Flask, cast: Cast, whole: bool) -> None:
    field = {"name": "title", "type": "text", "options": SEARCHED}
    make_collection(cast.root, "notes", [field])
    settings, chosen = app.extensions["atrium.config"], random.Random(5)
    total = 0
    for number in range(200 if whole else 10):
        writer = forked(write, settings, number, cast.alice.headers)
        while (now := cast.alice.get("records/notes?limit=1").json["total"]) == total:
            time.sleep(0.02)
        time.sleep(chosen.uniform(0, 0.2))
        writer.kill()
        writer.join()
        assert writer.exitcode == -signal.SIGKILL
        total = max(now, cast.alice.get("records/notes?limit=1").json["total"])
    assert len(check_index(app)) > 30
    page = cast.alice.get("records/notes?limit=100").json["items"]
    for one in page:
        query = {"search": f'"{one["title"]}"'}
        found = cast.alice.get("records/notes", query_string=query).json["items"]
        assert [item["id"] for item in found] == [one["id"]]


def store_words(settings: Config, payload: dict[str, str], pieces: int) -> None:
    """Run the job, which is killed in the transaction of a piece."""
    store, calls = search_words._store_next, count(1)

    def store_and_die(*args: Any) -> Any:
        result = store(*args)
        if next(calls) == pieces:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    search_words.PIECE, search_words.PIECES_BETWEEN_REPORTS = PIECE, 2
    search_words._store_next = store_and_die
    with create_app(settings).app_context():
        search_words.finish(payload)


@WHOLE
def test_words_are_stored_whoever_is_killed(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    monkeypatch.setattr(search_words, "AT_ONCE", 10)
    make_collection(cast.root, "notes", PLAIN)
    add_many(cast.alice, 10_000 if whole else 1000)
    answer = cast.root.patch(path_of(cast.root, "notes"), {"schema": SEARCHABLE}).json
    payload, chosen = {"collection_id": answer["id"]}, random.Random(5)

    def lacking() -> int:
        with app.app_context(), tenancy.as_owner():
            table = definitions.get("notes").table
            number = sa.select(sa.func.count()).where(table.c._words_title.is_(None))
            found = db.session.connection().scalar(number)
            db.session.rollback()
            return found or 0

    before = lacking()
    for _ in range(100 if whole else 5):
        pieces = chosen.randrange(2, 15)
        job = forked(store_words, app.extensions["atrium.config"], payload, pieces)
        job.join()
        assert job.exitcode == -signal.SIGKILL
        left = lacking()
        assert left == before - PIECE * (pieces - 1)  # it goes on where the last one was
        progress = collection(cast.root)["indexing"]
        assert progress["total"] - left >= progress["done"] >= 10
        before = left
    run_jobs(app)
    assert "indexing" not in collection(cast.root)
    assert len(check_index(app)) == (10_000 if whole else 1000)
