"""Connects streams to the change feed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.auth.principal import Principal
from app.errors import AppError
from app.realtime.subscriptions import Subscription

if TYPE_CHECKING:
    from app.realtime.connections import Connection

_attached = set["Connection"]()


def open_stream(caller: Principal, subscriptions: list[Subscription]) -> None:
    """Check what a caller subscribes to, and fix the positions. Raises AppError."""


def attach(connection: Connection) -> None:
    """Send changes to a connection from now on."""
    _attached.add(connection)


def detach(connection: Connection) -> None:
    """Forget a connection."""
    _attached.discard(connection)


def subscribe(
    connection: Connection, subscription: Subscription, done: Callable[[AppError | None], None]
) -> None:
    """Add a subscription to a connection; calls back in the loop's thread."""
    done(None)
