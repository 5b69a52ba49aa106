"""Imports whose process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flask import Flask

from tests.builders import Cast
from tests.bundle.accounts import export, furnish, import_
from tests.bundle.test_refusals import ROOT, everything
from tests.project import PROJECT

KILLED = """
import os, signal, sys
from app import create_app
from app.portability.bundle import importing
from app.config import Config
def kill(self):
    os.write(1, b"writing")
    os.kill(os.getpid(), signal.SIGKILL)
importing._Import._record = kill
app = create_app(Config.from_env(os.environ))
app.test_cli_runner().invoke(args=sys.argv[1:], catch_exceptions=False)
"""


@pytest.mark.usefixtures("real_scrypt")  # which the other process has
def test_bundle_import_killed_leaves_nothing(cast: Cast, app: Flask, tmp_path: Path) -> None:
    furnish(cast)
    file = export(app, tmp_path)
    before, settings = everything(app), app.extensions["atrium.config"]
    environ = {
        **os.environ,
        "SERVICE_ENV": "test",
        "SERVICE_DATABASE_URL": settings.database_url,
        "SERVICE_INSTANCE_DIR": str(settings.instance_dir),
    }
    secret = str(file.with_name("passphrase"))
    args = ("account", "import", str(file), "--passphrase-file", secret, *ROOT, "--slug", "new")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *args],
        cwd=PROJECT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (killed.returncode, "writing" in killed.stdout) == (-signal.SIGKILL, True), killed
    assert everything(app) == before
    for _ in range(20):  # PostgreSQL notices within a moment
        result = import_(app, file, *ROOT, "--slug", "new")
        if result.exit_code == 0:
            break
        time.sleep(0.5)
    assert result.exit_code == 0, result.output
