"""PostgreSQL's client programs, which save and restore a database."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import IO

from app import config
from app.db import engine
from app.errors import AppError
from app.ops import progress

# What pg_dump and pg_restore say of each table with --verbose.
TABLE_PROCESSED = re.compile(r": (dumping contents of|processing data for) table ")
LOCK_NOT_AVAILABLE = "55P03"
IN_USE = "the database is in use: stop web and worker processes first"
TIMED_OUT = "due to statement timeout"
TABLE_LOCKED = "a table is locked: look for a schema change that hangs"


class BackupError(AppError):
    """Raised if a backup cannot be written or restored."""


def run(name: str, *arguments: str) -> str:
    """Run a program; returns what it prints. Raises BackupError."""
    command, env = program(name, *arguments)
    completed = subprocess.run(  # noqa: S603
        command, env=env, capture_output=True, text=True, errors="replace"
    )
    check(name, completed.returncode, completed.stderr)
    return completed.stdout


def run_verbosely(
    name: str, *arguments: str, label: str, total: int, output: IO[bytes] | int = subprocess.DEVNULL
) -> None:
    """Run pg_dump or pg_restore, with progress by the tables that it names. Raises BackupError."""
    command, env = program(name, "--verbose", *arguments)
    others, tables = [], 0
    with (
        progress.shown(label) as show,
        subprocess.Popen(  # noqa: S603
            command, env=env, stdout=output, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process,
    ):
        for line in process.stderr or ():
            if TABLE_PROCESSED.search(line):
                show(tables := tables + 1, max(tables, total))
            else:
                others.append(line)
    check(name, process.returncode, "".join(others))


def program(name: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and its environment. Raises BackupError."""
    executable = shutil.which(name)
    if executable is None:
        raise BackupError(f"{name} is missing: install PostgreSQL's client programs")
    # The password is no argument, as every user of the machine can see those.
    password = engine.current_engine().url.password or ""
    return [executable, *arguments], config.child_environment(PGPASSWORD=password, LC_ALL="C")


def check(name: str, status: int, stderr: str) -> None:
    """Raise BackupError, with the reason, if a program has failed."""
    if status and LOCK_NOT_AVAILABLE in stderr:
        raise BackupError(IN_USE)
    if status and TIMED_OUT in stderr:
        raise BackupError(TABLE_LOCKED)
    if status:
        raise BackupError(f"{name} failed: {_reason(stderr.splitlines())}")


def _reason(lines: Sequence[str]) -> str:
    """Return the first error; later ones are its consequences."""
    errors = [line for line in lines if "error:" in line.lower()]
    return (errors or [*lines[-1:], "no error message"])[0]
