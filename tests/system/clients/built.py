"""The TypeScript client, built as its users build it."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

from tests import npm
from tests.project import PROJECT

PACKAGE = PROJECT / "clients" / "typescript"


def package() -> Path:
    """The folder of the package, built from the description and its sources."""
    npm.installed(PACKAGE)
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
    """Build the package unless that has happened since the last change."""
    built = PACKAGE / "dist" / "index.js"
    sources = [*PACKAGE.glob("*.json"), *PACKAGE.glob("src/*.ts"), PACKAGE.parent / "openapi.json"]
    changed = [one.stat().st_mtime for one in sources if one.name != "description.ts"]
    if built.exists() and built.stat().st_mtime > max(changed):
        return
    run(["npm", "run", "build"], PACKAGE)
    built.touch()
