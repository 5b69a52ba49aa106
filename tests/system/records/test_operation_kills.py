"""A process is killed around operations on five collections: each batch is whole, or not there."""

from __future__ import annotations

import os
import random
import time
from itertools import count
from pathlib import Path

from flask import Flask

from app import create_app
from tests.builders import Caller, Cast, make_collection
from tests.conftest import WHOLE
from tests.processes import Restartable, environment, forked
from tests.project import PROJECT

NAMES = [f"part{number}" for number in range(5)]
CHANGED = 3
"""Records of each collection that a batch makes, one of which it changes and one deletes."""


class Writer(Restartable):
    """A process that sends batches until it is killed."""

    def __init__(self, env: dict[str, str], token: str, log: Path) -> None:
        self._args, self._number = (env, token, log), 0
        super().__init__()

    def start(self) -> None:
        """Fork it; its batches have other numbers than those before."""
        self._number += 1
        self._running = forked(_write, *self._args, self._number)

    def kill(self) -> None:
        """End it in the middle of something."""
        self._running.kill()
        self._running.join()


def _write(env: dict[str, str], token: str, log: Path, number: int) -> None:
    os.chdir(PROJECT)
    os.environ.clear()
    os.environ.update(env)
    with log.open("a") as output:
        os.dup2(output.fileno(), 2)
    client = Caller(create_app(), Authorization=f"Bearer {token}")
    for n in count():
        client.post("batch", {"operations": operations(f"{number}-{n}")})


def operations(title: str) -> list[dict[str, object]]:
    """A batch over all collections, whose records refer to those of the collection before."""
    sent = list[dict[str, object]]()
    for before, name in zip([None, *NAMES], NAMES, strict=False):
        up = {"up": {"$ref": f"{before}.id"}} if before else {}
        for part in range(CHANGED):
            body = {"title": title, "part": part, **up}
            one = {"method": "POST", "collection": name, "body": body}
            sent.append(one | {"as": name if part == 0 else f"{name}_{part}"})
        changed = {"method": "PATCH", "collection": name, "id": {"$ref": f"{name}_1.id"}}
        sent.append({**changed, "body": {"part": 10}})
        sent.append({"method": "DELETE", "collection": name, "id": {"$ref": f"{name}_2.id"}})
    return sent


@WHOLE
def test_operations_are_all_there_or_none_whatever_is_killed(
    app: Flask, cast: Cast, tmp_path: Path, whole: bool
) -> None:
    kills, chance = (200, random.Random(7)) if whole else (10, random.Random(8))
    for before, name in zip([None, *NAMES], NAMES, strict=False):
        fields: list[dict[str, object]] = [
            {"name": "title", "type": "text"},
            {"name": "part", "type": "number"},
        ]
        if before:
            fields.append({"name": "up", "type": "reference", "collection": before})
        make_collection(cast.root, name, fields)
    settings = app.extensions["atrium.config"]
    env = environment(
        tmp_path,
        SERVICE_ENV="test",
        SERVICE_INSTANCE_DIR=str(settings.instance_dir),
        SERVICE_BASE_URL="http://atrium.test",
        SERVICE_DATABASE_URL=settings.database_url,
    )
    token = cast.alice.headers["Authorization"].removeprefix("Bearer ")
    writer, seen = Writer(env, token, tmp_path / "writer.log"), 0
    try:
        for _ in range(kills):
            while total(cast.alice, NAMES[-1]) == seen:  # it takes a while to begin
                time.sleep(0.02)
            time.sleep(chance.uniform(0, 0.1))
            writer.crash()
            seen = total(cast.alice, NAMES[-1])
    finally:
        writer.kill()
    whole_batches = [stored(cast.alice, name) for name in NAMES]
    assert len(whole_batches[0]) >= kills
    for batches in whole_batches:
        assert batches == whole_batches[0]
        assert all(parts == [0, 10] for parts in batches.values())
    made = cast.root.acting_in(cast.alice.slug).get("audit-logs/verify")
    assert made.json["valid"]


def total(caller: Caller, name: str) -> int:
    found: int = caller.get(f"records/{name}?limit=1").json["total"]
    return found


def stored(caller: Caller, name: str) -> dict[str, list[int]]:
    """The parts of each batch, by its title."""
    found = dict[str, list[int]]()
    cursor: str | None = ""
    while cursor is not None:
        page = caller.get(f"records/{name}?sort=part&limit=100&cursor={cursor}").json
        for one in page["items"]:
            found.setdefault(one["title"], []).append(one["part"])
        cursor = page["next_cursor"] if page["has_more"] else None
    return found
