"""The work queue of instances: due rows, claims, and the limit of running ones per account.

A running instance has a lease, which each step renews. The claim is the fence: if another worker
has taken the instance over, or it was cancelled, the step is rolled back.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from app import clock, config, db
from app.db import engine
from app.db.functions import database_now, now_if
from app.db.prepared import PreparedStatement
from app.db.types import UtcDateTime
from app.jobs import leases
from app.types import JSONMapping, JSONObject
from app.workflows.models import INSTANCES, LOGS, QUEUE, InstanceState

LARGEST_LOOK = 100
COLUMNS = [
    INSTANCES.c[name]
    for name in (
        *("workflow_id", "kind", "version", "position", "context", "depth", "holds_pii", "nudges"),
        *("trigger_type", "current_step", "root_id", "due_at"),
    )
]


class Lost(Exception):
    """An instance that another worker claimed or that was cancelled."""


def look(
    passing_over: Collection[str], accounts: Sequence[str] | None = None
) -> dict[str, list[tuple[str, bool]]]:
    """Due instances of these or all accounts: (id, whether its worker is lost) by account."""
    others = INSTANCES.c.account_id.not_in(sorted(passing_over)) if passing_over else sa.true()
    theirs = INSTANCES.c.account_id.in_(accounts) if accounts is not None else sa.true()
    where = sa.and_(others, theirs)
    found: dict[str, list[tuple[str, bool]]] = {}
    for row in leases.find_due(QUEUE, LARGEST_LOOK, INSTANCES.c.status, where=where):
        found.setdefault(row.account_id, []).append((row.id, row.status == InstanceState.RUNNING))
    return found


def claim(account_id: str, due: Sequence[tuple[str, bool]], most: int) -> Sequence[Any]:
    """Claim up to `most` of an account's due instances, within its limit of running ones.

    `now` of each is the time of its claim.
    """
    with db.transaction():
        lost_first = sorted(due, key=lambda one: not one[1])
        chosen = [id for id, _ in lost_first][: min(most, _room(account_id))]
        if not chosen:
            return []
        seconds = config.current().workflow_lease_seconds
        rows = leases.claim(QUEUE, account_id, chosen, seconds, *COLUMNS)
    # Not in RETURNING, where Citus lets nothing read the clock.
    lease = timedelta(seconds=seconds)
    return [SimpleNamespace(**row._mapping, now=row.due_at - lease) for row in rows]


def _room(account_id: str) -> int:
    lock_account(account_id)
    # Instances of a lost worker take no room: due again, they may stand behind more than one look
    # claims, and all of these would wait for them.
    running = (INSTANCES.c.account_id == account_id, INSTANCES.c.status == InstanceState.RUNNING)
    alive = INSTANCES.c.due_at > database_now()
    count = db.connection().scalar(sa.select(sa.func.count()).where(*running, alive)) or 0
    return max(0, config.current().workflow_concurrency - count)


def is_any_due() -> bool:
    """Whether any instance waits for a worker."""
    return bool(leases.find_due(QUEUE, 1))


def lock_account(account_id: str) -> None:
    """Serialize claims of an account's instances."""
    lock("claims", account_id)


def lock(*parts: str, shared: bool = False) -> None:
    """Take an advisory lock until the transaction ends; SQLite has one writer anyway."""
    connection = db.connection()
    if connection.dialect.name == "postgresql":
        digest = hashlib.sha256("\0".join(("workflows", *parts)).encode()).digest()
        number = int.from_bytes(digest[:8], signed=True)
        take = sa.func.pg_advisory_xact_lock_shared if shared else sa.func.pg_advisory_xact_lock
        connection.execute(sa.select(take(number)))


def give_up(work: Any, message: str) -> None:
    """Fail an instance that cannot run."""
    over = {"status": InstanceState.FAILED, "error_message": message, "due_at": None}
    with db.transaction():
        write(work, {**over, "completed_at": clock.now()}, (), {})
        close_logs(work.account_id, work.id, InstanceState.FAILED, message)


def close_logs(account_id: str, id: str, status: str, message: str | None = None) -> None:
    """Close the open log rows of an instance, in the open transaction."""
    mine = (LOGS.c.account_id == account_id, LOGS.c.instance_id == id)
    begun = sa.update(LOGS).where(
        *mine, LOGS.c.status.in_((InstanceState.RUNNING, InstanceState.WAITING))
    )
    over = {"status": status, "error_message": message, "completed_at": database_now()}
    db.connection().execute(begun.values(**over))


def write(work: Any, values: JSONMapping, new: Sequence[JSONMapping], old: JSONMapping) -> None:
    """Store the new state of an instance and its log rows, in the open transaction.

    `new` are new log rows, `old` changes of existing ones by id. Raises Lost.
    """
    dialect = engine.current_engine().dialect.name
    given = {"_account": work.account_id, "_id": work.id, "_claim": work.claim}
    given |= {f"_{name}": value for name, value in values.items()}
    logs = len(new) == 1 and dialect == "postgresql"
    if logs:
        given |= {f"log_{name}": value for name, value in new[0].items()}
        new = ()
    if not _writing(tuple(values), logs, dialect).all(given):
        raise Lost
    if new:
        # A list of one would take the slower way of many.
        db.connection().execute(_NEW_LOG, list(new) if len(new) > 1 else new[0])
    for id, result in old.items():
        one = (LOGS.c.account_id == work.account_id, LOGS.c.id == id)
        db.connection().execute(sa.update(LOGS).where(*one).values(**result))


_NEW_LOG = sa.insert(LOGS)


@lru_cache
def _writing(names: tuple[str, ...], logs: bool, dialect: str) -> PreparedStatement:
    """Cached, as every step runs it; returns a row if the instance changed."""
    change = _change(names).returning(INSTANCES.c.id)
    return PreparedStatement(_with_log(change) if logs else change)


def _change(names: tuple[str, ...]) -> sa.Update:
    """The statement that changes these columns.

    `look_again` is no column: it is when to look again at what waits, or at once where an event
    has come since `nudges` was read.
    """
    columns: JSONObject = {
        n: sa.bindparam(f"_{n}", type_=INSTANCES.c[n].type) for n in names if n not in _WAIT
    }
    if "look_again" in names:
        then = sa.bindparam("_look_again", type_=UtcDateTime())
        columns["due_at"] = now_if(
            INSTANCES.c.nudges != sa.bindparam("_seen", type_=sa.Integer), then
        )
    claim = sa.bindparam("_claim", type_=sa.Integer)
    held = leases.held(QUEUE, sa.bindparam("_account"), claim)
    mine = INSTANCES.c.id == sa.bindparam("_id")
    return sa.update(INSTANCES).where(*held, mine).values(columns)


_WAIT = ("look_again", "seen")


def _with_log(change: Any) -> Any:
    """The statement of a change, with a log row that is inserted only if the instance changed."""
    row = [sa.bindparam(f"log_{column.name}", type_=column.type) for column in LOGS.c]
    for_changed = sa.select(*row).select_from(change.cte("changed"))
    return sa.insert(LOGS).from_select(list(LOGS.c), for_changed).returning(LOGS.c.id)


class Slots:
    """Slots for database work, and as many places for instances that wait for one.

    No more are claimed, or their leases would expire while they wait. Instances that wait for a
    receiver do not count.
    """

    def __init__(self, number: int) -> None:
        self._number, self._inside = number, 0
        self._free, self._lock = threading.Semaphore(number), threading.Lock()

    @contextmanager
    def acquire(self) -> Iterator[None]:
        """Hold a slot, and return the database connection afterwards."""
        with self._free:
            try:
                yield
            finally:
                db.db.session.remove()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Leave the slot count while waiting for a receiver."""
        self.count(-1)
        try:
            yield
        finally:
            self.count(1)

    @property
    def room(self) -> int:
        """The number of instances to claim next; 0 until a claim is worth it."""
        room = 2 * self._number - self._inside
        return room if room >= self._number else 0

    def count(self, change: int) -> None:
        """Change the number of instances."""
        with self._lock:
            self._inside += change
