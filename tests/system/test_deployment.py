"""What `deploy/` holds, started for real: two web processes behind nginx, two workers, and what
they share, restarted one after the other while work goes on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from ssl import SSLSocket, create_default_context
from urllib.parse import urlsplit

import pytest
import requests
from wsproto.events import CloseConnection

from app.config import Config
from tests import services
from tests.builders import OPEN, PASSWORD
from tests.processes import environment, started, unit, wait_for
from tests.project import PROGRAMS, PROJECT, free_port, procfile
from tests.realtime.clients import Events, Socket, Stream
from tests.system.goings_on import count, held_up, raw, until, work_going_on
from tests.system.site import ALICE, BOB, NGINX, ROOT, Client, Site, running
from tests.system.test_servers import children_of

STOP_WITHIN_SECONDS = 25
UNITS = PROJECT / "deploy" / "systemd"
WRONG = {"account": "acme", "email": ALICE, "password": "Wrong-horse-1"}
SOME_TITLE = [{"name": "title", "type": "text", "required": True}]


@pytest.fixture
def installed() -> None:
    """nginx, which is not everywhere."""
    if not services.nginx():
        reason = "nginx missing: the deployment is NOT tested"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(f"{reason}; `python -m tests.services install system` installs it")


@dataclass
class Cast:
    """Who uses the site, and all that nobody else may get to know."""

    root: Client
    alice: Client
    bob: Client
    secrets: set[str] = field(default_factory=set)


def settle(site: Site) -> Cast:
    """Fill an empty site: Alice registers and invites Bob, root defines a collection."""
    cast = Cast(site.client(), site.client(), site.client())
    account = {"account_name": "Acme", "email": ALICE, "password": PASSWORD}
    assert cast.alice("POST", "auth/register", account).status_code == 201
    verification = site.mailed(ALICE, "/auth/verify-email")
    link = f"/auth/verify-email?token={verification}"
    assert cast.alice("GET", link, Accept="application/json").status_code == 200
    renewals = {cast.root.sign_in("system", ROOT), cast.alice.sign_in("acme", ALICE)}
    invitation = cast.alice("POST", "invitations", {"email": BOB}).json()["token"]
    joined = cast.bob("POST", f"invitations/{invitation}/accept", {"password": PASSWORD})
    proof = site.mailed(BOB, "/auth/verify-email")  # Alice saw the invitation's token, too
    link = f"/auth/verify-email?token={proof}"
    assert cast.bob("GET", link, Accept="application/json").status_code == 200
    renewals |= {joined.json()["refresh_token"], cast.bob.sign_in("acme", BOB)}
    for name in ("tasks", "reports"):
        made = cast.root("POST", "collections", {"name": name, "schema": SOME_TITLE, **OPEN})
        assert made.status_code == 201, made.text
    tokens = {one.token for one in (cast.root, cast.alice, cast.bob)}
    keys = {value for name, value in site.env.items() if name.endswith(("_KEY", "_TOKEN"))}
    cast.secrets = {PASSWORD, verification, invitation, proof, *tokens, *renewals, *keys}
    return cast


# --- What happens to it -------------------------------------------------------


def each_obeys_what_the_other_changed(site: Site, cast: Cast) -> None:
    """What is changed at one process binds the next request of the other."""
    here, there = site.web
    root = site.client(cast.root.token, port=here)
    alice, bob = (site.client(one.token, port=there) for one in (cast.alice, cast.bob))
    tasks = "records/tasks"
    assert bob("GET", tasks).status_code == 200
    root("PUT", "collections/tasks/rules", {"list_rule": None})
    assert bob("GET", tasks).json()["error"] == "rule_denied"
    root("PUT", "collections/tasks/rules", {"list_rule": "@owns_record()"})
    assert bob("GET", tasks).status_code == 200
    root("PUT", "collections/tasks/rules", {"list_rule": "true"})

    assert alice("POST", tasks, {"title": "a", "more": 1}).json()["details"][0]["field"] == "more"
    schema = [*SOME_TITLE, {"name": "more", "type": "number"}]
    collection = root("GET", "collections/tasks").json()["id"]
    assert root("PATCH", f"collections/{collection}", {"schema": schema}).status_code == 200
    assert alice("POST", tasks, {"title": "a", "more": 1}).json()["more"] == 1

    own = site.client(cast.bob.token, port=here)
    key = own("POST", "api-keys", {"name": "nightly"}).json()
    cast.secrets.add(key["key"])
    keyed = site.client(key["key"], port=there)
    assert keyed("GET", tasks).status_code == 200
    assert own("POST", f"api-keys/{key['id']}/revoke").status_code == 200
    assert keyed("GET", tasks).status_code == 401

    me = bob("GET", "auth/me").json()["id"]
    assert root("PATCH", f"users/{me}", {"is_active": False}).status_code == 200
    assert bob("GET", tasks).status_code == 401


def callers_are_told_apart(site: Site, cast: Cast) -> None:
    """The address is that of whoever connects to nginx, whatever a header claims."""
    near = site.client(cast.alice.token, address="127.0.0.2")
    made = near("POST", "records/tasks", {"title": "from"}, **{"X-Forwarded-For": "203.0.113.9"})
    entries = cast.root("GET", f"audit-logs?record_id={made.json()['id']}").json()["items"]
    assert {one["ip_address"] for one in entries} == {"127.0.0.2"}

    guesser, other = (site.client(address=f"127.0.0.{n}") for n in (4, 5))
    told = [
        guesser("POST", "auth/login", WRONG, **{"X-Forwarded-For": f"203.0.113.{n}"}).status_code
        for n in range(5)
    ]
    assert told == [401, 401, 401, 429, 429]
    assert other("POST", "auth/login", WRONG).status_code == 401


def nginx_refuses_as_the_application_does(site: Site) -> None:
    """What does not get as far as the application has the shape of its errors, too."""
    limit = Config.from_env({}).max_body_bytes
    list_, host = "GET /api/v1/records/tasks", "HTTP/1.1\r\nHost: a\r\n"
    for sent, status, error in (
        (
            f"POST /api/v1/auth/login {host}Content-Length: {limit + 1}\r\n\r\n",
            413,
            "payload_too_large",
        ),
        (f"{list_}?{'x' * 20_000} {host}\r\n", 414, "uri_too_long"),
        (f"{list_} {host}X: {'x' * 20_000}\r\n\r\n", 431, "headers_too_large"),
        ("NONSENSE\r\n\r\n", 400, "bad_request"),
        (f"TRACE / {host}\r\n", 405, "method_not_allowed"),
        (f"{list_}?filter={'x' * 8190} {host}\r\n", 414, "uri_too_long"),
        (f"{list_}?filter={'x' * 7000} {host}\r\n", 401, "unauthorized"),
        (f"GET /auth/verify-email?token=secret-of-a-query&x=ü {host}\r\n", 400, "bad_request"),
    ):
        answer, body = raw(site, sent)
        assert (answer.status, json.loads(body)["error"]) == (status, error)
        assert json.loads(body)["message"]
        assert answer.headers["X-Correlation-ID"]
        assert answer.headers["Strict-Transport-Security"]


def gunicorn_refuses_as_the_application_does(site: Site) -> None:
    """The same where no proxy stands before it."""
    client = site.client(port=next(iter(site.web)))
    answer = client("GET", f"records/tasks?filter={'x' * 8190}")
    assert (answer.status_code, answer.json()["error"]) == (414, "uri_too_long")
    assert answer.headers["X-Correlation-ID"]


def streams_come_through_nginx(site: Site, cast: Cast) -> None:
    """Both kinds, at once and in both directions."""
    address = urlsplit(site.nginx.url)
    context = create_default_context(cafile=str(site.certificate))

    def connected() -> SSLSocket:
        plain = socket.create_connection((address.hostname, address.port), timeout=10)
        return context.wrap_socket(plain, server_hostname=address.hostname)

    ticket = cast.alice("POST", "realtime/tickets").json()["ticket"]
    cast.secrets.add(ticket)
    events = Events(0, f"ticket={ticket}", sock=connected())
    assert b": connected\n\n" in events.opening
    talk = Socket(0, f"token={cast.alice.token}", sock=connected())
    assert talk.ask({"action": "ping"})["type"] == "pong"
    talk.send(CloseConnection(code=1000))
    assert talk.closed() == 1000
    Stream.close_all()


def each_counts_what_it_answered(site: Site) -> None:
    """The counts of a process are those of all its children."""
    port = next(iter(site.web))
    client = site.client(site.env["SERVICE_METRICS_TOKEN"], port=port)
    for _ in range(20):
        client("GET", "/health")
    sample = 'atrium_requests_total{method="GET",route="/health",status="200"} 20.0\n'
    assert sample in client("GET", "/metrics").text


def total(cast: Cast) -> int:
    """How many tasks there are."""
    return int(cast.alice("GET", "records/tasks?limit=1").json()["total"])


def nobody_notices_a_rolling_restart(site: Site, cast: Cast, *, rounds: int, slow: float) -> None:
    """Each process is stopped with a slow request under way and started anew; none fails."""
    before = total(cast)
    with work_going_on(site, cast.alice.token) as answers:
        for port in list(site.web) * rounds:
            stopping = site.web[port]
            slowly = partial(site.client(cast.alice.token, port=port), "GET", "records/reports")
            with held_up(site, "col_reports", slowly) as asked:
                stopping.terminate()
                time.sleep(slow)
                assert stopping.poll() is None
            assert asked.result().status_code == 200
            assert stopping.wait(STOP_WITHIN_SECONDS) == 0
            site.start_web(port)
    assert [one for one in answers if one[1] not in (200, 201)] == []
    assert total(cast) - before == count(answers, "POST", 201) > 10


def a_worker_ends_what_it_has_begun(site: Site, cast: Cast) -> None:
    """A worker that is told to stop in the middle of a job does that job, and it alone."""
    first, second = site.workers.values()
    second.terminate()
    assert second.wait(STOP_WITHIN_SECONDS) == 0
    with held_up(site, "mailed_tokens", lambda: forgotten(cast)):
        first.terminate()
        time.sleep(1)
        assert first.poll() is None
    assert first.wait(STOP_WITHIN_SECONDS) == 0
    cast.secrets.add(site.mailed(ALICE, "/reset-password", within=1))


def forgotten(cast: Cast) -> None:
    """Alice asks for a link."""
    body = {"account": "acme", "email": ALICE}
    assert cast.alice("POST", "auth/forgot-password", body).status_code == 200


def all_is_well_once_the_servers_are_back(site: Site, cast: Cast) -> None:
    """PostgreSQL, then Redis crash and come back: 503 at worst, and what was asked for is done."""
    outbox = site.folder / "instance" / "outbox"
    seen = len(list(outbox.iterdir()))
    for worker in site.workers.values():
        worker.send_signal(signal.SIGSTOP)
    forgotten(cast)
    with work_going_on(site, cast.alice.token) as answers:
        site.postgres.kill()
        time.sleep(1)
        site.postgres.start()
        for worker in site.workers.values():
            worker.send_signal(signal.SIGCONT)
        until(lambda: len(list(outbox.iterdir())) > seen)
        assert {cast.alice("GET", "records/tasks").status_code for _ in range(20)} == {200}
        site.redis.kill()
        forgotten(cast)
        until(lambda: len(list(outbox.iterdir())) > seen + 1)
        site.redis.start()
        until(lambda: cast.alice("GET", "/ready").status_code == 200)
    bad = [one for one in answers if one[1] not in (200, 201, 503)]
    assert bad == []
    refusals = {text for _, status, text in answers if status == 503}
    assert {json.loads(text)["error"] for text in refusals} == {"unavailable"}
    assert all(one.poll() is None for one in (*site.web.values(), *site.workers.values()))


def what_never_ends_holds_nobody_up(site: Site, cast: Cast) -> None:
    """A request and a job that get nowhere are given up within the time that a stop may take."""
    port, process = next(iter(site.web.items()))
    get = partial(site.client(cast.alice.token, port=port), "GET", "records/reports")
    with held_up(site, "col_reports", get) as asked:
        process.terminate()
        assert process.wait(STOP_WITHIN_SECONDS) == 0
    assert isinstance(asked.exception(), requests.ConnectionError)
    site.start_web(port)
    first, second = site.workers.values()
    first.terminate()
    assert first.wait(STOP_WITHIN_SECONDS) == 0
    with held_up(site, "mailed_tokens", lambda: forgotten(cast)):
        second.terminate()
        assert second.wait(STOP_WITHIN_SECONDS) == 0


def a_killed_process_is_replaced(site: Site, port: int) -> None:
    """A master that is killed leaves its sockets to the next; its children see it and end."""
    children = children_of(site.web[port].pid)
    site.web[port].kill()
    site.web[port].wait()
    site.start_web(port)
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


def files_come_from_nginx(site: Site, cast: Cast) -> None:
    """Uploads may be larger than other bodies, and nginx itself sends the files."""
    drawers = {"name": "drawers", "schema": [{"name": "content", "type": "file"}], **OPEN}
    assert cast.root("POST", "collections", drawers).status_code == 201
    data = b"\0" + os.urandom(12 * 2**20)  # of no type that its beginning could tell
    sent = {"files": {"file": ("a.bin", data)}, "timeout": 60}
    url = f"{cast.alice.base}/api/v1/files"
    made = cast.alice.request("POST", f"{url}/upload", **sent)
    assert made.status_code == 201, made.text
    file = made.json()["file"]
    let_nginx_read(site.folder / "instance" / "files" / file["path"])
    got = cast.alice("GET", f"files/{file['id']}", Range="bytes=5-")
    assert (got.status_code, got.content) == (206, data[5:])
    assert got.headers["Content-Type"] == "application/octet-stream"
    assert got.headers["Content-Disposition"].startswith("attachment;")
    assert "sandbox" in got.headers["Content-Security-Policy"]
    assert got.headers["X-Content-Type-Options"] == "nosniff"
    assert cast.bob("GET", f"files/{file['id']}").status_code == 401
    assert cast.root("GET", f"/_files/{file['path']}").status_code == 404


def let_nginx_read(file: Path) -> None:
    """Open a file to the user of nginx, which an operator puts into the group instead."""
    file.chmod(0o644)
    for folder in list(file.parents)[:-1]:
        with suppress(PermissionError):
            folder.chmod(folder.stat().st_mode | 0o011)


def with_nobody_behind_it_nginx_says_so(site: Site, cast: Cast) -> None:
    """No web process and no socket at all is a 503 as the application's."""
    for process in site.web.values():
        process.terminate()
    assert [one.wait(STOP_WITHIN_SECONDS) for one in site.web.values()] == [0, 0]
    site.shared.close()
    answer = cast.alice("POST", "records/tasks?filter=secret-of-a-query", {"title": "lost"})
    assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")
    assert answer.headers["Retry-After"]
    told = '"method":"POST","path":"/api/v1/records/tasks","status":503'
    until(lambda: told in site.logs["atrium.log"])


def no_log_tells_a_secret(site: Site, cast: Cast) -> None:
    """Neither nginx nor gunicorn nor the application writes down what opens a door."""
    logs = site.logs
    assert '"path":"/auth/verify-email","status":200' in logs["atrium.log"]
    assert '"path":"/api/v1/invitations","status":200' in logs["atrium.log"]
    assert "?" not in logs["atrium.log"]
    assert " POST 201 " in logs[f"{next(iter(site.web))}.log"]
    for name, text in logs.items():
        assert [secret for secret in cast.secrets if secret in text] == [], name
        assert "secret-of-a-query" not in text, name


# --- The tests ----------------------------------------------------------------


@pytest.mark.usefixtures("installed")
def test_deployment_behind_nginx_works_through_restart(tmp_path: Path) -> None:
    with running(tmp_path, SERVICE_LOGIN_TRIES="3") as site:
        cast = settle(site)
        each_obeys_what_the_other_changed(site, cast)
        callers_are_told_apart(site, cast)
        nginx_refuses_as_the_application_does(site)
        gunicorn_refuses_as_the_application_does(site)
        streams_come_through_nginx(site, cast)
        files_come_from_nginx(site, cast)
        each_counts_what_it_answered(site)
        nobody_notices_a_rolling_restart(site, cast, rounds=1, slow=0.5)
        all_is_well_once_the_servers_are_back(site, cast)
        a_worker_ends_what_it_has_begun(site, cast)
        with_nobody_behind_it_nginx_says_so(site, cast)
        no_log_tells_a_secret(site, cast)


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_deployment_under_load_survives_restarts(tmp_path: Path) -> None:
    # Requests are held up for longer than a statement may usually wait.
    with running(tmp_path, SERVICE_STATEMENT_SECONDS="60") as site:
        cast = settle(site)
        nobody_notices_a_rolling_restart(site, cast, rounds=5, slow=10)
        for _ in range(3):
            all_is_well_once_the_servers_are_back(site, cast)
        for port in site.web:
            a_killed_process_is_replaced(site, port)
        what_never_ends_holds_nobody_up(site, cast)
        nobody_notices_a_rolling_restart(site, cast, rounds=5, slow=0)
        no_log_tells_a_secret(site, cast)


def test_procfile_managers_start_all_processes(tmp_path: Path) -> None:
    """honcho and foreman stop all processes when one ends, and `release` ends by itself."""
    port, log = free_port(), tmp_path / "log"
    command = [str(PROGRAMS / "honcho"), "start", "-p", str(port)]
    with started(command, environment(tmp_path), log) as manager:
        wait_for(f"http://127.0.0.1:{port}/ready", log)
        until(lambda: "The database is migrated." in log.read_text())
        time.sleep(1)
        assert manager.poll() is None
    assert "Traceback" not in log.read_text()


def test_systemd_units_equal_procfile_with_stop_timeouts() -> None:
    commands = {name: command.split() for name, command in procfile().items()}
    web, worker = unit("atrium-web@.service", "8001"), unit("atrium-worker@.service", "1")
    for command in (web, worker, *commands.values()):
        command[0] = Path(command[0]).name
    assert (web, worker) == (commands["web"], commands["worker"])
    for name in ("atrium-web@.service", "atrium-worker@.service"):
        text = (UNITS / name).read_text()
        assert "KillMode=mixed" in text  # TERM is for gunicorn's master alone
        assert f"TimeoutStopSec={STOP_WITHIN_SECONDS + 5}" in text


def test_systemd_sockets_are_shared_by_all_web_processes_and_nginx() -> None:
    """One is of all, one of each process, and no restart of a process closes them."""
    own = (UNITS / "atrium-web@.service").read_text()
    assert "\nSockets=atrium-web.socket atrium-web@%i.socket\n" in own
    shared = (UNITS / "atrium-web.socket").read_text()
    (address,) = re.findall("^ListenStream=(.+)$", shared, re.MULTILINE)
    assert f"    server {address} max_fails=0;\n" * 2 in NGINX.read_text()
    assert "atrium-web.socket" in (UNITS / "atrium.target").read_text()
    for name in ("atrium-web.socket", "atrium-web@.socket"):
        assert "\nPartOf=atrium.target\n" in (UNITS / name).read_text()


def test_systemd_units_are_valid(tmp_path: Path) -> None:
    for file in UNITS.iterdir():
        text = file.read_text().replace("/opt/atrium", str(PROJECT))
        (tmp_path / file.name).write_text(text)
    if not shutil.which("systemd-analyze"):
        return
    names = "atrium-web@8001.service", "atrium-worker@1.service", "atrium-release.service"
    files = [str(tmp_path / name) for name in (*names, "atrium.target", "atrium-web.socket")]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
