"""Node programs that tests run."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest


def installed(folder: Path) -> Path:
    """The programs of the package.json in a folder; skips the test without Node."""
    if not (shutil.which("node") and shutil.which("npm")):
        reason = "node and npm are missing"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(f"{reason}; `python -m tests.services install system` installs them")
    with (folder / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes install, too
        _install(folder)
    return folder / "node_modules" / ".bin"


def _install(folder: Path) -> None:
    wanted, done = folder / "package-lock.json", folder / "node_modules" / ".package-lock.json"
    if not done.exists() or done.stat().st_mtime < wanted.stat().st_mtime:
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(command, cwd=folder, check=True)
