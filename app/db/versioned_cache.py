"""A cache of principals and definitions whose entries carry the versions of their rows.

A statement that relies on cached values also selects the current versions, by keyed subqueries of
the same statement. If one differs, the cached value is dropped and the work is repeated: a change
takes effect with the next request of every process, at no extra query. Only a refusal costs a query
of its own, which confirms that its grounds still hold.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from app import config, db
from app.db import Base
from app.db.prepared import PreparedStatement

Value = TypeVar("Value")
MAX_CHECKS, MAX_COMBINATIONS, MAX_KEYS = 20, 2048, 500


class VersionCheck(NamedTuple):
    """A row and the version of it that was cached."""

    table: str
    key: tuple[str, ...]
    version: int | None


VersionSource = Callable[[Any], Sequence[VersionCheck]]
"""From the caller of a write of records: the versions that its transaction has to verify."""
write_sources: list[VersionSource] = []
"""The sources that features declare, in the order of the factory."""


class Stale(Exception):
    """Raised if a cached value is out of date."""


class VersionChecks:
    """Version checks for one statement: the columns to select, and their parameters."""

    def __init__(self, checks: Sequence[VersionCheck]) -> None:
        self.tables = tuple(check.table for check in checks)
        """All that the text of the columns depends on."""
        self.parameters = {
            f"k{i}_{j}": part for i, check in enumerate(checks) for j, part in enumerate(check.key)
        }
        self._versions = tuple(check.version for check in checks)
        self.checks = tuple(checks)
        self._accounts = {check.key[0] for check in checks if _has_account(check.table)}

    def within(self, account_id: str | None) -> VersionChecks:
        """Return the checks that a statement about this account can carry; None for all accounts.

        Those of rows of other accounts, as a superadmin's own, are compared at once: a statement
        names one account, as others may be in another shard. Raises Stale.
        """
        if not self._accounts or self._accounts == {account_id}:
            return self
        own, foreign = list[VersionCheck](), list[VersionCheck]()
        for check in self.checks:
            is_own = not _has_account(check.table) or check.key[0] == account_id
            (own if is_own else foreign).append(check)
        combine(*foreign).verify()
        return combine(*own)

    @property
    def columns(self) -> Sequence[sa.Label[int]]:
        """Columns that select the current version of each row."""
        return version_columns(self.tables)

    def check(self, versions: Iterable[int | None]) -> None:
        """Compare selected versions with the cached ones. Raises Stale."""
        if tuple(versions) != self._versions:
            raise Stale

    def verify(self) -> None:
        """Compare by a query of its own. Raises Stale."""
        if self.tables:
            self.check(_versions(self.tables).all(self.parameters)[0])


@lru_cache(MAX_COMBINATIONS)
def combine(*checks: VersionCheck) -> VersionChecks:
    """Return these checks as one, for one statement."""
    return VersionChecks(checks)


NO_CHECKS = combine()


@lru_cache
def version_columns(tables: tuple[str, ...]) -> Sequence[sa.Label[int]]:
    """Columns that select the current versions of rows of these tables, in this order."""
    # Cached, as nearly every statement has them.
    columns = []
    for i, table in enumerate(tables):
        key = (column == sa.bindparam(f"k{i}_{j}") for j, column in enumerate(_keys(table)))
        columns.append(
            sa.select(_version(table)).where(*key).scalar_subquery().label(f"version{i}")
        )
    return columns


def verify(checks: Iterable[VersionCheck]) -> None:
    """Compare these with the database, by a query of its own. Raises Stale."""
    combine(*checks).verify()


def verify_all(checks: Set[VersionCheck]) -> None:
    """Compare with the database, however many there are. Raises Stale."""
    if len(checks) <= MAX_CHECKS:
        verify(sorted(checks, key=lambda check: check[:2]))
    elif outdated(checks):
        raise Stale


def outdated(checks: Iterable[VersionCheck]) -> set[VersionCheck]:
    """The checks that fail, of many, by a query for each table and 500 rows."""
    by_table: dict[str, list[VersionCheck]] = {}
    for check in set(checks):
        by_table.setdefault(check.table, []).append(check)
    failed = set[VersionCheck]()
    for table, own in by_table.items():
        for start in range(0, len(own), MAX_KEYS):
            part = own[start : start + MAX_KEYS]
            is_any = sa.tuple_(*_keys(table)).in_([check.key for check in part])
            rows = db.connection().execute(sa.select(_version(table), *_keys(table)).where(is_any))
            versions = {tuple(key): version for version, *key in rows}
            failed |= {check for check in part if versions.get(check.key) != check.version}
    return failed


def are_current(values: Iterable[object]) -> bool:
    """Whether all these cached values are current; False if one of them has no version."""
    checks = set[VersionCheck]()
    for value in values:
        own = getattr(value, "version_checks", None) or [getattr(value, "version_check", None)]
        if None in own:
            return False
        checks.update(own)
    if len(checks) > MAX_CHECKS:
        return False
    try:
        verify_all(checks)
    except Stale:
        return False
    return True


@lru_cache
def _versions(tables: tuple[str, ...]) -> PreparedStatement:
    return PreparedStatement(sa.select(*version_columns(tables)), keyed=True)


@lru_cache
def _keys(table: str) -> tuple[sa.Column[str], ...]:
    return tuple(Base.metadata.tables[table].primary_key.columns)


@lru_cache
def _has_account(table: str) -> bool:
    return _keys(table)[0].name == "account_id"


def _version(table: str) -> sa.Column[int]:
    return Base.metadata.tables[table].c.version


class Cache:
    """A cache of values with versions; evicts the oldest first."""

    def __init__(self, size: int = 10_000) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, load: Callable[[], Value | None]) -> Value | None:
        """Return the cached value, else load it; inside `reloading` only that block's count."""
        loaded, value = _loaded.get(), self._values.get(key)
        if loaded is not None:
            cached, value = value, loaded.get((self, key))
            if value is None and cached is not None and _verifying.get() and are_current([cached]):
                value = loaded[self, key] = cached
        if value is None:
            value = load()
            self._values.pop(key, None)
            if value is not None:
                self.put(key, value)
                while len(self._values) > self._size:
                    self._values.popitem(last=False)
        recorded = _recorded.get()
        if recorded is not None and value is not None:
            recorded.append(value)
        return value

    def put(self, key: Hashable, value: object) -> None:
        self._values[key] = value
        loaded = _loaded.get()
        if loaded is not None:
            loaded[self, key] = value


_recorded: ContextVar[list[object] | None] = ContextVar("recorded", default=None)
_loaded: ContextVar[dict[tuple[Cache, Hashable], Any] | None] = ContextVar("loaded", default=None)
_verifying: ContextVar[bool] = ContextVar("verifying", default=False)


class recording:
    """Record the values that caches return inside the block, in the list that this yields."""

    def __enter__(self) -> list[object]:
        recorded = list[object]()
        self._token = _recorded.set(recorded)
        return recorded

    def __exit__(self, *error: object) -> None:
        _recorded.reset(self._token)


@contextmanager
def reloading(*, unless_current: bool = False) -> Iterator[None]:
    """Have caches load each value once more inside the block.

    With `unless_current` they keep those whose versions the database confirms, each by a query:
    what was built from them, such as compiled rules, stays. The block does not notice later
    writes, its own included: work that follows a write, and every retry, needs a block of its own.
    """
    loaded, verifying = _loaded.set({}), _verifying.set(unless_current)
    try:
        yield
    finally:
        _loaded.reset(loaded)
        _verifying.reset(verifying)


def is_reloading() -> bool:
    """Whether this is inside `reloading`."""
    return _loaded.get() is not None


def cache(name: str) -> Cache:
    """Return the application's cache of this name."""
    caches: dict[str, Cache] = config.context().app.extensions.setdefault("atrium.caches", {})
    existing = caches.get(name)
    return caches.setdefault(name, Cache()) if existing is None else existing


class Memo:
    """Results of functions by their arguments; past `size`, the least recently used are dropped."""

    def __init__(self, size: int = 32) -> None:
        self._size = size
        self._values: dict[Hashable, Any] = {}

    def get(self, build: Callable[..., Value], *key: Hashable) -> Value:
        """The result of `build(*key)`; an exception is not remembered."""
        value = self._values.pop((build, *key), None)
        if value is None:
            value = build(*key)
            while len(self._values) >= self._size:
                self._values.pop(next(iter(self._values.copy()), None), None)
        self._values[build, *key] = value
        result: Value = value
        return result
