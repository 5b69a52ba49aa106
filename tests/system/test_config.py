"""Starts that are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from app.config import PROJECT


def test_start_with_invalid_settings_names_them(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "SERVICE_INSTANCE_DIR": str(tmp_path)}
    environ |= {"SERVICE_ENV": "prod", "SERVICE_TRUSTED_PROXIES": "x"}
    command = [sys.executable, "-c", "import wsgi"]
    done = subprocess.run(
        command, cwd=PROJECT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "SERVICE_ENV must be one of" in done.stderr
    assert "SERVICE_TRUSTED_PROXIES must be" in done.stderr
    assert "Traceback" not in done.stderr
