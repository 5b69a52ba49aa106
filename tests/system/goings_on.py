"""What goes on at a site while something is done to it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPResponse
from ssl import create_default_context
from typing import Any

import psycopg2
import requests

from tests.system.site import Client, Site

Answer = tuple[str, int, str]


@contextmanager
def work_going_on(site: Site, token: str, *, people: int = 3) -> Iterator[list[Answer]]:
    """People who write and read through nginx, all the time; each answer they get."""
    answers: list[Answer] = []
    stop = threading.Event()

    def ask(client: Client, method: str, path: str, body: Any = None) -> Any:
        try:
            answer = client(method, path, body)
        except requests.RequestException as error:
            answers.append((method, 0, str(error)))
            return {}
        answers.append((method, answer.status_code, answer.text))
        return answer.json() if answer.status_code < 300 else {}

    def be_busy(number: int) -> None:
        client = site.client(token)
        while not stop.is_set():
            made = ask(client, "POST", "records/tasks", {"title": f"of {number}"})
            if "id" in made:
                path = f"records/tasks/{made['id']}"
                ask(client, "PATCH", path, {"title": "changed"})
                ask(client, "PUT", path, {"title": "replaced"})
            ask(client, "GET", "records/tasks?limit=5")
            stop.wait(0.1)

    with ThreadPoolExecutor(people) as pool:
        running_on = [pool.submit(be_busy, number) for number in range(people)]
        try:
            yield answers
        finally:
            stop.set()
    for one in running_on:
        one.result()


def count(answers: list[Answer], method: str, status: int) -> int:
    """How many requests of a method were answered so."""
    return sum(one[:2] == (method, status) for one in answers)


@contextmanager
def held_up(site: Site, table: str, ask: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Something that is asked for and needs a table, which it does not get until the block ends."""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
    with ThreadPoolExecutor(1) as pool, closing(psycopg2.connect(site.database)) as holder:
        cursor = holder.cursor()
        cursor.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        asked = pool.submit(ask)
        until(lambda: cursor.execute(waiting, [table]) or cursor.fetchone() != (0,))
        yield asked


def until(happens: Callable[[], Any], seconds: float = 40) -> None:
    """Wait for something."""
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def listens(port: int) -> bool:
    """Whether somebody takes connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def raw(site: Site, sent: str) -> tuple[HTTPResponse, bytes]:
    """What comes of bytes that no client would send."""
    port = int(site.nginx.url.rpartition(":")[2])
    context = create_default_context(cafile=str(site.certificate))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(sent.encode())
        answer = HTTPResponse(connection)
        answer.begin()
        with closing(answer):
            return answer, answer.read()
