"""The published TypeScript client, unmodified, against a server started for real."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from email import message_from_string
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from tests import npm
from tests.builders import PASSWORD
from tests.mailbox import link_in
from tests.processes import environment, post, started, wait_for, wait_for_mail
from tests.project import PROJECT, free_port, procfile

CLIENT = PROJECT / "tests" / "sdk"
ROOT, ALICE = "root@system.example", "alice@acme.example"


@pytest.fixture
def node() -> str:
    """The program that runs the client, which is installed beside its scripts."""
    npm.installed(CLIENT)
    return str(shutil.which("node"))


class Server(NamedTuple):
    """A server with Alice's account."""

    address: str
    process: int
    log: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Web and worker as the Procfile starts them."""
    folder, port = tmp_path_factory.mktemp("sdk"), free_port()
    address, log = f"http://127.0.0.1:{port}", folder / "log"
    commands = {name: shlex.split(command) for name, command in procfile().items()}
    env = environment(
        folder,
        PORT=str(port),
        SERVICE_BASE_URL=address,
        SERVICE_SUPERADMIN_EMAIL=ROOT,
        SERVICE_SUPERADMIN_PASSWORD=PASSWORD,
    )
    subprocess.run(commands["release"], cwd=PROJECT, env=env, check=True)
    worker_log = folder / "worker.log"
    with started(commands["web"], env, log) as web, started(commands["worker"], env, worker_log):
        wait_for(f"{address}/ready", log)
        register_and_verify(address, folder / "instance" / "outbox")
        yield Server(address, web.pid, log)


def drive(node: str, server: Server, *script: str) -> None:
    """Run a script, which ends with a word if all went well."""
    driven = subprocess.run(
        [node, *script, server.address, "acme", ALICE, ROOT, PASSWORD],
        cwd=CLIENT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    log = server.log.read_text()[-3000:]
    assert driven.returncode == 0, f"{driven.stdout}{driven.stderr}\n{log}"
    assert "the client is served" in driven.stdout


def test_snackbase_sdk_works_unmodified(node: str, server: Server) -> None:
    drive(node, server, "drive.mjs")


@pytest.mark.parametrize("transport", ["websocket", "sse"])
def test_snackbase_sdk_follows_changes(node: str, server: Server, transport: str) -> None:
    drive(node, server, "realtime.mjs", transport, str(server.process))


def register_and_verify(address: str, outbox: Path) -> None:
    """Make alice's account, and verify her address by the link that she is mailed."""
    account = {"account": "acme", "email": ALICE, "password": PASSWORD}
    post(f"{address}/api/v1/auth/register", account)
    mail = cast(EmailMessage, message_from_string(wait_for_mail(outbox), policy=default))
    # Only programs verify by opening the link.
    headers = {"Accept": "application/json"}
    request = urllib.request.Request(link_in(mail), headers=headers)  # noqa: S310 - loopback
    urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 - loopback
