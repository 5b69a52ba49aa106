"""The database: column types, and the one transaction.

A statement outside `transaction()` is a read of its own (autocommit): it costs one round trip and
leaves no snapshot behind. Everything that writes runs inside `transaction()`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime
from typing import Any, TypeGuard

import psycopg2
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from flask_sqlalchemy.session import Session as BoundSession
from psycopg2.errors import ReadOnlySqlTransaction
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Session
from uuid_utils import uuid7

from app import clock, config, postgres, row_security, sqlite, tenancy
from app.errors import Conflict

PURGED_AT_ONCE = 500
SCHEMA_LOCK = 0x41747269756D
# Where a network drops all packets, a connection is given up after half a minute at most, and not
# after hours in which it would hold a thread.
SILENCE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
UNUSABLE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
POSTGRES_OPTIONS = "-c timezone=UTC -c default_transaction_isolation=read\\ committed"


class Base(DeclarativeBase):
    """The parent of every model. Names of constraints are fixed, so that errors can be mapped."""

    metadata = sa.MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class _Work:
    """A transaction, from its beginning until it is committed or taken back."""

    def __init__(self, pooled: Any) -> None:
        self.pooled = pooled
        """The pool's hold on its connection."""
        self.bound: Connection | None = None
        """The same as SQLAlchemy's, once that has a part in it."""
        self.is_open = True
        """Whether more may be done in it; else it waits for its commit."""
        self.on_commit: list[Callable[[], None]] = []
        self.before_commit: dict[tuple[bool, Callable[[list[Any]], None]], list[Any]] = {}
        self.notes: dict[str, Any] = {}


class _Session(BoundSession):
    """The ORM's session: in a transaction on its connection, else on one of its own."""

    work: _Work | None = None
    """The transaction that has begun and is not over."""
    holds_commits = False

    def get_bind(self, *about: Any, **options: Any) -> Any:
        work = self.work
        if work is None:
            return super().get_bind(*about, **options)
        if work.bound is None:
            work.bound = Connection(engine(), connection=work.pooled)
        return work.bound

    def close(self) -> None:
        try:
            super().close()
        finally:
            # Where the framework fails to forget this session, the next one must not inherit these.
            self.holds_commits = False
            _give_back(self)


db = SQLAlchemy(model_class=Base, disable_autonaming=True, session_options={"class_": _Session})

# Text compares and sorts by code point on both databases, whatever the server's locale.
Text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
Id = Text


class Moment(sa.types.TypeDecorator[datetime]):
    """An instant: timestamptz on PostgreSQL, the contract's text form on SQLite."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        """The column type on this database."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.TIMESTAMP(timezone=True))
        return dialect.type_descriptor(sa.Text())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """A moment on its way in."""
        return clock.iso(value) if value and dialect.name == "sqlite" else value

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """What makes a moment of a stored value; None where the driver does."""
        return _moment if dialect.name == "sqlite" else None


class StoredMoment(Moment):
    """A moment that is read as the database keeps it, on SQLite in the form that answers have."""

    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """None: nothing is made of it."""
        return None


def _moment(text: str | None) -> datetime | None:
    return clock.parse(text) if text is not None else None


def as_created(context: Any) -> datetime:
    """The default of `updated_at`: what a new row's `created_at` says, to the microsecond."""
    moment: datetime = context.get_current_parameters()["created_at"]
    return moment


class database_now(sa.sql.functions.FunctionElement[datetime]):
    """The database's clock: leases must not depend on the clocks of worker machines."""

    type = Moment()
    inherit_cache = True
    name = "database_now"

    def __init__(self, plus_seconds: int = 0) -> None:
        super().__init__(sa.literal(plus_seconds))


@compiles(database_now, "sqlite")
def _sqlite_now(element: database_now, compiler: Any, **options: Any) -> str:
    seconds = compiler.process(element.clauses, **options)
    return f"strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', {seconds} || ' seconds')"


@compiles(database_now, "postgresql")
def _postgres_now(element: database_now, compiler: Any, **options: Any) -> str:
    seconds = compiler.process(element.clauses, **options)
    # Not clock_timestamp(): a volatile function has no place in an UPDATE of a distributed table.
    return f"(statement_timestamp() + {seconds} * interval '1 second')"


def new_id() -> str:
    """A time-ordered UUID (version 7), within a process in the order of the calls."""
    return str(uuid7())


def first_id(moment: datetime) -> str:
    """What all ids made at or after a moment, by the millisecond, compare as greater than."""
    digits = f"{max(0, int(moment.timestamp() * 1000)):012x}"
    return f"{digits[:8]}-{digits[8:]}"


def init_app(app: Flask, settings: config.Config) -> None:
    """Bind the database that the settings name."""
    app.config["SQLALCHEMY_DATABASE_URI"] = settings.database_url
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = _engine_options(settings)
    # What was read stays readable after the commit; what was read outside a transaction expires
    # as the next one begins.
    db.init_app(app)
    with app.app_context():
        db.session.session_factory.configure(expire_on_commit=False)
        _prepare(db.engine)
        if db.engine.dialect.name == "postgresql" and settings.row_security_enabled:
            row_security.enforce(db.engine)
        app.extensions["atrium.engine"] = db.engine


def _engine_options(settings: config.Config) -> dict[str, Any]:
    options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "hide_parameters": True}
    if settings.database_url.startswith("sqlite"):
        options |= {"insertmanyvalues_page_size": sqlite.ROWS}
        return options | {"connect_args": {"factory": sqlite.Driver}}
    connect: dict[str, Any] = {"connect_timeout": 5, "options": POSTGRES_OPTIONS}
    connect |= {"application_name": "atrium", **SILENCE}
    connect |= {"connection_factory": postgres.Driver, "cursor_factory": postgres.Cursor}
    return options | {
        "connect_args": connect,
        "pool_size": 8,
        "max_overflow": 8,
        "pool_timeout": 10,
    }


def dispose_after_fork(app: Flask) -> None:
    """Forget connections inherited from the parent process, without closing them for it."""
    with app.app_context():
        db.engine.dispose(close=False)


def _prepare(engine: sa.Engine) -> None:
    @sa.event.listens_for(engine, "handle_error", retval=True)
    def handle(context: Any) -> Exception | None:
        original = context.original_exception
        return _as_unavailable(original) if _is_unusable(original) else None

    if engine.dialect.name != "sqlite":
        return

    @sa.event.listens_for(engine, "checkin")
    def restore_foreign_keys(connection: sqlite3.Connection | None, record: Any) -> None:
        # Never without need: the pragma has SQLite prepare every kept statement anew.
        if connection is not None and record.info.pop("unchecked", False):
            connection.execute("PRAGMA foreign_keys = ON")


def engine() -> sa.Engine:
    """What connects to the running application's database."""
    found: sa.Engine = config.running().extensions["atrium.engine"]
    return found


def connection() -> Connection:
    """The connection for Core statements: the transaction's while one is open."""
    return db.session.connection()


class driver:
    """The driver's own connection, of the open transaction or for one statement.

    Its errors come as SQLAlchemy's.
    """

    def __enter__(self) -> Any:
        """The connection; raises OperationalError where a transaction has lost its own."""
        self._held = _used()
        self._taken = found = self._held or _pooled()
        pooled = found.connection if isinstance(found, Connection) else found
        self._driver = pooled.dbapi_connection
        if self._driver is None:
            raise OperationalError(None, None, LookupError("The connection was lost."))
        return self._driver

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Give back what was taken for one statement."""
        try:
            if isinstance(error, (sqlite3.Error, psycopg2.Error)):
                raise _as_of_sqlalchemy(error, self._taken, self._driver) from error
        finally:
            if self._held is None:
                self._taken.close()


def _pooled() -> Any:
    try:
        return engine().raw_connection()
    except (sqlite3.Error, psycopg2.Error) as error:
        raise _as_of_sqlalchemy(error) from error


def _used() -> Any:
    """The connection that this context has in use already, or the pool's hold on it."""
    session = _session()
    if session is None:
        return None
    if session.work is not None:
        return session.work.bound or session.work.pooled
    return session.connection() if session.in_transaction() else None


def _session() -> _Session | None:
    """The session of this context, if it has one."""
    registry: Any = db.session.registry
    found: _Session | None = registry.registry.get(registry.scopefunc())
    return found


def _open_work() -> _Work:
    session = _session()
    work = session.work if session else None
    if not _is_open(work):
        raise LookupError("no transaction is open")
    return work


def _as_of_sqlalchemy(error: Any, connection: Any = None, driver: Any = None) -> DBAPIError:
    if _is_unusable(error):
        return _as_unavailable(error)
    dialect = engine().dialect
    base: Any = dialect.loaded_dbapi.Error
    lost = connection is not None and dialect.is_disconnect(error, driver, None)
    if lost:
        connection.invalidate(error)
    told: Any = DBAPIError.instance(
        None, None, error, base, connection_invalidated=lost, dialect=dialect
    )
    return told


def _is_unusable(error: Any) -> bool:
    # A server that only reads for now, or a file that is none or damaged: to drivers that is
    # something else.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, ReadOnlySqlTransaction) or code in UNUSABLE


def _as_unavailable(error: Any) -> DBAPIError:
    return OperationalError(None, None, error)


def in_transaction() -> bool:
    """Whether a `transaction()` is open in this context."""
    session = _session()
    return session is not None and _is_open(session.work)


def _is_open(work: _Work | None) -> TypeGuard[_Work]:
    return work is not None and work.is_open


_refusal: ContextVar[Exception | None] = ContextVar("refusal", default=None)


@contextmanager
def refusing(error: Exception) -> Iterator[None]:
    """Inside, whatever begins a transaction raises the error instead."""
    token = _refusal.set(error)
    try:
        yield
    finally:
        _refusal.reset(token)


@contextmanager
def transaction(*, changes_schema: bool = False) -> Iterator[Session]:
    """One unit of work: commits at its end, rolls back on any error; inner ones join the outer."""
    session: Any = db.session()
    refusal = _refusal.get()
    if refusal is not None:
        raise refusal
    if in_transaction():
        yield session
        return
    _commit_held(session)
    session.rollback()  # ends autocommit reads, and expires what they loaded
    session.work = work = _Work(_pooled())
    try:
        _begin(session, work, changes_schema)
        yield session
        session.flush()
        for (_, todo), items in sorted(work.before_commit.items(), key=_is_last):
            if items:
                todo(items)
        if changes_schema:
            _check_foreign_keys(session)
        if session.holds_commits:
            _catch_up()
    except BaseException:
        with suppress(SQLAlchemyError):  # its connection is lost: that is not what went wrong here
            _give_back(session)
        raise
    finally:
        work.is_open = False
    if not session.holds_commits:
        _commit_held(session)


def purge(table: Any, *which: Any) -> None:
    """Delete rows of an account's table in short transactions: seen over all, deleted in one."""
    account, *key = table.primary_key
    seen = sa.select(account, *key).where(*which).limit(PURGED_AT_ONCE)
    while rows := connection().execute(seen).all():
        for account_id in {row[0] for row in rows}:
            mine = [row[1:] for row in rows if row[0] == account_id]
            # Asked again: what was changed meanwhile stays.
            chosen = (account == account_id, sa.tuple_(*key).in_(mine), *which)
            with tenancy.in_account(account_id), transaction() as session:
                session.execute(sa.delete(table).where(*chosen))


def _catch_up() -> None:
    """Have what was put off fail here, where it can be tried again, and not at the commit."""
    with driver() as found:
        if isinstance(found, postgres.Driver):
            found.catch_up()


def _commit_held(session: _Session) -> None:
    work = session.work
    if work is None:
        return
    try:
        if session.in_transaction():
            session.commit()
        with driver() as found:
            found.commit()  # nothing, where the session had a part in it
    finally:
        _give_back(session)
    for callback in work.on_commit:
        callback()


def _give_back(session: _Session) -> None:
    """Let go of a transaction's connection; what is not committed by then is rolled back."""
    work, session.work = session.work, None
    try:
        session.rollback()
    finally:
        if work is not None:
            (work.bound or work.pooled).close()


def hold_commits(*, hold: bool = True) -> None:
    """Have each transaction wait with its commit until `held_transaction`, or the next one.

    It is done but for that, and still rolls back by itself where it fails.
    """
    session: Any = db.session()
    session.holds_commits = hold


@contextmanager
def held_transaction() -> Iterator[None]:
    """Something more in the transaction that waits for its commit, else in one of its own."""
    session = _session()
    if session is None or not _waits(session.work):
        with transaction():
            yield
        return
    try:
        yield
        _commit_held(session)
    finally:
        drop_held()  # nothing, once it is committed


def drop_held() -> None:
    """Roll back what waits for its commit."""
    session = _session()
    if session is not None and _waits(session.work):
        _give_back(session)


def _waits(work: _Work | None) -> bool:
    """Whether a transaction waits for its commit."""
    return work is not None and not work.is_open


@contextmanager
def savepoint() -> Iterator[None]:
    """A part of the open transaction that may fail without the rest of it."""
    waiting = _open_work().before_commit
    kept = {work: len(items) for work, items in waiting.items()}
    try:
        with db.session.begin_nested():
            connection()  # or the savepoint would wait for the session's next statement
            yield
    except BaseException:
        for work, items in waiting.items():
            del items[kept.get(work, 0) :]
        raise


def on_commit(callback: Callable[[], None]) -> None:
    """Call back after the open transaction commits; never when it rolls back."""
    callbacks = _open_work().on_commit
    if callback not in callbacks:
        callbacks.append(callback)


def before_commit(work: Callable[[list[Any]], None], *items: Any, last: bool = False) -> None:
    """Have `work` called once with all items given, at the end of the transaction.

    Of all such work, what is `last` comes last.
    """
    _open_work().before_commit.setdefault((last, work), []).extend(items)


def _is_last(entry: Any) -> bool:
    return bool(entry[0][0])


def notes() -> dict[str, Any]:
    """What features remember for as long as the open transaction lasts."""
    return _open_work().notes


def _begin(session: Session, work: _Work, changes_schema: bool) -> None:
    with driver() as found:
        if changes_schema and engine().dialect.name == "sqlite":
            # Tables are rebuilt to alter them; only out here can the checks be turned off.
            work.pooled.info["unchecked"] = True
            found.execute("PRAGMA foreign_keys = OFF")
        found.begin()
    if changes_schema and engine().dialect.name == "postgresql":
        # One change of the schema at a time; and as a waiting ALTER TABLE blocks every reader
        # behind it, it gives way soon, to be tried again.
        session.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": SCHEMA_LOCK})
        session.execute(sa.text("SET LOCAL lock_timeout = '500ms'"))


def _check_foreign_keys(session: Session) -> None:
    if engine().dialect.name == "sqlite":
        broken = session.execute(sa.text("PRAGMA foreign_key_check")).first()
        if broken:
            raise Conflict("A reference would point at nothing.")


@sa.event.listens_for(Session, "before_flush")
def _refuse_stray_writes(session: Session, context: Any, instances: Any) -> None:
    if not _is_open(getattr(session, "work", None)):
        raise RuntimeError("a write outside transaction()")
