"""An extension that cannot be loaded: no process starts, and all say the same sentence."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.processes import environment
from tests.project import PROGRAMS, PROJECT

SENTENCE = "The extension nothing of SERVICE_EXTENSIONS cannot be loaded: "


@pytest.mark.parametrize(
    "command",
    [
        [str(PROGRAMS / "python"), "-c", "import wsgi"],
        ["bin/atrium", "worker"],
        ["bin/atrium", "doctor"],
        ["bin/atrium", "settings"],
    ],
    ids=["web", "worker", "doctor", "command"],
)
def test_no_process_starts_without_its_extension(command: list[str], tmp_path: Path) -> None:
    env = environment(tmp_path, SERVICE_EXTENSIONS="nothing")
    done = subprocess.run(
        command, cwd=PROJECT, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(SENTENCE)
    assert done.stdout == ""
