"""Which tests may run on one database only."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import databases
from tests.parallel import at_once


def plain() -> None:
    str(1)


def racing() -> list[int]:
    return at_once(2, lambda number: number)


def racing_further_down() -> list[int]:
    return list(racing())


def item(path: str, function: Any, *marks: str, database: str = "sqlite") -> Any:
    """As much of a collected test as is looked at."""
    return SimpleNamespace(
        path=databases.TESTS / path,
        function=function,
        originalname=function.__name__,
        callspec=SimpleNamespace(params={"database": database}),
        iter_markers=lambda: [SimpleNamespace(name=mark) for mark in marks],
    )


def left(path: str, function: Any, *marks: str) -> list[str]:
    """The databases on which `make test` leaves a test out."""
    asked = databases.DATABASES
    return [d for d in asked if databases.is_left_to_slow(item(path, function, *marks, database=d))]


def test_everything_listed_is_there() -> None:
    listed = (*databases.ONE_IS_ENOUGH, *databases.STRICTEST)
    assert [one for one in listed if not Path(databases.TESTS / one).exists()] == []


@pytest.mark.parametrize(
    ("path", "function", "marks", "count"),
    [
        ("auth/test_login.py", plain, (), 1),
        ("auth/test_login.py", plain, ("both_databases",), 0),
        ("auth/test_login.py", racing, (), 0),
        ("auth/test_login.py", racing_further_down, (), 0),
        ("test_tenancy.py", plain, (), 0),
        ("test_tenancy.py", plain, ("one_database",), 1),
        ("records/test_records.py", plain, ("usefixtures",), 0),
    ],
)
def test_a_test_is_left_out_on_one_database_at_most(
    path: str, function: Any, marks: tuple[str, ...], count: int
) -> None:
    assert len(left(path, function, *marks)) == count


def test_the_stricter_database_is_chosen() -> None:
    assert left("test_input.py", plain) == ["sqlite"]
    assert left("test_tenancy.py", plain, "one_database") == ["postgresql"]
