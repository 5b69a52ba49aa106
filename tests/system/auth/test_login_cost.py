"""The memory that a server takes for logins at once."""

from __future__ import annotations

import secrets
import shlex
import urllib.error
from pathlib import Path

import pytest

from app import db
from tests.builders import make_account, make_user
from tests.conftest import make_app, settings_for
from tests.parallel import at_once
from tests.processes import environment, mebibytes, post, started, wait_for
from tests.project import free_port, procfile

AT_ONCE = 50


# A process hashes in at most four places at once, 19 MiB each; the rest is what else 50 requests
# take. Without the bound it would be 50 places: 950 MiB.
PLACES_MIB, REST_MIB = 4 * 19, 44


pytestmark = pytest.mark.usefixtures("real_hashes")


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


def test_login_memory_of_50_concurrent_logins_is_bounded(database: str, tmp_path: Path) -> None:
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
