"""Chooses the database of tests that need only one; `make slow` runs them on the other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePath
from types import CodeType, FunctionType
from typing import Any
from zlib import crc32

import pytest

from tests import services

DATABASES = ("sqlite", "postgresql")
# These test requests, pages and texts. The SQL below them is tested on both databases elsewhere:
# in records, rules, collections, audit, feed, jobs, tenancy, row security, turns and transactions.
ONE_IS_ENOUGH = (
    "accounts",
    "auth",
    "clients/test_python_changes.py",
    "clients/test_python_examples.py",
    "clients/test_python_files.py",
    "clients/test_python_filters.py",
    "clients/test_python_types.py",
    "clients/test_typescript.py",
    "console",
    "sso",
    "audit/test_coverage.py",
    "collections/test_rules.py",
    "collections/test_schema.py",
    "collections/test_transfer.py",
    "realtime/test_credentials.py",
    "realtime/test_examples.py",
    "realtime/test_following.py",
    "realtime/test_streams.py",
    "realtime/test_tickets.py",
    "records/test_etags.py",
    "scim/test_compliance.py",
    "test_caching.py",
    "test_cheap_refusals.py",
    "test_cors.py",
    "test_errors.py",
    "test_fuzz.py",
    "test_input.py",
    "test_mail.py",
    "test_metrics.py",
    "test_openapi.py",
    "test_routing.py",
    "test_translations.py",
    "test_typed_openapi.py",
    "webhooks/test_filters.py",
    "webhooks/test_sight.py",
    "webhooks/test_targets.py",
    "webhooks/test_webhooks.py",
    "workflows/test_definitions.py",
    "workflows/test_header_values.py",
    "workflows/test_hooks.py",
    "workflows/test_mailing.py",
)
# PostgreSQL refuses more of what the first two send. Its row-level security hides what the
# application's own scoping lets through, so SQLite is the stricter for isolation.
STRICTEST = {
    "test_fuzz.py": "postgresql",
    "test_input.py": "postgresql",
    "test_isolation_check.py": "sqlite",
    "test_tenancy.py": "sqlite",
}
# Who calls one of these looks for races, which each database prevents in its own way.
RACES = {"at_once", "under_way", "forked", "Thread", "ThreadPoolExecutor", "Barrier"}
TESTS = PurePath(__file__).parent


def is_left_to_slow(item: pytest.Item) -> bool:
    """Whether a test runs on the other database, so that `make slow` covers this one."""
    database = getattr(item, "callspec", None) and item.callspec.params.get("database")  # type: ignore[attr-defined]
    return database in DATABASES and _one_is_enough(item) and database != chosen(item)


def chosen(item: Any) -> str:
    """The database of a test: deterministic, about half of the tests each."""
    path = _path(item.path)
    if path in STRICTEST:
        return "postgresql" if services.CITUS_NODES else STRICTEST[path]
    return DATABASES[crc32(f"{path}::{item.originalname}".encode()) % len(DATABASES)]


def _one_is_enough(item: Any) -> bool:
    for mark in item.iter_markers():
        if mark.name in ("one_database", "both_databases"):
            return bool(mark.name == "one_database")
    return _is_listed(item.path) and not _needs_both(item.function)


# Cached, as a test has many items.
@cache
def _path(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


@cache
def _is_listed(path: Path) -> bool:
    return any(PurePath(_path(path)).is_relative_to(one) for one in ONE_IS_ENOUGH)


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
