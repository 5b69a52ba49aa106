"""Schemathesis, with all its checks and a real server, finds nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flask import Flask

from app.accounts.models import ADMIN, SYSTEM_ACCOUNT_ID
from tests import builders, fuzzed
from tests.builders import Caller, Cast
from tests.processes import environment, started, wait_for
from tests.project import PROGRAMS, PROJECT, free_port, procfile
from tests.test_openapi import operations

SETTINGS = PROJECT / "tests" / "openapi" / "schemathesis.toml"
FEW = r"^/api/v1/(groups|roles|changes|records/\{collection\})$"
Run = Callable[..., dict[str, set[int]]]


@pytest.fixture
def run(app: Flask, cast: Cast, tmp_path: Path) -> Iterator[Run]:
    """Runs Schemathesis as a superadmin in acme, who is nobody that the run could know of; returns
    the statuses of each route.
    """
    user = builders.make_user(app, SYSTEM_ACCOUNT_ID, "fuzz@system.example", ADMIN)
    builders.change_user(app, user.id, password_hash="")  # none that an example could change
    headers = Caller(app, user).acting_in("acme").headers
    (tmp_path / "known.json").write_text(json.dumps(fuzzed.known(app, cast)))
    own = [user.id, cast.alice.account_id, SYSTEM_ACCOUNT_ID, "acme", "system"]
    env = {"ATRIUM_KNOWN": str(tmp_path / "known.json"), "ATRIUM_OWN": " ".join(own)}
    with served(app, tmp_path) as (url, log):

        def go(*arguments: str) -> dict[str, set[int]]:
            sent = [f"--header={name}: {value}" for name, value in headers.items()]
            command = [
                "--config-file",
                SETTINGS,
                "run",
                f"{url}/openapi.json",
                *sent,
                *arguments,
                "--checks=all",
            ]
            done = subprocess.run(
                [PROGRAMS / "schemathesis", *command],
                cwd=PROJECT,
                env=os.environ | env | {"NO_COLOR": "1"},
                check=False,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return statuses(log)

        yield go


@contextmanager
def served(app: Flask, folder: Path) -> Iterator[tuple[str, Path]]:
    """A server process on the database of an application; its address and its log."""
    config, port, log = app.extensions["atrium.config"], free_port(), folder / "log"
    env = environment(
        folder,
        PORT=str(port),
        WEB_CONCURRENCY="1",
        SERVICE_ENV="test",
        SERVICE_BASE_URL=config.base_url,
        SERVICE_DATABASE_URL=config.database_url,
        SERVICE_INSTANCE_DIR=str(config.instance_dir),
        SERVICE_LOGIN_RATE_LIMIT="off",
        SERVICE_STATEMENT_SECONDS="60",  # other tests keep the processors busy
    )
    with started(procfile()["web"].split(), env, log):
        wait_for(f"http://127.0.0.1:{port}/ready", log)
        yield f"http://127.0.0.1:{port}", log


def statuses(log: Path) -> dict[str, set[int]]:
    """The statuses of each route, by method and path."""
    found = defaultdict(set)
    for line in log.read_text().splitlines():
        told = json.loads(line) if line.startswith("{") else {}
        if told.get("event") == "request":
            found[f"{told['method']} {told.get('route')}"].add(told["status"])
    return found


def test_schemathesis_few_operations_conform_to_description(run: Run) -> None:
    met = run("--phases=examples,coverage", f"--include-path-regex={FEW}")
    assert 201 in met["POST /api/v1/groups"]


@pytest.mark.slow
@pytest.mark.both_databases
def test_schemathesis_all_operations_conform_to_description(run: Run, app: Flask) -> None:
    met = run("--phases=examples,coverage,fuzzing", "--max-examples=10")
    count = len(list(operations(Caller(app).get("/openapi.json").json)))
    assert sum(any(status < 400 for status in found) for found in met.values()) > 0.7 * count
