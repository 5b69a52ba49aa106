"""Which tests a run has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import databases
from tests.parallel import at_once

SQLITE, POSTGRESQL = databases.DATABASES


def plain() -> None:
    str(1)


def racing() -> list[int]:
    return at_once(2, lambda number: number)


def racing_further_down() -> list[int]:
    return list(racing())


def item(path: str, function: Any, marks: tuple[str, ...], database: str | None) -> Any:
    """As much of a collected test as is looked at."""
    found = {mark: SimpleNamespace(name=mark) for mark in marks}
    return SimpleNamespace(
        path=databases.TESTS / path,
        function=function,
        originalname=function.__name__,
        callspec=SimpleNamespace(params={"database": database}),
        iter_markers=found.values,
        get_closest_marker=found.get,
    )


def items(path: str, function: Any = plain, *marks: str) -> list[Any]:
    """A test on both databases."""
    return [item(path, function, marks, database) for database in databases.DATABASES]


def on(tests: list[Any]) -> list[str | None]:
    """The databases of those tests that the run has."""
    return [databases.database_of(test) for test in databases.parted(tests)[0]]


@pytest.fixture(params=["sqlite", "postgresql", "postgresql, short"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is to run."""
    database, _, short = request.param.partition(", ")
    monkeypatch.setattr(databases, "RUN", database)
    monkeypatch.setattr(databases, "IS_SHORT", bool(short))
    return str(request.param)


def test_database_selection_files_for_both_databases_exist() -> None:
    folders = (databases.TESTS, databases.TESTS / "system")
    there = {one for one in databases.BOTH for folder in folders if Path(folder / one).exists()}
    assert there == {*databases.BOTH}


@pytest.mark.parametrize(
    ("path", "function", "marks", "short"),
    [
        ("auth/test_login.py", plain, (), []),
        ("auth/test_login.py", plain, ("both_databases",), [POSTGRESQL]),
        ("auth/test_login.py", racing, (), [POSTGRESQL]),
        ("auth/test_login.py", racing_further_down, (), [POSTGRESQL]),
        ("test_tenancy.py", plain, (), [POSTGRESQL]),
        ("test_tenancy.py", plain, ("one_database",), []),
        ("records/test_records.py", plain, ("usefixtures",), [POSTGRESQL]),
    ],
)
def test_database_selection_of_run(
    run: str, path: str, function: Any, marks: tuple[str, ...], short: list[str]
) -> None:
    wanted = {"sqlite": [SQLITE], "postgresql": [POSTGRESQL]}
    assert on(items(path, function, *marks)) == wanted.get(run, short)


def test_database_selection_of_test_without_database_is_sqlite(run: str) -> None:
    assert on([item("test_mail.py", plain, (), None)]) == [None][: run == "sqlite"]


def test_database_selection_of_postgresql_only_test(run: str) -> None:
    assert on(items("auth/test_login.py")[1:]) == [POSTGRESQL][: run != "sqlite"]


def test_database_selection_of_test_with_servers_is_postgresql(run: str) -> None:
    both = [] if run == "sqlite" else [SQLITE, POSTGRESQL]
    assert on(items("records/test_records.py", plain, "needs_servers")) == both
    once = {"sqlite": [], "postgresql": both}.get(run, [POSTGRESQL])
    assert on(items("auth/test_login.py", plain, "needs_servers")) == once


def test_database_selection_of_process_test_is_postgresql_and_slow_sqlite() -> None:
    tests = items("system/auth/test_login.py")
    assert on(tests) == [SQLITE, POSTGRESQL]
    assert databases.left_to_slow(tests) == tests[:1]
    assert databases.left_to_slow(items("system/records/test_records.py")) == []
    assert databases.left_to_slow(tests[:1]) == []
