"""Certificates of deletion, checked as the documentation says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from app.portability import certificates
from tests.builders import Cast
from tests.bundle.accounts import furnish, run
from tests.mailbox import run_jobs
from tests.project import PROJECT

PROGRAM = PROJECT / "docs" / "verify_deletion.py"


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


def test_deletion_certificate_counts_deleted_rows_and_verifies(
    cast: Cast, app: Flask, tmp_path: Path
) -> None:
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
def test_deletion_certificate_that_was_changed_is_invalid(
    cast: Cast, app: Flask, tmp_path: Path, change: Callable[[Any], None]
) -> None:
    deleted(cast, app)
    with app.app_context():
        certificate = certificates.get(cast.alice.account_id)
    changed = json.loads(json.dumps(certificate))
    change(changed)
    assert verified(tmp_path, changed)[0] == 1
    assert verified(tmp_path, certificate, "--key", "00" * 32)[0] == 1
