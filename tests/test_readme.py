"""README's quickstart, taken out of README and run against a fresh server."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import PROJECT, environment, free_port, started, wait_for


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


MAILS = "test $(grep --files-with-matches verify-email instance/outbox/*.eml | wc -l) -ge"
INSTANCES = 'api "$ATRIUM/api/v1/workflows/$FLOW/instances" --header "Authorization: Bearer $TOKEN"'
# What README pauses for, in its order.
AWAITED = (
    f"{MAILS} 1",
    "grep --quiet listening told.txt",
    "grep --quiet sha256 told.txt",
    f'{INSTANCES} | grep --quiet \'"status":"completed"\'',
    f"{MAILS} 2",
)
# A pause is over when there is what it is made for, and takes no longer than README says.
PAUSE = """
pause() {
  for tenth in $(seq $(($1 * 10))); do
    if eval "$2" 2> /dev/null; then return; fi
    sleep 0.1
  done
}
"""


def quickstart(address: str, password: str) -> str:
    """The commands of README, with the address and the password of this server."""
    text = (PROJECT / "README.md").read_text()
    script = "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL))
    pauses = re.split(r"^sleep (\d)$", script, flags=re.MULTILINE)
    for number, awaited in enumerate(AWAITED):
        place = 2 * number + 1
        pauses[place] = f"pause {pauses[place]} {shlex.quote(awaited)}"
    script = PAUSE + "".join(pauses).replace("http://127.0.0.1:8000", address)
    script = script.replace("9000", str(free_port()))
    return script.replace("the one that make run printed", password)


def test_the_quickstart_works_as_written(running: tuple[str, str], tmp_path: Path) -> None:
    address, password = running
    script = "set -e\n" + quickstart(address, password)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert '"error"' not in said.replace('{"error":"not_found"', "", 1), said
    for sign in (
        "Your email address is verified",
        '"is_superadmin":false',
        '"table_name":"col_tasks"',
        '"list_rule":"true"',
        '"total":2',
        '"total":1',
        '"title":"Write the whole plan","effort":1',
        '"done":true',
        "sha256=",
        '"event":"records.create","collection":"tasks"',
        '"steps":{"pause"',
        '"title":"Do it all","effort":7',
        '"total":0',
        '{"error":"not_found"',
        '"column_name":"done","old_value":"false","new_value":"true"',
        '"valid":true',
    ):
        assert sign in said, f"{sign} not in:\n{said}"
