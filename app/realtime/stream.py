"""An open stream as the hub sees it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from app.auth.principal import Principal
from app.collections.definition import Definition
from app.feed import visibility
from app.feed.visibility import View
from app.realtime import limits, loop
from app.realtime.subscriptions import Subscription

if TYPE_CHECKING:
    from app.realtime.connections import Connection


class Stream:
    """A connection, and what the hub knows of it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.caller: Principal | None = None
        self.buffered = 0
        """The bytes that the client has not read yet, as last measured."""
        self.stopped_at: int | None = None
        """The last change before the one that it was not ready for."""
        self._views: dict[tuple[str, str], View] = {}

    @property
    def subscriptions(self) -> list[Subscription]:
        """What the client is subscribed to."""
        return list(self.connection.subscriptions.values())

    @property
    def is_ready(self) -> bool:
        """Whether the client has read enough to be sent more."""
        return not self.connection.closed and self.buffered < limits.READY_BYTES

    @property
    def position(self) -> int | None:
        """The lowest position of its subscriptions."""
        return min((one.position for one in self.subscriptions), default=None)

    @property
    def definitions(self) -> list[Definition]:
        """The collections whose rules it has been judged by."""
        return [view.definition for view in self._views.values()]

    def view(self, definition: Definition, filter: str = "") -> View:
        """What the caller may view of a collection. Raises AppError."""
        key = (definition.table_name, filter)
        known = self._views.get(key)
        caller = self.caller
        assert caller is not None  # noqa: S101 - identified before
        if known is None or known.definition is not definition or known.access.caller is not caller:
            self._views[key] = known = visibility.view_of(caller, definition, filter)
        return known

    def call(self, method: str, *arguments: object) -> None:
        """Call a method of the connection in the loop's thread."""
        loop.current().call_soon_threadsafe(partial(getattr(self.connection, method), *arguments))
