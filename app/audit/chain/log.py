"""Describes a log to the code of hash chains: its tables, its entries, its hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import sqlalchemy as sa

from app.types import JSONMapping, JSONObject

Row = Mapping[str, Any]
LOWEST = -(2**63)  # below any forged id


class BrokenRow(Exception):
    """A row whose JSON is not what was written."""


class Read(Protocol):
    """Reads an account's rows in order of their ids, from after one id until another."""

    def __call__(
        self, account_id: str, *, after: int = ..., until: int | None = ..., limit: int = ...
    ) -> list[JSONObject]:
        """Return the next rows, each with `previous`: the checksum before it."""


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log of which each account has a chain; its rows hold one or more consecutive entries."""

    name: str
    """`audit` or `security`, as in the column `log` of `chain_verifications`."""
    rows: sa.Table
    first: str
    last: str
    """The columns with the ids of a row's first and last entry."""
    size: sa.ColumnElement[int]
    """The number of a row's entries."""
    heads: sa.Table
    head_id: str
    starts: sa.Table
    suffix: str = ""
    """Appended to the account's id, so that a checkpoint of one log proves nothing of another."""
    read: Read
    entries_of: Callable[[Row], list[JSONObject]]
    """The entries of a row that was read. Raises BrokenRow."""
    accounts: Callable[[], Iterable[str]]
    """The accounts with a chain."""
    checkpoints: Callable[[str], Iterable[JSONMapping]]
    """The stored checkpoints of an account's chain."""
    signs_again: bool = False
    """A checkpoint by a former key is no fault: the next one replaces it."""
    pending: sa.Table
    """What is stored and has no place in a chain yet."""
    settle: Callable[[str], object]
    """Brings an account's chain up to date before it is verified or cut."""
    end: Callable[[str], int]
    """The first entry of an account that has to stay, whatever its age."""
    record_cut: Callable[[str, int, int], object]
    """Records that entries up to an id were removed, and how many. Raises Conflict."""

    def chain_id(self, account_id: str) -> str:
        """The `account_id` in entries, checkpoints and reports of an account's chain."""
        return f"{account_id}{self.suffix}"
