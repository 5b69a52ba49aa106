"""Commands as processes."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from app import web
from tests.processes import environment
from tests.project import PROJECT


@pytest.mark.parametrize(("output", "told"), [("full", "No space left on device"), ("closed", "")])
def test_command_with_full_or_closed_output_fails_without_traceback(
    tmp_path: Path, output: str, told: str
) -> None:
    reader, taker = os.pipe()
    os.close(reader)
    if output == "full":
        os.close(taker)
        taker = os.open("/dev/full", os.O_WRONLY)
    done = subprocess.run(
        ["flask", "--app", "wsgi", "settings"],
        cwd=PROJECT,
        env=environment(tmp_path),
        stdout=taker,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(taker)
    assert done.returncode
    assert (f"Error: {told}" if told else "") in done.stderr
    assert "Traceback" not in done.stderr


def test_production_start_creates_folder_of_default_database(tmp_path: Path) -> None:
    instance = tmp_path / "fresh" / "instance"
    env = environment(
        tmp_path,
        SERVICE_INSTANCE_DIR=str(instance),
        SERVICE_ENV="production",
        SERVICE_BASE_URL="https://api.example.com",
        SERVICE_SECRET_KEY=secrets.token_urlsafe(48),
        SERVICE_ENCRYPTION_KEY=Fernet.generate_key().decode(),
    )
    command = ["flask", "--app", "wsgi", "setup"]
    done = subprocess.run(
        command, cwd=PROJECT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (instance / "atrium.db").exists()
    assert instance.stat().st_mode & 0o777 == 0o700


def test_version_command_prints_release() -> None:
    command = [str(PROJECT / "bin" / "atrium"), "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told == f"atrium {web.VERSION}\n"
