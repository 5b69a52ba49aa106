"""Statements compiled once and sent straight to the driver.

Leans on the insides of SQLAlchemy's compiled statements (`_bind_processors`, `_result_columns`,
`positiontup`, `_cached_result_processor`): a GET by id takes half the CPU, a list of 30 takes 10 %
less, a create a quarter less. `tests/test_library_insides.py` holds the contract. Statements that
run rarely go through `db.connection()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import psycopg2
import sqlalchemy as sa

from app import db
from app.db import engine, postgres_driver

Row = tuple[Any, ...]
Parameters = Mapping[str, object]
Process = Callable[[Any], Any]


class PreparedStatement:
    """A statement that is compiled on its second use.

    The first use goes through SQLAlchemy, whose cache also serves statements that differ only in
    constants. A `keyed` statement finds or inserts rows by key: its plan does not depend on its
    parameters, so PostgreSQL prepares it on the server. Each parameter must be compared with a
    column, or stored in one.
    """

    def __init__(self, statement: sa.Executable, *, keyed: bool = False) -> None:
        self._statement = statement
        self._keyed = keyed
        self._compiled: dict[type, _Compiled] = {}
        self._is_used = False

    def all(self, parameters: Parameters) -> Sequence[Any]:
        if not self._is_used:
            self._is_used = True
            return db.connection().execute(self._statement, parameters).all()
        with db.driver() as driver:
            return self._compiled_for(driver).all(driver, parameters)

    def run(self, parameters: Parameters) -> None:
        """Run the statement before the open transaction ends; its result is dropped."""
        with db.driver() as driver:
            self._compiled_for(driver).run(driver, parameters)

    def _compiled_for(self, driver: object) -> _Compiled:
        compiled = self._compiled.get(type(driver))
        if compiled is None:
            dialect = engine.current_engine().dialect
            compiled = _Compiled(self._statement, dialect, self._keyed)
            self._compiled[type(driver)] = compiled
        return compiled


class _Compiled:
    """A statement as one kind of driver takes it."""

    def __init__(self, statement: Any, dialect: sa.Dialect, keyed: bool) -> None:
        self._dialect = dialect
        compiled: Any = statement.compile(dialect=self._dialect)
        if compiled.post_compile_params:
            raise ValueError("an expanding parameter cannot be prepared")
        self._text = str(compiled)
        self._types = [column.type for column in compiled._result_columns]
        self._positions: Sequence[str] | None = compiled.positiontup
        self._constants: dict[str, object] = {}
        self._parameters: list[tuple[str, Any, Process | None]] = []
        for parameter, name in compiled.bind_names.items():
            process = compiled._bind_processors.get(name)
            if not parameter.unique:  # it has a name of ours
                self._parameters.append((name, parameter, process))
            else:
                value = parameter.effective_value
                self._constants[name] = process(value) if process else value
        # Constants come from computed fields, where they may be compared with anything.
        keyed = keyed and not self._constants and self._dialect.name == "postgresql"
        self._server_statement = postgres_driver.ServerStatement(self._text) if keyed else None
        self._result_processors: list[tuple[int, Process]] | None = None
        self._bind_directly = self._direct_binder()

    def all(self, driver: Any, parameters: Parameters) -> list[Row]:
        cursor = driver.cursor()
        try:
            execute(cursor, self._text, self._bind(parameters), self._server_statement)
            if self._result_processors is None:
                self._result_processors = self._processors(cursor.description)
            rows: list[Row] = cursor.fetchall()
        finally:
            cursor.close()
        return self._convert(rows) if rows and self._result_processors else rows

    def run(self, driver: Any, parameters: Parameters) -> None:
        cursor = driver.cursor()
        try:
            if isinstance(driver, postgres_driver.Driver):
                statement = self._server_statement
                text = driver.call(statement) if statement else self._text
                driver.defer(cursor.mogrify(text, self._bind(parameters)))
            else:
                execute(cursor, self._text, self._bind(parameters))
        finally:
            cursor.close()

    def _direct_binder(self) -> Callable[[Parameters], object] | None:
        """A fast binder if every parameter is required and goes out unchanged, else None."""
        keys = {n: p.key for n, p, process in self._parameters if p.required and process is None}
        positions = self._positions
        if positions is None or len(positions) < 2 or not keys.keys() >= set(positions):
            return None
        return itemgetter(*[keys[name] for name in positions])

    def _bind(self, parameters: Parameters) -> object:
        if self._bind_directly is not None:
            return self._bind_directly(parameters)
        bound = self._constants.copy()
        for name, parameter, process in self._parameters:
            key = parameter.key
            is_set = key in parameters or parameter.required
            value = parameters[key] if is_set else parameter.effective_value
            bound[name] = process(value) if process else value
        positions = self._positions
        return bound if positions is None else tuple([bound[name] for name in positions])

    def _processors(self, description: Sequence[Any]) -> list[tuple[int, Process]]:
        columns = enumerate(zip(self._types, description, strict=True))
        processors = (
            (i, type._cached_result_processor(self._dialect, column[1]))
            for i, (type, column) in columns
        )
        return [(i, process) for i, process in processors if process is not None]

    def _convert(self, rows: Sequence[Row]) -> list[Row]:
        if len(rows) == 1:
            row = list(rows[0])
            for i, process in self._result_processors or ():
                row[i] = process(row[i])
            return [tuple(row)]
        columns: list[Any] = list(zip(*rows, strict=True))
        for i, process in self._result_processors or ():
            columns[i] = map(process, columns[i])
        return list(zip(*columns, strict=True))


def execute(
    cursor: Any,
    text: str,
    parameters: Any,
    statement: postgres_driver.ServerStatement | None = None,
) -> None:
    """Run a statement on a DBAPI cursor; a server-side one by its name."""
    if statement is None:
        cursor.execute(text, parameters)
        return
    driver: postgres_driver.Driver = cursor.connection
    try:
        cursor.execute(driver.call(statement), parameters)
    except (psycopg2.NotSupportedError, psycopg2.ProgrammingError):
        driver.invalidate_statements()
        if driver.get_transaction_status() != postgres_driver.IDLE:
            raise
        cursor.execute(driver.call(statement), parameters)
