"""A deleted account gets a certificate that anybody can verify offline."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from flask import Flask

from app import clock
from app.portability import certificates
from tests.builders import Cast
from tests.bundle.accounts import export, furnish, import_, run
from tests.mailbox import run_jobs
from tests.processes import PROJECT

PROGRAM = PROJECT / "docs" / "verify_deletion.py"
ROOT = ("--as", "root@system.example")


def verified(folder: Path, certificate: Any, *options: str) -> tuple[int, str]:
    """The exit status and the output of the offline verification."""
    file = folder / "certificate.json"
    file.write_text(json.dumps(certificate))
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(file), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def deleted(cast: Cast, app: Flask) -> None:
    """Delete acme, and let the jobs of the next hours run."""
    assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
    run_jobs(app)
    with app.app_context():
        certificates.certify({"account_id": cast.alice.account_id})


def test_a_certificate_says_what_was_deleted(cast: Cast, app: Flask, tmp_path: Path) -> None:
    furnish(cast)
    early = run(app, "account", "certificate", cast.alice.account_id)
    assert (early.exit_code, "No account with this id" in early.output) == (1, True)
    deleted(cast, app)
    result = run(app, "account", "certificate", cast.alice.account_id)
    assert result.exit_code == 0, result.output
    certificate = json.loads(result.output)
    expected = {"users": 2, "files": 1, "webhooks": 1, "col_posts": 2, "col_authors": 1}
    assert {name: certificate["counts"][name] for name in expected} == expected
    assert certificate["closed_by"] == cast.root.id
    assert certificate["checkpoint"]["account_id"] == cast.alice.account_id
    status, output = verified(tmp_path, certificate, "--key", certificate["public_key"])
    assert (status, "col_posts 2" in output) == (0, True), output
    assert run(app, "audit", "verify").exit_code == 0


def test_superadmins_list_deletions_and_get_certificates(cast: Cast, app: Flask) -> None:
    furnish(cast)
    account_id = cast.alice.account_id
    path = f"accounts/{account_id}/certificate"
    assert cast.root.get(path).status_code == 404
    assert cast.root.get("accounts/deletions").json["total"] == 0
    assert cast.root.delete(f"accounts/{account_id}").status_code == 204
    (pending,) = cast.root.get("accounts/deletions").json["items"]
    assert (pending["account_name"], pending["certified_at"]) == ("Acme", None)
    assert cast.root.get(path).status_code == 409
    run_jobs(app)
    with app.app_context():
        certificates.certify({"account_id": account_id})
    certificate = cast.root.get(path).json
    assert certificate == json.loads(run(app, "account", "certificate", account_id).output)
    (certified,) = cast.root.get("accounts/deletions").json["items"]
    assert certified == {**pending, "certified_at": certificate["verified_at"]}


@pytest.mark.parametrize(
    "change",
    [
        lambda it: it["counts"].update(users=1),
        lambda it: it.update(account_id="019a9f00-0000-7000-8000-000000000000"),
        lambda it: it.update(verified_at="2026-01-01T00:00:00.000000Z"),
        lambda it: it.update(purpose="another"),
        lambda it: it.update(more=1),
        lambda it: it["checkpoint"].update(entry_id=1),
        lambda it: it.update(signature="00" * 64),
    ],
)
def test_a_changed_certificate_is_invalid(
    cast: Cast, app: Flask, tmp_path: Path, change: Callable[[Any], None]
) -> None:
    deleted(cast, app)
    with app.app_context():
        certificate = certificates.get(cast.alice.account_id)
    changed = json.loads(json.dumps(certificate))
    change(changed)
    assert verified(tmp_path, changed)[0] == 1
    assert verified(tmp_path, certificate, "--key", "00" * 32)[0] == 1


def test_there_is_none_while_something_is_left(cast: Cast, app: Flask) -> None:
    furnish(cast)
    assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
    with app.app_context():
        certificates.certify({"account_id": cast.alice.account_id})
    result = run(app, "account", "certificate", cast.alice.account_id)
    assert (result.exit_code, "not over" in result.output) == (1, True)
    run_jobs(app)
    with time_machine.travel(clock.now() + timedelta(seconds=1)), app.app_context():
        certificates.certify({"account_id": cast.alice.account_id})
    assert run(app, "account", "certificate", cast.alice.account_id).exit_code == 0


def test_an_account_that_came_back_gets_none(cast: Cast, app: Flask, tmp_path: Path) -> None:
    furnish(cast)
    file = export(app, tmp_path)
    assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
    run_jobs(app)
    assert import_(app, file, *ROOT).exit_code == 0
    result = run(app, "account", "certificate", cast.alice.account_id)
    assert (result.exit_code, "No account with this id" in result.output) == (1, True)
