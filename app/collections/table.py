"""From a definition to its table, and the DDL that makes, changes and drops it.

One table serves all accounts. The account leads every key: the primary key, unique indexes and
references, so that no clash and no reference can cross accounts, even by mistake. PostgreSQL
alters tables in place. SQLite cannot add constraints, so there the table is built anew, its rows
are copied, and it takes the old one's name, all in the same transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import AddConstraint, CreateColumn, CreateIndex, CreateTable, DropTable

from app import db
from app.collections.fields import Field, ReferenceField

PREFIX = "col_"
LONGEST_IDENTIFIER = 63
# Columns that PostgreSQL keeps for itself in every table.
DATABASE_COLUMNS = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}


def name_of(collection_name: str) -> str:
    """The table of a collection."""
    return PREFIX + collection_name.lower()


def of(table_name: str, fields: Iterable[Field]) -> sa.Table:
    """The table with its columns, constraints and indexes."""
    fields = list(fields)
    metadata = sa.MetaData()
    for target in {name_of(f.collection) for f in fields if f.collection} - {table_name}:
        _stub(target, metadata)
    table = sa.Table(
        table_name,
        metadata,
        sa.Column("account_id", db.Id, nullable=False),
        sa.Column("id", db.Id, nullable=False),
        sa.Column("created_at", db.Moment, nullable=False),
        sa.Column("updated_at", db.Moment, nullable=False),
        sa.Column("created_by", db.Id),
        sa.Column("updated_by", db.Id),
        *(_column(field) for field in fields),
        sa.PrimaryKeyConstraint("account_id", "id", name=_name("pk", table_name)),
    )
    newest = (table.c.account_id, table.c.created_at.desc(), table.c.id)
    sa.Index(_name("ix", table_name, "created_at"), *newest)
    for field in fields:
        for constraint in _constraints(table_name, field):
            table.append_constraint(constraint)
        _index(table, field)
    return table


def create(table: sa.Table) -> list[str]:
    """Make the table. Returns the statements."""
    return _run([CreateTable(table), *map(CreateIndex, _sorted(table.indexes))])


def drop(table: sa.Table) -> list[str]:
    """Drop the table with its records. Returns the statements."""
    return _run([DropTable(table)])


def add_fields(old: sa.Table, new: sa.Table, fields: Sequence[Field]) -> list[str]:
    """Change the old table into the new one, which has `fields` more. Returns the statements."""
    if db.connection().dialect.name == "sqlite":
        return _rebuild(old, new, fields)
    return _alter(old, new, fields)


def _alter(old: sa.Table, new: sa.Table, fields: Sequence[Field]) -> list[str]:
    preparer = _dialect().identifier_preparer
    statements: list[Any] = []
    for field in fields:
        column = CreateColumn(new.c[field.name]).compile(dialect=_dialect())
        literal = _literal(new.c[field.name], field.default)
        default = f" DEFAULT {literal}" if field.default is not None else ""
        table, name = preparer.format_table(new), preparer.format_column(new.c[field.name])
        statements.append(f"ALTER TABLE {table} ADD COLUMN {column}{default}")
        if default:
            # The default filled the rows there are; for new ones the application knows it.
            statements.append(f"ALTER TABLE {table} ALTER COLUMN {name} DROP DEFAULT")
        statements += [AddConstraint(one) for one in _foreign_keys(new, field)]
    known = {index.name for index in old.indexes}
    statements += [CreateIndex(one) for one in _sorted(new.indexes) if one.name not in known]
    return _run(statements)


def _rebuild(old: sa.Table, new: sa.Table, fields: Sequence[Field]) -> list[str]:
    draft = f"{PREFIX}_rebuilt"
    preparer = _dialect().identifier_preparer
    quote = preparer.format_column
    create_draft = str(CreateTable(new).compile(dialect=_dialect())).replace(
        f"CREATE TABLE {preparer.format_table(new)}", f"CREATE TABLE {draft}", 1
    )
    kept = ", ".join(map(quote, old.columns))
    filled = [field for field in fields if field.default is not None]
    names = ", ".join([kept, *(quote(new.c[field.name]) for field in filled)])
    values = ", ".join([kept, *(_literal(new.c[field.name], field.default) for field in filled)])
    table = preparer.format_table(old)
    return _run(
        [
            create_draft.strip(),
            f"INSERT INTO {draft} ({names}) SELECT {values} FROM {table}",  # noqa: S608 - quoted
            f"DROP TABLE {table}",
            f"ALTER TABLE {draft} RENAME TO {table}",
            *map(CreateIndex, _sorted(new.indexes)),
        ]
    )


def _run(statements: Iterable[Any]) -> list[str]:
    done = []
    for statement in statements:
        if not isinstance(statement, str):
            statement = str(statement.compile(dialect=_dialect())).strip()
        # Without parameters the driver takes the text as it is: a "%" in it means nothing.
        db.connection().exec_driver_sql(statement, execution_options={"no_parameters": True})
        done.append(statement)
    return done


def _dialect() -> Dialect:
    # Not the connection's own, which doubles every "%" for its driver.
    known: dict[str, Any] = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}
    dialect: Dialect = known[db.connection().dialect.name](paramstyle="named")
    return dialect


def _literal(column: sa.Column[Any], value: Any) -> str:
    if value is None:
        return "NULL"
    literal = sa.literal(value, column.type)
    return str(literal.compile(dialect=_dialect(), compile_kwargs={"literal_binds": True}))


def _column(field: Field) -> sa.Column[Any]:
    # Quoted always: the toolkit's lists of keywords lack some that a database has.
    return sa.Column(field.name, field.column_type, nullable=not field.required, quote=True)


def _constraints(table_name: str, field: Field) -> list[sa.ForeignKeyConstraint]:
    if not isinstance(field, ReferenceField) or field.collection is None:
        return []
    target = name_of(field.collection)
    return [
        sa.ForeignKeyConstraint(
            ["account_id", field.name],
            [f"{target}.account_id", f"{target}.id"],
            name=_name("fk", table_name, field.name),
        )
    ]


def _foreign_keys(table: sa.Table, field: Field) -> list[sa.ForeignKeyConstraint]:
    name = _name("fk", table.name, field.name)
    return [one for one in table.foreign_key_constraints if one.name == name]


def _index(table: sa.Table, field: Field) -> None:
    columns = (table.c.account_id, table.c[field.name])
    if field.unique:
        sa.Index(_name("uq", table.name, field.name), *columns, unique=True)
    elif field.options.get("index") or isinstance(field, ReferenceField):
        # A reference is looked up whenever its target is deleted.
        sa.Index(_name("ix", table.name, field.name), *columns)


def _name(kind: str, *parts: str) -> str:
    # No name of ours has a "$": "abc" + "x_y" and "abc_x" + "y" must not share an index's name.
    name = f"{kind}_{'$'.join(parts)}"
    if len(name) <= LONGEST_IDENTIFIER:
        return name
    ending = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: LONGEST_IDENTIFIER - 11]}_{ending}"


def _sorted(indexes: Iterable[sa.Index]) -> list[sa.Index]:
    return sorted(indexes, key=lambda index: str(index.name))


def _stub(table_name: str, metadata: sa.MetaData) -> None:
    sa.Table(table_name, metadata, sa.Column("account_id", db.Id), sa.Column("id", db.Id))
