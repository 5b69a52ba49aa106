"""On SQLite, where one writes at a time, the others wait in the order in which they came."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from sqlalchemy.exc import OperationalError

from app import db
from app.audit import append
from app.db import engine, sqlite_driver
from tests.builders import Cast, make_collection

pytestmark = pytest.mark.parametrize("database", ["sqlite"])


@contextmanager
def somebody_writing(app: Flask) -> Iterator[None]:
    """Another program in the middle of a write."""
    with app.app_context():
        path = str(db.db.engine.url.database)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.fixture
def wait_at_most(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Make new connections that wait this many seconds; other tests get none of them."""

    def reconnect() -> None:
        with app.app_context():
            engine.current_engine().dispose()

    def set_seconds(seconds: float) -> None:
        monkeypatch.setattr(sqlite_driver, "BUSY_SECONDS", seconds)
        limited = replace(app.extensions["atrium.config"], statement_seconds=seconds)
        monkeypatch.setitem(app.extensions, "atrium.config", limited)
        reconnect()

    yield set_seconds
    monkeypatch.undo()
    reconnect()


def test_sqlite_writers_take_turns_in_order(app: Flask) -> None:
    turns: list[int] = []

    def write(number: int) -> None:
        with app.app_context(), db.transaction():
            db.connection().execute(sa.text("SELECT 1"))
            turns.append(number)

    writers = [threading.Thread(target=write, args=[number]) for number in range(8)]
    with somebody_writing(app):
        for one in writers:
            one.start()
            time.sleep(0.05)
        assert turns == []
    for one in writers:
        one.join()
    assert turns == [*range(8)]


def test_sqlite_long_writer_blocks_others_no_longer_than_timeout(
    app: Flask, wait_at_most: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = sa.text("UPDATE accounts SET name = name")
    wait_at_most(0.2)
    monkeypatch.setattr(sqlite_driver, "LONG_SECONDS", 0.01)
    told = list[Exception]()

    def write_too() -> None:
        with app.app_context(), pytest.raises(OperationalError) as error, db.transaction():
            db.connection().execute(write)
        told.append(error.value)

    with app.app_context():
        other = threading.Thread(target=write_too)
        with db.transaction():
            db.connection().execute(write)
            other.start()
            time.sleep(0.05)
            db.connection().execute(write)
            other.join(5)
    assert "locked" in str(told[0])


def test_sqlite_transaction_before_first_statement_does_not_wait(app: Flask) -> None:
    with somebody_writing(app), app.app_context(), db.transaction():
        pass


ONE, MANY = {"title": "x"}, {"records": [{"title": "x"}, {"title": "y"}]}


@pytest.mark.parametrize(("path", "body"), [("posts", ONE), ("posts/batch", MANY)])
def test_sqlite_record_write_prepares_everything_before_its_turn(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch, path: str, body: Any
) -> None:
    make_collection(cast.root, schema=[{"name": "title", "type": "text"}])
    assert cast.alice.post(f"records/{path}", body).status_code == 201  # all is known now
    stored, meanwhile = append.stored_values, list[str]()

    def write_meanwhile(*about: Any) -> Any:
        if not meanwhile:
            meanwhile.append("a write")
            with somebody_writing(app):
                pass
        return stored(*about)

    monkeypatch.setattr(append, "stored_values", write_meanwhile)
    assert cast.alice.post(f"records/{path}", body).status_code == 201
    assert meanwhile == ["a write"]


def test_sqlite_transaction_that_could_not_begin_writes_nothing(
    app: Flask, wait_at_most: Callable[[float], None]
) -> None:
    rename = sa.text("UPDATE accounts SET name = 'written'")
    wait_at_most(0.1)

    def go_on_after_an_error() -> None:
        with db.transaction():
            with somebody_writing(app), pytest.raises(OperationalError):
                db.connection().execute(rename)
            db.connection().execute(rename)
            raise LookupError

    with app.app_context():
        with pytest.raises(LookupError):
            go_on_after_an_error()
        names = db.connection().execute(sa.text("SELECT name FROM accounts")).scalars().all()
    assert "written" not in names


def test_sqlite_begin_interrupted_releases_turn(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = sqlite_driver.Driver.begin

    def break_off(driver: sqlite_driver.Driver, *args: Any, **options: Any) -> None:
        begin(driver, *args, **options)
        raise KeyboardInterrupt

    def write() -> None:
        with db.transaction():
            db.connection().execute(sa.text("SELECT 1"))

    with app.app_context():
        monkeypatch.setattr(sqlite_driver.Driver, "begin", break_off)
        with pytest.raises(KeyboardInterrupt) as told:
            write()
        assert told.value.__traceback__  # which still knows of all that there was
        assert engine.current_engine().pool.checkedout() == 0
        with somebody_writing(app):
            pass


@pytest.mark.timing
def test_sqlite_waiting_writers_time_out_together(
    app: Flask, cast: Cast, wait_at_most: Callable[[float], None]
) -> None:
    make_collection(cast.root, schema=[{"name": "title", "type": "text"}])
    wait_at_most(1)
    begun = time.monotonic()
    with somebody_writing(app), ThreadPoolExecutor(5) as pool:
        told = list(pool.map(lambda _: cast.alice.post("records/posts", {"title": "x"}), range(5)))
    assert [one.status_code for one in told] == [503] * 5
    assert time.monotonic() - begun < 4
    assert cast.alice.post("records/posts", {"title": "x"}).status_code == 201
