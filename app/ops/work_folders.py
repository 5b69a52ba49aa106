"""Folders for unfinished work, which vanish with it, also after their process was killed.

A folder is locked as long as its process lives. Whoever makes the next one beside it removes those
that nobody locks.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app import clock, config

PREFIX, LOCK = "atrium-backup-", "lock"
UNLOCKED_SECONDS = 3600  # by then a folder has a lock, or its process was killed in between


def parent() -> Path:
    """Return the folder of scratch databases and backups, which may be too large for /tmp."""
    path = config.current().instance_dir.resolve() / "backups"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


@contextmanager
def work_folder(parent: Path) -> Iterator[Path]:
    """A new folder that is removed at the end of the block."""
    remove_abandoned(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        with (folder / f"{LOCK}.new").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Named once it is locked: whoever finds the name unlocked knows that this one is gone.
            Path(file.name).rename(folder / LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Remove what killed processes left over."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else's
            if folder.stat().st_uid == os.geteuid() and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    try:
        with (folder / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return clock.now().timestamp() - folder.stat().st_mtime > UNLOCKED_SECONDS
