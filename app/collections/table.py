"""Builds a definition's table, and the DDL that creates, changes and drops it.

One table serves all accounts. The account comes first in every key: primary key, unique indexes and
references, so that neither conflicts nor references can cross accounts. PostgreSQL alters tables in
place. SQLite cannot add constraints, so the table is rebuilt there: its rows are copied to a new
table, which takes the old name, in the same transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import (
    AddConstraint,
    CreateColumn,
    CreateIndex,
    CreateTable,
    DropConstraint,
    DropIndex,
    DropTable,
)

from app import db
from app.accounts.models import User
from app.collections import search_index
from app.collections.fields import PEOPLE, Field
from app.collections.indexes import Index, IndexField
from app.context import tenancy
from app.db import citus, engine, errors, row_security
from app.db.types import Id, UtcDateTime, json_equal
from app.errors import Unavailable
from app.types import JSONObject

Column = sa.Column[Any]
View = TypeVar("View", bound=Callable[..., Any])

MAX_TRIES = 20
PREFIX = "col_"
LONGEST_IDENTIFIER = 63
# PostgreSQL's system columns.
DATABASE_COLUMNS = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}


def schema_change(change: View) -> View:
    """Run changes of schemas, rules and fragments one at a time.

    Each is retried after a lock conflict, and if a table that it refers to was renamed. Within a
    transaction it is a part of that one, which has to be retried as a whole.
    """

    @wraps(change)
    def run(*args: object, **options: object) -> object:
        if db.in_transaction():
            return change(*args, **options)
        for _ in range(MAX_TRIES):
            try:
                with db.transaction(changes_schema=True):
                    return change(*args, **options)
            except DBAPIError as error:
                if not (errors.was_lock_conflict(error) or errors.is_stale_schema(error)):
                    raise
        raise Unavailable("The collection is too busy to change. Try again in a moment.")

    return run  # type: ignore[return-value]


def table_name_for(collection_name: str) -> str:
    """The table of a collection."""
    return PREFIX + collection_name.lower()


def build_table(
    table_name: str, fields: Iterable[Field], indexes: Iterable[Index] = ()
) -> sa.Table:
    """The table with its columns, constraints and indexes."""
    fields = list(fields)
    metadata = sa.MetaData()
    for target in {*map(_target_table, fields)} - {None, table_name}:
        _stub(target, metadata)
    table = sa.Table(
        table_name,
        metadata,
        sa.Column("account_id", Id, nullable=False),
        sa.Column("id", Id, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("created_by", Id),
        sa.Column("updated_by", Id),
        *(_column(field) for field in fields),
        *search_index.columns(fields),
        search_index.RecordKey("account_id", "id", name=_name("pk", table_name)),
    )
    newest = (table.c.account_id, table.c.created_at.desc(), table.c.id)
    sa.Index(_newest_name(table_name), *newest)
    for field in fields:
        for constraint in _constraints(table_name, field):
            table.append_constraint(constraint)
        column = table.c[field.name]
        if (order := field.sort_expression(column)) is not column:
            name = _order_index_name(table_name, field.name)
            sa.Index(name, table.c.account_id, order, table.c.id)
    for index in indexes:
        _add_index(table, index)
    search_index.add_indexes(table, _words_names(table))
    return table


def creation(table: sa.Table, missing: Collection[str] = ()) -> list[str]:
    """The statements that create the table, without references to `missing` tables."""
    if _dialect().name == "sqlite":  # which accepts references to missing tables
        indexes = map(CreateIndex, _sorted(table.indexes))
        return _texts([CreateTable(table), *indexes, *_full_text(table)])
    keys = [key for key in _sorted(table.foreign_key_constraints) if _target(key) not in missing]
    return _texts(
        [
            CreateTable(table, include_foreign_key_constraints=[]),
            *(
                _alter(table, f"ALTER COLUMN {_quoted(key)} {_default(key)}")
                for key in _preset(table)
            ),
            *map(AddConstraint, keys),
            *map(CreateIndex, _sorted(table.indexes)),
        ]
    )


def references(table: sa.Table, missing: Collection[str]) -> list[str]:
    """The statements that add the references which `creation` omitted."""
    if _dialect().name == "sqlite":
        return []
    keys = _sorted(table.foreign_key_constraints)
    return _texts([AddConstraint(key) for key in keys if _target(key) in missing])


def removal(table: sa.Table, remaining: Iterable[sa.Table] = ()) -> list[str]:
    """The statements that drop the table with its records, and the references of others to it."""
    if _dialect().name == "sqlite":  # which can drop referenced tables
        return _texts([*search_index.removal(table), DropTable(table)])
    keys = [key for table_ in remaining for key in _sorted(table_.foreign_key_constraints)]
    dropped_keys = [DropConstraint(key) for key in keys if _target(key) == table.name]
    return _texts([*dropped_keys, DropTable(table)])


def change(old: sa.Table, new: sa.Table) -> list[str]:
    """The statements that turn the old table into the new one."""
    dropped, created = _only_in(old, new), _only_in(new, old)
    removed = [column for column in old.columns if column.name not in new.c]
    if _dialect().name == "sqlite":
        if removed or any(_differs(old, column) for column in new.columns):
            indexes = map(CreateIndex, _sorted(new.indexes))
            if {*search_index.of(old)} == {*search_index.of(new)}:
                return _texts([*_rebuild(old, new), *indexes, *search_index.triggers(new)])
            emptied = [*search_index.without_triggers(old), *search_index.removal(old)]
            return _texts([*emptied, *_rebuild(old, new), *indexes, *_full_text(new)])
        return _texts([*map(DropIndex, dropped), *map(CreateIndex, created)])
    statements = [
        *(_alter(old, f"DROP COLUMN {_quoted(column)}") for column in removed),
        *(statement for column in new.columns for statement in _column_changes(old, column)),
    ]
    return _texts([*map(DropIndex, dropped), *statements, *map(CreateIndex, created)])


def renaming(
    old: sa.Table, new: sa.Table, renames: Mapping[str, str], indexes: Iterable[tuple[Index, Index]]
) -> list[str]:
    """The statements that rename the table, its columns, and what is named after them."""
    statements: list[object] = []
    renames = {**renames, **_words_renames(old, renames)}
    on_sqlite = _dialect().name == "sqlite"
    renames_words = old.name != new.name or {*search_index.of(old)} != {*search_index.of(new)}
    if renames_words:
        statements += [*search_index.without_triggers(old), *search_index.removal(old)]
    if old.name != new.name:
        statements.append(_alter(old, f"RENAME TO {_quoted(new)}"))
    for former, name in renames.items():
        if former in old.c:
            columns = f"{_quoted(old.c[former])} TO {_quoted(new.c[name])}"
            statements.append(_alter(new, f"RENAME COLUMN {columns}"))
    for before, after in _index_pairs(old, new, renames, indexes):
        if on_sqlite:  # which cannot rename indexes
            statements += [DropIndex(before), CreateIndex(after)]
        else:
            names = f"{_quoted_name(before)} RENAME TO {_quoted_name(after)}"
            statements.append(f"ALTER INDEX {names}")
    for former, later in _constraint_pairs(old, new, renames) if not on_sqlite else ():
        statements += _renamed(new, former, later)
    return _texts([*statements, *(_full_text(new) if renames_words else ())])


def _full_text(table: sa.Table) -> list[str]:
    """The statements that create what indexes words on SQLite."""
    return [*search_index.creation(table), *search_index.triggers(table)]


def make_words_index_anew(table: sa.Table) -> None:
    """Create what indexes words, from the words that are stored; on PostgreSQL what is missing."""
    statements: list[object] = [
        CreateIndex(one, if_not_exists=True)
        for one in _sorted(table.indexes)
        if one.name in search_index.names_of_indexes(table)
    ]
    removal = [*search_index.without_triggers(table), *search_index.removal(table)]
    run(_texts([*removal, *_full_text(table), *statements]))


def _words_renames(old: sa.Table, renames: Mapping[str, str]) -> dict[str, str]:
    """The new names of the columns with the words of renamed fields."""
    return {
        column.name: search_index.column_name(renames[field])
        for field, column in search_index.of(old).items()
        if field in renames
    }


def _words_names(table: sa.Table) -> dict[str, str]:
    """The names of the indexes of words, by field."""
    return {field: _name("ft", table.name, field) for field in search_index.of(table)}


def _renamed(table: sa.Table, former: Any, later: Any) -> list[object]:
    """The statements that rename a key or reference."""
    old, new = _quoted_name(former), _quoted_name(later)
    if isinstance(former, sa.PrimaryKeyConstraint):  # Citus renames keys by their indexes only
        return [f"ALTER INDEX {old} RENAME TO {new}"]
    if citus.is_sharded(db.connection()):  # which cannot rename references
        return [_alter(table, f"DROP CONSTRAINT {old}"), AddConstraint(later)]
    return [_alter(table, f"RENAME CONSTRAINT {old} TO {new}")]


def _index_pairs(
    old: sa.Table,
    new: sa.Table,
    renames: Mapping[str, str],
    indexes: Iterable[tuple[Index, Index]],
) -> Iterator[tuple[sa.Index, sa.Index]]:
    """The indexes whose names change, before and after."""
    before, after = ({str(index.name): index for index in one.indexes} for one in (old, new))
    names = [tuple(_newest_name(one.name) for one in (old, new))]
    if _dialect().name != "sqlite":
        later_names = _words_names(new)
        names += [
            (name, later_names[renames.get(field, field)])
            for field, name in _words_names(old).items()
        ]
    names += [
        (_index_name(old.name, former), _index_name(new.name, later)) for former, later in indexes
    ]
    for column in old.columns:
        if (former := _order_index_name(old.name, column.name)) in before:
            later = _order_index_name(new.name, renames.get(column.name, column.name))
            names.append((former, later))
    yield from ((before[former], after[later]) for former, later in names if former != later)


def _constraint_pairs(
    old: sa.Table, new: sa.Table, renames: Mapping[str, str]
) -> Iterator[tuple[Any, Any]]:
    """The keys and references whose names change, before and after."""
    pairs: list[tuple[Any, Any]] = [(old.primary_key, new.primary_key)]
    for column in old.columns:
        former, later = (
            _foreign_keys(one) for one in (column, new.c[renames.get(column.name, column.name)])
        )
        pairs += zip(former, later, strict=True)
    yield from (pair for pair in pairs if pair[0].name != pair[1].name)


def new_indexes(old: sa.Table, new: sa.Table) -> list[str]:
    """The statements, of `change`, that create indexes of columns which the old table has."""
    created = (
        CreateIndex(index)
        for index in _only_in(new, old)
        if {column.name for column in index.columns} <= {*old.c.keys()}
    )
    return _texts(created)


def unique_keys(table: sa.Table, statements: Collection[str]) -> set[tuple[str, ...]]:
    """The fields of the table's unique indexes that these statements create."""
    created = (index for index in table.indexes if _text(CreateIndex(index)) in statements)
    return {tuple(c.name for c in index.columns)[1:] for index in created if index.unique}


def make(table: sa.Table, statements: Iterable[str]) -> None:
    """Run the statements of `creation`, distribute the table, and enable row-level security."""
    create, *rest = statements
    run([create])
    if citus.is_sharded(db.connection()):  # before its keys, which lead to distributed tables
        run([citus.distribution(table.name)])
    run(rest)
    if _dialect().name == "postgresql":
        with tenancy.as_owner():
            row_security.cover(db.connection(), _quoted(table))


def run(statements: Iterable[str]) -> None:
    """Run statements of this module."""
    with tenancy.as_owner():
        for statement in statements:
            # Without parameters the driver does not interpret "%".
            db.connection().exec_driver_sql(statement, execution_options={"no_parameters": True})


def is_sound(table: sa.Table) -> bool:
    """Whether all references in the table have a target; SQLite does not check during rebuilds."""
    if _dialect().name != "sqlite":
        return True
    # Only this table: checking all would block writers for seconds.
    check = f"PRAGMA foreign_key_check({_quoted(table)})"
    return db.connection().exec_driver_sql(check).first() is None


def lock(table: sa.Table) -> None:
    """Lock the table exclusively until the transaction ends."""
    # Exclusive at once: upgrading a lock could deadlock.
    if _dialect().name == "postgresql":
        run([row_security.drop_view(_quoted(table))])
        run([f"LOCK TABLE {_quoted(table)} IN ACCESS EXCLUSIVE MODE"])


def restore_view(table: sa.Table) -> None:
    """Create the view that lists read, as a change of the collection drops it."""
    if _dialect().name == "postgresql":
        with tenancy.as_owner():
            row_security.add_view(db.connection(), _quoted(table))


def _column_changes(old: sa.Table, column: Column) -> Iterator[object]:
    table, name = column.table, _quoted(column)
    old_column = old.c.get(column.name)
    if old_column is None:
        # Keep the default for processes that do not know the field yet.
        preset = f" {_default(column).removeprefix('SET ')}" if _is_preset(column) else ""
        spec = CreateColumn(column).compile(dialect=_dialect())
        yield _alter(table, f"ADD COLUMN {spec}{preset}")
        yield from map(AddConstraint, _foreign_keys(column))
        return
    if not json_equal(old_column.info, column.info):
        yield _alter(table, f"ALTER COLUMN {name} {_default(column)}")
    if old_column.nullable and not column.nullable:
        if _is_preset(column):
            value = _literal(column)
            yield f"UPDATE {_quoted(table)} SET {name} = {value} WHERE {name} IS NULL"  # noqa: S608 - quoted
        yield _alter(table, f"ALTER COLUMN {name} SET NOT NULL")
    if column.nullable and not old_column.nullable:
        yield _alter(table, f"ALTER COLUMN {name} DROP NOT NULL")


def _differs(old: sa.Table, column: Column) -> bool:
    # Whether SQLite must rebuild the table. It needs no defaults, as nobody else writes there
    # during a schema change.
    old_column = old.c.get(column.name)
    return old_column is None or old_column.nullable != column.nullable


def _rebuild(old: sa.Table, new: sa.Table) -> list[str]:
    draft, table = f"{PREFIX}_rebuilt", _quoted(old)
    create_draft = _text(CreateTable(new)).replace(
        f"CREATE TABLE {_quoted(new)}", f"CREATE TABLE {draft}", 1
    )
    copied = [column for column in new.columns if column.name in old.c or _is_preset(column)]
    names = ", ".join(map(_quoted, copied))
    values = ", ".join(_copied(old, column) for column in copied)
    return [
        create_draft,
        f"INSERT INTO {draft} ({names}) SELECT {values} FROM {table}",  # noqa: S608 - quoted
        f"DROP TABLE {table}",
        f"ALTER TABLE {draft} RENAME TO {table}",
    ]


def _copied(old: sa.Table, column: Column) -> str:
    old_column = old.c.get(column.name)
    if old_column is None:
        return _literal(column)
    if old_column.nullable and not column.nullable and _is_preset(column):
        return f"COALESCE({_quoted(column)}, {_literal(column)})"
    return _quoted(column)


def _alter(table: object, action: str) -> str:
    return f"ALTER TABLE {_quoted(table)} {action}"


def _texts(statements: Iterable[object]) -> list[str]:
    return [
        statement if isinstance(statement, str) else _text(statement) for statement in statements
    ]


def _text(statement: Any) -> str:
    return str(statement.compile(dialect=_dialect())).strip()


def _quoted(part: Any) -> str:
    preparer = _dialect().identifier_preparer
    if isinstance(part, sa.Table):
        return str(preparer.format_table(part))
    return str(preparer.format_column(part))


def _quoted_name(part: Any) -> str:
    return str(_dialect().identifier_preparer.quote(part.name))


def _dialect() -> Dialect:
    # Not the connection's dialect, which doubles "%".
    dialects: JSONObject = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}
    dialect: Dialect = dialects[db.connection().dialect.name](paramstyle="named")
    return dialect


def _is_preset(column: Column) -> bool:
    return column.info.get("default") is not None


def _preset(table: sa.Table) -> list[Column]:
    return [column for column in table.columns if _is_preset(column)]


def _default(column: Column) -> str:
    return f"SET DEFAULT {_literal(column)}" if _is_preset(column) else "DROP DEFAULT"


def _literal(column: Column) -> str:
    literal = sa.literal(column.info["default"], column.type)
    return str(literal.compile(dialect=_dialect(), compile_kwargs={"literal_binds": True}))


def _column(field: Field) -> Column:
    # Always quoted: SQLAlchemy's keyword lists are incomplete.
    return sa.Column(
        field.name,
        field.column_type,
        nullable=not field.required,
        quote=True,
        info={"default": field.column_default},
    )


def _constraints(table_name: str, field: Field) -> list[sa.ForeignKeyConstraint]:
    target = _target_table(field)
    if target is None:
        return []
    # The records service applies `on_delete` and publishes events; the database only guarantees
    # that references have a target.
    return [
        sa.ForeignKeyConstraint(
            ["account_id", field.name],
            [f"{target}.account_id", f"{target}.id"],
            name=_name("fk", table_name, field.name),
        )
    ]


def _target_table(field: Field) -> str | None:
    """The table that values of a field refer to."""
    if field.multiple:
        return None  # its entries are in a table of their own
    if field.leads_to == PEOPLE:
        return str(User.__tablename__)
    return table_name_for(field.leads_to) if field.leads_to else None


def _foreign_keys(column: Column) -> list[sa.ForeignKeyConstraint]:
    table: Any = column.table
    name = _name("fk", table.name, column.name)
    return [key for key in table.foreign_key_constraints if key.name == name]


def _target(constraint: sa.ForeignKeyConstraint) -> str:
    return constraint.elements[0].target_fullname.partition(".")[0]


def _only_in(table: sa.Table, other: sa.Table) -> list[sa.Index]:
    """The indexes of a table that another one has not, or has in another form."""
    common = {_text(CreateIndex(index)) for index in other.indexes}
    return [index for index in _sorted(table.indexes) if _text(CreateIndex(index)) not in common]


def _add_index(table: sa.Table, index: Index) -> None:
    columns = [_index_column(table, field) for field in index.fields]
    if not index.unique:
        columns.append(table.c.id)  # makes the order unique
    sa.Index(_index_name(table.name, index), table.c.account_id, *columns, unique=index.unique)


def _newest_name(table_name: str) -> str:
    return _name("ix", table_name, "created_at")


def _order_index_name(table_name: str, name: str) -> str:
    """The index of what a field is ordered by, if that is not its value."""
    return _name("ix", table_name, f"@{name}")


def _index_name(table_name: str, index: Index) -> str:
    kind = "uq" if index.unique else "ix"
    return _name(kind, table_name, *(field.text for field in index.fields))


def _index_column(table: sa.Table, field: IndexField) -> sa.ColumnElement[Any]:
    column = table.c[field.name]
    if not field.descending:
        return column
    # Lists have nulls last. In descending order SQLite has, too; PostgreSQL has to be told.
    is_native = not column.nullable or engine.current_engine().dialect.name == "sqlite"
    return column.desc() if is_native else column.desc().nulls_last()


def _name(kind: str, *parts: str) -> str:
    # "$" and "-" occur in no name: "abc" + "x_y" and "abc_x" + "y" get different index names.
    name = f"{kind}_{'$'.join(parts)}"
    if len(name) <= LONGEST_IDENTIFIER:
        return name
    ending = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: LONGEST_IDENTIFIER - 11]}_{ending}"


def _sorted(parts: Iterable[object]) -> list[Any]:
    return sorted(parts, key=lambda part: str(part.name))


def _stub(table_name: Any, metadata: sa.MetaData) -> None:
    sa.Table(table_name, metadata, sa.Column("account_id", Id), sa.Column("id", Id))
