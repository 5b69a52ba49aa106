"""Generates load on a local server: prepared requests over keep-alive connections."""

from __future__ import annotations

import os
import selectors
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
LARGEST_READ = 1 << 18
LEAST = 8  # answers, however slow
LAST_CHUNK = b"\r\n0\r\n\r\n"
SESSION = 3  # which field of a process says so: those of a server have one, but not one group


@dataclass
class Figures:
    """The figures of a server under load."""

    rate: float  # requests a second
    p50: float  # milliseconds
    p99: float
    cpu: float  # milliseconds of the server's processes for a request


def middle(found: Sequence[Figures]) -> Figures:
    """The median of each figure."""
    return Figures(*map(statistics.median, zip(*map(astuple, found), strict=True)))


class Connection:
    """A connection with one request at a time; raises LookupError for an error response."""

    def __init__(self, port: int, request: Callable[[], bytes]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = request
        self.begin()

    def begin(self) -> None:
        """Send the next request."""
        self.answer, self.length, self.end = b"", -1, b""
        self.begun = time.perf_counter()
        self.socket.sendall(self.request())

    def read(self) -> bool:
        """Receive data; returns whether the response is complete."""
        self.answer += self.socket.recv(LARGEST_READ)
        if self.length < 0 and (end := self.answer.find(b"\r\n\r\n")) > 0:
            if self.answer[9:10] != b"2":
                raise LookupError(self.answer[:2000].decode())
            head = self.answer[:end].lower()
            _, _, length = head.partition(b"content-length:")
            self.length = end + 4 + int(length.partition(b"\r\n")[0] or 0)
            self.end = b"" if length else LAST_CHUNK
        return 0 < self.length <= len(self.answer) and self.answer.endswith(self.end)


def run(
    port: int, session: int, request: Callable[[], bytes], count: int, seconds: float
) -> Figures:
    """Keep `count` connections busy for some seconds; `session` are the server's processes."""
    connections = [Connection(port, request) for _ in range(count)]
    times: list[float] = []
    spent, begun = cpu_of(session), time.perf_counter()
    with selectors.DefaultSelector() as waiting:
        for one in connections:
            waiting.register(one.socket, selectors.EVENT_READ, one)
        while (now := time.perf_counter()) < begun + seconds or len(times) < LEAST:
            for key, _ in waiting.select(0.1):
                if key.data.read():
                    times.append(time.perf_counter() - key.data.begun)
                    key.data.begin()
    spent = cpu_of(session) - spent
    for one in connections:
        one.socket.close()
    cuts = statistics.quantiles(times, n=100)
    in_ms = 1000 / len(times)
    return Figures(len(times) / (now - begun), cuts[49] * 1000, cuts[98] * 1000, spent * in_ms)


def cpu_of(session: int) -> float:
    """The CPU seconds of a session's processes so far."""
    ticks = 0
    for fields in map(_stat_of, _processes()):
        if fields and int(fields[SESSION]) == session:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def pss_of(session: int) -> list[float]:
    """Proportional memory (PSS, MiB) of each process of a session, largest first."""
    found = []
    for process in _processes():
        fields = _stat_of(process)
        if fields and int(fields[SESSION]) == session:
            lines = (process / "smaps_rollup").read_text().splitlines()
            kib = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            found.append(kib / 1024)
    return sorted(found, reverse=True)


def _processes() -> list[Path]:
    return [one for one in Path("/proc").iterdir() if one.name.isdigit()]


def _stat_of(process: Path) -> list[str]:
    # From the state on: the name before it may contain anything.
    try:
        return (process / "stat").read_text().rpartition(") ")[2].split()
    except OSError:  # it has ended
        return []
