"""The unit of work behind `transaction()`, and the ORM session that runs in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from flask_sqlalchemy.session import Session as BoundSession
from sqlalchemy import orm
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import PoolProxiedConnection

from app.db import engine

BatchCallback = Callable[[list[Any]], None]


class UnitOfWork:
    """A transaction until its commit or rollback; it begins with its first statement."""

    def __init__(self, begin: Callable[[], PoolProxiedConnection]) -> None:
        self._begin = begin
        self.pooled: PoolProxiedConnection | None = None
        """The pool's connection, once the transaction has begun."""
        self.connection: Connection | None = None
        """SQLAlchemy's connection over the same one, once a statement needs it."""
        self.is_open = True
        """Whether it takes more statements; if not, it waits for its commit."""
        self.on_commit: list[Callable[[], None]] = []
        self.before_commit: dict[tuple[bool, BatchCallback], list[object]] = {}
        self.notes: dict[str, object] = {}
        self._deferred: list[Callable[[], None]] = []

    def begun(self) -> PoolProxiedConnection:
        """Return the pool's connection; begins the transaction if need be."""
        if self.pooled is None:
            self.pooled = self._begin()
            self.flush_deferred()
        return self.pooled

    def defer(self, callback: Callable[[], None]) -> None:
        """Call back before the next statement, or at the end if there is none."""
        self._deferred.append(callback)
        if self.pooled is not None:
            self.flush_deferred()

    def flush_deferred(self) -> None:
        """Call what was deferred. What fails stays, so that no commit can leave it out."""
        if self._deferred:
            self.begun()
        while self._deferred:
            self._deferred[0]()
            del self._deferred[0]


class Session(BoundSession):
    """The ORM session; inside `transaction()` it uses that transaction's connection."""

    work: UnitOfWork | None = None
    """The transaction that is open, or waits for its commit."""
    holds_commits = False

    def get_bind(self, *args: Any, **options: Any) -> Engine | Connection:
        """Return the connection that a statement runs on."""
        work = self.work
        if work is None:
            return super().get_bind(*args, **options)
        if work.connection is None:
            pooled = work.begun()  # calls what was deferred, which may set the connection
            work.connection = work.connection or Connection(
                engine.current_engine(), connection=pooled
            )
        return work.connection

    def close(self) -> None:
        """Release all connections, and roll back a transaction that is not committed."""
        try:
            super().close()
        finally:
            # If the framework fails to drop this session, its next user must not inherit these.
            self.holds_commits = False
            release(self)


def release(session: Session) -> None:
    """Release a transaction's connection; rolls back whatever is not committed."""
    work, session.work = session.work, None
    try:
        session.rollback()
    finally:
        if work is not None and work.pooled is not None:
            (work.connection or work.pooled).close()


@sa.event.listens_for(orm.Session, "before_flush")
def _refuse_stray_writes(session: orm.Session, context: object, instances: Sequence[Any]) -> None:
    work: UnitOfWork | None = getattr(session, "work", None)
    if work is None or not work.is_open:
        raise RuntimeError("a write outside transaction()")
