"""Statements that are compiled once, and go straight to the driver.

SQLAlchemy's way there costs more than a keyed look-up does. What is run again and again is prepared
here; all else goes by `db.connection()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from operator import itemgetter
from typing import Any

import psycopg2

from app import db
from app.db import engine, postgres_driver

Row = tuple[Any, ...]
Process = Callable[[Any], Any]


class Prepared:
    """A statement; from its second use on compiled for the database in use.

    The first goes by SQLAlchemy, which knows statements that differ in their constants only. One
    that is `keyed` finds rows by keys or makes them: its plan is the same whatever the parameters,
    so PostgreSQL keeps it. Each must be compared with a column, or stored in one.
    """

    def __init__(self, statement: Any, *, keyed: bool = False) -> None:
        self._statement = statement
        self._keyed = keyed
        self._compiled: dict[str, _Compiled] = {}
        self._is_used = False

    def all(self, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """The rows that it gives with these parameters."""
        if not self._is_used:
            self._is_used = True
            return db.connection().execute(self._statement, parameters).all()
        return self._here().all(parameters)

    def run(self, parameters: Mapping[str, Any]) -> None:
        """Have it done before the open transaction ends; no answer is waited for."""
        self._here().run(parameters)

    def _here(self) -> _Compiled:
        dialect = engine.running().dialect.name
        found = self._compiled.get(dialect)
        if found is None:
            found = self._compiled[dialect] = _Compiled(self._statement, self._keyed)
        return found


class _Compiled:
    def __init__(self, statement: Any, keyed: bool) -> None:
        self._dialect = engine.running().dialect
        compiled: Any = statement.compile(dialect=self._dialect)
        if compiled.post_compile_params:
            raise ValueError("a list of any length is no single parameter")
        self._text = str(compiled)
        self._types = [column.type for column in compiled._result_columns]
        self._order: Sequence[str] | None = compiled.positiontup
        self._constant: dict[str, Any] = {}
        self._given: list[tuple[str, Any, Process | None]] = []
        for parameter, name in compiled.bind_names.items():
            self._take(parameter, name, compiled._bind_processors.get(name))
        # Constants belong to computed fields, where they may meet anything.
        keyed = keyed and not self._constant and self._dialect.name == "postgresql"
        self._kept = postgres_driver.Kept(self._text) if keyed else None
        self._outgoing: list[tuple[int, Process]] | None = None
        self._plainly = self._way_of_plain()

    def _take(self, parameter: Any, name: str, process: Process | None) -> None:
        if not parameter.unique:  # it has a name by which it can be given
            self._given.append((name, parameter, process))
            return
        value = parameter.effective_value
        self._constant[name] = process(value) if process else value

    def all(self, parameters: Mapping[str, Any]) -> list[Row]:
        bound = self._bound(parameters)
        with db.driver() as driver:
            cursor = driver.cursor()
            try:
                send(cursor, self._text, bound, self._kept)
                if self._outgoing is None:
                    self._outgoing = self._processors(cursor.description)
                found: list[Row] = cursor.fetchall()
            finally:
                cursor.close()
        return self._read(found) if found and self._outgoing else found

    def run(self, parameters: Mapping[str, Any]) -> None:
        with db.driver() as driver, closing(driver.cursor()) as cursor:
            if isinstance(driver, postgres_driver.Driver):
                said = driver.call(self._kept) if self._kept else self._text
                driver.put_off(cursor.mogrify(said, self._bound(parameters)))
            else:
                send(cursor, self._text, self._bound(parameters))

    def _way_of_plain(self) -> Callable[[Mapping[str, Any]], Any] | None:
        """What binds parameters that are all given, and go as they are; else None."""
        keys = {n: p.key for n, p, process in self._given if p.required and process is None}
        if self._order is None or len(self._order) < 2 or not keys.keys() >= set(self._order):
            return None
        return itemgetter(*[keys[name] for name in self._order])

    def _bound(self, parameters: Mapping[str, Any]) -> Any:
        if self._plainly is not None:
            return self._plainly(parameters)
        bound = self._constant.copy()
        for name, parameter, process in self._given:
            key = parameter.key
            given = key in parameters or parameter.required
            value = parameters[key] if given else parameter.effective_value
            bound[name] = process(value) if process else value
        return bound if self._order is None else tuple([bound[name] for name in self._order])

    def _processors(self, described: Sequence[Any]) -> list[tuple[int, Process]]:
        both = enumerate(zip(self._types, described, strict=True))
        found = (
            (i, type._cached_result_processor(self._dialect, one[1])) for i, (type, one) in both
        )
        return [(i, process) for i, process in found if process is not None]

    def _read(self, rows: Sequence[Row]) -> list[Row]:
        if len(rows) == 1:
            row = list(rows[0])
            for i, process in self._outgoing or ():
                row[i] = process(row[i])
            return [tuple(row)]
        columns: list[Any] = list(zip(*rows, strict=True))
        for i, process in self._outgoing or ():
            columns[i] = map(process, columns[i])
        return list(zip(*columns, strict=True))


def send(cursor: Any, text: str, parameters: Any, kept: postgres_driver.Kept | None = None) -> None:
    """Have a cursor of the driver run a statement, by its name where the server keeps it."""
    if kept is None:
        cursor.execute(text, parameters)
        return
    driver: postgres_driver.Driver = cursor.connection
    try:
        cursor.execute(driver.call(kept), parameters)
    except (psycopg2.NotSupportedError, psycopg2.ProgrammingError):
        driver.give_up_kept()
        if driver.get_transaction_status() != postgres_driver.IDLE:
            raise
        cursor.execute(driver.call(kept), parameters)
