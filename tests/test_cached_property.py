"""Properties that are made once (`app/types.py`), where threads ask for them."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from flask import Flask

from app.types import cached_property
from tests.builders import Cast, make_collection


class Shelf:
    """Its books are there when `ready` says so, which each maker of them waits for."""

    def __init__(self, makers: int = 1) -> None:
        self.ready, self.makers = threading.Event(), threading.Barrier(makers)

    @cached_property
    def books(self) -> list[str]:
        """The books."""
        self.makers.wait(10)
        return ["one"] if self.ready.wait(10) else []


def test_cached_property_of_one_object_does_not_wait_for_another_s() -> None:
    late, early = Shelf(), Shelf()
    early.ready.set()
    with ThreadPoolExecutor(2) as pool:
        waits = pool.submit(getattr, late, "books")
        assert pool.submit(getattr, early, "books").result(5) == ["one"]
        late.ready.set()
        assert waits.result(5) == ["one"]


def test_cached_property_is_the_same_for_threads_that_make_it_at_once() -> None:
    shelf = Shelf(makers=2)
    shelf.ready.set()
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: shelf.books, range(2))
    assert first is second is shelf.books == ["one"]
    assert Shelf.books.__doc__ == "The books."


def test_first_readers_of_new_collection_at_once_get_its_records(app: Flask, cast: Cast) -> None:
    def read(name: str) -> int:
        start.wait()
        return cast.alice.get(f"records/{name}?include_total=true").status_code

    start = threading.Barrier(6)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads meet where they seldom do
    try:
        with ThreadPoolExecutor(6) as pool:
            for number in range(4):
                make_collection(cast.root, name := f"shelf{number}")
                assert set(pool.map(read, [name] * 6)) == {200}
    finally:
        sys.setswitchinterval(interval)
