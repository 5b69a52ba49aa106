"""Stores the files of a bundle."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path

import sqlalchemy as sa

from app import db
from app.files import content, storage
from app.files.models import FILES
from app.portability.bundle.contents import Contents, Event
from app.types import JSONMapping


@contextmanager
def stored(contents: Contents, account_id: str) -> Iterator[None]:
    """Store the files for an account; deletes them again if the block fails."""
    with ExitStack() as cleanup:
        events = contents.events()
        event = next((one for one in events if one.kind == "blob"), None)
        while event is not None:
            following: list[Event] = []
            _store(account_id, event.value, _pieces(events, following), cleanup)
            event = next((one for one in following if one.kind == "blob"), None)
        yield
        cleanup.pop_all()


def _pieces(events: Iterator[Event], following: list[Event]) -> Iterator[bytes]:
    """The content of a blob; the event behind it goes to `following`."""

    def is_piece(event: Event) -> bool:
        if event.kind != "piece":
            following.append(event)
        return event.kind == "piece"

    yield from (event.value for event in takewhile(is_piece, events))


def _discard(account_id: str, file_id: str) -> None:
    """Delete a blob, unless another import of the bundle has created the account meanwhile."""
    mine = (FILES.c.account_id == account_id, FILES.c.id == file_id)
    if db.connection().scalar(sa.select(FILES.c.id).where(*mine)) is None:
        storage.current().delete(storage.key_of(account_id, file_id))


def _store(account_id: str, blob: JSONMapping, pieces: Iterable[bytes], cleanup: ExitStack) -> None:
    key = storage.key_of(account_id, blob["blob"])
    with tempfile.NamedTemporaryFile(dir=storage.incoming(), delete=False) as file:
        path = Path(file.name)
        try:
            for piece in pieces:
                file.write(piece)
            size = file.tell()
            file.flush()
            if size:
                cleanup.callback(_discard, account_id, blob["blob"])
                headers = {
                    "Content-Type": blob["mime_type"],
                    "Content-Disposition": content.disposition(blob["mime_type"], blob["name"]),
                }
                storage.current().put(key, path, headers)
        finally:
            path.unlink(missing_ok=True)
