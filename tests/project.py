"""Where the project is, and what it says of its processes."""

from __future__ import annotations

import random
import socket
import sys
from contextlib import suppress
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
PROGRAMS = PROJECT / ".venv" / "bin"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="uses what only Linux has")


def procfile() -> dict[str, str]:
    """The commands of the Procfile by name."""
    lines = (PROJECT / "Procfile").read_text().splitlines()
    return {name: command.strip() for name, _, command in (line.partition(":") for line in lines)}


def free_port() -> int:
    """A port on which nobody listens; it stays free until a server starts there, and while it
    restarts.
    """
    while True:
        # Linux gives ports from 32,768 on to clients, so none of them takes this one meanwhile.
        # Random, because several test processes choose at the same time.
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
