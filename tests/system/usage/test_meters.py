"""Meters of processes that are killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from flask import Flask

from app import create_app
from app.accounts.usage import request_counter
from app.config import Config
from tests.builders import Caller, Cast
from tests.conftest import WHOLE
from tests.processes import forked
from tests.usage.test_meters import (
    busy,  # noqa: F401
    stored,
    used,
)

PROCESSES = 4


def run_calls(settings: Config, number: int, count: int, log: Path, token: dict[str, str]) -> None:
    """Send mixed calls, log each answer, and die by SIGKILL after the last."""
    app = create_app(settings)
    alice, made = Caller(app, **token), list[str]()
    with log.open("ab", buffering=0) as lines:
        for i in range(count):
            match i % 5:
                case 0 | 1:
                    answer = alice.post("records/posts", {"title": f"{number} {i}" * (i % 7)})
                    made += [answer.json["id"]] if answer.status_code == 201 else []
                case 2:
                    answer = alice.get(f"records/posts/{made[-1]}")
                case 3:
                    answer = alice.patch(f"records/posts/{made[-1]}", {"title": "y" * (i % 50)})
                case _:
                    answer = alice.delete(f"records/posts/{made.pop()}")
            lines.write(f"{answer.status_code}\n".encode())
            if i == count // 2 and number == 0:
                with app.app_context():
                    request_counter.current().collect_all()
    os.kill(os.getpid(), signal.SIGKILL)


@WHOLE
def test_usage_meter_of_killed_processes_equals_log(
    app: Flask, busy: Cast, tmp_path: Path, whole: bool
) -> None:
    alice, settings = busy.alice, app.extensions["atrium.config"]
    log, count = tmp_path / "log", 2500 if whole else 40
    before = used(alice)["requests"]
    for _ in range(2):  # the second half begins where the first was killed
        workers = [
            forked(run_calls, settings, n, count // 2, log, alice.headers) for n in range(PROCESSES)
        ]
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [-signal.SIGKILL] * PROCESSES
    lines = log.read_text().split()
    assert len(lines) == count * PROCESSES
    assert set(lines) <= {"200", "201", "204", "503"}
    now = used(alice)
    assert now["requests"] == before + len(lines) + 1
    assert stored(app, alice).items() <= now.items()
    assert used(alice)["requests"] == before + len(lines) + 2  # collected once only
    with app.app_context():
        folder = settings.instance_dir / "usage"
        assert len([*folder.glob("*.requests")]) == 1  # this process's own
