"""Streams of the security log whose worker is killed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from app import create_app, db
from app.config import Config
from app.context import tenancy
from app.webhooks import security_streams
from tests import builders
from tests.conftest import make_app, settings_for
from tests.processes import forked
from tests.receivers import Receiver, Request, receiving
from tests.security.reading import events
from tests.security.test_streams import proved, send, start


def work(environ: dict[str, str], account_id: str) -> None:
    """Send the log until somebody kills the process."""
    os.environ.update(environ)
    app = create_app(Config.from_env(environ))
    with app.app_context(), tenancy.in_account(account_id):
        while True:
            security_streams.send_batch(account_id)


def wait_for(receiver: Receiver, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(receiver.requests) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_security_stream_has_no_gap_after_killed_worker(database: str, tmp_path: Path) -> None:
    settings = settings_for(database, tmp_path)
    app = make_app(settings)
    cast = builders.make_cast(app)
    environ = {
        "SERVICE_ENV": "test",
        "SERVICE_INSTANCE_DIR": str(tmp_path),
        "SERVICE_DATABASE_URL": settings.database_url,
        "SERVICE_BASE_URL": "http://atrium.test",
    }

    def slow(request: Request) -> tuple[int, str]:
        time.sleep(0.5)
        return 200, "ok"

    with receiving(slow) as receiver:
        start(cast.alice, receiver.url)
        for kill in range(3):
            cast.alice.post("groups", {"name": str(kill)})
            count = len(receiver.requests)
            process = forked(work, environ, cast.alice.account_id)
            wait_for(receiver, count + 1)
            process.kill()  # before it has noted that the receiver confirmed
            process.join()
        receiver.answer = lambda request: (200, "ok")
        send(app, later=4000)
        found = proved(receiver.requests)
        assert [entry["id"] for entry in found] == [one["number"] for one in events(cast.alice)]
        assert cast.alice.get("account/security-log/verify").json["valid"]
    with app.app_context():
        db.db.session.remove()
        db.db.engine.dispose()
