"""Deprovisioned holds with the next request of every process."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from flask import Flask

from tests.builders import PASSWORD, Cast
from tests.processes import environment, started, wait_for
from tests.project import free_port, procfile
from tests.scim.conftest import Directory
from tests.scim.sequences import patch

TRIES = 16  # enough that both processes answer some


@contextmanager
def two_processes(app: Flask, folder: Path) -> Iterator[str]:
    """The address of a server of two processes on the application's database."""
    port, log = free_port(), folder / "log"
    env = environment(
        folder,
        PORT=str(port),
        WEB_CONCURRENCY="2",
        SERVICE_DATABASE_URL=app.extensions["atrium.config"].database_url,
    )
    with started(["sh", "-c", f"exec {procfile()['web']}"], env, log):
        wait_for(f"http://127.0.0.1:{port}/ready", log)
        yield f"http://127.0.0.1:{port}"


def send(method: str, url: str, token: str | None, body: Any = None) -> tuple[int, Any]:
    """A request on a connection of its own; returns status and answer."""
    headers = {"Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - loopback
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def test_scim_deactivation_applies_in_every_process(
    app: Flask, cast: Cast, okta: Directory, tmp_path: Path
) -> None:
    with two_processes(app, tmp_path) as server:
        login = {"account": "acme", "email": cast.bob.email, "password": PASSWORD}
        token = send("POST", f"{server}/api/v1/auth/login", None, login)[1]["token"]
        me, bob = f"{server}/api/v1/auth/me", f"{server}/scim/v2/Users/{cast.bob.id}"

        def statuses(url: str, credential: str) -> set[int]:
            return {send("GET", url, credential)[0] for _ in range(TRIES)}

        for active in (False, True, False):
            change = patch({"op": "replace", "value": {"active": active}})
            assert send("PATCH", bob, okta.token, change)[0] == 200
            assert statuses(me, token) == {401}  # sessions do not come back
            assert send("POST", f"{server}/api/v1/auth/login", None, login)[0] == (
                200 if active else 401
            )
            if active:
                token = send("POST", f"{server}/api/v1/auth/login", None, login)[1]["token"]
                assert statuses(me, token) == {200}
        assert statuses(bob, okta.token) == {200}
        listed = cast.alice.get("account/scim/tokens").json["items"]
        assert cast.alice.delete(f"account/scim/tokens/{listed[0]['id']}").status_code == 204
        assert statuses(bob, okta.token) == {401}
