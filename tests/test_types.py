"""Properties that are worked out once."""

from __future__ import annotations

import threading

from app.types import cached_property


class Shelf:
    def __init__(self, ready: threading.Event) -> None:
        self.ready, self.looks = ready, 0

    @cached_property
    def books(self) -> list[str]:
        """What stands on the shelf."""
        self.looks += 1
        assert self.ready.wait(10)
        return ["one"]


def test_cached_property_is_worked_out_once_and_may_be_set_anew() -> None:
    ready = threading.Event()
    ready.set()
    shelf = Shelf(ready)
    assert shelf.books is shelf.books
    assert shelf.looks == 1
    del shelf.books
    assert shelf.books == ["one"]
    assert shelf.looks == 2


def test_cached_property_of_one_object_does_not_wait_for_another_s() -> None:
    late, ready = threading.Event(), threading.Event()
    ready.set()
    waits = Shelf(late)
    thread = threading.Thread(target=lambda: waits.books)
    thread.start()
    answered: list[list[str]] = []
    other = threading.Thread(target=lambda: answered.append(Shelf(ready).books))
    other.start()
    other.join(5)
    late.set()
    thread.join(10)
    assert answered == [["one"]]


def test_cached_property_of_a_class_is_described_as_its_function() -> None:
    assert Shelf.books.__doc__ == "What stands on the shelf."
