"""Extensions that cannot be loaded, and one whose server process is killed for its memory."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import requests
from flask import Flask

from tests.builders import Caller, Cast
from tests.processes import environment, mebibytes, started, wait_for
from tests.project import PROGRAMS, PROJECT, free_port, procfile

LEAKING = """
import os
from app.extend import Schema, endpoint, fields

kept = []

class Process(Schema):
    id = fields.Integer(0, 2**31)

@endpoint("POST", "/leaks", answer=Process)
def leak(caller, body):
    kept.append(b"x" * 2**26)
    return {"id": os.getpid()}

@endpoint("GET", "/process", answer=Process)
def process(caller, body):
    return {"id": os.getpid()}
"""
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


def test_leaking_extension_costs_its_process_alone(app: Flask, cast: Cast, tmp_path: Path) -> None:
    (tmp_path / "leaking.py").write_text(LEAKING)
    about = tmp_path / "leaking-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: leaking\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[atrium.extensions]\nleaking = leaking\n")
    config, port, log = app.extensions["atrium.config"], free_port(), tmp_path / "log"
    env = environment(
        tmp_path,
        PORT=str(port),
        PYTHONPATH=str(tmp_path),
        WEB_CONCURRENCY="2",
        SERVICE_ENV="test",
        SERVICE_BASE_URL=config.base_url,
        SERVICE_DATABASE_URL=config.database_url,
        SERVICE_INSTANCE_DIR=str(config.instance_dir),
        SERVICE_EXTENSIONS="leaking",
    )
    url = f"http://127.0.0.1:{port}"
    with started(procfile()["web"].split(), env, log):
        wait_for(f"{url}/ready", log)
        leaks = [_process("POST", f"{url}/api/v1/x/leaking/leaks", cast.alice) for _ in range(3)]
        worst = max(leaks, key=leaks.count)
        assert mebibytes(worst, "VmRSS") > 64 * leaks.count(worst)
        os.kill(worst, signal.SIGKILL)  # as the kernel does past MemoryMax=
        seen, deadline = set[int](), time.monotonic() + 60
        while len(seen) < 2 and time.monotonic() < deadline:
            seen.add(_process("GET", f"{url}/api/v1/x/leaking/process", cast.charlie))
        assert worst not in seen
        assert len(seen) == 2, "no server process took its place"


def _process(method: str, url: str, caller: Caller) -> int:
    answer = requests.request(method, url, headers=caller.headers, timeout=20)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["id"])
