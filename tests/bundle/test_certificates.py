"""A deleted account gets a certificate that anybody can verify offline."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import time_machine
from flask import Flask

from app import clock
from app.portability import certificates
from tests.builders import Cast
from tests.bundle.accounts import export, furnish, import_, run
from tests.mailbox import run_jobs

ROOT = ("--as", "root@system.example")


def test_deletion_certificate_is_listed_and_downloaded_by_superadmin(
    cast: Cast, app: Flask
) -> None:
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


def test_deletion_certificate_is_not_issued_before_cleanup_ends(cast: Cast, app: Flask) -> None:
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


def test_deletion_certificate_is_not_issued_for_restored_account(
    cast: Cast, app: Flask, tmp_path: Path
) -> None:
    furnish(cast)
    file = export(app, tmp_path)
    assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
    run_jobs(app)
    assert import_(app, file, *ROOT).exit_code == 0
    result = run(app, "account", "certificate", cast.alice.account_id)
    assert (result.exit_code, "No account with this id" in result.output) == (1, True)
