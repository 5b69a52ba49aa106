"""The primitives that the asynchronous code uses, and their counterparts in the synchronous one."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TypeVar

T = TypeVar("T")

AsyncLock = asyncio.Lock
Lock = threading.Lock
async_sleep = asyncio.sleep
sleep = time.sleep
async_shielded = asyncio.shield


def shielded(result: T) -> T:
    """Return the result: calls of synchronous code are not cancelled."""
    return result
