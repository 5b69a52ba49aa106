"""Trigger depth of the current request or job; stops loops. 0 outside of workflows.

A workflow's steps run at its depth, and so does a request that a step sends, as its changes may
start further workflows. A signed header carries the depth between requests, so that callers cannot
forge a depth at which nothing starts; it expires after an hour, so that a receiver cannot reuse it.
The root identifies all instances that one event leads to, which are counted together
(`app/workflows/triggers/start_limits.py`).
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
    """The trigger depth of the current context."""
    return _depth.get()


def root() -> str:
    """The id shared by all instances of this chain; empty outside of one."""
    return _root.get()


def set_current(depth: int, root: str = "") -> None:
    """Set depth and root of the current context."""
    _depth.set(depth)
    _root.set(root)


def headers(depth: int, root: str = "") -> dict[str, str]:
    """Signed headers for an outgoing request; none at depth 0."""
    if depth == 0:
        return {}
    now = int(clock.now().timestamp())
    of_root = {ROOT_HEADER: crypto.sign([root, now], ROOT_PURPOSE)} if root else {}
    return {HEADER: crypto.sign([depth, now], PURPOSE), **of_root}


def from_header(header: str | None) -> int:
    """The depth in a request's header; 0 if it is missing or invalid."""
    return int(_signed(header, PURPOSE, 0))


def root_from_header(header: str | None) -> str:
    """The root in a request's header; empty if it is missing or invalid."""
    return str(_signed(header, ROOT_PURPOSE, ""))


def _signed(header: str | None, purpose: str, default: object) -> Any:
    if not header:
        return default
    try:
        value, then = crypto.unsign(header, purpose)
    except BadSignature:
        return default
    return value if clock.now().timestamp() - then < VALID_SECONDS else default
