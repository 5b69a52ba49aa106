"""Uploads and downloads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from atrium_client._async.session import PREFIX, AsyncSession
from atrium_client.files import FileInfo, Link, Progress, Reader, Source, id_of, opened, written


class AsyncFiles:
    """The files of records, and those that wait for a record."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def upload(
        self, source: Source, *, name: str | None = None, progress: Progress | None = None
    ) -> FileInfo:
        """Upload a file in pieces; put the `id` of the result into a record within 24 hours."""
        with opened(source) as (found_name, file):
            reader = Reader(file, progress)
            answer = await self._session.json(
                "POST",
                "files/upload",
                files={"file": (name or found_name, reader)},
                extensions={"unrepeatable": not reader.is_repeatable},
            )
        uploaded: FileInfo = answer["file"]
        return uploaded

    async def download(
        self,
        file: str | Mapping[str, Any],
        target: str | Path | BinaryIO,
        *,
        progress: Progress | None = None,
    ) -> None:
        """Write a file in pieces to a path, where only a complete one appears, or to a stream."""
        if isinstance(target, str | Path):
            with written(Path(target)) as stream:
                await self._copy(id_of(file), stream, progress)
        else:
            await self._copy(id_of(file), target, progress)

    async def link(self, file: str | Mapping[str, Any], *, expires_in: int = 3600) -> Link:
        """Create an address that anybody can download the file from, for some seconds."""
        body = {"expires_in": expires_in}
        return Link(**await self._session.json("POST", f"files/{id_of(file)}/link", json=body))

    async def delete(self, file: str | Mapping[str, Any]) -> None:
        """Delete an upload that no record has."""
        await self._session.json("DELETE", f"files/{id_of(file)}")

    async def _copy(self, file_id: str, target: BinaryIO, progress: Progress | None) -> None:
        async with self._session.open(f"{PREFIX}/files/{file_id}") as response:
            length = response.headers.get("Content-Length")
            size, done = int(length) if length else None, 0
            async for chunk in response.aiter_bytes():
                target.write(chunk)
                done += len(chunk)
                if progress:
                    progress(done, size)
