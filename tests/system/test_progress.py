"""Long commands show their progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from io import BytesIO
from pathlib import Path

import click
import pytest

from app import create_app
from app.ops import listed
from tests import builders
from tests.conftest import make_app, settings_for
from tests.processes import environment
from tests.project import PROJECT

ATRIUM = str(PROJECT / "bin" / "atrium")


def on_a_terminal(command: list[str], env: dict[str, str]) -> str:
    """What a command writes to a terminal."""
    ours, its = pty.openpty()
    with subprocess.Popen(command, env=env, stderr=its, stdout=its) as program:
        os.close(its)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # Linux: the program has closed the other end
            pass
        os.close(ours)
    assert program.returncode == 0, shown
    return shown.decode()


def in_a_pipe(command: list[str], env: dict[str, str]) -> str:
    """What a command writes to stderr, where that is no terminal."""
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return done.stderr


@pytest.fixture
def env(database: str, tmp_path: Path) -> dict[str, str]:
    """The environment of an instance with a record and an uploaded file."""
    settings = settings_for(database, tmp_path)
    app = make_app(settings)
    cast = builders.make_cast(app)
    builders.make_collection(cast.root, "papers", [{"name": "file", "type": "file"}])
    cast.alice.post("records/papers", data={"file": (BytesIO(b"the bytes"), "a.txt")})
    names = {"URL": settings.database_url, "DIR": str(settings.instance_dir)}
    return environment(
        tmp_path,
        SERVICE_ENV="test",
        SERVICE_DATABASE_URL=names["URL"],
        SERVICE_INSTANCE_DIR=names["DIR"],
    )


def test_command_progress_is_bar_on_terminal_and_lines_in_pipe(
    env: dict[str, str], database: str, tmp_path: Path
) -> None:
    unit = {"sqlite": "Pages", "postgresql": "Tables"}[database]
    for number, show in enumerate((on_a_terminal, in_a_pipe)):
        file = str(tmp_path / f"{number}.backup")
        saved = show([ATRIUM, "backup", file], env)
        restored = show([ATRIUM, "restore", file, "--replace"], env)
        verified = show([ATRIUM, "audit", "verify"], env)
        assert re.search(r"Entries verified: \d+", verified)
        if show is on_a_terminal:
            assert re.search(rf"{unit} saved  \[#+\]  100%", saved)
            assert re.search(r"Files saved  \[#+\]  100%", saved)
            assert re.search(rf"{unit} restored  \[#+\]  100%", restored)
            assert "Files restored: 1" in restored
        else:
            assert re.search(rf"^{unit} saved: (\d+) of \1$", saved, re.MULTILINE)
            assert "Files saved: 1 of 1\n" in saved
            assert re.search(rf"^{unit} restored: (\d+) of \1$", restored, re.MULTILINE)
            assert "\r" not in saved + restored + verified


def test_command_help_groups_every_command_with_example(env: dict[str, str]) -> None:
    shown = subprocess.run([ATRIUM, "--help"], env=env, check=True, capture_output=True, text=True)
    assert "Other:" not in shown.stdout
    groups = re.findall(r"^(\w[\w ]+):$", shown.stdout, re.MULTILINE)
    assert groups == ["Options", *listed.GROUPS]
    own = {name for title, group in listed.GROUPS.items() if title != "Develop" for name in group}
    commands = create_app(settings_for("sqlite", Path(env["HOME"]))).cli
    found = {name: commands.get_command(click.Context(commands), name) for name in own}
    examples = {name: one.epilog or "" if one else "" for name, one in found.items()}
    assert [name for name, text in examples.items() if f"atrium {name}" not in text] == []
