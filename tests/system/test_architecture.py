"""What a process loads."""

from __future__ import annotations

import subprocess
import sys

from tests.test_architecture import PROJECT


def test_application_import_loads_no_large_libraries() -> None:
    large = {"authlib", "dns", "lxml", "onelogin", "opentelemetry", "PIL", "segno"}
    large |= {"webauthn", "xmlsec"}
    code = "import app, sys; print(*(m for m in sys.modules if '.' not in m))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert not large & set(done.stdout.split())
