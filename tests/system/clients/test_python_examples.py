"""The examples of the guide, run as they are written, against a server started for real."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.builders import OPEN, PASSWORD
from tests.processes import environment, started, wait_for
from tests.project import PROJECT, free_port, procfile
from tests.services import Postgres
from tests.system.clients import installed
from tests.system.clients.conftest import TASKS

PAGES = ("docs/clients.md", "clients/python/README.md")
ROOT = "root@system.example"
TITLE = {"name": "title", "type": "text"}
EFFORT = {"name": "effort", "type": "number"}
PROJECT_OF_TASK = {"name": "project", "type": "reference", "collection": "projects"}


class Interrupted(Exception):
    """The example's program ends."""


@pytest.fixture
def server(database: str, tmp_path: Path) -> Iterator[str]:
    """A web process with a superadmin; its address."""
    port, log = free_port(), tmp_path / "log"
    address = f"http://127.0.0.1:{port}"
    settings = {
        "PORT": str(port),
        "SERVICE_BASE_URL": address,
        "SERVICE_SUPERADMIN_EMAIL": ROOT,
        "SERVICE_SUPERADMIN_PASSWORD": PASSWORD,
    }
    if database == "postgresql":
        settings["SERVICE_DATABASE_URL"] = Postgres().create_database(f"examples_{port}")
    env = environment(tmp_path, **settings)
    commands = {name: shlex.split(command) for name, command in procfile().items()}
    subprocess.run(commands["release"], cwd=PROJECT, env=env, check=True, capture_output=True)
    with started(commands["web"], env, log):
        wait_for(f"{address}/ready", log)
        yield address


@pytest.fixture
def api_key(atrium: ModuleType, server: str) -> str:
    """A key of Alice, whose account has tasks."""
    with atrium.Client(server) as client:
        client.sign_in("system", ROOT, PASSWORD)
        post = client.session.json
        fields = [EFFORT, PROJECT_OF_TASK, *TASKS]
        post("POST", "collections", json={"name": "projects", "schema": [TITLE], **OPEN})
        post("POST", "collections", json={"name": "tasks", "schema": fields, **OPEN})
        account = post("POST", "accounts", json={"name": "Acme", "slug": "acme"})
        roles = {role["name"]: role["id"] for role in post("GET", "roles")["items"]}
        alice = {"account_id": account["id"], "email": "alice@acme.example", "password": PASSWORD}
        user = post("POST", "users", json={**alice, "role_id": roles["admin"]})
        post("POST", f"users/{user['id']}/verify")
    with atrium.Client(server) as client:
        client.sign_in("acme", "alice@acme.example", PASSWORD)
        return str(client.session.json("POST", "api-keys", json={"name": "guide"})["key"])


def examples(path: str, server: str) -> str:
    """The code of a page, for this server."""
    page = (PROJECT / path).read_text()
    code = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return "\n".join(code).replace("https://atrium.example", server)


def test_python_client_documented_examples_run(
    atrium: ModuleType,
    server: str,
    api_key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "photo.png").write_bytes(b"not really")
    write_types(server, api_key, tmp_path)
    # On one server, as it takes longer to start than the examples to run.
    for page in PAGES:
        run_page(page, server, api_key)
        assert "Write the plan" in capsys.readouterr().out or page.startswith("docs"), page
        with atrium.Client(server, api_key=api_key) as client:
            tasks = client.records("tasks")
            for task in list(tasks.iterate()):
                tasks.delete(task["id"])
            assert list(tasks.iterate()) == []  # which the next page would print


def run_page(page: str, server: str, api_key: str) -> None:
    """Run the code of a page, and follow the changes until the first, if it does so."""
    handled = list[Any]()

    def save_position(change: int) -> None:
        raise Interrupted(change)

    names = {"API_KEY": api_key, "PASSWORD": PASSWORD, "reload": pytest.fail}
    names |= {"handle": lambda *change: handled.append(change), "save_position": save_position}
    # In a thread: a browser's tests leave a loop of asyncio running in theirs.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(exec, examples(page, server), names).result()
    if "follow" in names:
        with pytest.raises(Interrupted):
            names["follow"](0)
        assert handled[0][0] == "create", page
        names["client"].close()


def write_types(server: str, api_key: str, folder: Path) -> None:
    command = [installed.PROGRAMS / "atrium", "types", "--url", server]
    env = {"ATRIUM_API_KEY": api_key}
    written = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    (folder / "atrium_collections.py").write_text(written.stdout)
    sys.modules.pop("atrium_collections", None)
