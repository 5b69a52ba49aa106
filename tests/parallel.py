"""Calls that really happen at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from app.records.write import changes
from tests.builders import Caller, make_record

Result = TypeVar("Result")


def at_once(count: int, call: Callable[[int], Result]) -> list[Result]:
    """The results of `count` calls that start together, each in a thread of its own."""
    start = threading.Barrier(count)

    def run(number: int) -> Result:
        start.wait()
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@contextmanager
def under_way(caller: Caller, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, a record of a caller's is written and not committed; behind it, it is."""
    written, over, tell = threading.Event(), threading.Event(), changes.announce

    def tell_late(*what: Any) -> None:
        tell(*what)
        written.set()
        assert over.wait(20)

    patch.setattr(changes, "announce", tell_late)
    writer = threading.Thread(target=make_record, args=(caller,), kwargs={"title": "late"})
    writer.start()
    try:
        assert written.wait(20)
        yield
    finally:
        over.set()
        writer.join()
