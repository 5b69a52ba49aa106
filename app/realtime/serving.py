"""Serves a stream in the loop, from its head to its end."""

from __future__ import annotations

import asyncio
import socket

from app.realtime import hub
from app.realtime.connections import Connection, registry


class StreamService:
    """What goes on with the connection of a stream."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def count(self) -> None:
        registry.add(self._connection)

    async def serve(self, head: bytes, sock: socket.socket) -> None:
        """Attach the stream to the hub until its connection is lost."""
        connection = self._connection
        connection.head = head
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        except OSError:
            registry.remove(connection)
            sock.close()
            return
        hub.attach(connection)
        connection.start_reading()
        await connection.lost
        hub.detach(connection)
