"""gunicorn as `deploy/` has it, on SQLite: what it does, refuses, counts and logs."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from shutil import rmtree
from subprocess import PIPE, Popen, run

import pytest
from flask import Flask

from deploy import serving as deploy
from tests.builders import OPEN, PASSWORD
from tests.processes import environment, started, wait_for
from tests.project import PROGRAMS, PROJECT, free_port
from tests.realtime.clients import until
from tests.system.goings_on import listens
from tests.system.site import ROOT, Client

TOKEN = "nobody-may-read-this-1"
COMMAND = ["gunicorn", "-c", "deploy/gunicorn.conf.py", "--graceful-timeout=2", "wsgi:app"]
JSON = "Host: a\r\nContent-Type: application/json\r\n"
CHUNKS = f"POST /api/v1/auth/login HTTP/1.1\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n"
FORM = "Host: a\r\nContent-Type: application/x-www-form-urlencoded\r\nTransfer-Encoding: chunked"
BROKEN_BODIES = (
    f"{CHUNKS}ZZ\r\n",
    f"{CHUNKS}2\r\n{{}}XX0\r\n\r\n",
    f"{CHUNKS}2\r\n{{}}\r\n0\r\nno trailer\r\n\r\n",
    f"{CHUNKS}2;{'x' * 20_000}\r\n{{}}\r\n0\r\n\r\n",
    f"{CHUNKS}2\r\n{{}}\r\n",
    f"POST /saml/okta/acs?account=acme HTTP/1.1\r\n{FORM}\r\n\r\nZZ\r\n",
    f"POST /api/v1/auth/login HTTP/1.1\r\n{JSON}Content-Length: 9\r\n\r\n{{}}",
)
BROKEN_HEADS = (
    f"GET /x?token={TOKEN}&x=\xfc\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    f"GET /live HTTP/1.1\r\nHost: a\r\nBearer {TOKEN}\r\n\r\n",
    f"GET /live?token={TOKEN}\r\n\r\n",
    f"GET http://[{TOKEN}/ HTTP/1.1\r\nHost: a\r\n\r\n",
    f"GET /live HTTP/{TOKEN}\r\nHost: a\r\n\r\n",
    f"GE{{T /live?token={TOKEN} HTTP/1.1\r\nHost: a\r\n\r\n",
)


@dataclass
class Server:
    """What runs."""

    port: int
    process: Popen[bytes]
    log: Path

    def raw(self, sent: str) -> tuple[int, bytes]:
        """The status and body that come of bytes that no client would send."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(sent.encode("latin1"))
            connection.shutdown(socket.SHUT_WR)
            answer = HTTPResponse(connection)
            with closing(answer):
                answer.begin()
                return answer.status, answer.read()


@contextmanager
def serving(
    app: Flask, folder: Path, command: list[str] = COMMAND, *, processes: int = 2
) -> Iterator[Server]:
    """Processes on a copy of an application's database."""
    database, port, log = folder / "atrium.db", free_port(), folder / "log"
    migrated = app.extensions["atrium.config"].database_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(migrated)) as old, closing(sqlite3.connect(database)) as new:
        old.backup(new)
    env = environment(
        folder,
        PORT=str(port),
        WEB_CONCURRENCY=str(processes),
        SERVICE_DATABASE_URL=f"sqlite:///{database}",
        SERVICE_METRICS_TOKEN=TOKEN,
        SERVICE_SUPERADMIN_EMAIL=ROOT,
        SERVICE_SUPERADMIN_PASSWORD=PASSWORD,
    )
    with started(command, env, log) as process:
        wait_for(f"http://127.0.0.1:{port}/ready", log)
        yield Server(port, process, log)


def it_does_what_it_is_there_for(client: Client) -> None:
    """Sign in, define a collection, write and read a record."""
    client.sign_in("system", ROOT)
    schema = [{"name": "title", "type": "text"}]
    made = client("POST", "collections", {"name": "tasks", "schema": schema, **OPEN})
    assert made.status_code == 201, made.text
    record = client("POST", "records/tasks", {"title": "\xfc"}).json()
    assert client("GET", f"records/tasks/{record['id']}").json()["title"] == "\xfc"


def what_is_broken_is_refused(server: Server) -> None:
    """Told in the shape of errors, whoever refuses."""
    for sent in BROKEN_BODIES:
        status, body = server.raw(sent)
        assert (status, json.loads(body)["error"]) == (400, "bad_request"), sent[:200]
    for sent in BROKEN_HEADS:
        status, body = server.raw(sent)
        assert (status, json.loads(body)["error"]) == (400, "bad_request"), sent


def what_is_claimed_of_encryption_does_not_matter(client: Client) -> None:
    """Also where claims contradict each other; a proxy's are the application's matter."""
    claims = {"X-Forwarded-Proto": "https", "X-Forwarded-Ssl": "off"}
    assert client("GET", "/health", **claims).status_code == 200


def its_processes_count_together(client: Client) -> None:
    """Whichever answers."""
    for _ in range(10):
        client("GET", "/live")
        client.close()  # the next request comes to another process
    client.headers["Authorization"] = f"bearer {TOKEN}"
    sample = 'atrium_requests_total{method="GET",route="/live",status="200"} 10.0\n'
    assert sample in client("GET", "/metrics").text


def its_processes_share_connections(server: Server) -> None:
    """Also of those that come at once and stay, every time."""
    address = ("127.0.0.1", server.port)
    for _ in range(6):
        with ExitStack() as held:
            all_ = [held.enter_context(socket.create_connection(address, 10)) for _ in range(16)]
            for one in all_:
                one.sendall(b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n")
            assert all(one.recv(4096).startswith(b"HTTP/1.1 200") for one in all_)
            of_each = [sockets_of(one, server.port) for one in children_of(server.process.pid)]
            assert sum(of_each) >= len(all_)
            assert min(of_each) >= 3, of_each


def children_of(pid: int) -> list[str]:
    """The processes that a process has begun."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def sockets_of(pid: str, port: int) -> int:
    """How many connections to a port a process has open."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = {f"socket:[{one[9]}]" for one in lines if one[1].endswith(f":{port:04X}")}
    found = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since the folder was listed
            found += str(one.readlink()) in ours
    return found


def it_stops_in_time(server: Server) -> None:
    """Though somebody has not sent all yet: that takes no longer than it is let."""
    half = f"POST /api/v1/auth/login HTTP/1.1\r\n{JSON}Content-Length: 9\r\n\r\n{{"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(half.encode())
        server.process.terminate()
        assert server.process.wait(10) == 0


def its_database_is_one_file(server: Server) -> None:
    """The last process that closed it left no log beside it."""
    database = server.log.parent / "atrium.db"
    assert not Path(f"{database}-wal").exists()
    with closing(sqlite3.connect(f"file:{database}?immutable=1", uri=True)) as alone:
        assert alone.execute("SELECT title FROM col_tasks").fetchall() == [("\xfc",)]


def its_log_is_lines_of_json_without_what_was_sent(server: Server) -> None:
    """Of requests that nobody understood either."""
    text = server.log.read_text()
    assert TOKEN not in text
    told = [json.loads(line) for line in text.splitlines()]
    assert {"event", "level", "timestamp"} <= set.intersection(*(set(line) for line in told))
    assert [line for line in told if line["level"] == "error"] == []


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_gunicorn_answers_what_arrived_before_it_stops(app: Flask, tmp_path: Path) -> None:
    with serving(app, tmp_path, processes=1) as server, ExitStack() as held:
        (worker,) = map(int, children_of(server.process.pid))
        os.kill(worker, signal.SIGSTOP)
        address = ("127.0.0.1", server.port)
        waiting = [held.enter_context(socket.create_connection(address, 10)) for _ in range(20)]
        for one in waiting:
            one.sendall(b"GET /live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        server.process.terminate()
        time.sleep(0.3)
        os.kill(worker, signal.SIGCONT)
        assert all(one.recv(4096).startswith(b"HTTP/1.1 200") for one in waiting)
        until(lambda: not listens(server.port))
        assert server.process.wait(10) == 0


EARLY = """
import os, signal
__file__ = {conf!r}
exec(compile(open(__file__).read(), __file__, "exec"))


def post_worker_init(worker):
    if worker.age == 1:
        os.kill(worker.pid, signal.SIGTERM)
"""


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_gunicorn_worker_told_to_stop_as_it_begins_ends_in_order(
    app: Flask, tmp_path: Path
) -> None:
    conf = tmp_path / "gunicorn.conf.py"
    conf.write_text(EARLY.format(conf=str(PROJECT / "deploy" / "gunicorn.conf.py")))
    with serving(app, tmp_path, ["gunicorn", "-c", str(conf), "wsgi:app"], processes=1) as server:
        its_log_is_lines_of_json_without_what_was_sent(server)


INTERRUPTED = """
import runpy, signal
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

Worker = runpy.run_path("deploy/gunicorn.conf.py")["worker_class"]
worker = Worker.__new__(Worker)
worker.tpool, worker.cfg = ThreadPoolExecutor(1), SimpleNamespace(worker_int=lambda worker: None)
signal.signal(signal.SIGINT, worker.handle_quit)
with worker.tpool._shutdown_lock:
    signal.raise_signal(signal.SIGINT)
raise AssertionError("it goes on")
"""


def test_gunicorn_stops_at_once_while_handing_out_a_request(tmp_path: Path) -> None:
    command = [str(PROGRAMS / "python"), "-c", INTERRUPTED]
    done = run(command, cwd=PROJECT, env=environment(tmp_path), timeout=10, check=False)
    assert done.returncode == 0


RELOADED = """
import os, runpy, sys

first, again = (runpy.run_path("deploy/gunicorn.conf.py")["_metrics_folder"] for _ in range(2))
assert first == again
if os.fork() == 0:
    sys.exit()
os.wait()
assert os.path.isdir(first)
sys.exit(first)
"""


def test_gunicorn_removes_metric_files_on_reload_or_failed_start(
    tmp_path: Path,
) -> None:
    command = [str(PROGRAMS / "python"), "-c", RELOADED]
    done = run(command, cwd=PROJECT, env=environment(tmp_path), capture_output=True, check=False)
    folder = Path(done.stderr.decode().strip())
    assert folder.name.startswith("atrium-counts-")
    assert not folder.exists()


COUNTING = """
import sys, time
from deploy import serving

print(serving.share_metrics(), flush=True)
time.sleep(60)
"""


@contextmanager
def counting(folder: Path) -> Iterator[tuple[Popen[bytes], Path]]:
    """A server that has begun to count, long ago."""
    command = [str(PROGRAMS / "python"), "-c", COUNTING]
    with Popen(command, cwd=PROJECT, env=environment(folder), stdout=PIPE) as process:
        assert process.stdout
        counts = Path(process.stdout.readline().decode().strip())
        os.utime(counts, (0, 0))
        yield process, counts
        process.kill()
    rmtree(counts, ignore_errors=True)


def test_gunicorn_start_removes_metric_files_of_killed_server(tmp_path: Path) -> None:
    with counting(tmp_path) as (killed, left), counting(tmp_path) as (_, held):
        killed.kill()
        killed.wait()
        assert left.is_dir()
        with counting(tmp_path) as (_, new):
            assert not left.exists()
            assert held.is_dir()
            assert new.is_dir()


@pytest.mark.parametrize("name", ["PORT", "WEB_CONCURRENCY"])
@pytest.mark.parametrize("text", ["0", "99999999", "9" * 5000, "-1", "1.5", "eight"])
def test_server_port_and_process_count_out_of_range_are_refused(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(SystemExit, match=f"{name} must be a whole number from 1 to"):
        deploy.port() if name == "PORT" else deploy.processes()


@pytest.mark.parametrize("address", ["::1", "[::1]"])  # gunicorn's --bind wants brackets
def test_server_listen_address_ipv6_may_have_brackets(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATRIUM_LISTEN", address)
    assert deploy.host() == "::1"


def test_server_listens_on_ipv6_address(tmp_path: Path) -> None:
    port = free_port()
    settings = {"PORT": str(port), "ATRIUM_LISTEN": "::1", "WEB_CONCURRENCY": "1"}
    with started(COMMAND, environment(tmp_path, **settings), tmp_path / "log"):
        wait_for(f"http://[::1]:{port}/live", tmp_path / "log")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_server_serves_limits_counts_logs_and_stops(app: Flask, tmp_path: Path) -> None:
    with serving(app, tmp_path) as server:
        with closing(Client(f"http://127.0.0.1:{server.port}", Path(), "127.0.0.1")) as client:
            it_does_what_it_is_there_for(client)
            what_is_broken_is_refused(server)
            what_is_claimed_of_encryption_does_not_matter(client)
            its_processes_count_together(client)
        its_processes_share_connections(server)
        it_stops_in_time(server)
        its_database_is_one_file(server)
        its_log_is_lines_of_json_without_what_was_sent(server)
