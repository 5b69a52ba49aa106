"""What the application says to its database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa
from flask import Flask

from app.db import db
from app.db import prepared as prepared


class Statement(str):
    """The text of a statement, with its parameters beside it."""

    parameters: Any = None


@contextmanager
def statements(app: Flask) -> Iterator[list[Statement]]:
    """The SQL that is sent meanwhile."""
    sent: list[Statement] = []

    def note(connection: Any, cursor: Any, text: str, parameters: Any, *rest: Any) -> None:
        statement = Statement(text)
        statement.parameters = parameters
        sent.append(statement)

    send = prepared.execute

    def note_prepared(cursor: Any, text: str, parameters: Any, *kept: Any) -> None:
        note(None, cursor, text, parameters)
        send(cursor, text, parameters, *kept)

    with app.app_context():
        engine = db.engine
    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        with patch.object(prepared, "execute", note_prepared):
            yield sent
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)
