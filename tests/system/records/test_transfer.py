"""A process that exports many records."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from flask import Flask

from tests.builders import Caller
from tests.project import PROJECT
from tests.records.test_transfer import (
    fill,
    things,  # noqa: F401
)

MEASURED = """
import re, sys
from app import create_app
client = create_app().test_client(use_cookies=False)
for format in ("csv", "json", "jsonl"):
    url = f"/api/v1/records/things/export?format={format}"
    headers = {"Authorization": sys.argv[1]}
    answer = client.get(url, headers=headers, buffered=False)
    print(sum(map(len, answer.response)))
    answer.close()
# Not getrusage: its peak counts what the parent had when it forked.
with open("/proc/self/status") as status:
    print(re.search(r"VmHWM:\\s+([0-9]+)", status.read())[1])
"""


@pytest.mark.slow
def test_record_export_of_100_000_records_takes_150_mib(
    app: Flask, alice: Caller, things: dict[str, Any]
) -> None:
    fill(app, alice, 100_000)
    known = app.extensions["atrium.config"]
    env = os.environ | {
        "SERVICE_ENV": "test",
        "SERVICE_INSTANCE_DIR": str(known.instance_dir),
        "SERVICE_DATABASE_URL": known.database_url,
        "SERVICE_BASE_URL": known.base_url,
    }
    command = [sys.executable, "-c", MEASURED, alice.headers["Authorization"]]
    run = subprocess.run(command, cwd=PROJECT, env=env, check=True, capture_output=True, text=True)
    *sizes, kibibytes = [int(line) for line in run.stdout.splitlines() if line.isdigit()]
    assert len(sizes) == 3
    assert min(sizes) > 25_000_000
    assert kibibytes < 150 * 1024
