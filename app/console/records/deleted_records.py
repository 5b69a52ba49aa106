"""The records that were just deleted together, for the list that offers to undo it.

Their ids travel in the form cookie, as an address is too short for them, until the list shows them.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from uuid import UUID

from flask import request, session

from app.console.shell.scopes import CollectionScope

SESSION_KEY = "deleted"
ID_BYTES = 16


def store(scope: CollectionScope, ids: Iterable[str]) -> None:
    """Store the ids for the next list of the collection."""
    packed = urlsafe_b64encode(b"".join(UUID(id).bytes for id in ids)).decode()
    session[SESSION_KEY] = [*_key(scope), packed]


def pop(scope: CollectionScope) -> Sequence[str]:
    """Remove and return the ids that are stored for this list; a refresh by a script does not."""
    *key, packed = session.get(SESSION_KEY, (None,))
    is_refresh = request.headers.get("X-Requested-With") == "XMLHttpRequest"
    if key != _key(scope) or is_refresh:
        return ()
    del session[SESSION_KEY]
    raw = urlsafe_b64decode(packed)
    return [str(UUID(bytes=raw[n : n + ID_BYTES])) for n in range(0, len(raw), ID_BYTES)]


def _key(scope: CollectionScope) -> list[str]:
    return [scope.account.id, scope.collection.id]
