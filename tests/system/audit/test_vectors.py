"""The published verifier refuses what is no export."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from flask import Flask

from tests.audit.chains import PROJECT
from tests.audit.test_vectors import VECTORS


@pytest.mark.parametrize(("account", "status"), [(None, 0), ("there", 0), ("elsewhere", 1)])
def test_audit_verifiers_refuse_account_without_entries(
    app: Flask, tmp_path: Path, account: str | None, status: int
) -> None:
    entries = next(case["entries"] for case in VECTORS["chains"] if case["valid"])
    export = tmp_path / "export.jsonl"
    export.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    its = {"there": entries[0]["account_id"], "elsewhere": "00000000-0000-7000-8000-00000000dead"}
    named = ["--account", its[account]] if account else []
    program = [sys.executable, PROJECT / "docs/verify_audit.py", export, *named]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, bool(done.stderr)) == (status, bool(status))
    command = ["audit", "verify", "--file", str(export), *named]
    told = app.test_cli_runner().invoke(args=command)
    assert told.exit_code == status
    assert ("has no entries of the account" in told.output) == bool(status)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cut_off.jsonl", '{"account_id": "a'),
        ("another.jsonl", "[1]\n"),
        ("another.json", '{"entries": []}'),
        ("short.csv", "account_id,id\na\n"),
        ("not_there.jsonl", None),
    ],
)
def test_audit_verifier_refuses_malformed_export_with_message(
    tmp_path: Path, name: str, text: str | None
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    program = [sys.executable, PROJECT / "docs/verify_audit.py", tmp_path / name]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("no export, or no checkpoints: ")
