"""The readers in docs/realtime.md, run as they are written."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app import db
from app.audit.entries import HEADS
from app.realtime import connections
from tests.builders import Cast, make_collection, make_record
from tests.project import PROJECT
from tests.realtime.clients import cut, until

Reader = Callable[[Callable[[Any], None], Callable[[], None]], None]


class Interrupted(Exception):
    """The reader's program ends."""


@pytest.fixture
def readers(
    cast: Cast, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Reader]:
    """The functions of the page, with a key of Bob."""
    make_collection(cast.root, "tasks")
    key = cast.bob.post("api-keys", {"name": "reader"}).json["key"]
    monkeypatch.setenv("ATRIUM_API_KEY", key)
    monkeypatch.chdir(tmp_path)
    page = (PROJECT / "docs" / "realtime.md").read_text()
    code = "".join(re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    found = dict[str, Any]()
    exec(code.replace("https://atrium.example", f"http://127.0.0.1:{port}"), found)  # noqa: S102
    return found


@pytest.mark.parametrize(("name", "record"), [("poll", "record"), ("follow", "data")])
def test_documented_reader_after_crash_repeats_change_and_misses_none(
    cast: Cast, readers: dict[str, Reader], name: str, record: str
) -> None:
    for title in ("one", "two", "three"):
        make_record(cast.alice, "tasks", title=title)
    seen = list[str]()

    def handle(change: Any) -> None:
        seen.append(change[record]["title"])
        if len(seen) in (2, 4):
            raise Interrupted

    for _ in range(2):
        with pytest.raises(Interrupted):
            readers[name](handle, pytest.fail)
    assert seen == ["one", "two", "two", "three"]


def test_documented_reader_resumes_after_disconnect(cast: Cast, readers: dict[str, Reader]) -> None:
    seen = list[str]()

    def handle(change: Any) -> None:
        seen.append(change["data"]["title"])
        if seen[-1] == "end":
            raise Interrupted

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(readers["follow"], handle, pytest.fail)
        until(connections.registry.all)
        make_record(cast.alice, "tasks", title="before")
        until(lambda: seen == ["before"])
        cut()
        for title in ("meanwhile", "end"):
            make_record(cast.alice, "tasks", title=title)
        assert isinstance(reading.exception(10), Interrupted)
    assert seen == ["before", "meanwhile", "end"]


@pytest.mark.parametrize("name", ["poll", "follow"])
def test_documented_reader_with_expired_position_reloads_records(
    cast: Cast, readers: dict[str, Reader], name: str, tmp_path: Path
) -> None:
    for title in ("one", "two"):
        make_record(cast.alice, "tasks", title=title)
    first, last = (one["change"] for one in cast.bob.get("changes").json["items"])
    (tmp_path / "position.txt").write_text(str(first))
    mine = HEADS.c.account_id == cast.alice.account_id
    with cast.alice.app.app_context(), db.transaction() as session:
        session.execute(sa.update(HEADS).where(mine).values(expired_change=last))
    seen = list[Any]()

    def handle(change: Any) -> None:
        seen.append(change["change"])
        raise Interrupted

    def reload() -> None:
        seen.append("reload")
        make_record(cast.alice, "tasks", title="three")

    with pytest.raises(Interrupted):
        readers[name](handle, reload)
    assert seen[0] == "reload"
    assert seen[1] > last
