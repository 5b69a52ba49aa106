"""`examples/helpdesk/billing.py`: a billing service that follows events with a saved position."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from flask import Flask
from werkzeug.serving import make_server

from tests.builders import Cast
from tests.project import PROJECT

SCRIPT = PROJECT / "examples" / "helpdesk" / "billing.py"


class Billing:
    """A billing service that knows customers by the ids of their accounts."""

    def __init__(self) -> None:
        self.customers: dict[str, Any] = {}
        self.requests = 0
        self._server = make_server("127.0.0.1", 0, self._serve)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def _serve(self, environ: dict[str, Any], start: Any) -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        self.customers[environ["PATH_INFO"].removeprefix("/customers/")] = json.loads(body)
        self.requests += 1
        start("204 No Content", [])
        return []

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()


@pytest.fixture
def billing() -> Iterator[Billing]:
    made = Billing()
    yield made
    made.close()


@pytest.fixture
def address(app: Flask) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, app, threaded=True)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_script_is_short() -> None:
    assert len(SCRIPT.read_text().splitlines()) <= 40


def test_billing_follows_accounts_from_its_saved_position(
    cast: Cast, address: str, billing: Billing, tmp_path: Path
) -> None:
    token = cast.root.headers["Authorization"].removeprefix("Bearer ")
    env = {"ATRIUM": address, "TOKEN": token, "BILLING": billing.url}

    def follow() -> int:
        """Run the script; returns how many requests the billing service got."""
        before, command = billing.requests, [sys.executable, str(SCRIPT), str(tmp_path / "at")]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return billing.requests - before

    assert follow() >= 2
    assert billing.customers[cast.alice.account_id]["state"] == "active"
    assert follow() == 0
    cast.root.put("plans", {"pro": {"flags": []}})
    made = cast.root.post("accounts", {"name": "Initech"}).json["id"]
    cast.root.patch(f"accounts/{made}", {"plan": "pro"})
    assert follow() == 1
    assert billing.customers[made] == {"state": "active", "name": "Initech", "plan": "pro"}
    cast.root.patch(f"accounts/{made}", {"is_active": False})
    assert follow() == 1
    assert billing.customers[made]["state"] == "suspended"
    cast.root.delete(f"accounts/{made}")
    assert follow() == 1
    assert billing.customers[made] == {"state": "closed"}
