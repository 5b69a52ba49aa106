"""docs/extensions.md from an empty folder on: its commands and its code, as they are written."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.processes import environment, started, wait_for
from tests.project import PROJECT, free_port
from tests.test_docs import FENCED

PAGE = (PROJECT / "docs" / "extensions.md").read_text()
BLOCK = re.compile(r"^```python (extensions/\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# What knows its own place; the rest is linked.
COPIED = ("app", "bin", "deploy", "examples/starter", "wsgi.py")
LEFT_OUT = (".git", ".venv", "extensions", "instance")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of one's own, with the packages of this one, which `make` takes for the newest."""
    folder = tmp_path / "atrium"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(PROJECT / name, folder / name)
    _link(PROJECT, folder, LEFT_OUT)
    _link(PROJECT / ".venv", folder / ".venv")
    for stamp in (".created", ".runtime", ".dev"):
        (folder / ".venv" / stamp).unlink(missing_ok=True)
    for stamp in (".created", ".runtime", ".dev"):
        (folder / ".venv" / stamp).touch()
    return folder


def _link(source: Path, folder: Path, left_out: Sequence[str] = ()) -> None:
    folder.mkdir(exist_ok=True)
    for place in source.iterdir():
        if place.name not in left_out and not (folder / place.name).exists():
            (folder / place.name).symlink_to(place.resolve())


def run(command: str, checkout: Path, **settings: str) -> str:
    """Run a command of the page in the checkout; returns what it prints."""
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=checkout,
        env=environment(checkout.parent, **settings),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_guide_leads_from_an_empty_folder_to_a_tested_endpoint(
    checkout: Path, tmp_path: Path
) -> None:
    commands = re.findall(r"^    (\S.*)$", FENCED.sub("", PAGE), re.MULTILINE)
    assert commands[:3] == [
        "bin/atrium extension new shop",
        "make test T=extensions/shop",
        "SERVICE_EXTENSIONS=shop make run",
    ]
    assert "make test T=extensions/shop" in run(commands[0], checkout)
    # What `make test T=` runs once its packages are installed.
    tests = ".venv/bin/pytest extensions/shop"
    assert "2 passed" in run(tests, checkout)
    for place, code in BLOCK.findall(PAGE):
        assert (checkout / place).exists(), place
        (checkout / place).write_text(code)
    assert "3 passed" in run(tests, checkout)
    listed = run("bin/atrium extension list", checkout, SERVICE_EXTENSIONS="shop")
    assert re.search(r"^shop +0\.1\.0 +loaded", listed, re.MULTILINE)
    assert re.search(
        r"^shop +0\.1\.0 +not", run("bin/atrium extension list", checkout), re.MULTILINE
    )
    check_served(checkout, tmp_path)


def check_served(checkout: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    address = f"http://127.0.0.1:{port}"
    env = environment(tmp_path, SERVICE_EXTENSIONS="shop")
    with started(["make", "-C", str(checkout), "run", f"PORT={port}"], env, log):
        wait_for(f"{address}/ready", log)
        printed = re.search(r"password +(\S+)", log.read_text())
        assert printed, log.read_text()
        credentials = {"account": "system", "email": "admin@localhost", "password": printed[1]}
        token = post(f"{address}/api/v1/auth/login", json=credentials)["token"]
        price = post(
            f"{address}/api/v1/x/shop/prices",
            json={"pieces": 10},
            headers={"Authorization": f"Bearer {token}"},
        )
        assert price == {"cents": 2250}
        described = requests.get(f"{address}/openapi.json", timeout=20).json()
        assert "/api/v1/x/shop/prices" in described["paths"]
        types = described["components"]["schemas"]["FieldDefinition"]["properties"]["type"]
        assert "iban" in types["enum"]


def post(url: str, **options: Any) -> Any:
    answer = requests.post(url, timeout=20, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()
