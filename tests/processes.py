"""The product's own processes, started as an operator starts them."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from flask.cli import main

from tests.project import PROGRAMS, PROJECT

START_SECONDS = 60
STOP_SECONDS = 30


def environment(folder: Path, **settings: str) -> dict[str, str]:
    """An environment in which only `settings` are set for the service."""
    return {
        "PATH": f"{PROGRAMS}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder),
        "SERVICE_INSTANCE_DIR": str(folder / "instance"),
        "SERVICE_LOG_FORMAT": "json",
        **settings,
    }


def stock_command() -> list[str]:
    """The command of RQ's own worker that docs/deployment.md prints."""
    text = (PROJECT / "docs" / "deployment.md").read_text()
    (command,) = re.findall(r"^    (rq worker .*)$", text, re.MULTILINE)
    return ["sh", "-c", f"exec {command}"]


def unit(name: str, instance: str) -> list[str]:
    """The command of a systemd unit, as it runs from this folder."""
    lines = (PROJECT / "deploy" / "systemd" / name).read_text().splitlines()
    command = next(line for line in lines if line.startswith("ExecStart="))
    command = command.removeprefix("ExecStart=").replace("/opt/atrium", str(PROJECT))
    return command.replace("%i", instance).split()


# Becomes a command that has sockets as systemd passes them: from descriptor 3 on. They make room
# first, as the place of one may be another's descriptor.
ACTIVATED = """
import fcntl, os, sys

passed, *command = sys.argv[1:]
moved = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 100) for one in passed.split(",")]
for place, one in enumerate(moved, 3):
    os.dup2(one, place)
    os.close(one)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(moved)))
os.execvp(command[0], command)
"""


def _start(
    command: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    sockets: Sequence[socket.socket] = (),
) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, so that its children get its signals."""
    passed = [one.fileno() for one in sockets]
    if passed:
        command = [sys.executable, "-c", ACTIVATED, ",".join(map(str, passed)), *command]
    with log.open("a") as output:
        return subprocess.Popen(
            command,
            cwd=PROJECT,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=passed,
        )


@contextmanager
def started(
    command: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    sockets: Sequence[socket.socket] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its children; those that still run at the end get SIGINT.

    It gets listening sockets as systemd passes them.
    """
    process = _start(command, env, log, sockets)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(STOP_SECONDS)


def forked(target: Callable[..., None], *args: Any) -> BaseProcess:
    """A fork of a preloaded process, as imports take longer than the rest."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded", "pytest"])
    process = context.Process(target=target, args=args)
    process.start()
    return process


class Restartable(ABC):
    """A process that can be killed and started again."""

    def __init__(self) -> None:
        self.start()

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def kill(self) -> None:
        """End it, with no chance to tidy up."""

    def crash(self) -> None:
        """Kill it, and start it again."""
        self.kill()
        self.start()


class Process(Restartable):
    """A program with its children."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._command, self._env, self._log = command, env, log
        super().__init__()

    def start(self) -> None:
        self._running = _start(self._command, self._env, self._log)

    def kill(self) -> None:
        os.kill(self._running.pid, signal.SIGSTOP)  # it must not start another one meanwhile
        for group in (*self.children(), self._running.pid):  # RQ's jobs are groups of their own
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self._running.wait()

    def children(self) -> list[int]:
        """The processes that it started."""
        pid = self._running.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Worker(Restartable):
    """`bin/atrium worker` with an operator's settings: a fork of a preloaded process."""

    def __init__(self, env: Mapping[str, str], log: Path) -> None:
        self._env, self._log = dict(env), log
        super().__init__()

    def start(self) -> None:
        self._running = forked(_work, self._env, self._log)

    def stop(self) -> None:
        """Have it end what it has begun."""
        self._running.terminate()
        self._running.join(STOP_SECONDS)
        is_stopped = not self._running.is_alive()
        self.kill()  # or it would do the work of other tests
        assert is_stopped, "the worker does not stop"

    def kill(self) -> None:
        self._running.kill()
        self._running.join()


def _work(env: dict[str, str], log: Path) -> None:
    with log.open("a") as output:
        for number in (1, 2):
            os.dup2(output.fileno(), number)
    os.chdir(PROJECT)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["flask", "--app", "wsgi", "worker"]
    main()


def mebibytes(pid: int, line: str) -> float:
    """A process's memory as Linux reports it: `VmRSS` now, `VmHWM` at its peak.

    Not getrusage: its peak counts what the parent had when it started the process.
    """
    for text in Path(f"/proc/{pid}/status").read_text().splitlines():
        if text.startswith(f"{line}:"):
            return int(text.split()[1]) / 1024
    raise AssertionError(line)


def wait_for(url: str, log: Path) -> None:
    """Wait until a server responds successfully."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=2).close()  # noqa: S310 - loopback
        except OSError:
            time.sleep(0.03)
        else:
            return
    raise AssertionError(log.read_text())


def post(url: str, body: Mapping[str, Any]) -> Any:
    """Send JSON; returns the JSON of the answer."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - loopback
        return json.load(answer)


def wait_for_mail(outbox: Path) -> str:
    """Wait for the first saved mail."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for mail in outbox.glob("*.eml"):
            return mail.read_text()
        time.sleep(0.02)
    raise AssertionError("no mail came")
