"""The published TypeScript client, unmodified, against a server started for real."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import urllib.request
from email import message_from_string
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import cast

import pytest

from tests.builders import PASSWORD
from tests.mailbox import link_in
from tests.processes import (
    PROJECT,
    environment,
    free_port,
    post,
    procfile,
    started,
    wait_for,
    wait_for_mail,
)

CLIENT = PROJECT / "tests" / "sdk"
ROOT, ALICE = "root@system.example", "alice@acme.example"


@pytest.fixture
def node() -> str:
    """The program that runs the client, which is installed beside its script."""
    missing = [name for name in ("node", "npm") if not shutil.which(name)]
    if missing:
        reason = f"{' and '.join(missing)} missing: the published client is NOT tested"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(f"{reason}; `python -m tests.services install` installs them")
    if not (CLIENT / "node_modules" / "@snackbase" / "sdk" / "package.json").exists():
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=CLIENT, check=True)
    return str(shutil.which("node"))


def test_the_published_client_is_served_unmodified(tmp_path: Path, node: str) -> None:
    port, log = free_port(), tmp_path / "log"
    address = f"http://127.0.0.1:{port}"
    commands = {name: shlex.split(command) for name, command in procfile().items()}
    env = environment(
        tmp_path,
        PORT=str(port),
        SERVICE_BASE_URL=address,
        SERVICE_SUPERADMIN_EMAIL=ROOT,
        SERVICE_SUPERADMIN_PASSWORD=PASSWORD,
    )
    subprocess.run(commands["release"], cwd=PROJECT, env=env, check=True)
    worker_log = tmp_path / "worker.log"
    with started(commands["web"], env, log), started(commands["worker"], env, worker_log):
        wait_for(f"{address}/ready", log)
        register_and_verify(address, tmp_path / "instance" / "outbox")
        arguments = [address, "acme", ALICE, ROOT, PASSWORD]
        driven = subprocess.run(
            [node, "--experimental-websocket", "drive.mjs", *arguments],
            cwd=CLIENT,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert driven.returncode == 0, f"{driven.stdout}{driven.stderr}\n{log.read_text()[-3000:]}"
    assert "the client is served" in driven.stdout


def register_and_verify(address: str, outbox: Path) -> None:
    """Make alice's account, and follow the link that she is mailed."""
    account = {"account": "acme", "email": ALICE, "password": PASSWORD}
    post(f"{address}/api/v1/auth/register", account)
    mail = cast(EmailMessage, message_from_string(wait_for_mail(outbox), policy=default))
    urllib.request.urlopen(link_in(mail), timeout=10).close()  # noqa: S310 - loopback
