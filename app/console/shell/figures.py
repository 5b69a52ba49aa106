"""The figures at the top of a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flask import url_for

from app.console.shell import lists
from app.db.counts import count_up_to


@dataclass(frozen=True)
class Figure:
    """A number, and the page of what it counts, if there is one."""

    name: str
    value: str
    url: str | None = None
    is_bad: bool = False


def linked(name: str, value: str, endpoint: str, **url_args: Any) -> Figure:
    return Figure(name, value, url_for(f"console.{endpoint}", **url_args))


def format_count(model: Any, *where: Any) -> str:
    """The number of rows, as far as figures count."""
    return lists.format_count(count_up_to(model, where, lists.MAX_COUNTED))
