"""What streams cost: memory of idle ones, and the time until all subscribers have a change.

    python -m bench.realtime [--idle N] [--subscribers N] [--changes N]

One web process by deploy/gunicorn.conf.py, on SQLite and on PostgreSQL with Redis. The streams
belong to a hundred users; the collection's rule depends on the caller. A change counts from the
moment before its request to the moment when its event has been read, by this process, on the same
machine.
"""

from __future__ import annotations

import argparse
import json
import selectors
import shlex
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.product import application
from tests import builders, conftest, services
from tests.processes import environment, mebibytes, started, wait_for
from tests.project import free_port, procfile

USERS = 100
RULE = "hidden != true || created_by = @request.auth.id"
SCHEMA = [{"name": "title", "type": "text"}, {"name": "hidden", "type": "boolean"}]
LARGE, SLOW, LARGE_CHANGES = 900_000, 20, 40
PATIENCE = 20  # seconds


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Streams:
    """Clients of server-sent events in one thread."""

    def __init__(self, port: int) -> None:
        self._port, self._poller = port, selectors.DefaultSelector()
        self._received: dict[socket.socket, bytes] = {}
        self._by_descriptor: dict[int, socket.socket] = {}

    def open(self, headers: Sequence[dict[str, str]], count: int) -> None:
        """Open so many streams."""
        for number in range(count):
            sock = socket.create_connection(("127.0.0.1", self._port))
            lines = ["GET /api/v1/realtime/subscribe?collections=posts HTTP/1.1", "Host: bench"]
            lines += [f"{k}: {v}" for k, v in headers[number % len(headers)].items()]
            sock.sendall("\r\n".join([*lines, "", ""]).encode())
            self._received[sock], self._by_descriptor[sock.fileno()] = b"", sock
            self._poller.register(sock, selectors.EVENT_READ)
            if number % 50 == 49:
                self._wait_for(b"retry:", time.monotonic() + PATIENCE)
        self._wait_for(b"retry:", time.monotonic() + PATIENCE)

    def _wait_for(self, text: bytes, deadline: float) -> None:
        waiting = {sock for sock, received in self._received.items() if text not in received}
        while waiting and time.monotonic() < deadline:
            waiting -= {sock for sock in self._read() if text in self._received[sock]}
        if waiting:
            raise RuntimeError(f"{len(waiting)} streams had no {text!r}")

    def _read(self) -> list[socket.socket]:
        read = [self._by_descriptor[key.fd] for key, _ in self._poller.select(0.1)]
        for sock in read:
            self._received[sock] += sock.recv(65536)
        return read

    def delays(self, mark: str, since: float) -> list[float]:
        """The seconds until each stream has an event with this text."""
        found, waiting, text = list[float](), set(self._received), mark.encode()
        for sock in self._received:
            self._received[sock] = b""
        while waiting and time.perf_counter() < since + PATIENCE:
            for sock in self._read():
                if sock in waiting and text in self._received[sock]:
                    waiting.discard(sock)
                    found.append(time.perf_counter() - since)
        if waiting:
            raise RuntimeError(f"{len(waiting)} streams had no {mark}")
        return found

    def close(self) -> None:
        """Close all."""
        for sock in self._received:
            self._poller.unregister(sock)
            sock.close()
        self._received.clear()
        self._by_descriptor.clear()


@contextmanager
def service(database: str) -> Iterator[tuple[int, int, builders.Caller, list[dict[str, str]]]]:
    """A web process: its port and pid, somebody who writes, and the readers' headers."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings, redis_url = conftest.settings_for("sqlite", folder), ""
        if database == "postgresql":
            postgres = stack.enter_context(services.Postgres())
            name = postgres.create_database("realtime").replace("ql://", "ql+psycopg2://")
            settings = conftest.settings_for("sqlite", folder, database_url=name)
            redis_url = stack.enter_context(services.Redis()).url
        app = application(settings)
        cast = builders.make_cast(app)
        builders.make_collection(cast.root, schema=SCHEMA, view_rule=RULE)
        account = cast.alice.account_id
        users = [builders.make_user(app, account, f"u{n}@acme.example") for n in range(USERS)]
        headers = [builders.Caller(app, user).headers for user in users]
        port = free_port()
        env = environment(
            folder,
            PORT=str(port),
            WEB_CONCURRENCY="1",
            SERVICE_ENV="test",
            SERVICE_INSTANCE_DIR=str(folder),
            SERVICE_BASE_URL="http://atrium.test",
            SERVICE_DATABASE_URL=app.extensions["atrium.config"].database_url,
            SERVICE_REDIS_URL=redis_url,
            SERVICE_RATE_LIMIT="off",
        )
        log = folder / "log"
        web = stack.enter_context(started(shlex.split(procfile()["web"]), env, log))
        wait_for(f"http://127.0.0.1:{port}/ready", log)
        children = Path(f"/proc/{web.pid}/task/{web.pid}/children").read_text().split()
        yield port, int(children[0]), cast.alice, headers


def write(port: int, caller: builders.Caller, title: str) -> None:
    """Create a record."""
    headers = {**caller.headers, "Content-Type": "application/json"}
    url, body = f"http://127.0.0.1:{port}/api/v1/records/posts", json.dumps({"title": title})
    request = urllib.request.Request(url, body.encode(), headers)
    urllib.request.urlopen(request, timeout=PATIENCE).read()  # noqa: S310 - loopback


def measure(database: str, idle: int, subscribers: int, changes: int) -> None:
    """Print the figures on one database."""
    with service(database) as (port, pid, writer, headers):
        write(port, writer, "warm")
        streams = Streams(port)
        before = mebibytes(pid, "VmRSS")
        streams.open(headers, idle)
        time.sleep(3)
        say(
            f"{database}: {idle} idle streams: {mebibytes(pid, 'VmRSS'):.0f} MiB"
            f" ({before:.0f} MiB without)"
        )
        streams.close()
        time.sleep(3)
        streams.open(headers, subscribers)
        write(port, writer, "warm")
        time.sleep(1)
        delays = list[float]()
        for number in range(changes):
            mark, begun = f"mark-{number}-end", time.perf_counter()
            write(port, writer, mark)
            delays += streams.delays(mark, begun)
        quantiles = statistics.quantiles(delays, n=100)
        say(
            f"{database}: a change reaches {subscribers} subscribers:"
            f" p50 {quantiles[49] * 1000:.0f} ms, p95 {quantiles[94] * 1000:.0f} ms,"
            f" all within {max(delays) * 1000:.0f} ms"
        )
        streams.close()
        time.sleep(2)
        quiet = mebibytes(pid, "VmRSS")
        slow = Streams(port)
        slow.open(headers, SLOW)  # they read nothing any more
        for number in range(LARGE_CHANGES):
            write(port, writer, f"{number}" + "x" * LARGE)
        time.sleep(3)
        peak = mebibytes(pid, "VmHWM")
        say(
            f"{database}: {SLOW} readers that stop before {LARGE_CHANGES} changes of 0.9 MB:"
            f" {peak:.0f} MiB at most ({quiet:.0f} MiB before)"
        )
        slow.close()


def main() -> None:
    """Measure on both databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=int, default=2000)
    parser.add_argument("--subscribers", type=int, default=1000)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--database", choices=["sqlite", "postgresql"])
    arguments = parser.parse_args()
    for database in [arguments.database] if arguments.database else ["sqlite", "postgresql"]:
        measure(database, arguments.idle, arguments.subscribers, arguments.changes)


if __name__ == "__main__":
    main()
