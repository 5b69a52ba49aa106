"""Changes of collections whose process is killed."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, cycle
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import Event
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import config, db
from app.collections import index_builds
from app.collections.models import Revision
from tests.builders import Caller, Cast, make_collection, make_record
from tests.collections import changer
from tests.collections.test_safety import NUMBER, TITLE, all_records, assert_agreement
from tests.processes import forked


def make_somewhere(caller: Caller, **fields: Any) -> str:
    """The id of a new record of the collection, by the name that it has at that moment."""
    for name in cycle(changer.NAMES):
        answer = caller.post(f"records/{name}", fields)
        if answer.status_code != 404:
            assert answer.status_code == 201, answer.json
            return str(answer.json["id"])
    raise AssertionError


@contextmanager
def writing(caller: Caller, writers: int, numbers: Iterator[int]) -> Iterator[list[str]]:
    """Writers at work meanwhile; at the end, the ids of all that they made."""
    stop, made = Event(), list[str]()

    def write() -> None:
        while not stop.is_set():
            made.append(make_somewhere(caller, title="new", n=next(numbers)))

    with ThreadPoolExecutor(writers) as pool:
        threads = [pool.submit(write) for _ in range(writers)]
        try:
            yield made
        finally:
            stop.set()
        for thread in threads:
            thread.result()


@contextmanager
def changing(settings: config.Config) -> Iterator[tuple[BaseProcess, Connection]]:
    """A process that changes the schema, and what it reports; killed at the end."""
    received, reports = multiprocessing.Pipe(duplex=False)
    process = forked(changer.change, settings, reports)
    reports.close()  # so that its end is noticed
    with received:
        try:
            yield process, received
        finally:
            process.kill()
            process.join()


def drop_unfinished_builds(app: Flask) -> None:
    """Do what a worker does within the hour, once the server has noticed that a builder is gone."""
    key = "(classid::bigint << 32 | objid::bigint)"
    held = f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND {key} = :key"  # noqa: S608
    with app.app_context():
        is_postgres = db.db.engine.dialect.name == "postgresql"
        while is_postgres and db.connection().scalar(sa.text(held), {"key": index_builds.LOCK}):
            time.sleep(0.02)
        index_builds.drop_unfinished({})
        db.db.session.remove()


def killed_changes(app: Flask, cast: Cast, kills: int, writers: int) -> None:
    """Kill a process that changes a schema, while this one writes, and look at what it leaves."""
    settings = app.extensions["atrium.config"]
    make_collection(cast.root, schema=[TITLE, NUMBER])
    kept = [make_record(cast.alice, title=str(n), n=n)["id"] for n in range(60)]
    before, numbers = 0, count(1_000_000)
    for _ in range(kills):
        with changing(settings) as (process, reports):
            assert reports.recv() == "ready"
            with writing(cast.alice, writers, numbers) as made:
                assert reports.recv() == "changed"
                time.sleep(random.uniform(0, 0.6))
                assert process.is_alive()
                process.kill()
                process.join()
        assert made
        kept += made
        drop_unfinished_builds(app)
        assert_agreement(app)
        (name,) = cast.root.get("collections/names").json["names"]
        stored = all_records(cast.alice, name)
        assert [record["id"] for record in stored] == sorted(kept)
        kept.append(make_somewhere(cast.alice, title="after", n=len(kept)))
        with app.app_context():
            revisions = list(db.db.session.scalars(sa.select(Revision.number)))
            db.db.session.remove()
        assert sorted(revisions) == list(range(1, len(revisions) + 1))
        assert len(revisions) > before
        before = len(revisions)


def test_schema_change_killed_leaves_definition_and_table_in_agreement(
    app: Flask, cast: Cast
) -> None:
    killed_changes(app, cast, 2, 4)


@pytest.mark.slow
def test_schema_change_killed_forty_times_stays_consistent(app: Flask, cast: Cast) -> None:
    killed_changes(app, cast, 40, 20)
