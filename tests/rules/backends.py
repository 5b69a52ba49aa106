"""One expression, three ways to its value: Python, SQLite and PostgreSQL, on tables of the test."""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

from app.collections.fields import Exact, JsonText, Number
from app.collections.revisions import MIGRATIONS
from app.db.types import Text, UtcDateTime
from app.rules import Context, Node, Scope, Subject, Type, evaluate, partial_evaluate
from app.rules import sql as in_sql
from app.rules import sqlite as on_sqlite
from tests import services

FIELDS = {
    **dict.fromkeys(("t", "u", "v", "created_by", "parent"), Type.TEXT),
    **dict.fromkeys(("n", "m", "k"), Type.NUMBER),
    **dict.fromkeys(("d", "e"), Type.DECIMAL),
    **dict.fromkeys(("b", "c"), Type.BOOLEAN),
    **dict.fromkeys(("at", "since"), Type.DATETIME),
    **dict.fromkeys(("day", "due"), Type.DATE),
    "j": Type.JSON,
    **dict.fromkeys(("tags", "marks"), Type.LIST),
}
COLUMN_TYPES: dict[Type, Any] = {
    Type.TEXT: Text,
    Type.NUMBER: Number(),
    Type.DECIMAL: Exact(),
    Type.BOOLEAN: sa.Boolean(),
    Type.DATETIME: UtcDateTime(),
    Type.DATE: sa.Date(),
    Type.JSON: JsonText(),
    Type.LIST: JsonText(),
    Type.NULL: sa.types.NULLTYPE,
}
NOW = datetime(2026, 11, 20, 12, 30, 15, 123456, tzinfo=UTC)
NOBODY = Subject()
EDITOR = Subject("u1", "eve@acme.test", "editor", "a1", frozenset({"staff"}))

ROWS = sa.Table(
    "rule_rows",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    *(sa.Column(name, COLUMN_TYPES[kind]) for name, kind in FIELDS.items()),
    prefixes=["TEMPORARY"],
)
# Rows that references lead to; a record in Python holds them below the reference's name.
SCOPE = Scope(FIELDS, follow=lambda name: Scope(FIELDS) if name == "parent" else None, old=True)


class RowColumns:
    """The columns of the table; `parent.<name>` those of the row that `parent` names by its `t`."""

    types = COLUMN_TYPES

    @property
    def old(self) -> RowColumns:
        """The columns themselves: nothing changes."""
        return self

    def column(self, path: tuple[str, ...]) -> Any:
        """A column, or that of the parent."""
        if len(path) == 1:
            return ROWS.c[path[0]]
        above = ROWS.alias()
        found = sa.select(above.c[path[1]]).where(above.c.t == ROWS.c.parent)
        return found.limit(1).scalar_subquery()

    def now(self) -> Any:
        """The moment of the tests."""
        return sa.literal(NOW, COLUMN_TYPES[Type.DATETIME])


class Backend:
    """A database that evaluates expressions on rows."""

    def __init__(self, url: str) -> None:
        self.engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        if self.engine.dialect.name == "sqlite":
            sa.event.listen(self.engine, "connect", lambda raw, _: on_sqlite.register(raw))
        self.connection = self.engine.connect()
        with Operations.context(MigrationContext.configure(self.connection)):
            for name in ("create_rule_functions", "join_texts", "calculate_with_decimals"):
                _migration(name).upgrade()
        ROWS.create(self.connection)

    def close(self) -> None:
        """Leave the database."""
        self.connection.close()
        self.engine.dispose()

    @contextmanager
    def statements(self) -> Iterator[list[str]]:
        """The SQL that is sent meanwhile."""
        sent: list[str] = []

        def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
            sent.append(statement)

        sa.event.listen(self.engine, "before_cursor_execute", note)
        try:
            yield sent
        finally:
            sa.event.remove(self.engine, "before_cursor_execute", note)

    def fill(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace all rows."""
        self.connection.execute(ROWS.delete())
        empty = dict.fromkeys(FIELDS)
        if rows:
            numbered = [{**empty, **row, "id": number} for number, row in enumerate(rows)]
            self.connection.execute(ROWS.insert(), numbered)

    def values(
        self,
        nodes: Sequence[Node],
        subject: Subject = NOBODY,
        sent: Mapping[str, Any] | None = None,
    ) -> list[list[Any]]:
        """The value of each expression on every row, in one statement."""
        compiled = [in_sql.value(partial_evaluate(node, subject), RowColumns()) for node in nodes]
        columns = [one.expression.label(f"c{index}") for index, one in enumerate(compiled)]
        statement = sa.select(ROWS.c.id, *columns).order_by(ROWS.c.id)
        found = self.connection.execute(statement, _parameters(compiled, subject, sent)).all()
        return [[row[index + 1] for row in found] for index in range(len(nodes))]

    def matching(
        self, node: Node, subject: Subject = NOBODY, sent: Mapping[str, Any] | None = None
    ) -> list[int]:
        """The rows on which a condition holds."""
        compiled = in_sql.condition(partial_evaluate(node, subject), RowColumns())
        statement = sa.select(ROWS.c.id).where(compiled.expression).order_by(ROWS.c.id)
        found = self.connection.execute(statement, _parameters([compiled], subject, sent))
        return list(found.scalars())


def _parameters(
    compiled: Sequence[in_sql.Compiled], subject: Subject, sent: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {k: v for one in compiled for k, v in one.parameters(subject, sent).items()}


def _migration(name: str) -> Any:
    (path,) = (MIGRATIONS / "versions").glob(f"*_{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start(database: str) -> Backend:
    """A backend on a database of its own."""
    if database == "sqlite":
        return Backend("sqlite://")
    url = services.Postgres().create_database(f"rules_{secrets.token_hex(6)}")
    return Backend(url.replace("postgresql:", "postgresql+psycopg2:"))


def python_value(
    node: Node, record: Mapping[str, Any], subject: Subject, sent: Mapping[str, Any] | None = None
) -> Any:
    """What the evaluator gives, which what remains of the expression for the subject gives too."""
    context = Context(record, subject, sent or {}, NOW)
    found = evaluate(node, context)
    assert same(evaluate(partial_evaluate(node, subject), context), found)
    return found


def same(left: Any, right: Any) -> bool:
    """Whether two values are one: 1 is neither true nor 1.5 - 0.5 as a double."""
    return type(left) is type(right) and left == right


def typed(kind: Type, value: Any) -> Any:
    """A value of a table of cases as the one that a field of the type holds."""
    if value is not None and kind is Type.DATETIME:
        return datetime.fromisoformat(value)
    if value is not None and kind is Type.DECIMAL:
        return Decimal(value)
    return date.fromisoformat(value) if value is not None and kind is Type.DATE else value
