"""The product's own processes, started as an operator starts them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PROGRAMS = PROJECT / ".venv" / "bin"
START_SECONDS = 60
STOP_SECONDS = 30


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(folder: Path, **settings: str) -> dict[str, str]:
    """A shell's environment in which nothing but `settings` is set for the service."""
    return {
        "PATH": f"{PROGRAMS}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder),
        "SERVICE_INSTANCE_DIR": str(folder / "instance"),
        **settings,
    }


def procfile() -> dict[str, str]:
    """The commands of the Procfile by name."""
    lines = (PROJECT / "Procfile").read_text().splitlines()
    return {name: command.strip() for name, _, command in (line.partition(":") for line in lines)}


@contextmanager
def started(
    command: Sequence[str], env: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with all that it starts; what still runs at the end gets Ctrl-C's signal."""
    with log.open("a") as output:
        process = subprocess.Popen(
            command,
            cwd=PROJECT,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(STOP_SECONDS)


def wait_for(url: str, log: Path) -> None:
    """Wait until a server answers well."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=2).close()  # noqa: S310 - loopback
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(log.read_text())
