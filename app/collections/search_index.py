"""The words of searchable fields: columns beside them, and the indexes of these.

A record has the words of each searchable field in a column of its own (`app/db/words.py`), each
between `<` and `>`; null if they are not indexed yet. The account begins every indexed word, so
that a search costs what the account has, not what others have. PostgreSQL indexes the words by GIN.
On SQLite, triggers keep a table of FTS5 alike, by the number of the record's row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import DDLCompiler

from app import db
from app.collections.fields import Field
from app.db import engine
from app.db.types import Text

OF_FIELD = "words_of"
"""The key of a column's `info` with the field whose words it has."""
NUMBER = "_row"
LONGEST_NAME = 63
KEY_START = 25
"""Where the last part of an account's id begins, which is random: it stands for the account."""
MOST_CHECKED = 20
"""The words of a field that a check looks for."""
OPERATIONS = {"insert": ("NEW",), "delete": ("OLD",), "update": ("OLD", "NEW")}


class RowNumber(sa.types.UserDefinedType[int]):
    """SQLite's number of a row, which stays when the file is rewritten."""

    cache_ok = True

    def get_col_spec(self, **options: object) -> str:
        return "INTEGER PRIMARY KEY"


class RecordKey(sa.PrimaryKeyConstraint):
    """The key of a record; beside a number of the row, SQLite takes it as a unique one."""


@compiles(RecordKey, "sqlite")
def _record_key(element: RecordKey, compiler: DDLCompiler, **options: Any) -> str:
    text: str = compiler.visit_primary_key_constraint(element, **options)
    return text.replace("PRIMARY KEY", "UNIQUE", 1) if NUMBER in element.table.c else text


def column_name(field: str) -> str:
    """The column with the words of a field. Names of fields begin with a letter."""
    name = f"_words_{field}"
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 11]}_{hashlib.sha256(name.encode()).hexdigest()[:10]}"


def columns(fields: Iterable[Field]) -> Iterator[sa.Column[Any]]:
    """The columns that searchable fields add to their table."""
    searched = [field.name for field in fields if field.searched]
    for name in searched:
        yield sa.Column(column_name(name), Text, quote=True, info={OF_FIELD: name})
    if searched and engine.current_engine().dialect.name == "sqlite":
        yield sa.Column(NUMBER, RowNumber(), quote=True, info={OF_FIELD: None})


def of(table: sa.Table) -> dict[str, sa.Column[Any]]:
    """The columns with words, by field."""
    return {c.info[OF_FIELD]: c for c in table.columns if c.info.get(OF_FIELD)}


def add_indexes(table: sa.Table, name_of: Mapping[str, str]) -> None:
    """Add the indexes of words, of these names by field; on PostgreSQL."""
    if NUMBER in table.c:
        return
    for field, column in of(table).items():
        # Without its list of pending entries: searches would read all of it.
        with_options = {"fastupdate": "off"}
        sa.Index(
            name_of[field], terms(column), postgresql_using="gin", postgresql_with=with_options
        )


def terms(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """The words of a column behind the account, as PostgreSQL indexes them."""
    # The driver writes constants into the statement, where PostgreSQL sees that the index has them.
    account = sa.func.substr(column.table.c.account_id, KEY_START)
    keyed = sa.func.rtrim(sa.func.replace(column, "<", account), ">")
    return sa.func.array_to_tsvector(sa.func.string_to_array(keyed, ">"))


def key_of(account_id: str) -> str:
    """What begins the indexed words of an account."""
    return account_id[KEY_START - 1 :]


def full_text(table: sa.Table) -> sa.TableClause:
    """The table of FTS5, whose number of a row is that of the record's."""
    name = _name(table)
    return sa.table(name, sa.column("rowid"), sa.column(name))


def _name(table: sa.Table) -> str:
    # FTS5 adds names such as `..._data`; no collection has a "$" in its name.
    return f"fts_{table.name}$"


def removal(table: sa.Table) -> list[str]:
    """The statements that remove the table of FTS5."""
    return [f'DROP TABLE IF EXISTS "{_name(table)}"'] if NUMBER in table.c else []


def creation(table: sa.Table) -> list[str]:
    """The statements that create the table of FTS5, and fill it."""
    if NUMBER not in table.c:
        return []
    full_text, names = f'"{_name(table)}"', _names(table)
    options = "content = '', columnsize = 0, detail = column, tokenize = 'ascii'"
    filled = f"{full_text} (rowid, {names}) SELECT {_values(table)} FROM {_quoted(table)}"  # noqa: S608 - quoted
    return [
        f"CREATE VIRTUAL TABLE {full_text} USING fts5({names}, {options})",
        f"INSERT INTO {filled}",
    ]


def triggers(table: sa.Table) -> list[str]:
    """The statements that create the triggers which keep the table of FTS5 alike."""
    if NUMBER not in table.c:
        return []
    full_text, names = f'"{_name(table)}"', _names(table)
    new, old = (_values(table, f"{row}.") for row in ("NEW", "OLD"))
    change = {
        "NEW": f"INSERT INTO {full_text} (rowid, {names}) VALUES ({new})",  # noqa: S608 - quoted
        "OLD": f"INSERT INTO {full_text} ({full_text}, rowid, {names}) VALUES ('delete', {old})",  # noqa: S608
    }
    result = []
    for operation, rows in OPERATIONS.items():
        event = f"UPDATE OF {names}" if operation == "update" else operation.upper()
        body = "".join(f" {change[row]};" for row in rows)
        name = f'"{_name(table)}{operation}"'
        result.append(f"CREATE TRIGGER {name} AFTER {event} ON {_quoted(table)} BEGIN{body} END")
    return result


def without_triggers(table: sa.Table) -> list[str]:
    """The statements that remove these triggers."""
    if NUMBER not in table.c:
        return []
    return [f'DROP TRIGGER IF EXISTS "{_name(table)}{operation}"' for operation in OPERATIONS]


def merging(table: sa.Table, pages: int) -> str:
    """The statement that merges so many pages of the table of FTS5."""
    name = _name(table)
    return f'INSERT INTO "{name}" ("{name}", rank) VALUES (\'merge\', {pages})'  # noqa: S608


def is_whole(table: sa.Table, rows: Iterable[Sequence[Any]]) -> bool:
    """Whether the index leads to records by their words; of rows with account, id, and words last.

    On PostgreSQL, whose indexes follow their tables, whether it is there and valid.
    """
    names = [one.name for one in of(table).values()]
    if NUMBER not in table.c:
        valid = sa.text(
            "SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
            " WHERE indisvalid AND indrelid = to_regclass(:name)"
        )
        found = db.connection().scalars(valid, {"name": f'"{table.name}"'}).all()
        return {*names_of_indexes(table)} <= {*found}
    own, index = table.c, full_text(table)
    for row in rows:
        key, parts = key_of(row[0]), list[str]()
        for name, words in zip(names, row[-len(names) :], strict=True):
            some = words[1:-1].split("><")[:MOST_CHECKED] if words else ()
            parts += [f'{{"{name}"}} : "{key}{word}"' for word in some]
        matches: Any = index.c[index.name].op("MATCH")(sa.literal(" AND ".join(parts), Text))
        number = sa.select(own[NUMBER]).where(own.account_id == row[0], own.id == row[1])
        query = sa.select(1).where(matches, index.c.rowid == number.scalar_subquery())
        if parts and db.connection().execute(query).first() is None:
            return False
    return True


def names_of_indexes(table: sa.Table) -> list[str]:
    """The names of PostgreSQL's indexes of words."""
    kinds = ((one.name, one.dialect_options["postgresql"]["using"]) for one in table.indexes)
    return [str(name) for name, kind in kinds if kind == "gin"]


def _names(table: sa.Table) -> str:
    return ", ".join(f'"{column.name}"' for column in of(table).values())


def _values(table: sa.Table, row: str = "") -> str:
    account = f"' ' || substr({row}account_id, {KEY_START})"
    words = [f"replace({row}\"{one.name}\", '<', {account})" for one in of(table).values()]
    return ", ".join([f'{row}"{NUMBER}"', *words])


def _quoted(table: sa.Table) -> str:
    return f'"{table.name}"'
