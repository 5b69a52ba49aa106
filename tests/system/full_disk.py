"""What an instance does on a disk that fills up: `python -m tests.system.full_disk FOLDER`.

Prints the statuses as JSON. `tests/test_full_disk.py` mounts the disk and runs it.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from app.db import disk
from tests import builders, conftest
from tests.builders import PASSWORD, make_collection, make_record

LOGIN = {"account": "acme", "email": "alice@acme.example", "password": PASSWORD}
ROOT = {"account": "system", "email": "root@system.example", "password": PASSWORD}


def fill(folder: Path) -> Path:
    """Have not a byte left."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (2**20, 4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return filler


def copy_log(folder: Path) -> None:
    """Copy the log into the database as far as the disk takes it, as a restart does."""
    with closing(sqlite3.connect(folder / "atrium.db")) as connection, suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint")


def main(folder: Path) -> dict[str, Any]:
    """What comes of it."""
    conftest.hash_with(conftest.QUICK_HASHER)
    app = conftest.make_app(conftest.settings_for("sqlite", folder))
    cast = builders.make_cast(app)
    make_collection(cast.root)
    kept = [make_record(cast.alice, title="x" * 1000)["id"] for _ in range(50)]
    for _ in range(12):  # what the database has to grow by once its log is copied
        make_record(cast.alice, title="x" * 900_000)
    seen: dict[str, Any] = {"reserved": (folder / "atrium.db-reserve").exists()}
    seen["log"] = (folder / "atrium.db-wal").stat().st_size
    filler = fill(folder)
    seen["free"] = disk.free_bytes(str(folder / "atrium.db"))
    refused = cast.alice.post("records/posts", {"title": "a"})
    seen["write"] = refused.status_code
    seen["told"] = refused.json["message"]
    seen["read"] = cast.alice.get("records/posts").status_code
    ready = cast.alice.get("/ready")
    seen["ready"] = [ready.status_code, ready.json["checks"]["disk"]]
    doctor = app.test_cli_runner().invoke(args=["doctor"])
    seen["doctor"] = next(line for line in doctor.output.splitlines() if " disk " in line)
    for name, body in (("alice", LOGIN), ("root", ROOT)):
        seen[name] = cast.root.post("auth/login", body).status_code
    copy_log(folder)
    seen["logins"] = [cast.root.post("auth/login", ROOT).status_code for _ in range(20)]
    token = cast.root.post("auth/login", ROOT).json["token"]
    headers = {"Authorization": f"Bearer {token}"}
    seen["me"] = cast.root.get("auth/me", headers=headers).status_code
    seen["deleted"] = [cast.alice.delete(f"records/posts/{id}").status_code for id in kept]
    os.truncate(filler, 0)
    seen["after"] = cast.alice.post("records/posts", {"title": "a"}).status_code
    seen["ready after"] = cast.alice.get("/ready").status_code
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))))
