"""Writers of SQLite whose process is killed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from app.db import sqlite_driver
from tests.test_turns import write


def test_sqlite_writer_killed_releases_its_turn(tmp_path: Path) -> None:
    file = str(tmp_path / "atrium.db")
    program = "import sys, time; from app.db.sqlite_driver import Driver; one = Driver(sys.argv[1])"
    program += "; one.begin(); print('begun', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", program, file]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other, other.stdout as said:
        assert said.readline() == b"begun\n"
        other.kill()
        with closing(sqlite_driver.Driver(file, isolation_level=None)) as mine:
            mine.begin()
            assert mine.in_transaction


def test_sqlite_wal_is_checkpointed_when_unused_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "atrium.db")
    # What SQLite locks while it copies; of the own process it would not keep anybody out.
    program = "import fcntl, sys; shared = open(sys.argv[1] + '-shm', 'r+b')"
    program += "; fcntl.lockf(shared, fcntl.LOCK_EX, 1, 121); print(flush=True); input()"
    command = [sys.executable, "-c", program, file]
    monkeypatch.setattr(sqlite_driver, "_wal", sqlite_driver._Wal())
    with closing(sqlite_driver.Driver(file, isolation_level=None)) as mine:
        mine.execute("CREATE TABLE told (text TEXT)")
        write(mine, sqlite_driver.WAL_ROWS // 2)
        sqlite_driver._wal.is_almost_copied = True
        with subprocess.Popen(command, stdin=-1, stdout=subprocess.PIPE) as other:
            assert other.stdout
            other.stdout.readline()
            assert mine.execute("PRAGMA wal_checkpoint").fetchone() == (1, -1, -1)
            write(mine, 1)
            other.communicate(b"\n")
        write(mine, 1)  # copies all of it, so that the next one begins anew
        write(mine, 1)
        assert mine.execute("PRAGMA wal_checkpoint").fetchone()[1] < 100
