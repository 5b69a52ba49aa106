"""Sends large files in the loop of the process: slow readers hold no thread (docs/adr/0035)."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import BinaryIO

from app.files import service
from app.files.service import File
from app.web.sockets import Registry

SMALL = 256 * 1024  # bytes that a thread sends at once, as the system buffers about as many
MAX_DOWNLOADS, MAX_DOWNLOADS_PER_ACCOUNT = 1000, 500
STALLED_SECONDS = 30  # without the client reading what the system buffers
CLOSE_SECONDS = 2  # for a client to close, too
PIECE = 256 * 1024

registry = Registry["Download"]("downloads")


class Download:
    """A part of a file on its way to a client."""

    def __init__(self, file: File, blob: BinaryIO, start: int, length: int) -> None:
        self.account_id: str = file.account_id
        self._blob, self._start, self._length = blob, start, length

    def count(self) -> None:
        registry.add(self)

    async def serve(self, head: bytes, sock: socket.socket) -> None:
        """Send everything, or as much as the client reads."""
        with sock, self._blob as blob, suppress(OSError, TimeoutError):
            try:
                await asyncio.wait_for(
                    asyncio.get_running_loop().sock_sendall(sock, head), STALLED_SECONDS
                )
                await _send(sock, blob, self._start, self._length)
                await _close(sock)
            finally:
                registry.remove(self)


def start(file: File, first: int, length: int) -> Download | None:
    """A download of a part; None if the bytes are not on this machine.

    Raises NotFound, Unavailable and TooManyOpen.
    """
    registry.check_room(file.account_id, MAX_DOWNLOADS, MAX_DOWNLOADS_PER_ACCOUNT)
    blob = service.open_blob(file)
    return Download(file, blob, first, length) if blob else None


async def _send(sock: socket.socket, blob: BinaryIO, start: int, length: int) -> None:
    end = start + length
    while start < end:
        try:
            sent = os.sendfile(sock.fileno(), blob.fileno(), start, min(PIECE, end - start))
        except BlockingIOError:
            await _writable(sock)
            continue
        if not sent:  # the file is shorter than it was: the length tells the client
            return
        start += sent
        await asyncio.sleep(0)  # others are served in between


async def _writable(sock: socket.socket) -> None:
    running = asyncio.get_running_loop()
    writable = running.create_future()
    running.add_writer(sock, _wake, writable)
    try:
        await asyncio.wait_for(writable, STALLED_SECONDS)
    finally:
        running.remove_writer(sock)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


async def _close(sock: socket.socket) -> None:
    # Bytes of the client that nobody has read would reset the connection, and lose the last ones.
    sock.shutdown(socket.SHUT_WR)
    async with asyncio.timeout(CLOSE_SECONDS):
        while await asyncio.get_running_loop().sock_recv(sock, PIECE):
            pass
