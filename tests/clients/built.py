"""The TypeScript client, built as its users build it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.processes import PROJECT

PACKAGE = PROJECT / "clients" / "typescript"


def package() -> Path:
    """The folder of the package, built from the description and its sources."""
    missing = [name for name in ("node", "npm") if not shutil.which(name)]
    if missing:
        reason = f"{' and '.join(missing)} missing: the TypeScript client is NOT tested"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(f"{reason}; `python -m tests.services install` installs them")
    with (PACKAGE / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes build it, too
        _build()
    return PACKAGE


def run(command: list[str], folder: Path, **env: str) -> str:
    """Run a program; returns what it prints."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **env},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _build() -> None:
    """Install and build the package unless that has happened since the last change."""
    built = PACKAGE / "dist" / "index.js"
    sources = [*PACKAGE.glob("*.json"), *PACKAGE.glob("src/*.ts"), PACKAGE.parent / "openapi.json"]
    changed = [one.stat().st_mtime for one in sources if one.name != "description.ts"]
    if built.exists() and built.stat().st_mtime > max(changed):
        return
    if not (PACKAGE / "node_modules" / ".bin" / "tsc").exists():
        run(["npm", "ci", "--no-audit", "--no-fund"], PACKAGE)
    run(["npm", "run", "build"], PACKAGE)
    built.touch()
