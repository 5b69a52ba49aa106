"""Calls that really happen at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def at_once(count: int, call: Callable[[int], Result]) -> list[Result]:
    """The results of `count` calls that start together, each in a thread of its own."""
    start = threading.Barrier(count)

    def run(number: int) -> Result:
        start.wait()
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))
