"""Trigger depth of the current request or job; stops loops. 0 outside of workflows.

A workflow's steps run at its depth, and so does a request that a step sends, as its changes may
start further workflows. A signed header carries the depth between requests, so that callers cannot
forge a depth at which nothing starts; it expires after an hour, so that a receiver cannot reuse it.
The root identifies all instances that one event leads to, which are counted together
(`app/workflows/triggers/start_limits.py`).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple

from itsdangerous import BadSignature

from app import clock, crypto

HEADER = "X-Service-Workflow-Depth"
ROOT_HEADER = "X-Service-Workflow-Root"
VALID_SECONDS = 3600
PURPOSE, ROOT_PURPOSE = "workflow depth", "workflow root"


class Chain(NamedTuple):
    depth: int = 0
    root: str = ""
    """The id shared by all instances of this chain; empty outside of one."""


NO_CHAIN = Chain()
chain: ContextVar[Chain] = ContextVar("chain", default=NO_CHAIN)
"""The chain of the current context."""


def headers(depth: int, root: str = "") -> dict[str, str]:
    """Signed headers for an outgoing request; none at depth 0."""
    if depth == 0:
        return {}
    now = int(clock.now().timestamp())
    of_root = {ROOT_HEADER: crypto.sign([root, now], ROOT_PURPOSE)} if root else {}
    return {HEADER: crypto.sign([depth, now], PURPOSE), **of_root}


def from_headers(depth: str | None, root: str | None) -> Chain:
    """The chain in a request's headers; missing or invalid ones count as 0 and an empty root."""
    return Chain(int(_signed(depth, PURPOSE, 0)), str(_signed(root, ROOT_PURPOSE, "")))


def _signed(header: str | None, purpose: str, default: object) -> Any:
    if not header:
        return default
    try:
        value, then = crypto.unsign(header, purpose)
    except BadSignature:
        return default
    return value if clock.now().timestamp() - then < VALID_SECONDS else default
