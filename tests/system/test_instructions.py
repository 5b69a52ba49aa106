"""The instructions of requests do not grow beside those of the floor."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench.instructions import HOOK, KEPT, MEMBERSHIP, WAYS


@pytest.mark.parametrize("way", WAYS)
def test_request_takes_few_instructions(way: str) -> None:
    command = [sys.executable, "-m", "bench.instructions", way]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    named = {line.split()[0] for line in done.stdout.splitlines() if " = " in line}
    assert named == json.loads(KEPT.read_text())[way].keys(), done.stdout


def test_create_under_a_membership_takes_few_more_instructions() -> None:
    command = [sys.executable, "-m", "bench.instructions", MEMBERSHIP]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "create, membership" in done.stdout


def test_create_with_a_hook_takes_few_more_instructions() -> None:
    command = [sys.executable, "-m", "bench.instructions", HOOK]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "create, hook" in done.stdout
