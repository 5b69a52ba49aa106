"""How deep in a chain of triggers what happens now is; 0 where no workflow led to it.

A workflow's steps act at its depth, and so does a request that one of them sent: what it changes
may start further workflows. Outside the depth travels signed, so that nobody can claim to be so
deep that nothing would be started any more; and for an hour only, so that what was sent to somebody
is of no lasting use to them.
"""

from __future__ import annotations

from contextvars import ContextVar

from itsdangerous import BadSignature

from app import clock, crypto

HEADER = "X-Service-Workflow-Depth"
VALID_SECONDS = 3600
PURPOSE = "workflow depth"

_depth: ContextVar[int] = ContextVar("depth", default=0)


def depth() -> int:
    """The depth at which this context acts."""
    return _depth.get()


def be(depth: int) -> None:
    """From now on this context acts at that depth."""
    _depth.set(depth)


def headers(depth: int) -> dict[str, str]:
    """What tells the depth to whoever a request is sent to."""
    if depth == 0:
        return {}
    return {HEADER: crypto.sign([depth, int(clock.now().timestamp())], PURPOSE)}


def told(header: str | None) -> int:
    """The depth at which a request was sent."""
    if not header:
        return 0
    try:
        depth, then = crypto.signed(header, PURPOSE)
    except BadSignature:
        return 0
    return int(depth) if clock.now().timestamp() - then < VALID_SECONDS else 0
