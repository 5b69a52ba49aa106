"""An instance on a disk without a byte left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from app.db import disk
from tests.project import PROJECT

MOUNT = "mount -t tmpfs -o size=192m none {0} && exec {1} -m tests.system.full_disk {0}"


def test_full_disk_allows_sign_in_and_deletion(tmp_path: Path) -> None:
    """On a real one, in a namespace of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    own = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    command = [*own, "sh", "-c", MOUNT.format(folder, sys.executable)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert (seen["reserved"], seen["free"]) == (True, 0)
    assert seen["log"] > 16 * disk.MIB
    assert (seen["write"], seen["read"]) == (503, 200)
    assert "disk is nearly full" in seen["told"]
    assert seen["ready"] == [503, "full: less than 16 MiB free"]
    assert seen["doctor"].startswith("fail")
    assert "0 MiB free" in seen["doctor"]
    assert {seen["alice"], seen["root"], seen["me"], *seen["logins"]} == {200}
    assert set(seen["deleted"]) == {204}
    assert (seen["after"], seen["ready after"]) == (201, 200)
