"""Rules, fields and groups that one process changes are obeyed by another's next request."""

from __future__ import annotations

import json
import secrets
import shlex
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import services
from tests.builders import PASSWORD
from tests.processes import environment, started, wait_for
from tests.project import PROJECT, free_port, procfile

ROOT = "root@system.example"


class Server:
    """One of the processes, as a client of it sees it."""

    def __init__(self, address: str) -> None:
        self.address = f"{address}/api/v1/"

    def __call__(
        self, method: str, path: str, token: str | None, body: Any = None
    ) -> tuple[int, Any]:
        """Send a request; returns the status and the JSON."""
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {token}"} if token else {"X-Account-ID": "acme"}
        sent = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, sent, headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
                return answer.status, json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def login(self, account: str, email: str) -> str:
        """An access token."""
        body = {"account": account, "email": email, "password": PASSWORD}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(  # noqa: S310
            f"{self.address}auth/login", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
            return str(json.load(answer)["token"])


@pytest.fixture
def servers(database: str, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Two web processes on one database."""
    url = f"sqlite:///{tmp_path / 'atrium.db'}"
    if database == "postgresql":
        url = services.Postgres().create_database(f"test_{secrets.token_hex(6)}")
    settings = {
        "SERVICE_DATABASE_URL": url,
        "SERVICE_SUPERADMIN_EMAIL": ROOT,
        "SERVICE_SUPERADMIN_PASSWORD": PASSWORD,
    }
    commands = procfile()
    release = environment(tmp_path, **settings)
    subprocess.run(shlex.split(commands["release"]), cwd=PROJECT, env=release, check=True)
    addresses = {}
    with ExitStack() as stack:
        for name in ("first", "second"):
            port, log = free_port(), tmp_path / f"{name}.log"
            address = f"http://127.0.0.1:{port}"
            env = environment(tmp_path, PORT=str(port), SERVICE_BASE_URL=address, **settings)
            stack.enter_context(started(shlex.split(commands["web"]), env, log))
            addresses[address] = log
        for address, log in addresses.items():
            wait_for(f"{address}/ready", log)
        first, second = map(Server, addresses)
        yield first, second


@pytest.mark.one_database
def test_rule_field_and_group_changes_apply_in_other_process(
    servers: tuple[Server, Server],
) -> None:
    first, second = servers
    root = first.login("system", ROOT)
    _, account = first("POST", "accounts", root, {"name": "Acme", "slug": "acme"})
    user = {"email": "bob@acme.example", "password": PASSWORD, "account_id": account["id"]}
    status, bob_user = first("POST", "users", root, {**user, "name": "Bob", "role": "viewer"})
    assert status == 201, bob_user
    first("POST", f"users/{bob_user['id']}/verify", root)
    bob = second.login("acme", "bob@acme.example")
    schema: list[dict[str, Any]] = [{"name": "title", "type": "text"}]
    closed = {"create_rule": "true", "list_rule": "true", "view_rule": "true"}
    body = {"name": "posts", "schema": schema, **closed}
    status, made = first("POST", "collections", root, body)
    assert status == 201, made
    _, record = second("POST", "records/posts", bob, {"title": "a"})
    listing, one = "records/posts", f"records/posts/{record['id']}"
    for rule, anonymous, listed, viewed in (
        (None, 401, 403, 403),
        ("", 200, 200, 200),
        ("title = 'b'", 200, 200, 404),
        ("@owns_record()", 401, 200, 200),
        ("@has_role(admin)", 401, 200, 404),
        ("title ~ 'A' && @has_any_role([viewer])", 401, 200, 200),
        ("true", 401, 200, 200),
    ):
        # Warm on both, so that there is something to be out of date.
        for server in servers:
            for token in (bob, None):
                server("GET", listing, token)
                server("GET", one, token)
        status, told = first(
            "PUT", "collections/posts/rules", root, {"list_rule": rule, "view_rule": rule}
        )
        assert status == 200, told
        assert second("GET", listing, None)[0] == anonymous, rule
        status, page = second("GET", listing, bob)
        assert status == listed, rule
        if status == 200:
            assert page["total"] == (1 if viewed == 200 else 0), rule
        assert second("GET", one, bob)[0] == viewed, rule
    more = [*made["schema"], {"name": "more", "type": "text", "pii": True}]
    assert first("PUT", f"collections/{made['id']}", root, {"schema": more})[0] == 200
    assert first("PUT", "collections/posts/rules", root, {"list_rule": "more = null"})[0] == 200
    status, page = second("GET", listing, bob)
    assert (status, page["total"], page["items"][0]["more"]) == (200, 1, None)
    assert second("PATCH", one, bob, {"more": "x"})[0] == 403
    assert first("PUT", "collections/posts/rules", root, {"update_rule": "true"})[0] == 200
    status, changed = second("PATCH", one, bob, {"more": "x"})
    assert (status, changed["more"]) == (200, "********")


@pytest.mark.one_database
def test_plans_and_flags_apply_in_other_process(servers: tuple[Server, Server]) -> None:
    first, second = servers
    root = first.login("system", ROOT)
    plans = {"free": {"quotas": {"records": {"hard": 3}}}, "pro": {"flags": ["sla"]}}
    assert first("PUT", "plans", root, plans)[0] == 200
    _, account = first("POST", "accounts", root, {"name": "Acme", "slug": "acme"})
    user = {"email": "bob@acme.example", "password": PASSWORD, "account_id": account["id"]}
    _, bob_user = first("POST", "users", root, {**user, "name": "Bob", "role": "viewer"})
    first("POST", f"users/{bob_user['id']}/verify", root)
    bob = second.login("acme", "bob@acme.example")
    body = {"name": "posts", "schema": [{"name": "title", "type": "text"}]}
    body |= {"create_rule": "@flag(sla) || @account.plan = 'free'"}
    assert first("POST", "collections", root, body)[0] == 201
    own, given = f"accounts/{account['id']}", "overrides"
    for path, changed, status in (
        (own, {"plan": None}, 403),
        (own, {"plan": "pro"}, 201),
        ("plans", {"pro": {"flags": ["other", "sla"]}}, 201),
        (own, {given: {"flags": {"sla": False}}}, 403),
        (own, {given: {"flags": {"sla": None}}}, 201),
        (own, {"plan": "free"}, 429),
        ("plans", {"free": {"quotas": {"records": {"hard": 4}}}}, 201),
        ("plans", {"free": {"quotas": {"records": {"hard": 3}}}}, 429),
        (own, {given: {"quotas": {"records": {"hard": None}}}}, 201),
        ("plans", {"gratis": {"rename_from": "free"}}, 201),
    ):
        second("POST", "records/posts", bob, {"title": 1})  # warm, and stores nothing
        answer = first("PATCH", path, root, changed)
        assert answer[0] == 200, answer
        assert second("POST", "records/posts", bob, {"title": "a"})[0] == status, changed
