"""The files of a database, which keep no secret of a session."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from flask import Flask
from flask.testing import FlaskClient

from tests.builders import Caller
from tests.console.browser import COOKIE, sign_in


def test_console_session_secret_is_not_in_database_file(
    app: Flask, browser: FlaskClient, alice: Caller
) -> None:
    sign_in(browser, alice)
    secret: Any = browser.get_cookie(COOKIE)
    folder = Path(app.instance_path)
    for file in folder.rglob("*.db*"):
        # Read by another process: were it this one, closing the file would drop SQLite's own locks.
        stored = subprocess.run(["cat", file], capture_output=True, check=True).stdout
        assert secret.value.encode() not in stored
