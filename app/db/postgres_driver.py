"""The PostgreSQL connection: statements without a result travel with the next message.

BEGIN travels with a transaction's first statement, together with the tenant scope
(`app.context.tenancy`); deferred statements travel with the next statement or the commit. Each
saves a round trip. Keyed look-ups are prepared on the server, as planning takes longer than running
them.
"""

from __future__ import annotations

import math
import re
import select
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import lru_cache, wraps
from itertools import chain, count
from typing import Any, NamedTuple, ParamSpec

import psycopg2
import sqlalchemy as sa
from psycopg2 import errors, extensions, sql
from sqlalchemy.pool import ConnectionPoolEntry

from app.context import deadline, tenancy
from app.db.watch import Watch

Query = str | bytes | sql.Composable
Parameters = Sequence[Any] | Mapping[str, Any] | None
BEGIN = b"BEGIN; "
SNAPSHOT = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; "
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
IDLE, FAILED, BROKEN = (
    extensions.TRANSACTION_STATUS_IDLE,
    extensions.TRANSACTION_STATUS_INERROR,
    extensions.TRANSACTION_STATUS_UNKNOWN,
)
# What Citus sends to its workers as the text of the whole message.
UTILITY = re.compile(
    r"\s*(ALTER|ANALYZE|COMMENT|CREATE|DROP|GRANT|LOCK|REVOKE|SET|TRUNCATE)\b", re.I
)
LOCK_SHARE = 0.9
"""The share of a statement's time that it may wait for a lock."""
MAX_PREPARED, PREPARED_SECONDS = 100, 60
UNPREPARED = "", -math.inf
P = ParamSpec("P")
PARAMETER = re.compile(r"%\((.*?)\)s|%%")
SETTINGS = {"timezone": "UTC", "default_transaction_isolation": "read committed"}
REFUSAL = (
    "a pooler gives each transaction another session: set pool_mode = session in PgBouncer, or"
    " connect to PostgreSQL itself"
)
PASS_SECONDS, PROBE_SECONDS, HELD_SECONDS = 60, 2, 0.1
BACKEND = "SELECT pg_backend_pid()"

_passed_at: dict[str, float] = {}


class ServerStatement:
    """A statement that each connection prepares on the server when it first runs it.

    Parameters take the types of the columns they are compared with, or stored in.
    """

    def __init__(self, text: str) -> None:
        numbers: dict[str, int] = {}

        def number(match: re.Match[str]) -> str:
            name = match[1]
            return f"${numbers.setdefault(name, len(numbers) + 1)}" if name else "%"

        self.text = PARAMETER.sub(number, text)
        self.values = f" ({', '.join(f'%({name})s' for name in numbers)})" if numbers else ""


class Roles(NamedTuple):
    """The database roles of row-level security: for one account's rows, and for all rows."""

    one: str
    every: str


class RoleStatements(NamedTuple):
    """The statements that set tenant scope and deadline: at BEGIN, and later in the transaction."""

    first: bytes
    later: bytes


def _noting_deadline(run: Callable[P, None]) -> Callable[P, None]:
    """Note in the error of a cancelled statement whether its deadline or its lost client did it."""

    @wraps(run)
    def noting(*args: P.args, **kwargs: P.kwargs) -> None:
        started = time.monotonic()
        try:
            run(*args, **kwargs)
        except errors.QueryCanceled as canceled:
            error: Any = canceled
            driver, limit = error.cursor.connection, deadline.limit.get()
            is_late = limit is not None and time.monotonic() - started > limit.seconds * LOCK_SHARE
            error.passed_deadline = is_late or driver.is_abandoned
            driver.is_abandoned = False
            raise

    return noting


class Driver(extensions.connection):
    """A connection that sends pending statements along with the next one.

    It stays in autocommit, and begins and ends transactions itself. Taken out of autocommit, for a
    server-side cursor, psycopg2 does.
    """

    roles: Roles | None = None
    """The roles that statements run as; None without row-level security."""
    is_sharded = False
    """Whether policies apply to the owner, too, and compare the setting alone (docs/adr/0053)."""
    views_path = ""
    """The search path inside `tenancy.through_views`."""
    _scope: RoleStatements | None = None
    _begin = b""
    _pending = b""
    is_abandoned = False
    """Whether a statement was cancelled because its client has gone."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._prepared: OrderedDict[ServerStatement, tuple[str, float]] = OrderedDict()
        self._numbers = count()
        self.watch = Watch(self._abandon)

    def _abandon(self) -> None:
        self.is_abandoned = True
        self.cancel()

    def begin(self) -> None:
        """Begin a transaction with the next statement."""
        self._begin = BEGIN

    def begin_snapshot(self) -> None:
        """Begin a read-only transaction that sees the database as it is at its first statement."""
        self._begin = SNAPSHOT

    def defer(self, statement: bytes) -> None:
        """Send a statement along with the next one, or with the commit; its result is dropped.

        Raises RuntimeError outside a transaction.
        """
        begun = self._begin or self._pending or self.get_transaction_status() != IDLE
        if not begun:
            raise RuntimeError("nothing is deferred outside a transaction")
        self._pending = self.take_pending() + statement + b"; "

    def flush_deferred(self) -> None:
        """Send deferred statements now."""
        if self._pending:
            self._send(self.take_pending())

    def commit(self) -> None:
        """Commit, along with deferred statements."""
        if not self.autocommit:
            super().commit()
        elif self._pending or self.get_transaction_status() != IDLE:
            pending, self._pending = self._pending, b""
            self._send(pending + b"COMMIT")
        self._begin = b""

    def rollback(self) -> None:
        """Roll back."""
        self._begin, self._pending = b"", b""
        if not self.autocommit:
            super().rollback()
        elif self.get_transaction_status() not in (IDLE, BROKEN):
            self._send(b"ROLLBACK")

    def flush(self) -> None:
        """Send now whatever must precede the next statement."""
        pending = self.take_pending()
        if pending:
            self._send(pending)

    def take_pending(self) -> bytes:
        """Return what must precede the next statement; the caller sends it."""
        status = self.get_transaction_status()
        if status == FAILED:  # it accepts nothing but its end
            return b""
        begins = status == IDLE and not self._pending
        pending, self._pending = self._pending, b""
        if self._begin:
            self._begin, pending = b"", self._begin
        return pending + self._set_scope(begins)

    def _set_scope(self, begins: bool) -> bytes:
        limit = deadline.limit.get()
        path = self.views_path if tenancy.reads_views.get() else ""
        scope = _role_statements(
            self.roles,
            self.is_sharded,
            tenancy.current(),
            path,
            None if limit is None else limit.seconds,
        )
        previous, self._scope = self._scope, scope
        if begins:
            return scope.first
        return b"" if previous == scope else scope.later

    def drop_deferred(self) -> None:
        """Drop deferred statements, as they belong to what is rolled back."""
        self._pending = b""

    def invalidate_scope(self) -> None:
        """Set the scope again, as a rollback to a savepoint may have undone it."""
        self._scope = None

    def call(self, statement: ServerStatement) -> str:
        """Return the EXECUTE of a server-side statement; prepares it if need be."""
        name, prepared_at = self._prepared.get(statement, UNPREPARED)
        if time.monotonic() - prepared_at > PREPARED_SECONDS:  # its plan may not suit the data now
            name = self._prepare(statement)
        return f"EXECUTE {name}{statement.values}"

    def invalidate_statements(self) -> None:
        """Prepare all statements anew, as tables may have changed."""
        for statement, (name, _) in self._prepared.items():
            self._prepared[statement] = name, -math.inf

    def _prepare(self, statement: ServerStatement) -> str:
        dropped = self._prepared.pop(statement, None)
        if dropped is None and len(self._prepared) >= MAX_PREPARED:
            _, dropped = self._prepared.popitem(last=False)
        # Names are never reused: after a failure nobody knows which of the two took effect.
        name = f"kept_{next(self._numbers)}"
        deallocate = f"DEALLOCATE {dropped[0]}; " if dropped else ""
        with closing(self.cursor()) as cursor:
            cursor.execute(f"{deallocate}PREPARE {name} AS {statement.text}")
        self._prepared[statement] = name, time.monotonic()
        return name

    @_noting_deadline
    def _send(self, text: bytes) -> None:
        with closing(self.cursor(cursor_factory=extensions.cursor)) as cursor:
            cursor.execute(text)


class Cursor(extensions.cursor):
    """A cursor that sends the connection's pending statements before its own."""

    connection: Driver

    @_noting_deadline
    def execute(self, query: Query, vars: Parameters = None) -> None:
        """Run a statement."""
        if self.name:  # a server-side cursor, which must be the only statement of its message
            self.connection.flush()
            super().execute(query, vars)
            return
        text = self.mogrify(query, vars)  # may fail, so it precedes take_pending
        if rolls_back := str(query).startswith("ROLLBACK TO"):
            self.connection.drop_deferred()
        if self.connection.is_sharded and UTILITY.match(str(query)):
            self.connection.flush()
        limit = deadline.limit.get()
        if limit is not None and limit.client is not None:
            self.connection.watch.start(math.inf, limit.client)  # the server has the deadline
        try:
            super().execute(self.connection.take_pending() + text)
        finally:
            self.connection.watch.stop()
        if rolls_back:
            self.connection.invalidate_scope()

    @_noting_deadline
    def executemany(self, query: Query, vars_list: Iterable[Any]) -> None:
        """Run a statement many times, each in a message of its own."""
        self.connection.flush()
        super().executemany(query, vars_list)

    @_noting_deadline
    def copy_expert(self, sql: Query, file: Any, size: int = 8192) -> None:
        self.connection.flush()
        super().copy_expert(sql, file, size)


@lru_cache(10_000)
def _role_statements(
    roles: Roles | None, is_sharded: bool, scope: tenancy.Scope, path: str, seconds: float | None
) -> RoleStatements:
    first, later = _deadline_settings(seconds)
    if is_sharded:
        # Citus sends the text of SET with its whole message to the workers; in a block it is its
        # own.
        is_all = scope in (tenancy.OWNER, tenancy.ALL_ACCOUNTS)
        account_id = tenancy.ALL_ACCOUNTS if is_all else scope if UUID.fullmatch(scope) else ""
        setting = f"SET LOCAL app.account_id = '{account_id}'; "
        first, later = (f"DO $$BEGIN {setting}{more}END$$; " for more in (first, later))
    elif roles is not None:
        tables_path = "SET LOCAL search_path = DEFAULT; "
        if scope in (tenancy.OWNER, tenancy.ALL_ACCOUNTS):
            role = "NONE" if scope == tenancy.OWNER else quote_identifier(roles.every)
            first = f"{first}SET LOCAL ROLE {role}; "
            later = f"{later}SET LOCAL ROLE {role}; {tables_path}"
        else:
            account_id = scope if UUID.fullmatch(scope) else ""  # no account has the empty id
            setting = f"SET LOCAL app.account_id = '{account_id}'; "
            views_path = f"SET LOCAL search_path = {path}; " if path else ""
            # A new transaction has this role already, and SET ROLE costs more than the setting.
            first = f"{first}{setting}{views_path}"
            later = f"{later}SET LOCAL ROLE {quote_identifier(roles.one)}; "
            later += f"{setting}{views_path or tables_path}"
    return RoleStatements(first.encode(), later.encode())


def _deadline_settings(seconds: float | None) -> tuple[str, str]:
    """The deadline of statements, as set at BEGIN, and later in the transaction."""
    if seconds is None:
        return "", "SET LOCAL statement_timeout = DEFAULT; "
    milliseconds = max(1, round(seconds * 1000))
    statement = f"SET LOCAL statement_timeout = {milliseconds}; "
    # Who waits for a lock gives up sooner, so that the error tells that the statement was not
    # expensive. Only at BEGIN, as the transaction may have chosen another limit since.
    lock = f"SET LOCAL lock_timeout = {max(1, round(milliseconds * LOCK_SHARE))}; "
    return f"{statement}{lock}", statement


def quote_identifier(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


class PoolerError(psycopg2.OperationalError):
    """Sessions end with their transactions."""


def start_sessions(engine: sa.Engine, settings: Mapping[str, str]) -> None:
    """Apply SETTINGS and these to every connection of an engine; refuse shared sessions.

    Not by the startup parameter `options`, as PgBouncer refuses it.
    """

    @sa.event.listens_for(engine, "connect", insert=True)  # before SQLAlchemy's own statements
    def start(connection: extensions.connection, record: ConnectionPoolEntry) -> None:
        _start_session(connection, {**SETTINGS, **settings})


def _start_session(connection: extensions.connection, settings: dict[str, str]) -> None:
    autocommit, connection.autocommit = connection.autocommit, True
    check_session(connection)
    calls = ", ".join(["set_config(%s, %s, false)"] * len(settings))
    with closing(connection.cursor(cursor_factory=extensions.cursor)) as cursor:
        cursor.execute(f"SELECT {calls}", list(chain(*settings.items())))
    connection.autocommit = autocommit


def check_session(connection: extensions.connection) -> None:
    """Raise PoolerError if sessions end with transactions; looks again after PASS_SECONDS."""
    if time.monotonic() - _passed_at.get(connection.dsn, -PASS_SECONDS) < PASS_SECONDS:
        return
    with closing(connection.cursor(cursor_factory=extensions.cursor)) as cursor:
        # A pooler makes up the process id that it sends to its client.
        if _backend(cursor) != connection.get_backend_pid() and _shares(connection, cursor):
            raise PoolerError(REFUSAL)
    _passed_at[connection.dsn] = time.monotonic()


def session_refusal(error: Exception) -> str | None:
    """Return REFUSAL if a pooler was the reason of an error, else None."""
    original = getattr(error, "orig", None) or error
    return REFUSAL if isinstance(original, PoolerError) else None


def _shares(connection: extensions.connection, cursor: extensions.cursor) -> bool:
    own = {_backend(cursor), _backend(cursor)}
    dsn = extensions.make_dsn(connection.dsn, password=connection.info.password)
    with closing(psycopg2.connect(dsn, async_=True)) as other:
        deadline = time.monotonic() + PROBE_SECONDS
        try:
            _wait_for_session(other, deadline)
            with closing(other.cursor()) as probe:
                # A shared session that was just released is the first that another client gets.
                probe.execute(f"{BACKEND} FROM pg_sleep(%s)", (HELD_SECONDS,))
                own.add(_backend(cursor))
                _wait_for_session(other, deadline)
                return len(own) > 1 or probe.fetchone() == (own.pop(),)
        except TimeoutError:  # all sessions are taken, and this connection has held its own
            return False


def _backend(cursor: extensions.cursor) -> int:
    cursor.execute(BACKEND)
    (process_id,) = cursor.fetchone() or (0,)
    return int(process_id)


def _wait_for_session(connection: extensions.connection, deadline: float) -> None:
    events = {extensions.POLL_READ: select.POLLIN, extensions.POLL_WRITE: select.POLLOUT}
    while (state := connection.poll()) != extensions.POLL_OK:
        waiting = select.poll()
        waiting.register(connection.fileno(), events[state])
        if not waiting.poll(max(0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
