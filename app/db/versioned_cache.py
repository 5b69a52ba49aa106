"""What keeps caches honest: versions that the statement which relies on them reads along.

A principal or a definition is cached under the version of its row. A statement that works with
cached values also selects the present versions (keyed look-ups inside the same statement). When
they differ, what was cached is dropped and the work is done again, so that a change is obeyed by
the very next request of every process without a query of its own. Only a refusal costs one: that
all it relied on is still true.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from app import config
from app.db import Base
from app.db.prepared import Prepared

Value = TypeVar("Value")
MOST, MOST_CHECKED = 20, 2048


class Stamp(NamedTuple):
    """The version of one row: (table, its key, the version cached)."""

    table: str
    key: tuple[str, ...]
    version: int | None


class Stale(Exception):
    """Something cached is out of date."""


class Checked:
    """Stamps that a statement checks along: what it selects for that, and is run with."""

    def __init__(self, stamps: Sequence[Stamp]) -> None:
        self.tables = tuple(stamp.table for stamp in stamps)
        """All that the statement itself depends on."""
        self.parameters = {
            f"k{i}_{j}": part for i, stamp in enumerate(stamps) for j, part in enumerate(stamp.key)
        }
        self._versions = tuple(stamp.version for stamp in stamps)

    @property
    def columns(self) -> Sequence[Any]:
        """Columns that read the present version of each stamp's row."""
        return columns_of(self.tables)

    def check(self, versions: Iterable[Any]) -> None:
        """Compare what the columns gave with what was cached. Raises Stale."""
        if tuple(versions) != self._versions:
            raise Stale

    def verify(self) -> None:
        """Compare by a statement of its own. Raises Stale."""
        if self.tables:
            self.check(_versions(self.tables).all(self.parameters)[0])


@lru_cache(MOST_CHECKED)
def along(*stamps: Stamp) -> Checked:
    """These stamps, to be checked along."""
    return Checked(stamps)


NONE = along()


@lru_cache
def columns_of(tables: tuple[str, ...]) -> Sequence[Any]:
    """Columns that read the present versions of stamps of these tables, in this order."""
    # Made once: nearly every statement has them.
    found = []
    for i, table in enumerate(tables):
        key = (column == sa.bindparam(f"k{i}_{j}") for j, column in enumerate(_keys(table)))
        found.append(sa.select(_version(table)).where(*key).scalar_subquery().label(f"stamp{i}"))
    return found


def verify(stamps: Iterable[Stamp]) -> None:
    """Compare these with what was cached, by a statement of its own. Raises Stale."""
    along(*stamps).verify()


def hold(relied: Iterable[Any]) -> bool:
    """Whether all these cached values are still true; False also where they cannot tell."""
    found = set[Stamp]()
    for value in relied:
        mine = getattr(value, "stamps", None) or [getattr(value, "stamp", None)]
        if None in mine:
            return False
        found.update(mine)
    if len(found) > MOST:
        return False
    try:
        verify(sorted(found, key=lambda stamp: stamp[:2]))
    except Stale:
        return False
    return True


@lru_cache
def _versions(tables: tuple[str, ...]) -> Prepared:
    return Prepared(sa.select(*columns_of(tables)), keyed=True)


@lru_cache
def _keys(table: str) -> tuple[Any, ...]:
    return tuple(Base.metadata.tables[table].primary_key.columns)


def _version(table: str) -> Any:
    return Base.metadata.tables[table].c.version


class Cache:
    """Values under their stamps, dropped oldest first."""

    def __init__(self, size: int = 10_000) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, load: Callable[[], Value | None]) -> Value | None:
        """The cached value, else what `load` finds; while `reloading`, what it has found there."""
        loaded = _loaded.get()
        value = self._values.get(key) if loaded is None else loaded.get((self, key))
        if value is None:
            value = load()
            self._values.pop(key, None)
            if value is not None:
                self.put(key, value)
                while len(self._values) > self._size:
                    self._values.popitem(last=False)
        noted = _noted.get()
        if noted is not None and value is not None:
            noted.append(value)
        return value

    def put(self, key: Hashable, value: Any) -> None:
        """Remember a value."""
        self._values[key] = value
        loaded = _loaded.get()
        if loaded is not None:
            loaded[self, key] = value


_noted: ContextVar[list[Any] | None] = ContextVar("noted", default=None)
_loaded: ContextVar[dict[tuple[Cache, Hashable], Any] | None] = ContextVar("loaded", default=None)


class noting:
    """Inside, what caches give out is noted in the list that this yields."""

    def __enter__(self) -> list[Any]:
        """Begin an empty list."""
        noted = list[Any]()
        self._token = _noted.set(noted)
        return noted

    def __exit__(self, *problem: object) -> None:
        """Note nothing any more."""
        _noted.reset(self._token)


@contextmanager
def reloading() -> Iterator[None]:
    """Inside, caches load everything anew, each thing once.

    A block knows nothing of what is written meanwhile, in it or elsewhere: what comes after that,
    and whatever is tried again, needs a block of its own.
    """
    token = _loaded.set({})
    try:
        yield
    finally:
        _loaded.reset(token)


def cache(name: str) -> Cache:
    """The application's cache of that name."""
    caches: dict[str, Cache] = config.context().app.extensions.setdefault("atrium.caches", {})
    found = caches.get(name)
    return caches.setdefault(name, Cache()) if found is None else found


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
