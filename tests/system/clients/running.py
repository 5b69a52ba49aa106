"""Runs asynchronous code of tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def run_async(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine, in a thread of its own: a browser's tests leave a loop running in
    theirs.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
