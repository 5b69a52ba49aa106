"""What a login costs: as much time for the unknown as for the known, and a bounded memory."""

from __future__ import annotations

import gc
import secrets
import shlex
import time
import urllib.error
from pathlib import Path
from statistics import median

import pytest
from flask import Flask

from app import db
from app.auth import passwords
from tests.builders import PASSWORD, Caller, make_account, make_user
from tests.conftest import make_app, settings_for
from tests.parallel import at_once
from tests.processes import (
    environment,
    free_port,
    mebibytes,
    post,
    procfile,
    started,
    wait_for,
)

ROUNDS, PAIRS = 8, 20
AT_ONCE = 50
# A process hashes in at most four places at once, 19 MiB each; the rest is what else 50 requests
# take. Without the bound it would be 50 places: 950 MiB.
PLACES_MIB, REST_MIB = 4 * 19, 44

pytestmark = pytest.mark.usefixtures("real_hashes")


def seconds(caller: Caller, email: str) -> float:
    """How long a failing login takes, on the wall."""
    body = {"account": "acme", "email": email, "password": "Wrong-horse-1"}
    begun = time.perf_counter()
    assert caller.post("auth/login", body).status_code == 401
    return time.perf_counter() - begun


@pytest.mark.timing
def test_known_and_unknown_users_wait_equally_long(app: Flask, anyone: Caller) -> None:
    make_user(app, make_account(app, "acme"), "ann@acme.example")
    known, unknown = list[float](), list[float]()
    gc.disable()  # its pauses would fall to whichever is asked at the time
    try:
        for _ in range(ROUNDS):
            # In pairs, each first in turn: whatever else this machine does meets both alike.
            for number in range(PAIRS):
                asked = [("ann@acme.example", known), ("nobody@acme.example", unknown)]
                for email, times in asked if number % 2 else reversed(asked):
                    times.append(seconds(anyone, email))
            apart = abs(median(known) / median(unknown) - 1)
            if apart < 0.05:
                break
    finally:
        gc.enable()
    assert apart < 0.05, (median(known), median(unknown))
    assert median(unknown) > hashing() / 2, "the hash is really computed"


def test_a_hash_is_as_dear_as_owasp_asks(app: Flask) -> None:
    with app.app_context():
        user = make_user(app, make_account(app, "acme"), "ann@acme.example")
    for stored in (user.password_hash, passwords._dummy()):
        assert (stored or "").startswith("$argon2id$v=19$m=19456,t=2,p=1$")


def hashing() -> float:
    """How long one hash takes."""
    begun = time.perf_counter()
    passwords.hash(PASSWORD)
    return time.perf_counter() - begun


def workers_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def refused(url: str, number: int) -> int:
    """The status of a login with a wrong password."""
    body = {"account": "acme", "email": "ann@acme.example", "password": f"Wrong-horse-{number}"}
    try:
        post(url, body)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    return 200


@pytest.mark.one_database
def test_fifty_logins_at_once_take_a_bounded_memory(database: str, tmp_path: Path) -> None:
    settings = settings_for(database, tmp_path)
    app = make_app(settings)
    make_user(app, make_account(app, "acme"), "ann@acme.example")
    with app.app_context():
        db.db.session.remove()
        db.db.engine.dispose()
    port, log = free_port(), tmp_path / "log"
    url = f"http://127.0.0.1:{port}"
    env = environment(
        tmp_path,
        PORT=str(port),
        SERVICE_DATABASE_URL=settings.database_url,
        SERVICE_SECRET_KEY=secrets.token_urlsafe(48),
        SERVICE_LOGIN_RATE_LIMIT="off",
    )
    with started(shlex.split(procfile()["web"]), env, log) as server:
        wait_for(f"{url}/ready", log)
        login = f"{url}/api/v1/auth/login"
        at_once(8, lambda n: refused(login, n))  # whatever is loaded once is loaded now
        before = {pid: mebibytes(pid, "VmRSS") for pid in workers_of(server.pid)}
        assert len(before) >= 2
        assert at_once(AT_ONCE, lambda n: refused(login, n)) == [401] * AT_ONCE
        grown = {pid: mebibytes(pid, "VmHWM") - was for pid, was in before.items()}
    assert max(grown.values()) <= PLACES_MIB + REST_MIB, grown
