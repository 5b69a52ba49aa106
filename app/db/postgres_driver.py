"""The driver's connection to PostgreSQL: what needs no answer travels with the next message.

A transaction begins in the message of its first statement, which also tells whose rows come next
(`app.context.tenancy`), and what is put off to its end goes with the commit: each saves a round
trip. What is asked by key again and again the server keeps, as it takes longer to understand than
to run.
"""

from __future__ import annotations

import math
import re
import time
from collections import OrderedDict
from contextlib import closing
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

from psycopg2 import extensions

from app.context import tenancy

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
IDLE, FAILED, BROKEN = (
    extensions.TRANSACTION_STATUS_IDLE,
    extensions.TRANSACTION_STATUS_INERROR,
    extensions.TRANSACTION_STATUS_UNKNOWN,
)
MOST_KEPT, KEPT_SECONDS = 100, 60
UNKNOWN = "", -math.inf  # older than any clock, which may have begun with the machine
PARAMETER = re.compile(r"%\((.*?)\)s|%%")


class Kept:
    """A statement that servers keep: each connection prepares it as it comes to it.

    Parameters take the types of what they are compared with, or stored in.
    """

    def __init__(self, text: str) -> None:
        numbers: dict[str, int] = {}

        def number(found: re.Match[str]) -> str:
            name = found[1]
            return f"${numbers.setdefault(name, len(numbers) + 1)}" if name else "%"

        self.text = PARAMETER.sub(number, text)
        self.values = f" ({', '.join(f'%({name})s' for name in numbers)})" if numbers else ""


class Roles(NamedTuple):
    """The roles of one database: which sees one account's rows, and which sees everybody's."""

    one: str
    every: str


class Words(NamedTuple):
    """What tells a server whose rows come next: as a transaction begins, and later within it."""

    first: bytes
    later: bytes


class Driver(extensions.connection):
    """A connection that knows what its server has still to be told.

    It stays in autocommit, and begins and ends transactions itself. Where it is taken out of
    autocommit, for a cursor of the server's, the driver does.
    """

    roles: Roles | None = None
    """By whom its statements are run; None where there is no lock between accounts."""
    _told: Words | None = None
    _opening = False
    _waiting = b""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._kept: OrderedDict[Kept, tuple[str, float]] = OrderedDict()
        self._numbers = count()

    def begin(self) -> None:
        """Begin a transaction, along with its first statement."""
        self._opening = True

    def put_off(self, statement: bytes) -> None:
        """Run a statement, of whose answer nothing is needed, along with whatever comes next.

        Raises RuntimeError outside a transaction, with which it would have to come.
        """
        begun = self._opening or self._waiting or self.get_transaction_status() != IDLE
        if not begun:
            raise RuntimeError("nothing is put off outside a transaction")
        self._waiting = self.take_untold() + statement + b"; "

    def catch_up(self) -> None:
        """Run at once what was put off."""
        if self._waiting:
            self._say(self.take_untold())

    def commit(self) -> None:
        """End the transaction, with what was put off."""
        if not self.autocommit:
            super().commit()
        elif self._waiting or self.get_transaction_status() != IDLE:
            waiting, self._waiting = self._waiting, b""
            self._say(waiting + b"COMMIT")
        self._opening = False

    def rollback(self) -> None:
        """Take the transaction back."""
        self._opening, self._waiting = False, b""
        if not self.autocommit:
            super().rollback()
        elif self.get_transaction_status() not in (IDLE, BROKEN):
            self._say(b"ROLLBACK")

    def tell(self) -> None:
        """Say at once what has to come before the next statement."""
        untold = self.take_untold()
        if untold:
            self._say(untold)

    def take_untold(self) -> bytes:
        """What has to come before the next statement, which then takes it along."""
        status = self.get_transaction_status()
        if status == FAILED:  # it takes nothing but its end
            return b""
        begins = status == IDLE and not self._waiting
        untold, self._waiting = self._waiting, b""
        if self._opening:
            self._opening, untold = False, b"BEGIN; "
        return untold + self._whose(begins) if self.roles else untold

    def _whose(self, begins: bool) -> bytes:
        wanted = _words(self.roles, tenancy.current())
        told, self._told = self._told, wanted
        if begins:
            return wanted.first
        return b"" if told == wanted else wanted.later

    def forget(self) -> None:
        """Leave out what was put off: it belongs to what is taken back."""
        self._waiting = b""

    def doubt(self) -> None:
        """Take nothing as told: part of it was taken back."""
        self._told = None

    def call(self, statement: Kept) -> str:
        """What runs a statement that the server keeps, beside its values."""
        name, made = self._kept.get(statement, UNKNOWN)
        if time.monotonic() - made > KEPT_SECONDS:  # its plan was made for tables as they were then
            name = self._prepare(statement)
        return f"EXECUTE {name}{statement.values}"

    def give_up_kept(self) -> None:
        """Prepare anew whatever comes next: tables may be others now."""
        for statement, (name, _) in self._kept.items():
            self._kept[statement] = name, -math.inf

    def _prepare(self, statement: Kept) -> str:
        given_up = self._kept.pop(statement, None)
        if given_up is None and len(self._kept) >= MOST_KEPT:
            _, given_up = self._kept.popitem(last=False)
        # A name is never used again: what fails may have been prepared, or given up, or not.
        name = f"kept_{next(self._numbers)}"
        forgotten = f"DEALLOCATE {given_up[0]}; " if given_up else ""
        with closing(self.cursor()) as cursor:
            cursor.execute(f"{forgotten}PREPARE {name} AS {statement.text}")
        self._kept[statement] = name, time.monotonic()
        return name

    def _say(self, text: bytes) -> None:
        with closing(self.cursor(cursor_factory=extensions.cursor)) as cursor:
            cursor.execute(text)


class Cursor(extensions.cursor):
    """A cursor whose statements go with what their connection has still to tell."""

    connection: Driver

    def execute(self, query: Any, vars: Any = None) -> None:
        """Run a statement."""
        if self.name:  # the driver makes a cursor of the whole text
            self.connection.tell()
            super().execute(query, vars)
            return
        text = self.mogrify(query, vars)  # where that fails, nothing is taken for told
        if takes_back := str(query).startswith("ROLLBACK TO"):
            self.connection.forget()
        super().execute(self.connection.take_untold() + text)
        if takes_back:
            self.connection.doubt()

    def executemany(self, query: Any, vars_list: Any) -> None:
        """Run a statement many times, each in a message of its own."""
        self.connection.tell()
        super().executemany(query, vars_list)

    def copy_expert(self, sql: Any, file: Any, size: int = 8192) -> None:
        """Copy from or to a file."""
        self.connection.tell()
        super().copy_expert(sql, file, size)


@lru_cache(10_000)
def _words(roles: Roles, scope: tenancy.Scope) -> Words:
    if scope in (tenancy.OWNER, tenancy.ACROSS):
        role = "NONE" if scope == tenancy.OWNER else quoted(roles.every)
        return Words(*[f"SET LOCAL ROLE {role}; ".encode()] * 2)
    account_id = scope if UUID.fullmatch(scope) else ""  # which no account has
    setting = f"SET LOCAL app.account_id = '{account_id}'; "
    # The connection has this role already, and to set it again costs more than the setting.
    later = f"SET LOCAL ROLE {quoted(roles.one)}; {setting}"
    return Words(setting.encode(), later.encode())


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'
