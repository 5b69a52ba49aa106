"""The statements on a collection's table. Every one of them is scoped by account, here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from app import db, sqlite, stamps
from app.collections.columns import TableColumns
from app.collections.definition import Definition
from app.column_types import Text
from app.stamps import Stamp
from app.statements import Prepared

Row = Mapping[str, Any]
NONE: Mapping[str, Any] = {}
ACCOUNT: Any = sa.bindparam("_account")


class Part(NamedTuple):
    """A range of a list: its conditions, and its order."""

    where: Sequence[Any]
    order_by: Sequence[Any]


def scope(definition: Definition, account_id: Any, where: Any = None) -> list[Any]:
    """The rows that a caller may reach: those of one account (None: of all), narrowed by access."""
    table = definition.table
    inside = [table.c.account_id == account_id] if account_id is not None else []
    return inside if where is None else [*inside, where]


def read_one(
    definition: Definition,
    account_id: str | None,
    record_id: str,
    checked: Sequence[Stamp],
    where: Any = None,
    parameters: Mapping[str, Any] = NONE,
    *,
    to_show: bool = False,
) -> Row | None:
    """One record, in the statement that also checks the stamps. Raises Stale.

    What is only `to_show` has moments as they are stored.
    """
    about = (definition, to_show, account_id is None, where, _tables(checked))
    bound = {"_account": account_id, "_id": record_id, **parameters}
    return _checked(definition, definition.kept.get(_one, *about), bound, checked)


def _checked(
    definition: Definition,
    statement: Prepared,
    parameters: Mapping[str, Any],
    checked: Sequence[Stamp],
) -> Row | None:
    """The one row of a statement that has the stamps' columns behind its own. Raises Stale."""
    rows = statement.all({**parameters, **stamps.parameters(checked)})
    if not rows:
        return None
    width, row = len(definition.columns), rows[0]
    stamps.check(row[width:], checked)
    return dict(zip(definition.columns, row[:width], strict=True))


def _tables(checked: Sequence[Stamp]) -> tuple[str, ...]:
    return tuple([stamp.table for stamp in checked])


def _one(
    definition: Definition, to_show: bool, anywhere: bool, where: Any, tables: tuple[str, ...]
) -> Prepared:
    # What a rule asks may compare its parameters with anything.
    keyed = where is None
    return Prepared(_of_id(definition, to_show, anywhere, where, tables), keyed=keyed)


def _of_id(
    definition: Definition, to_show: bool, anywhere: bool, where: Any, tables: tuple[str, ...]
) -> sa.Select[Any]:
    columns = definition.listed if to_show else definition.selected
    statement = sa.select(*columns, *stamps.columns_of(tables))
    scoped = scope(definition, None if anywhere else ACCOUNT, where)
    return statement.where(*scoped, definition.table.c.id == sa.bindparam("_id"))


def read_page(
    definition: Definition,
    account_id: str | None,
    where: Any,
    conditions: Sequence[Any],
    parts: Callable[[], Sequence[Part]],
    skip: int,
    limit: int,
    count: bool,
    checked: Sequence[Stamp],
    parameters: Mapping[str, Any] = NONE,
    most: int | None = None,
    *,
    kept: bool = False,
) -> tuple[list[Row], int | None]:
    """A page and the total, in the statement that also checks the stamps. Raises Stale.

    Where there are more than `most`, no more than one beyond it is counted. What is `kept` comes
    with the very same conditions and parts again, so its statement is.
    """
    tables = _tables(checked)
    asked = (definition, account_id is None, where, tuple(conditions), parts, count, most, tables)
    statement = definition.kept.get(_prepared_page, *asked) if kept else _paged(*asked)
    place = {"_account": account_id, "_skip": skip, "_limit": limit, "_most": skip + limit}
    bound = {**place, **parameters, **stamps.parameters(checked)}
    rows, facts = _found(definition, statement, checked, bound, 1)
    return rows, facts[0]


def _prepared_page(*asked: Any) -> Prepared:
    return Prepared(_paged(*asked))


def _paged(
    definition: Definition,
    anywhere: bool,
    narrowed: Any,
    conditions: tuple[Any, ...],
    parts: Callable[[], Sequence[Part]],
    count: bool,
    most: int | None,
    tables: tuple[str, ...],
) -> sa.Select[Any]:
    where = [*scope(definition, None if anywhere else ACCOUNT, narrowed), *conditions]
    total: Any = sa.null()
    if count:
        counted: Any = definition.table
        where_counted: Sequence[Any] = where
        if most is not None:
            some = sa.select(sa.literal(1).label("one")).select_from(counted).where(*where)
            counted, where_counted = some.limit(most + 1).subquery(), ()
        total = sa.select(sa.func.count()).select_from(counted).where(*where_counted)
        total = total.scalar_subquery()
    skip, limit, reached = (sa.bindparam(n, type_=sa.Integer) for n in ("_skip", "_limit", "_most"))
    page = _page(definition, where, parts(), reached).offset(skip).limit(limit)
    return _beside(page, [total.label("total"), *stamps.columns_of(tables)])


def read_parts(
    definition: Definition,
    where: Sequence[Any],
    parts: Sequence[Part],
    limit: int,
    checked: Sequence[Stamp],
    parameters: Mapping[str, Any] = NONE,
) -> list[Row]:
    """The first rows of a list, in the statement that also checks the stamps. Raises Stale."""
    page = _page(definition, where, parts, limit).limit(limit)
    return _read(definition, page, checked, parameters)


def _page(
    definition: Definition, where: Sequence[Any], parts: Sequence[Part], most: Any
) -> sa.Select[Any]:
    """The rows of parts of a list, which follow each other; of each no more than `most`."""
    rows = sa.select(*definition.listed)
    chosen = [rows.where(*where, *own).order_by(*order) for own, order in parts]
    if len(chosen) == 1:
        return chosen[0]
    # Both databases read the parts of UNION ALL in turn, and no further than to the limit.
    one_by_one = (sa.select(one.limit(most).subquery()) for one in chosen)
    return sa.select(sa.union_all(*one_by_one).subquery())


def read_among(
    definition: Definition,
    scoped: Sequence[Any],
    record_ids: Sequence[str],
    checked: Sequence[Stamp],
    parameters: Mapping[str, Any] = NONE,
) -> list[Row]:
    """Those of these records within reach, in the statement that checks the stamps. Raises Stale.

    The stamps are checked even if there are none.
    """
    reached = (*scoped, _among(definition.table.c.id, record_ids))
    chosen = sa.select(*definition.selected).where(*reached)
    return _read(definition, chosen, checked, parameters)


def _read(
    definition: Definition,
    chosen: sa.Select[Any],
    checked: Sequence[Stamp],
    parameters: Mapping[str, Any],
) -> list[Row]:
    """What was chosen, in a statement that tells of the stamps also where nothing is found."""
    statement = _beside(chosen, stamps.columns(checked))
    bound = {**parameters, **stamps.parameters(checked)}
    return _found(definition, statement, checked, bound, 0)[0]


def _beside(chosen: sa.Select[Any], facts: Sequence[Any]) -> sa.Select[Any]:
    """What was chosen, and facts that stand beside it: also where nothing is found."""
    once, page = sa.select(sa.literal(1).label("one")).subquery(), chosen.subquery()
    return sa.select(*page.c, *facts).select_from(once.outerjoin(page, sa.true()))


def _found(
    definition: Definition,
    statement: sa.Select[Any] | Prepared,
    checked: Sequence[Stamp],
    parameters: Mapping[str, Any],
    facts: int,
) -> tuple[list[Row], Sequence[Any]]:
    """The rows of a statement of `_beside`, and its facts but for the stamps. Raises Stale."""
    if isinstance(statement, Prepared):
        rows: Sequence[Any] = statement.all(parameters)
    else:
        rows = db.connection().execute(statement, parameters).all()
    width = len(definition.columns)
    stamps.check(rows[0][width + facts :], checked)
    id = list(definition.columns).index("id")
    found = [row[:width] for row in rows] if rows[0][id] is not None else []
    return _rows(definition, found), rows[0][width : width + facts]


def lock(
    definition: Definition, scoped: Sequence[Any], record_ids: Sequence[str]
) -> dict[str, Row]:
    """Those of these records within reach, by id, kept from other writers to the end."""
    table = definition.table
    chosen = sa.select(*definition.selected).where(*scoped, _among(table.c.id, record_ids))
    # Always in the same order, lest two changes wait for each other.
    rows = db.connection().execute(chosen.order_by(table.c.id).with_for_update())
    return {row["id"]: row for row in _rows(definition, rows)}


def lock_one(
    definition: Definition, account_id: str | None, record_id: str, checked: Sequence[Stamp] = ()
) -> Row | None:
    """The same of one record of an account, or of any; if it is there the stamps are checked.

    Raises Stale.
    """
    statement = definition.kept.get(_locked, definition, account_id is None, _tables(checked))
    bound = {"_account": account_id, "_id": record_id}
    return _checked(definition, statement, bound, checked)


def _locked(definition: Definition, anywhere: bool, tables: tuple[str, ...]) -> Prepared:
    found = _of_id(definition, False, anywhere, None, tables)
    return Prepared(found.with_for_update(), keyed=True)


def lock_having(
    definition: Definition, account_id: str, name: str, values: Sequence[Any]
) -> list[Row]:
    """The records of an account with one of these values in a field, kept from other writers."""
    table = definition.table
    chosen = sa.select(*definition.selected).where(
        table.c.account_id == account_id, table.c[name].in_(values)
    )
    rows = db.connection().execute(chosen.order_by(table.c.id).with_for_update())
    return _rows(definition, rows)


def insert(definition: Definition, rows: Sequence[Row]) -> list[Row]:
    """Store new records, which all name the same fields, and return them as stored."""
    given = [{_PREFIX + name: value for name, value in row.items()} for row in rows]
    if len(given) == 1:
        statement = definition.kept.get(_inserted, definition, tuple(rows[0]))
        return _rows(definition, statement.all(given[0]))
    many = _insertion(definition, rows[0])
    return _in_order(definition, rows, db.connection().execute(many, given))


def _inserted(definition: Definition, names: tuple[str, ...]) -> Prepared:
    return Prepared(_insertion(definition, names), keyed=True)


def _insertion(definition: Definition, names: Iterable[str]) -> Any:
    change = sa.insert(definition.table).values(_parameters(definition.table, names))
    return change.returning(*definition.selected)


def update(definition: Definition, records: Sequence[Row], values: Sequence[Row]) -> list[Row]:
    """Change records of one account and return them as stored."""
    table = definition.table
    if len(records) == 1:
        statement = definition.kept.get(_updated, definition, tuple(values[0]))
        given = {_PREFIX + name: value for name, value in values[0].items()}
        known = {"_account": records[0]["account_id"], "_id": records[0]["id"]}
        return _rows(definition, statement.all(given | known))
    names = [c.name for c in table.c if any(c.name in row for row in values)]
    width = max(1, _MOST_PARAMETERS // (len(names) + 1))
    if db.connection().dialect.name == "sqlite":
        width = min(width, sqlite.ROWS)
    stored: list[Row] = []
    for first in range(0, len(records), width):
        some = slice(first, first + width)
        stored += _update_some(definition, records[some], values[some], names)
    return stored


def _updated(definition: Definition, names: tuple[str, ...]) -> Prepared:
    table = definition.table
    mine = (table.c.account_id == ACCOUNT, table.c.id == sa.bindparam("_id"))
    change = sa.update(table).where(*mine).values(_parameters(table, names))
    return Prepared(change.returning(*definition.selected), keyed=True)


def _update_some(
    definition: Definition, records: Sequence[Row], values: Sequence[Row], names: Sequence[str]
) -> list[Row]:
    table = definition.table
    # The records are locked: what one of them was not told keeps the value that was read.
    rows = [
        (old["id"], *(new.get(name, old[name]) for name in names))
        for old, new in zip(records, values, strict=True)
    ]
    columns = [sa.column(f"_{name}", table.c[name].type) for name in ("id", *names)]
    given = sa.values(*columns).data(rows).cte("_given")
    mine = (table.c.account_id == sa.bindparam("_account_id", records[0]["account_id"]),)
    change = sa.update(table).where(*mine, table.c.id == given.c["_id"])
    # Values in a row of their own have no type on PostgreSQL, where a column is null throughout.
    cast = db.connection().dialect.name == "postgresql"
    new = {
        name: sa.cast(column, column.type) if cast else column
        for name, column in ((name, given.c[f"_{name}"]) for name in names)
    }
    done = db.connection().execute(change.values(new).returning(*definition.selected))
    return _in_order(definition, records, done)


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


def clashing(definition: Definition, rows: Sequence[Row]) -> dict[int, list[str]]:
    """By place, the unique fields whose value another record has, stored or further ahead."""
    table = definition.table
    found: dict[int, list[str]] = {}
    for name in (name for name, field in definition.fields.items() if field.unique):
        places: dict[Any, int] = {}
        keys = [(row["account_id"], row[name], row["id"]) for row in rows]
        same = (
            table.c.account_id.in_({key[0] for key in keys}),
            table.c[name].in_([key[1] for key in keys if key[1] is not None]),
        )
        columns = (table.c.account_id, table.c[name], table.c.id)
        owners = {
            row[:2]: row[2] for row in db.connection().execute(sa.select(*columns).where(*same))
        }
        for place, (account_id, value, id) in enumerate(keys):
            key = (account_id, value)
            ahead = places.setdefault(key, place) != place
            if value is not None and (ahead or owners.get(key, id) != id):
                found.setdefault(place, []).append(name)
    return dict(sorted(found.items()))


_PREFIX = "_value_"
_MOST_PARAMETERS = 30_000  # SQLite takes 32,766


def _rows(definition: Definition, found: Iterable[Any]) -> list[Row]:
    names = tuple(definition.columns)
    return [dict(zip(names, row, strict=True)) for row in found]


def _in_order(definition: Definition, records: Sequence[Row], found: Iterable[Any]) -> list[Row]:
    by_id = {row["id"]: row for row in _rows(definition, found)}
    return [by_id[record["id"]] for record in records]


def _parameters(table: sa.Table, names: Iterable[str]) -> dict[str, Any]:
    # Left to itself the toolkit names parameters after columns: those of expressions are named
    # "param_1" and the like, and a field may have such a name.
    return {name: sa.bindparam(_PREFIX + name, type_=table.c[name].type) for name in names}


def _referring(
    definition: Definition, account_id: str, targets: Mapping[str, Sequence[str]]
) -> tuple[Any, ...]:
    table = definition.table
    hits = [_among(table.c[name], ids) for name, ids in targets.items()]
    return (table.c.account_id == account_id, sa.or_(*hits))


def _among(column: sa.Column[Any], values: Sequence[str]) -> Any:
    # As one parameter: there may be more of them than a statement takes parameters.
    if db.connection().dialect.name == "postgresql":
        return column == sa.any_(sa.literal(list(values), postgresql.ARRAY(Text)))
    listed = sa.func.json_each(orjson.dumps(list(values)).decode()).table_valued("value")
    return column.in_(sa.select(listed.c.value))
