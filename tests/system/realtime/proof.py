"""Writers, readers of every kind, and faults: what readers must have received in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from itertools import groupby, pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.builders import Caller, make_cast, make_collection
from tests.conftest import make_app, settings_for
from tests.processes import environment, forked, wait_for
from tests.project import free_port
from tests.realtime.clients import Events, Socket
from tests.services import Postgres, Redis
from tests.system.webhooks.faults import Web

SCHEMA = [
    {"name": "mark", "type": "text"},
    {"name": "writer", "type": "number"},
    {"name": "open", "type": "boolean"},
]
RULE = "open = true || created_by = @request.auth.id"
RETRY_SECONDS = 0.1
SETTLE_SECONDS = 120
Seen = tuple[str, str, str]
"""Operation, record and mark (none for a deletion)."""


class Writer:
    """Writes records one after the other, each change repeated until it is confirmed.

    A repeated creation is answered by its idempotency key, and a repeated update changes nothing:
    each change happens exactly once.
    """

    def __init__(self, address: str, headers: dict[str, str], number: int, log: Path) -> None:
        self._address, self._headers, self._number = address, headers, number
        self._log = log

    def run(self, changes: int) -> None:
        """Make so many changes, and note them in order."""
        chance = random.Random(self._number)
        done = list[tuple[str, str, str, bool]]()
        while len(done) < changes:
            open_ = chance.random() < 0.7
            mark = f"{self._number}-{len(done)}"
            body = {"mark": mark, "writer": self._number, "open": open_}
            id = self._send("POST", "records/posts", body, mark)["id"]
            done.append(("create", id, mark, open_))
            for _ in range(chance.choice((0, 1, 2))):
                open_, mark = chance.random() < 0.7, f"{self._number}-{len(done)}"
                self._send("PATCH", f"records/posts/{id}", {"mark": mark, "open": open_})
                done.append(("update", id, mark, open_))
            if chance.random() < 0.3:
                self._send("DELETE", f"records/posts/{id}", None)
                done.append(("delete", id, "", open_))
        self._log.write_text(json.dumps(done))

    def _send(self, method: str, path: str, body: object, key: str = "") -> Any:
        headers = {**self._headers, "Content-Type": "application/json"}
        headers |= {"Idempotency-Key": key} if key else {}
        data = None if body is None else json.dumps(body).encode()
        url = f"{self._address}/api/v1/{path}"
        while True:
            request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - loopback
                    text = answer.read()
                    return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                if method == "DELETE" and error.code == 404:
                    return None  # it was confirmed to nobody
                if error.code not in (409, 503):  # 409: the first request is still running
                    raise
            except (OSError, ValueError, HTTPException):
                pass
            time.sleep(RETRY_SECONDS)


def _write(address: str, headers: dict[str, str], number: int, log: Path, changes: int) -> None:
    Writer(address, headers, number, log).run(changes)


class Reader(threading.Thread):
    """Follows changes until it is told to stop; goes on where it was when it is cut off."""

    def __init__(self, port: int, caller: Caller, since: int) -> None:
        super().__init__(daemon=True)
        self.port, self.caller, self.position = port, caller, since
        self.seen = list[tuple[int, Seen]]()
        self.cuts = 0
        self.stopping = threading.Event()
        self.socket: socket.socket | None = None

    def run(self) -> None:
        """Follow."""
        while not self.stopping.is_set():
            try:
                for change, seen in self.follow():
                    self.seen.append((change, seen))
                    self.position = change
            except (OSError, EOFError, HTTPException, ValueError, AssertionError, IndexError):
                self.stopping.wait(RETRY_SECONDS)

    def follow(self) -> Iterator[tuple[int, Seen]]:
        """The changes after the position."""
        raise NotImplementedError

    def cut(self) -> None:
        """Break its connection off."""
        if self.socket is not None:
            self.cuts += 1
            self.socket.shutdown(socket.SHUT_RDWR)


class Polling(Reader):
    """Reads `GET /changes`."""

    def follow(self) -> Iterator[tuple[int, Seen]]:
        """The changes after the position."""
        url = f"http://127.0.0.1:{self.port}/api/v1/changes?since={self.position}&limit=97"
        request = urllib.request.Request(url, headers=self.caller.headers)
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - loopback
            page = json.load(answer)
        for one in page["items"]:
            record = one["record"] or {}
            seen = (one["event"].removeprefix("records."), one["record_id"], record.get("mark", ""))
            yield one["change"], seen
        self.position = page["next"]
        if not page["has_more"]:
            self.stopping.wait(RETRY_SECONDS)


class Streaming(Reader):
    """Reads server-sent events."""

    def follow(self) -> Iterator[tuple[int, Seen]]:
        """The changes after the position."""
        headers = {**self.caller.headers, "Last-Event-ID": str(self.position)}
        client = Events(self.port, "collections=posts", headers=headers)
        self.socket = client.socket
        while client.status == 200 and not self.stopping.is_set():
            event = client.next()
            assert event["event"] in ("message", "heartbeat"), event
            if event["event"] == "message":
                yield _sent(event["data"])


class Talking(Reader):
    """Reads a WebSocket."""

    def follow(self) -> Iterator[tuple[int, Seen]]:
        """The changes after the position."""
        client = Socket(self.port, headers=self.caller.headers)
        self.socket = client.socket
        client.say({"action": "subscribe", "collection": "posts", "since": self.position})
        while not self.stopping.is_set():
            message = client.next()
            assert message["type"] not in ("error", "reset"), message
            if "change" in message:
                yield _sent(message)


def _sent(content: dict[str, Any]) -> tuple[int, Seen]:
    data = content["data"]
    operation = content["type"].removeprefix("posts.")
    return content["change"], (operation, data["id"], data.get("mark", ""))


class Scene:
    """A service with its writers, readers and faults."""

    def __init__(self, database: str, folder: Path, readers: int, seed: int = 1) -> None:
        self.chance, self.folder = random.Random(seed), folder
        self.postgres = Postgres(private=True) if database == "postgresql" else None
        self.redis = Redis(private=True) if database == "postgresql" else None
        self._servers: list[Any] = [one for one in (self.postgres, self.redis) if one]
        for server in self._servers:
            server.start()
        settings = settings_for("sqlite", folder)
        if self.postgres:
            url = self.postgres.create_database("proof").replace("ql://", "ql+psycopg2://")
            settings = settings_for("sqlite", folder, database_url=url)
        app = make_app(settings)
        self.cast = make_cast(app)
        make_collection(self.cast.root, schema=SCHEMA, view_rule=RULE)
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        env = environment(
            folder,
            PORT=str(self.port),
            SERVICE_ENV="test",
            SERVICE_INSTANCE_DIR=str(folder),
            SERVICE_BASE_URL="http://atrium.test",
            SERVICE_DATABASE_URL=app.extensions["atrium.config"].database_url,
            SERVICE_REDIS_URL=self.redis.url if self.redis else "",
        )
        self.log = folder / "log"
        self.web = Web(env, self.log)
        wait_for(f"{self.address}/ready", self.log)
        kinds: list[type[Reader]] = [Polling, Streaming, Streaming, Talking]
        callers = (self.cast.alice, self.cast.bob)
        self.readers = [
            kinds[n % len(kinds)](self.port, callers[n // len(kinds) % 2], 0)
            for n in range(readers)
        ]
        self.writers = list[BaseProcess]()

    def start(self, writers: int, changes: int) -> None:
        """Start to read and to write."""
        for reader in self.readers:
            reader.start()
        self._logs = [self.folder / f"writer-{n}" for n in range(writers)]
        for number, log in enumerate(self._logs):
            arguments = (self.address, self.cast.alice.headers, number, log, changes // writers)
            self.writers.append(forked(_write, *arguments))

    def cut(self) -> None:
        """Break one reader's connection off."""
        reader = self.chance.choice(self.readers)
        try:
            reader.cut()
        except OSError:
            reader.cuts -= 1  # it was cut off already

    @property
    def cuts(self) -> int:
        """How many connections were broken off."""
        return sum(reader.cuts for reader in self.readers)

    def faults(self) -> dict[str, Callable[[], None]]:
        """What may be broken."""
        found: dict[str, Callable[[], None]] = {"web": self.web.crash, "process": self._kill_one}
        if self.redis:
            found["redis"] = self._kill_redis
        return found

    def _kill_one(self) -> None:
        for pid in self.web.children()[:1]:
            os.kill(pid, signal.SIGKILL)

    def _kill_redis(self) -> None:
        assert self.redis is not None
        self.redis.kill()
        time.sleep(0.5)
        self.redis.start()

    @property
    def is_writing(self) -> bool:
        """Whether any writer is not done."""
        return any(writer.is_alive() for writer in self.writers)

    def check(self) -> int:
        """Wait until every reader has everything, and compare; returns the number of changes."""
        for writer in self.writers:
            writer.join()
            assert writer.exitcode == 0, self.log.read_text()[-3000:]
        done = [[(*one,) for one in json.loads(log.read_text())] for log in self._logs]
        expected = {
            self.cast.alice.id: [_seen_by_all(own) for own in done],
            self.cast.bob.id: [_seen_by_others(own) for own in done],
        }
        deadline = time.monotonic() + SETTLE_SECONDS
        for reader in self.readers:
            wanted = expected[reader.caller.id]
            total = sum(map(len, wanted))
            while len(reader.seen) < total and time.monotonic() < deadline:
                time.sleep(0.05)
        time.sleep(0.5)  # for what should not come
        for reader in self.readers:
            reader.stopping.set()
            numbers = [number for number, _ in reader.seen]
            name = f"{type(reader).__name__} of {reader.caller.email}"
            assert all(a < b for a, b in pairwise(numbers)), name
            found = [seen for _, seen in reader.seen]
            by_writer = {mine: [] for mine in range(len(done))}
            owner = {one[1]: n for n, own in enumerate(done) for one in own}
            for seen in found:
                by_writer[owner[seen[1]]].append(seen)
            assert list(by_writer.values()) == expected[reader.caller.id], name
        return sum(map(len, done))

    def close(self) -> None:
        """End everything."""
        for reader in self.readers:
            reader.stopping.set()
        for writer in self.writers:
            writer.kill()
        self.web.kill()
        for server in self._servers:
            server.stop()


def _seen_by_all(done: list[tuple[str, str, str, bool]]) -> list[Seen]:
    return [(operation, id, mark) for operation, id, mark, _ in done]


def _seen_by_others(done: list[tuple[str, str, str, bool]]) -> list[Seen]:
    found = list[Seen]()
    for _, changes in groupby(done, lambda one: one[1]):
        was_open = False
        for operation, id, mark, is_open in changes:
            now_open = is_open and operation != "delete"
            if was_open and now_open:
                found.append(("update", id, mark))
            elif now_open:
                found.append(("create", id, mark))
            elif was_open:
                found.append(("delete", id, ""))
            was_open = now_open
    return found
