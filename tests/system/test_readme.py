"""The commands of README and of the pages in docs/, run as they are written on a fresh server."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import environment, started, wait_for
from tests.project import PROJECT, free_port


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """`make run` on an empty instance: its address, and the password that it printed."""
    port, log = free_port(), tmp_path / "log"
    address = f"http://127.0.0.1:{port}"
    with started(["make", "run", f"PORT={port}"], environment(tmp_path), log):
        wait_for(f"{address}/ready", log)
        printed = re.search(r"password +(\S+)", log.read_text())
        assert printed, log.read_text()
        yield address, printed[1]


# README first: the pages go on with its variables.
GUIDES = ("README.md", "docs/rules.md", "docs/workflows.md", "docs/audit.md")
MAILS = "test $(grep --files-with-matches verify-email instance/outbox/*.eml | wc -l) -ge"
INSTANCES = 'api "$ATRIUM/api/v1/workflows/$FLOW/instances" --header "Authorization: Bearer $TOKEN"'
# What the commands pause for, in their order.
AWAITED = (
    f"{MAILS} 1",
    "grep --quiet heartbeat stream.txt",
    "grep --quiet tasks.create stream.txt",
    "grep --quiet listening received.txt",
    "grep --quiet sha256 received.txt",
    f"{MAILS} 2",
    f'{INSTANCES} | grep --quiet \'"status":"completed"\'',
)
# A pause ends as soon as its condition holds, and after its written length at the latest.
PAUSE = """
pause() {
  for tenth in $(seq $(($1 * 10))); do
    if eval "$2" 2> /dev/null; then return; fi
    sleep 0.1
  done
}
"""


def commands(address: str, password: str) -> str:
    """The commands of all guides, with the address and the password of this server."""
    text = "\n".join((PROJECT / guide).read_text() for guide in GUIDES)
    script = "".join(re.findall(r"^```bash\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    pauses = re.split(r"^sleep (\d)$", script, flags=re.MULTILINE)
    for number, condition in enumerate(AWAITED):
        place = 2 * number + 1
        pauses[place] = f"pause {pauses[place]} {shlex.quote(condition)}"
    script = PAUSE + "".join(pauses).replace("http://127.0.0.1:8000", address)
    script = script.replace("9000", str(free_port()))
    return script.replace("the one that make run printed", password)


def test_documented_commands_are_only_in_tested_pages() -> None:
    pages = [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]
    with_commands = {page for page in pages if "```bash" in page.read_text()}
    assert with_commands == {PROJECT / guide for guide in GUIDES}


def test_documented_commands_run_as_written(running: tuple[str, str], tmp_path: Path) -> None:
    address, password = running
    script = "set -e\n" + commands(address, password)
    run = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    output = run.stdout
    assert '"error":"' not in output.replace('{"error":"not_found"', "", 1), output
    for sign in (
        '"table_name":"col_tasks"',
        '"email_verified":true',
        '"title":"Write the plan","effort":3',
        '"total":2',
        '"total":1',
        '"done":true',
        'data: {"type":"tasks.create"',
        "sha256=",
        '"event":"records.create","collection":"tasks"',
        '"total":0',
        '{"error":"not_found"',
        '"allowed":',
        '"result":true',
        '"steps":{"pause"',
        '"title":"Do it all","effort":7',
        '"column_name":"done","old_value":"false","new_value":"true"',
        '"valid":true',
        '"changes":',
    ):
        assert sign in output, f"{sign} not in:\n{output}"
