"""A service under load whose parts are killed at random, and what must be true in the end."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psycopg2
import redis
import sqlalchemy as sa
from flask import Flask

from app import db
from app.webhooks.models import ATTEMPTS, DELIVERIES
from tests.builders import Caller, Cast, make_cast, make_collection
from tests.conftest import make_app, settings_for
from tests.processes import Process, Restartable, Worker, environment, stock_command, wait_for
from tests.project import free_port, procfile
from tests.receivers import Receiver, Request
from tests.services import Postgres, Redis
from tests.webhooks.delivering import make_webhook

SCHEMA = [{"name": "title", "type": "text", "unique": True}, {"name": "n", "type": "number"}]
WRITERS, WORKERS = 3, 2
SETTLE_SECONDS = 120


class Web(Process):
    """The web process of the Procfile."""

    def __init__(self, env: dict[str, str], log: Path) -> None:
        super().__init__(shlex.split(procfile()["web"]), env, log)


class Flapping:
    """A receiver that is well, unwell or out of its mind, by turns."""

    def __init__(self, chance: random.Random) -> None:
        self.taken: list[Request] = []
        self.steady = False
        self._chance, self._lock = chance, threading.Lock()
        self.server = Receiver(self._answer)

    def _answer(self, request: Request) -> tuple[int, str]:
        with self._lock:
            mood = 1.0 if self.steady else self._chance.random()
        if mood < 0.03:
            time.sleep(1.5)  # longer than anybody waits: it is taken, but nobody hears of it
        elif mood < 0.25:
            return self._chance.choice((500, 404, 302)), "not now"
        with self._lock:
            self.taken.append(request)
        return 200, "ok"


class Service:
    """Web and workers as started by an operator, writers, a receiver, and faults."""

    def __init__(self, database: str, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.refusals: list[str] = []
        self.written = 0
        self.folder, self._stop = folder, threading.Event()
        self.postgres = Postgres(private=True) if database == "postgresql" else None
        self.redis = Redis(private=True) if database == "postgresql" else None
        self._started: list[Any] = [one for one in (self.postgres, self.redis) if one]
        for server in self._started:
            server.start()
        self.app = self._make_app()
        self.receiver = Flapping(random.Random(seed + 1))
        self.writer = self._prepare(make_cast(self.app))
        self._start_processes()

    def _prepare(self, cast: Cast) -> Caller:
        """Have the receiver told of what is written; returns who writes."""
        make_collection(cast.root, schema=SCHEMA)
        make_webhook(cast.alice, self.receiver.server.url, events=["create", "update"])
        return cast.alice

    def _make_app(self) -> Flask:
        settings = settings_for("sqlite", self.folder)
        if self.postgres:
            url = self.postgres.create_database("faults").replace("ql://", "ql+psycopg2://")
            settings = settings_for("sqlite", self.folder, database_url=url)
        return make_app(settings)

    def _start_processes(self) -> None:
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        env = environment(
            self.folder,
            PORT=str(self.port),
            SERVICE_ENV="test",
            SERVICE_INSTANCE_DIR=str(self.folder),
            SERVICE_BASE_URL="http://atrium.test",
            SERVICE_DATABASE_URL=self.app.extensions["atrium.config"].database_url,
            SERVICE_REDIS_URL=self.redis.url if self.redis else "",
            SERVICE_WEBHOOK_TIMEOUT_SECONDS="1",
            SERVICE_WEBHOOK_RETRY_DELAYS=",".join(["1"] * 100),
        )
        log = self.folder / "log"
        self.web = Web(env, log)
        self.workers: list[Restartable] = [Worker(env, log) for _ in range(WORKERS)]
        if self.redis:
            with_redis = {**env, "REDIS_URL": self.redis.url}
            self.workers.append(Process(stock_command(), with_redis, log))
        wait_for(f"{self.address}/ready", log)

    def run(self, faults: int, least: int = 0) -> Counter[str]:
        """Write and break things at once, then let it come to rest. Returns what was broken.

        At least so often, `written` is counted on.
        """
        writers = [threading.Thread(target=self._write, args=[n]) for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        broken: Counter[str] = Counter()
        kinds = self._kinds()
        self._await_writes(5)
        for number in range(faults):
            # Each kind at least once, however few there are.
            names = list(kinds)
            name = names[number] if number < len(names) else self.chance.choice(names)
            kinds[name]()
            broken[name] += 1
            # Sometimes the next one comes before anything has recovered.
            self._await_writes(self.chance.choice((0, 5, 10)))
            time.sleep(self.chance.uniform(0, 0.5))
        self._await_writes(max(5, least - self.written))
        self._stop.set()
        for writer in writers:
            writer.join()
        self.receiver.steady = True
        with self.app.app_context():
            db.db.engine.dispose()  # our own connections were cut, too
        self._settle()
        return broken

    def _await_writes(self, number: int) -> None:
        wanted, deadline = self.written + number, time.monotonic() + SETTLE_SECONDS
        while self.written < wanted:
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.02)

    def _kinds(self) -> dict[str, Callable[[], None]]:
        def crash_worker() -> None:
            self.chance.choice(self.workers).crash()

        def kill_web_process() -> None:
            for pid in self.web.children()[:1]:
                os.kill(pid, signal.SIGKILL)

        found: dict[str, Callable[[], None]] = {"worker": crash_worker, "web": self.web.crash}
        found["web process"] = kill_web_process
        if self.postgres and self.redis:
            found |= {"postgres": self.postgres.restart, "redis": self.redis.restart}
            found |= {"flush": self._flush, "cut": self._cut, "redis away": self._take_redis_away}
        return found

    def _flush(self) -> None:
        assert self.redis is not None
        redis.Redis.from_url(self.redis.url).flushall()

    def _take_redis_away(self) -> None:
        assert self.redis is not None
        self.redis.kill()
        time.sleep(1)
        self.redis.start()

    def _cut(self) -> None:
        assert self.postgres is not None
        connection = psycopg2.connect(self.postgres.url)
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'atrium'"
            )
        connection.close()

    def _write(self, writer: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            made = self._send("POST", "records/posts", {"title": f"{writer}-{number}", "n": 0})
            if made is None:
                time.sleep(0.1)  # the service is down; whether this was written will be seen
                continue
            self.written += 1
            # Refused after it was inserted, so that everything is rolled back.
            self._send("POST", "records/posts", {"title": f"{writer}-{number}", "n": -1})
            self._send("PATCH", f"records/posts/{made['id']}", {"n": 1})

    def _send(self, method: str, path: str, body: Any) -> Any:
        headers = {**self.writer.headers, "Content-Type": "application/json"}
        url = f"{self.address}/api/v1/{path}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - loopback
                return json.loads(answer.read() or "{}")
        except urllib.error.HTTPError as error:
            self._note_refusal(error)
        except (OSError, ValueError, HTTPException):  # it ended in the middle of an answer, maybe
            pass
        return None

    def _note_refusal(self, error: urllib.error.HTTPError) -> None:
        with suppress(OSError, HTTPException):
            told = error.read().decode()
            if error.code not in (409, 503) or '"error"' not in told:
                self.refusals.append(f"{error.code} {told}")

    def _settle(self) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        while self.waiting():
            log = (self.folder / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, f"{self.waiting()} stuck\n{log}"
            time.sleep(0.1)

    def waiting(self) -> int:
        """How many deliveries have not come to an end."""
        with self.app.app_context():
            chosen = sa.select(sa.func.count()).where(DELIVERIES.c.status != "delivered")
            try:
                return db.connection().scalar(chosen) or 0
            finally:
                db.db.session.remove()

    def check(self) -> int:
        """Nothing lost, nothing invented, nothing stuck; returns how many changes there were."""
        told: dict[tuple[str, str], set[str]] = defaultdict(set)
        for request in self.receiver.taken:
            event = request.json["event"], request.json["record"]["id"]
            told[event].add(request.delivery)
        with self.app.app_context():
            rows = db.connection().execute(sa.text("SELECT id, n FROM col_posts")).all()
            stored = set(db.connection().scalars(sa.select(DELIVERIES.c.id)))
            fine = set(
                db.connection().scalars(
                    sa.select(ATTEMPTS.c.delivery_id).where(ATTEMPTS.c.status_code == 200)
                )
            )
            db.db.session.remove()
        changed = {("records.create", row.id) for row in rows}
        changed |= {("records.update", row.id) for row in rows if row.n == 1}
        assert self.refusals == []
        assert told.keys() == changed
        # A repetition comes under the id of the first one.
        assert {len(ids) for ids in told.values()} == {1}
        assert {id for ids in told.values() for id in ids} == stored == fine
        return len(changed)

    def close(self) -> None:
        """End everything."""
        self._stop.set()
        for process in (self.web, *self.workers):
            process.kill()
        self.receiver.server.close()
        with self.app.app_context():
            db.db.session.remove()
            db.db.engine.dispose()
        for server in self._started:
            server.stop()
