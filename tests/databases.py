"""Which tests a run has: those of its database, by TEST_DATABASE.

`sqlite`, as long as nothing is said: neither PostgreSQL nor Redis is started. `postgresql`: what
needs them, too. `both`: all there is. Tests in tests/system and tests/browser ask for their own.
TEST_SHORT leaves out, on PostgreSQL, what SQLite runs and whose subject is no SQL.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path, PurePath
from types import CodeType, FunctionType
from typing import Any

DATABASES = ("sqlite", "postgresql")
FIXTURES = ("database", "backend", "without_tables")  # those with one of them as their parameter
RUN = os.environ.get("TEST_DATABASE", "sqlite")
IS_SHORT = "TEST_SHORT" in os.environ
# Their subject is SQL, and what each database makes of it. All others test requests, pages and
# texts: they run on both where they are marked `both_databases`.
BOTH = (
    "accounts/test_attributes.py",
    "accounts/test_directory.py",
    "accounts/test_mail_templates.py",
    "accounts/test_product.py",
    "audit",
    "bundle",
    "clients/test_python_records.py",
    "clients/test_python_session.py",
    "collections",
    "domains",
    "extensions/test_after.py",
    "extensions/test_attackers.py",
    "extensions/test_before.py",
    "extensions/test_endpoints.py",
    "extensions/test_events.py",
    "extensions/test_field_types.py",
    "extensions/test_tables.py",
    "extensions/test_kills.py",
    "extensions/test_periodic.py",
    "extensions/test_steps.py",
    "feed",
    "files",
    "manifest",
    "operator",
    "realtime/test_filters.py",
    "records",
    "retention",
    "rules",
    "rules_enforcement",
    "scim",
    "security",
    "usage",
    "webhooks/test_handover.py",
    "webhooks/test_log_bound.py",
    "workflows/test_account_events.py",
    "workflows/test_erasure.py",
    "workflows/test_faults.py",
    "workflows/test_logbook.py",
    "workflows/test_starting.py",
    "workflows/test_triggers.py",
    "workflows/test_purge.py",
    "test_backups.py",
    "test_commands.py",
    "test_config.py",
    "test_dashboard_stats.py",
    "test_doctor.py",
    "test_fuzz.py",
    "test_idempotency.py",
    "test_input.py",
    "test_jobs.py",
    "test_limits.py",
    "test_migrations.py",
    "test_pacing.py",
    "test_pool.py",
    "test_progress.py",
    "test_repeated_parameters.py",
    "test_scheduled_backups.py",
    "test_tenancy.py",
    "test_transactions.py",
    "test_turns.py",
    "test_wakeups.py",
    "test_write_locks.py",
)
# Who calls one of these looks for races, which each database prevents in its own way.
RACES = {"at_once", "under_way", "forked", "Thread", "ThreadPoolExecutor", "Barrier"}
TESTS = PurePath(__file__).parent


def parted(items: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The tests that this run has, and those that it has not."""
    on_sqlite = {_name(item) for item in items if database_of(item) == "sqlite"}
    parts: tuple[list[Any], list[Any]] = [], []
    for item in items:
        parts[not _is_chosen(item, _name(item) in on_sqlite)].append(item)
    return parts


def left_to_slow(items: Sequence[Any]) -> list[Any]:
    """Tests of processes that run on SQLite with `make slow` only, as PostgreSQL is enough."""
    on_postgresql = {_name(item) for item in items if database_of(item) == "postgresql"}
    return [
        item
        for item in items
        if database_of(item) == "sqlite"
        and is_apart(item)
        and _name(item) in on_postgresql
        and not is_for_both(item)
    ]


def folder_of(item: Any) -> str:
    """The folder of a test in tests/, or `examples`."""
    return _path(item.path).partition("/")[0]


def is_apart(item: Any) -> bool:
    """Whether a test uses processes, servers or a browser."""
    return folder_of(item) in ("system", "browser")


def database_of(item: Any) -> str | None:
    """The database that a test runs on."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return next((params[name] for name in FIXTURES if params.get(name) in DATABASES), None)


def _is_chosen(item: Any, runs_on_sqlite: bool) -> bool:
    database = database_of(item)
    if (RUN == "both" and not IS_SHORT) or is_apart(item):
        return True
    is_repeated = IS_SHORT and runs_on_sqlite and not is_for_both(item)
    if item.get_closest_marker("needs_servers"):
        return RUN != "sqlite" and not (is_repeated and database == "sqlite")
    if (database or "sqlite") == "sqlite":
        return RUN != "postgresql"
    return RUN != "sqlite" and not is_repeated


def is_for_both(item: Any) -> bool:
    """Whether one database is not enough."""
    for mark in item.iter_markers():
        if mark.name in ("one_database", "both_databases"):
            return bool(mark.name == "both_databases")
    return _is_listed(item.path) or _needs_both(item.function)


def _name(item: Any) -> tuple[str, str]:
    return _path(item.path), item.originalname


# Cached, as a test has many items.
@cache
def _path(path: Path) -> str:
    folder = TESTS if path.is_relative_to(TESTS) else TESTS.parent  # those of examples
    return path.relative_to(folder).as_posix()


@cache
def _is_listed(path: Path) -> bool:
    subject = PurePath(_path(path).removeprefix("system/"))
    return any(subject.is_relative_to(one) for one in BOTH)


@cache
def _needs_both(function: FunctionType) -> bool:
    """Whether it requests the database, or looks for races."""
    code = function.__code__
    requested = code.co_varnames[: code.co_argcount]
    return "database" in requested or not RACES.isdisjoint(_names(function, set()))


def _names(function: FunctionType, seen: set[str]) -> Iterator[str]:
    """The names that a function uses, directly or by functions of its module."""
    for name in set(_names_in(function.__code__)) - seen:
        seen.add(name)
        yield name
        other = function.__globals__.get(name)
        if isinstance(other, FunctionType) and other.__module__ == function.__module__:
            yield from _names(other, seen)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
