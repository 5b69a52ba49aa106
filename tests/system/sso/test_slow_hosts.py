"""A server beside issuers that are slow."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.builders import make_account
from tests.conftest import make_app, settings_for
from tests.sso.test_slow_hosts import DELAY, SlowProvider, places, slow  # noqa: F401
from tests.system.site import ROOT, Client
from tests.system.test_servers import serving


@pytest.mark.timing
def test_slow_issuers_leave_server_responsive(slow: SlowProvider, tmp_path: Path) -> None:
    """48 strangers at 16 issuers of one account, and one process with four threads."""
    (tmp_path / "migrated").mkdir()
    migrated = make_app(settings_for("sqlite", tmp_path / "migrated"))
    make_account(migrated, "evil")
    folder = tmp_path / "server"
    folder.mkdir()
    with (
        serving(migrated, folder, processes=1) as server,
        closing(Client(f"http://127.0.0.1:{server.port}", Path(), "127.0.0.1")) as root,
    ):
        root.sign_in("system", ROOT)
        client = {"allowed_redirect_uris": ["https://client.example.com/in"]}
        evil = {"X-Account-ID": "evil"}
        assert root("PATCH", "account", client, **evil).status_code == 200
        row = {"category": "auth_providers", "provider_name": "oidc"}
        for n in range(16):
            body = {**row, "slug": f"slow{n}", "config": slow.issuer_config()}
            made = root("POST", "admin/configuration", body, **evil)
            assert made.status_code == 201, made.text
        with closing(sqlite3.connect(folder / "atrium.db")) as database:
            database.execute("DELETE FROM issuer_documents")
            database.commit()
        slow.delay = DELAY

        def attack(n: int) -> int:
            path = f"/oauth/slow{n % 16}/authorize?account=evil"
            with closing(Client(root.base, Path(), "127.0.0.1")) as stranger:
                return int(stranger("GET", path).status_code)

        with ThreadPoolExecutor(48) as pool:
            statuses = [pool.submit(attack, n) for n in range(48)]
            took = []
            for _ in range(12):
                began = time.monotonic()
                assert root("GET", "accounts").status_code == 200
                took.append(time.monotonic() - began)
                time.sleep(0.2)
            assert {status.result() for status in statuses} == {401}
    assert max(took) < 2.5, took
