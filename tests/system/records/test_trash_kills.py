"""A process is killed around the ways into the trash and out of it: no record is lost or twice."""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa
from flask import Flask

from app import clock, create_app, db
from app.collections.trash import TRASH
from app.context import tenancy
from app.records import trash
from tests.builders import Caller, Cast, make_collection
from tests.conftest import WHOLE
from tests.processes import Restartable, environment, forked
from tests.project import PROJECT

FIELDS = [
    {"name": "title", "type": "text", "options": {"search": True}},
    {"name": "code", "type": "text", "unique": True},
]


class Mover(Restartable):
    """A process that deletes, restores and purges records until it is killed."""

    def __init__(self, env: dict[str, str], token: str, folder: Path) -> None:
        self._args, self._number = (env, token, folder), 0
        super().__init__()

    def start(self) -> None:
        """Fork it; it chooses other records than those before."""
        self._number += 1
        self._running = forked(_move, *self._args, self._number)

    def kill(self) -> None:
        """End it in the middle of something."""
        self._running.kill()
        self._running.join()

    @property
    def is_alive(self) -> bool:
        return self._running.is_alive()


def _move(env: dict[str, str], token: str, folder: Path, number: int) -> None:
    os.chdir(PROJECT)
    os.environ.clear()
    os.environ.update(env)
    with (folder / "log").open("a") as output:
        os.dup2(output.fileno(), 2)
    app, chosen = create_app(), random.Random(number)
    client = Caller(app, Authorization=f"Bearer {token}")
    ended = {*read(folder / "ending")}
    ids = [id for id in read(folder / "made") if id not in ended]
    with ExitStack() as files:
        made, ending, done = (
            files.enter_context((folder / name).open("ab", 0))
            for name in ("made", "ending", "done")
        )
        while True:
            id = chosen.choice(ids)
            at = f"records/posts/{id}"
            match chosen.randrange(40):
                case 0:
                    ending.write(f"{id}\n".encode())
                    ids.remove(id)
                    client.delete(f"{at}?permanently=true")
                case 1:
                    old = sorted(listed(client, "&trash=true"))[:2]
                    ending.write("".join(f"{id}\n" for id in old).encode())
                    ids = [one for one in ids if one not in old]
                    _purge(app, old)
                case 2 | 3 | 4 | 5:
                    new = client.post("records/posts", {"title": "a word"}).json["id"]
                    made.write(f"{new}\n".encode())
                    ids.append(new)
                case 6 | 7:
                    some = sorted(listed(client))[:2]
                    client("DELETE", "records/posts/batch", {"ids": some})
                case 8 | 9 | 10:
                    client.post(f"{at}/restore", {"values": {"title": f"a word {id}"}})
                case one:
                    client.delete(at) if one % 2 else client.post(f"{at}/restore", {})
            done.write(b".")


def _purge(app: Flask, ids: list[str]) -> None:
    """Let records have been in the trash for long, and run the job that deletes these."""
    with app.app_context(), tenancy.across_accounts():
        with db.transaction() as session:
            earlier = clock.now() - timedelta(days=31)
            aged = sa.update(TRASH).where(TRASH.c.id.in_(ids))
            session.execute(aged.values(deleted_at=earlier))
        trash.purge_old({})


def listed(caller: Caller, more: str = "") -> set[str]:
    """The ids of a list."""
    found, cursor = set[str](), ""
    while True:
        page = caller.get(f"records/posts?fields=id&limit=100&cursor={cursor}{more}").json
        found |= {one["id"] for one in page["items"]}
        if not page["has_more"]:
            return found
        cursor = page["next_cursor"]


def read(file: Path) -> list[str]:
    return file.read_text().split()


@WHOLE
def test_record_is_in_the_table_or_in_the_trash_whatever_is_killed(
    app: Flask, cast: Cast, tmp_path: Path, whole: bool
) -> None:
    kills, chance, alice = 100 if whole else 10, random.Random(7), cast.alice
    make_collection(cast.root, schema=FIELDS, options={"trash": {"days": 30}})
    bodies = [{"title": "a word", "code": str(n)} for n in range(40)]
    created = alice.post("records/posts/batch", {"records": bodies}).json["created"]
    (tmp_path / "made").write_text("".join(f"{one['id']}\n" for one in created))
    for name in ("ending", "done"):
        (tmp_path / name).touch()
    settings = app.extensions["atrium.config"]
    env = environment(
        tmp_path,
        SERVICE_ENV="test",
        SERVICE_INSTANCE_DIR=str(settings.instance_dir),
        SERVICE_BASE_URL="http://atrium.test",
        SERVICE_DATABASE_URL=settings.database_url,
    )
    token, seen = alice.headers["Authorization"].removeprefix("Bearer "), 0
    mover = Mover(env, token, tmp_path)
    try:
        for _ in range(kills):
            while (tmp_path / "done").stat().st_size == seen:  # it takes a while to begin
                assert mover.is_alive, read(tmp_path / "log")[-100:]
                time.sleep(0.02)
            time.sleep(chance.uniform(0, 0.5))
            mover.crash()
            seen = (tmp_path / "done").stat().st_size
    finally:
        mover.kill()
    made, ending = {*read(tmp_path / "made")}, {*read(tmp_path / "ending")}
    live, gone = listed(alice), listed(alice, "&trash=true")
    assert not live & gone
    assert made - ending <= live | gone
    assert len(live) > 2
    assert len(gone) > 2
    assert alice.get("records/posts?search=word&limit=1").json["total"] == len(live)
    assert alice.get("records/posts?limit=1").json["total"] == len(live)
    for id in sorted(made):
        last = alice.get(f"records/posts/{id}/history?limit=1").json["items"][0]["operation"]
        assert last == ("CREATE" if id in live else "DELETE")
    assert cast.root.acting_in(alice.slug).get("audit-logs/verify").json["valid"]
