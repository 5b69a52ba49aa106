"""How deep in a chain of triggers what happens now is; 0 where no workflow led to it.

A workflow's steps act at its depth, and so does a request that one of them sent: what it changes
may start further workflows. Outside the depth travels signed, so that nobody can claim to be so
deep that nothing would be started any more; and for an hour only, so that what was sent to somebody
is of no lasting use to them. The root travels beside it: whatever one event leads to is counted
together (`app/workflows/starting.py`).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from itsdangerous import BadSignature

from app import clock, crypto

HEADER = "X-Service-Workflow-Depth"
ROOT_HEADER = "X-Service-Workflow-Root"
VALID_SECONDS = 3600
PURPOSE, ROOT_PURPOSE = "workflow depth", "workflow root"

_depth: ContextVar[int] = ContextVar("depth", default=0)
_root: ContextVar[str] = ContextVar("root", default="")


def depth() -> int:
    """The depth at which this context acts."""
    return _depth.get()


def root() -> str:
    """What all of this chain's instances have in common; empty outside of a chain."""
    return _root.get()


def be(depth: int, root: str = "") -> None:
    """From now on this context acts at that depth of the chain with that root."""
    _depth.set(depth)
    _root.set(root)


def headers(depth: int, root: str = "") -> dict[str, str]:
    """What tells depth and root to whoever a request is sent to."""
    if depth == 0:
        return {}
    now = int(clock.now().timestamp())
    of_root = {ROOT_HEADER: crypto.sign([root, now], ROOT_PURPOSE)} if root else {}
    return {HEADER: crypto.sign([depth, now], PURPOSE), **of_root}


def told(header: str | None) -> int:
    """The depth at which a request was sent."""
    return int(_signed(header, PURPOSE, 0))


def root_told(header: str | None) -> str:
    """The root of the chain that a request belongs to; empty where it names none."""
    return str(_signed(header, ROOT_PURPOSE, ""))


def _signed(header: str | None, purpose: str, default: Any) -> Any:
    if not header:
        return default
    try:
        value, then = crypto.signed(header, purpose)
    except BadSignature:
        return default
    return value if clock.now().timestamp() - then < VALID_SECONDS else default
