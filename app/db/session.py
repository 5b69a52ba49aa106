"""A transaction as it is under way, and the ORM's session in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from flask_sqlalchemy.session import Session as BoundSession
from sqlalchemy import orm
from sqlalchemy.engine import Connection

from app.db import engine


class Work:
    """A transaction, until it is committed or taken back; it begins with its first statement."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin = begin
        self.pooled: Any = None
        """The pool's hold on its connection, once it has begun."""
        self.bound: Connection | None = None
        """The same as SQLAlchemy's, once that has a part in it."""
        self.is_open = True
        """Whether more may be done in it; else it waits for its commit."""
        self.on_commit: list[Callable[[], None]] = []
        self.before_commit: dict[tuple[bool, Callable[[list[Any]], None]], list[Any]] = {}
        self.notes: dict[str, Any] = {}
        self._put_off: list[Callable[[], None]] = []

    def begun(self) -> Any:
        """The pool's hold on its connection, for a statement."""
        if self.pooled is None:
            self.pooled = self._begin()
            self.catch_up()
        return self.pooled

    def put_off(self, todo: Callable[[], None]) -> None:
        """Have something done before the next statement, or at the end where there is none."""
        self._put_off.append(todo)
        if self.pooled is not None:
            self.catch_up()

    def catch_up(self) -> None:
        """Do what was put off. What fails stays, so that nothing is committed without it."""
        if self._put_off:
            self.begun()
        while self._put_off:
            self._put_off[0]()
            del self._put_off[0]


class Session(BoundSession):
    """The ORM's session: in a transaction on its connection, else on one of its own."""

    work: Work | None = None
    """The transaction that has begun and is not over."""
    holds_commits = False

    def get_bind(self, *about: Any, **options: Any) -> Any:
        """The connection that a statement goes to."""
        work = self.work
        if work is None:
            return super().get_bind(*about, **options)
        if work.bound is None:
            begun = work.begun()  # along with what was put off, which may bind it
            work.bound = work.bound or Connection(engine.running(), connection=begun)
        return work.bound

    def close(self) -> None:
        """Let go of everything, also of a transaction that is not over."""
        try:
            super().close()
        finally:
            # Where the framework fails to forget this session, the next one must not inherit these.
            self.holds_commits = False
            give_back(self)


def give_back(session: Session) -> None:
    """Let go of a transaction's connection; what is not committed by then is rolled back."""
    work, session.work = session.work, None
    try:
        session.rollback()
    finally:
        if work is not None and work.pooled is not None:
            (work.bound or work.pooled).close()


@sa.event.listens_for(orm.Session, "before_flush")
def _refuse_stray_writes(session: orm.Session, context: Any, instances: Any) -> None:
    work: Work | None = getattr(session, "work", None)
    if work is None or not work.is_open:
        raise RuntimeError("a write outside transaction()")
