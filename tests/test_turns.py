"""The driver's turns to write on SQLite, and the log that all of them write to."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from app import sqlite


def test_a_writer_that_is_killed_leaves_its_turn_to_the_next(tmp_path: Path) -> None:
    file = str(tmp_path / "atrium.db")
    program = "import sys, time; from app.sqlite import Driver; one = Driver(sys.argv[1])"
    program += "; one.begin(); print('begun', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", program, file]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other, other.stdout as said:  # type: ignore[union-attr]
        assert said.readline() == b"begun\n"
        other.kill()
        with closing(sqlite.Driver(file, isolation_level=None)) as mine:
            mine.begin()
            assert mine.in_transaction


def test_the_log_is_begun_anew_while_many_write(tmp_path: Path) -> None:
    file = str(tmp_path / "atrium.db")

    def write(number: int) -> None:
        with closing(sqlite.Driver(file, isolation_level=None)) as mine:
            for _ in range(200):
                mine.begin()
                mine.executemany("INSERT INTO told VALUES (?)", [("x" * 1000,)] * 10)
                mine.commit()

    with closing(sqlite.Driver(file, isolation_level=None)) as first:
        first.execute("CREATE TABLE told (text TEXT)")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(8)))
        assert first.execute("SELECT count(*) FROM told").fetchone() == (16_000,)
        # All of it takes 24 MB; without turns the log held nearly all of that.
        assert Path(f"{file}-wal").stat().st_size < 12 * 2**20
