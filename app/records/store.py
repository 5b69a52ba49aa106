"""The statements on a collection's table. Every one of them is scoped by account, here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from app import db, stamps
from app.collections.definition import Definition, TableColumns
from app.stamps import Stamp

Row = Mapping[str, Any]
NONE: Mapping[str, Any] = {}


def scope(definition: Definition, account_id: str | None, where: Any = None) -> list[Any]:
    """The rows that a caller may reach: those of one account (None: of all), narrowed by access."""
    table = definition.table
    inside = [table.c.account_id == account_id] if account_id is not None else []
    return inside if where is None else [*inside, where]


def read_one(
    definition: Definition,
    scoped: Sequence[Any],
    record_id: str,
    checked: Sequence[Stamp],
    parameters: Mapping[str, Any] = NONE,
) -> Row | None:
    """One record, in the statement that also checks the stamps. Raises Stale."""
    table = definition.table
    statement = sa.select(*definition.selected, *stamps.columns(checked))
    chosen = statement.where(*scoped, table.c.id == record_id)
    row = db.connection().execute(chosen, parameters).first()
    if row is None:
        return None
    width = len(definition.selected)
    stamps.check(row[width:], checked)
    return dict(zip(definition.columns, row[:width], strict=True))


def read_page(
    definition: Definition,
    where: Sequence[Any],
    order_by: Sequence[Any],
    skip: int,
    limit: int,
    count: bool,
    checked: Sequence[Stamp],
    parameters: Mapping[str, Any] = NONE,
) -> tuple[list[Row], int | None]:
    """A page and the total, in the statement that also checks the stamps. Raises Stale."""
    table = definition.table
    total = sa.select(sa.func.count()).select_from(table).where(*where).scalar_subquery()
    extra = [total.label("total") if count else sa.null().label("total"), *stamps.columns(checked)]
    chosen = sa.select(*definition.selected, *extra).where(*where).order_by(*order_by)
    run = db.connection().execute
    rows = run(chosen.offset(skip).limit(limit), parameters).all()
    width = len(definition.selected)
    # Behind the last page no row carries the total.
    facts = rows[0][width:] if rows else run(sa.select(*extra), parameters).one()
    stamps.check(facts[1:], checked)
    names = tuple(definition.columns)
    return [dict(zip(names, row[:width], strict=True)) for row in rows], facts[0]


def lock_one(definition: Definition, scoped: Sequence[Any], record_id: str) -> Row | None:
    """One record, kept from other writers until the transaction ends."""
    table = definition.table
    statement = sa.select(*definition.selected).where(*scoped, table.c.id == record_id)
    row = db.connection().execute(statement.with_for_update()).first()
    return dict(zip(definition.columns, row, strict=True)) if row else None


def insert(definition: Definition, values: Row) -> Row:
    """Store a new record and return it as stored."""
    table = definition.table
    statement = sa.insert(table).values(_bound(table, values)).returning(*definition.selected)
    row = db.connection().execute(statement).one()
    return dict(zip(definition.columns, row, strict=True))


def update(definition: Definition, record: Row, values: Row) -> Row:
    """Change a record and return it as stored."""
    table = definition.table
    statement = sa.update(table).where(*_exactly(definition, record))
    changed = statement.values(_bound(table, values)).returning(*definition.selected)
    row = db.connection().execute(changed).one()
    return dict(zip(definition.columns, row, strict=True))


def lock_referring(
    definition: Definition, account_id: str, targets: Mapping[str, Sequence[str]]
) -> list[Row]:
    """The records whose fields refer to any of these ids, kept from other writers."""
    table = definition.table
    chosen = sa.select(*definition.selected).where(*_referring(definition, account_id, targets))
    # Always in the same order, lest two deletions wait for each other.
    rows = db.connection().execute(chosen.order_by(table.c.id).with_for_update())
    return [dict(zip(definition.columns, row, strict=True)) for row in rows]


def refers(
    definition: Definition,
    account_id: str,
    targets: Mapping[str, Sequence[str]],
    except_ids: Sequence[str],
) -> bool:
    """Whether any record but these refers to any of the targets."""
    found = sa.select(sa.literal(1)).where(*_referring(definition, account_id, targets))
    others = sa.not_(_among(definition.table.c.id, except_ids))
    return db.connection().scalar(found.where(others).limit(1)) is not None


def cut_references(
    definition: Definition,
    account_id: str,
    record_ids: Sequence[str],
    targets: Mapping[str, Sequence[str]],
    values: Row,
) -> list[Row]:
    """Set the references of these records to the targets to null; returns them as stored."""
    if not record_ids:
        return []
    table = definition.table
    emptied = {
        name: sa.case((_among(table.c[name], ids), sa.null()), else_=table.c[name])
        for name, ids in targets.items()
    }
    change = sa.update(table).where(
        table.c.account_id == sa.bindparam("_account_id", account_id),
        _among(table.c.id, record_ids),
    )
    rows = db.connection().execute(
        change.values({**emptied, **values}).returning(*definition.selected)
    )
    return [dict(zip(definition.columns, row, strict=True)) for row in rows]


def delete_together(account_id: str, chosen: Sequence[tuple[Definition, Sequence[str]]]) -> None:
    """Remove records of several collections that may refer to each other, even in a circle."""
    deletions = [
        sa.delete(one.table).where(
            one.table.c.account_id == account_id, _among(one.table.c.id, ids)
        )
        for one, ids in chosen
    ]
    delete_at_once(deletions)


def delete_at_once(deletions: Sequence[sa.Delete]) -> None:
    """Run deletions whose references are checked when all of them are done."""
    connection = db.connection()
    if len(deletions) == 1:
        connection.execute(deletions[0])
    elif connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
        for deletion in deletions:
            connection.execute(deletion)
        connection.exec_driver_sql("PRAGMA defer_foreign_keys = OFF")
    else:
        parts = [deletion.cte(f"deletion_{i}") for i, deletion in enumerate(deletions)]
        connection.execute(sa.select(sa.literal(1)).add_cte(*parts))


def existing(
    definition: Definition,
    scoped: Sequence[Any],
    record_ids: Iterable[str],
    parameters: Mapping[str, Any] = NONE,
) -> set[str]:
    """Which of these ids are records within reach."""
    table = definition.table
    statement = sa.select(table.c.id).where(*scoped, table.c.id.in_(list(record_ids)))
    return set(db.connection().execute(statement, parameters).scalars())


def followed(
    definition: Definition, rows: Sequence[Row], paths: Collection[tuple[str, ...]]
) -> list[Row]:
    """The records with what dotted names lead to beside their own fields, in one statement."""
    if not paths or not rows:
        return list(rows)
    table, named = definition.table, {".".join(path): path for path in paths}
    source = TableColumns(definition, table)
    columns = [source.column(path).label(name) for name, path in named.items()]
    chosen = sa.select(table.c.account_id, table.c.id, *columns).where(
        table.c.account_id.in_({row["account_id"] for row in rows}),
        table.c.id.in_([row["id"] for row in rows]),
    )
    led = {tuple(row[:2]): row[2:] for row in db.connection().execute(chosen)}
    return [
        {**row, **dict(zip(named, led[row["account_id"], row["id"]], strict=True))} for row in rows
    ]


def foreseen(
    definition: Definition, row: Row, paths: Collection[tuple[str, ...]]
) -> Mapping[str, Any]:
    """What dotted names lead to from a record that is not stored."""
    if not paths:
        return NONE
    columns = [definition.table.c[name] for name in {"account_id", *(path[0] for path in paths)}]
    given = sa.select(
        *(sa.cast(sa.literal(row[one.name], one.type), one.type).label(one.name) for one in columns)
    ).subquery()
    source = TableColumns(definition, given)
    found = db.connection().execute(sa.select(*(source.column(path) for path in paths))).one()
    return dict(zip(map(".".join, paths), found, strict=True))


def clashing(definition: Definition, values: Row, record_id: str | None) -> list[str]:
    """The unique fields whose value another record of the account already has."""
    table = definition.table
    found = []
    for name, field in definition.fields.items():
        if field.unique and values.get(name) is not None:
            same = (table.c.account_id == values["account_id"], table.c[name] == values[name])
            others = sa.select(table.c.id).where(*same, table.c.id != (record_id or ""))
            if db.connection().execute(others.limit(1)).first():
                found.append(name)
    return found


def _bound(table: sa.Table, values: Row) -> dict[str, Any]:
    # Left to itself the toolkit names parameters after columns: those of expressions are named
    # "param_1" and the like, and a field may have such a name.
    return {
        name: sa.bindparam(f"_value_{name}", value, type_=table.c[name].type)
        for name, value in values.items()
    }


def _referring(
    definition: Definition, account_id: str, targets: Mapping[str, Sequence[str]]
) -> tuple[Any, ...]:
    table = definition.table
    hits = [_among(table.c[name], ids) for name, ids in targets.items()]
    return (table.c.account_id == account_id, sa.or_(*hits))


def _among(column: sa.Column[Any], values: Sequence[str]) -> Any:
    # As one parameter: there may be more of them than a statement takes parameters.
    if db.connection().dialect.name == "postgresql":
        return column == sa.any_(sa.literal(list(values), postgresql.ARRAY(db.Text)))
    listed = sa.func.json_each(orjson.dumps(list(values)).decode()).table_valued("value")
    return column.in_(sa.select(listed.c.value))


def _exactly(definition: Definition, record: Row) -> tuple[Any, ...]:
    table = definition.table
    # Names that no field can have: beside the values, "id_1" may be the parameter of a field.
    account_id: Any = sa.bindparam("_account_id", record["account_id"])
    return (table.c.account_id == account_id, table.c.id == sa.bindparam("_id", record["id"]))
