"""The Python client, installed as its users install it, in an environment of its own."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import sysconfig
from pathlib import Path

from clients.description import DESCRIPTION
from tests.project import PROJECT

SOURCE = PROJECT / "clients" / "python"
FOLDER = Path(sys.prefix) / "client"
PROGRAMS = FOLDER / "bin"
STAMP = FOLDER / "installed"


def install() -> Path:
    """Install the client if its sources have changed; returns the folder of its packages."""
    with (Path(sys.prefix) / "client.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the test processes share it
        digest = _digest()
        if not STAMP.exists() or STAMP.read_text() != digest:
            _install()
            STAMP.write_text(digest)
    paths = {"base": str(FOLDER), "platbase": str(FOLDER)}
    return Path(sysconfig.get_path("purelib", vars=paths))


def _digest() -> str:
    whole = hashlib.sha256(DESCRIPTION.read_bytes())
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file() and path.suffix in (".py", ".toml", ".jinja"):
            whole.update(path.read_bytes())
    return whole.hexdigest()


def _install() -> None:
    uv, python = Path(sys.executable).with_name("uv"), PROGRAMS / "python"
    commands = [
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, FOLDER],
        [uv, "pip", "install", "--quiet", "--python", python, SOURCE],
    ]
    if any(subprocess.run(command, check=False).returncode for command in commands):
        # Where uv finds no packages, pip may: they read different settings.
        subprocess.run([sys.executable, "-m", "venv", "--clear", FOLDER], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, SOURCE], check=True)
