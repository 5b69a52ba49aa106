"""The driver's turns to write on SQLite, and the log that all of them write to."""

import fcntl
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from app.db import sqlite_driver


@contextmanager
def _connected(file: str, seconds: float = 1) -> Iterator[sqlite_driver.Driver]:
    options = {"isolation_level": None, "check_same_thread": False}
    with closing(sqlite_driver.Driver(file, timeout=seconds, **options)) as one:
        yield one


def _told(file: str) -> list[Any]:
    """What came of a write, after how many seconds; of one that waits on, nothing."""
    told = list[Any]()

    def write() -> None:
        begun = time.monotonic()
        with _connected(file) as mine:
            try:
                mine.begin()
                mine.commit()
                told.append("written")
            except sqlite3.OperationalError as error:
                told.append(str(error))
            told.append(time.monotonic() - begun)

    other = Thread(target=write, daemon=True)
    other.start()
    other.join(5)
    return told


def write(driver: sqlite_driver.Driver, rows: int) -> None:
    driver.begin()
    driver.executemany("INSERT INTO told VALUES (?)", [("x" * 1000,)] * rows)
    driver.commit()


def test_sqlite_wal_is_restarted_during_constant_writes(tmp_path: Path) -> None:
    file = str(tmp_path / "atrium.db")

    def write_often(_: int) -> None:
        with closing(sqlite_driver.Driver(file, isolation_level=None)) as mine:
            for _ in range(400):
                write(mine, 10)
                time.sleep(0.001)  # disks are slower than memory, and clients than both

    with closing(sqlite_driver.Driver(file, isolation_level=None)) as first:
        first.execute("CREATE TABLE told (text TEXT)")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write_often, range(8)))
        assert first.execute("SELECT count(*) FROM told").fetchone() == (32_000,)
        # All of it takes 64 MB; without turns the log held nearly all of that.
        assert Path(f"{file}-wal").stat().st_size < 12 * 2**20


@pytest.mark.timing
def test_sqlite_hanging_writer_blocks_others_no_longer_than_timeout(tmp_path: Path) -> None:
    file = str(tmp_path / "atrium.db")
    with _connected(file) as hung:
        hung.begin()  # and says nothing more
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(_told, [file] * 4))
    assert [told[0] for told in found] == ["database is locked"] * 4
    assert max(told[1] for told in found) < 3


def test_sqlite_second_writer_in_own_transaction_fails_without_hanging(tmp_path: Path) -> None:
    file = str(tmp_path / "atrium.db")
    with _connected(file, 0.2) as outer, _connected(file, 0.2) as inner:
        outer.begin()
        with pytest.raises(sqlite3.OperationalError):
            inner.begin()
        outer.commit()
        inner.begin()
        inner.commit()
    assert _told(file)[0] == "written"


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("before", [False, True])
def test_sqlite_turn_is_released_when_taking_or_returning_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, before: bool
) -> None:
    file, lock = str(tmp_path / "atrium.db"), fcntl.flock
    calls = list[int]()

    def break_off(descriptor: int, operation: int) -> None:
        calls.append(operation)
        is_it = len(calls) == number + 1
        if not (is_it and before):
            lock(descriptor, operation)
        if is_it:
            raise KeyboardInterrupt

    with _connected(file) as mine:
        monkeypatch.setattr(fcntl, "flock", break_off)
        try:
            mine.begin()
            mine.commit()
        except KeyboardInterrupt:
            mine.rollback()
        monkeypatch.setattr(fcntl, "flock", lock)
        assert _told(file)[0] == "written"


@pytest.mark.timing
def test_sqlite_next_writer_gets_turn_without_delay(tmp_path: Path) -> None:
    file, told = str(tmp_path / "atrium.db"), list[Any]()
    with _connected(file) as mine:
        mine.begin()
        other = Thread(target=lambda: told.extend(_told(file)))
        other.start()
        time.sleep(0.2)
        mine.commit()
        other.join(5)
    assert told[0] == "written"
    assert told[1] < 0.4  # without the lock's release it would wait for half a second


def test_sqlite_turns_are_fair(tmp_path: Path) -> None:
    file, order = str(tmp_path / "atrium.db"), list[str]()

    def write(one: sqlite_driver.Driver) -> None:
        one.begin()
        order.append("other")
        one.commit()

    def is_waited_for() -> bool:
        with Path(f"{file}-queue").open("rb") as queue:
            try:
                fcntl.flock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    with _connected(file) as mine, _connected(file) as others:
        for _ in range(20):
            mine.begin()
            other = Thread(target=write, args=[others])
            other.start()
            while not is_waited_for():
                time.sleep(0.001)
            time.sleep(0.02)
            mine.commit()
            mine.begin()
            order.append("mine")
            mine.commit()
            other.join()
    assert order == ["other", "mine"] * 20


def test_sqlite_process_checkpoints_wal_with_first_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "atrium.db"
    with _connected(str(file)) as mine:
        mine.execute("CREATE TABLE told (text TEXT)")
        monkeypatch.setattr(sqlite_driver, "_wal", sqlite_driver._Wal())
        sqlite_driver._wal.is_almost_copied = False
        write(mine, 50)
        assert file.stat().st_size < 50_000
        monkeypatch.setattr(sqlite_driver, "_wal", sqlite_driver._Wal())
        write(mine, 1)
        assert file.stat().st_size > 50_000


@pytest.mark.timing
def test_sqlite_process_exit_waits_for_writer_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "atrium.db")
    monkeypatch.setattr(sqlite_driver, "LONG_SECONDS", 0.3)
    monkeypatch.setattr(sqlite_driver.Driver, "closes_in_turn", True)
    with _connected(file) as other:
        other.begin()
        idle = [sqlite_driver.Driver(file) for _ in range(4)]
        begun = time.monotonic()
        for one in idle:
            one.close()
        assert 0.3 <= time.monotonic() - begun < 0.6
        other.rollback()
