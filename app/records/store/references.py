"""References to records, and the targets of their own references."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from app import db, rules
from app.collections import links
from app.collections.access import Access
from app.collections.columns import Reach, TableColumns
from app.collections.definitions import Definition
from app.db import filters
from app.db.prepared import PreparedStatement
from app.records.store import NO_PARAMETERS, Row, writes
from app.rules import Subject, Subquery, sql
from app.types import JSONMapping

LITERAL_ROWS = 100
Path = tuple[str, ...]
_Shape = tuple[tuple[rules.Node, ...], frozenset[str], int, bool]
"""Of a statement: conditions, names, the number of records, and whether they are of one account."""
PLACE = "_place"


def lock_referring(
    definition: Definition,
    account_id: str,
    targets: Mapping[str, Sequence[str]],
    limit: int | None = None,
) -> list[Row]:
    """Lock the records, or the first ones of them, that refer to any of these ids."""
    table = definition.table
    query = sa.select(*definition.selected).where(*_referring(definition, account_id, targets))
    # Always in the same order, to avoid deadlocks.
    rows = db.connection().execute(query.order_by(table.c.id).limit(limit).with_for_update())
    return [dict(zip(definition.columns, row, strict=True)) for row in rows]


def count_referring(
    definition: Definition, account_id: str, targets: Mapping[str, Sequence[str]], most: int
) -> int:
    """The number of records that refer to any of these ids, counted up to `most`."""
    query = sa.select(sa.literal(1).label("one")).select_from(definition.table)
    found = query.where(*_referring(definition, account_id, targets)).limit(most).subquery()
    return db.connection().scalar(sa.select(sa.func.count()).select_from(found)) or 0


def is_referenced(
    definition: Definition,
    account_id: str,
    targets: Mapping[str, Sequence[str]],
    except_ids: Sequence[str],
) -> bool:
    """Whether any other record refers to the targets."""
    query = sa.select(sa.literal(1)).where(*_referring(definition, account_id, targets))
    not_excepted = sa.not_(filters.is_any_of(definition.table.c.id, except_ids))
    return db.connection().scalar(query.where(not_excepted).limit(1)) is not None


def clear_references(
    definition: Definition,
    account_id: str,
    record_ids: Sequence[str],
    targets: Mapping[str, Sequence[str]],
    values: Row,
) -> list[Row]:
    """Clear references to the targets; returns the stored rows."""
    if not record_ids:
        return []
    table = definition.table
    cleared_columns = {
        name: sa.case((filters.is_any_of(table.c[name], ids), sa.null()), else_=table.c[name])
        for name, ids in targets.items()
    }
    statement = sa.update(table).where(
        table.c.account_id == sa.bindparam("_account_id", account_id),
        filters.is_any_of(table.c.id, record_ids),
    )
    records = [{"account_id": account_id, "id": id} for id in record_ids]
    return writes.execute_update(
        definition, statement.values({**cleared_columns, **values}), records
    )


def resolve(
    definition: Definition, rows: Sequence[Row], paths: Collection[tuple[str, ...]]
) -> list[Row]:
    """Add the values of dotted names to records, in one statement and one for each list."""
    through, paths = _split(definition, paths)
    if through:
        return _with_entries(definition, resolve(definition, rows, paths), through)
    if not paths or not rows:
        return list(rows)
    table, paths_by_name = definition.table, {".".join(path): path for path in paths}
    source = TableColumns(definition, table)
    columns = [source.column(path).label(name) for name, path in paths_by_name.items()]
    query = sa.select(table.c.account_id, table.c.id, *columns).where(
        table.c.account_id.in_({row["account_id"] for row in rows}),
        table.c.id.in_([row["id"] for row in rows]),
    )
    values_by_key = {tuple(row[:2]): row[2:] for row in db.connection().execute(query)}
    return [
        {
            **row,
            **dict(zip(paths_by_name, values_by_key[row["account_id"], row["id"]], strict=True)),
        }
        for row in rows
    ]


def resolve_one(
    definition: Definition, row: Row, paths: Collection[tuple[str, ...]]
) -> JSONMapping:
    """The values of dotted names for a record that is not stored."""
    return next(iter(resolve_unstored(definition, [row], paths)))


def resolve_unstored(
    definition: Definition, rows: Sequence[Row], paths: Collection[tuple[str, ...]]
) -> list[JSONMapping]:
    """The values of dotted names for records that are not stored, in one statement for 100."""
    through, paths = _split(definition, paths)
    if through:
        plain = resolve_unstored(definition, rows, paths)
        whole = [{**row, **more} for row, more in zip(rows, plain, strict=True)]
        known = [row.keys() | more.keys() for row, more in zip(rows, plain, strict=True)]
        return [
            {**more, **{name: one for name, one in row.items() if name not in names}}
            for row, more, names in zip(
                _with_entries(definition, whole, through), plain, known, strict=True
            )
        ]
    if not paths:
        return [NO_PARAMETERS] * len(rows)
    columns = [definition.table.c[name] for name in {"account_id", *(path[0] for path in paths)}]
    found: list[JSONMapping] = []
    for start in range(0, len(rows), LITERAL_ROWS):
        part = rows[start : start + LITERAL_ROWS]
        literals = (_literal_row(columns, n, row) for n, row in enumerate(part))
        literal_rows = sa.union_all(*literals).subquery()
        reach = _within_one_account({row["account_id"] for row in part})
        source = TableColumns(definition, literal_rows, reach)
        columns_found = sa.select(*(source.column(path) for path in paths))
        query = columns_found.select_from(literal_rows).order_by(literal_rows.c[PLACE])
        rows_found = db.connection().execute(query)
        found += [dict(zip(map(".".join, paths), row, strict=True)) for row in rows_found]
    return found


def allows(access: Access, row: Row, sent: JSONMapping = NO_PARAMETERS) -> bool:
    """Whether a record that may not be stored meets the rule, given the body sent."""
    if access.condition is None:
        return True
    linked = {**row, **resolve_one(access.definition, row, access.follows)}
    return access.allows(judged(access, [linked], [sent])[0], sent)


@dataclass(frozen=True, eq=False)
class _Lookup:
    """What a caller's rule asks of other records, taken apart once for all that it judges."""

    subqueries: Collection[Subquery]
    names: frozenset[str]
    """The fields of the records that it reads."""
    fields: Sequence[str]
    """The fields of the body that it reads."""
    conditions: tuple[rules.Node, ...]
    compiled: sql.Compiled
    statements: dict[bool, PreparedStatement] = field(default_factory=dict)
    """Those for one record, by whether its account is known."""


def _lookup(subqueries: Collection[Subquery], subject: Subject) -> _Lookup:
    parts = [part for one in subqueries for part in rules.walk(one)]
    names = {part.path[0] for part in parts if isinstance(part, rules.Name | rules.Old)}
    fields = sorted({part.field for part in parts if isinstance(part, rules.Sent)})
    conditions = tuple(rules.partial_evaluate(one, subject) for one in subqueries)
    compiled = sql.compiled(sa.true(), parts)
    return _Lookup(subqueries, frozenset({"account_id", *names}), fields, conditions, compiled)


def _lookup_of(access: Access) -> _Lookup:
    return _lookup(access.subqueries, access.subject)


def judged(access: Access, rows: Sequence[Row], sent: Sequence[JSONMapping] = ()) -> list[Row]:
    """Add to records, stored or not, what the rule's `@any` and `@count` find for each."""
    if not access.subqueries:
        return list(rows)
    bodies = sent or [NO_PARAMETERS] * len(rows)
    lookup = access.memo.get(_lookup_of, access)
    return _answers(access.definition, rows, lookup, access.subject, bodies)


def answers(
    definition: Definition,
    rows: Sequence[Row],
    subqueries: Collection[Subquery],
    subject: Subject,
    sent: Sequence[JSONMapping],
) -> list[Row]:
    """Add to records what subqueries find for each of them; in one statement for 100.

    Records for which other values were sent take one of their own, if a subquery reads these.
    """
    return _answers(definition, rows, _lookup(subqueries, subject), subject, sent)


def _answers(
    definition: Definition,
    rows: Sequence[Row],
    lookup: _Lookup,
    subject: Subject,
    sent: Sequence[JSONMapping],
) -> list[Row]:
    alike: dict[str, list[int]] = defaultdict(list)
    for n, body in enumerate(sent):
        alike[repr([body.get(name) for name in lookup.fields])].append(n)
    found = [dict[Any, Any](row) for row in rows]
    for numbers in alike.values():
        for start in range(0, len(numbers), LITERAL_ROWS):
            part = numbers[start : start + LITERAL_ROWS]
            account_ids = {rows[n]["account_id"] for n in part}
            account_id = account_ids.pop() if len(account_ids) == 1 else None
            values = lookup.compiled.parameters(subject, sent[part[0]], account_id)
            for place, n in enumerate(part):
                before = _before(rows[n])
                for name in lookup.names:
                    values[f"{place}_{name}"] = rows[n].get(name)
                    values[f"old_{place}_{name}"] = before.get(name)
            shape = (lookup.conditions, lookup.names, len(part), account_id is not None)
            if len(part) == 1:
                results = _prepared(definition, lookup, shape).all(values)
            else:
                is_usual = len(part) in (2, LITERAL_ROWS)  # 2: before and after a change
                build = definition.memo.get if is_usual else lambda build, *key: build(*key)
                query: sa.Select[Any] = build(_question, definition, *shape)
                results = db.connection().execute(query, values).all()
            for place, *result in results:
                found[part[place]] |= dict(zip(lookup.subqueries, result, strict=True))
    return list(found)


def _prepared(definition: Definition, lookup: _Lookup, shape: _Shape) -> PreparedStatement:
    # Its conditions are compared once for a caller: that takes longer than the statement.
    of_one_account = shape[-1]
    if of_one_account not in lookup.statements:
        statement = definition.memo.get(_prepared_question, definition, *shape)
        lookup.statements[of_one_account] = statement
    return lookup.statements[of_one_account]


def _prepared_question(definition: Definition, *shape: Any) -> PreparedStatement:
    return PreparedStatement(_question(definition, *shape))


def _question(
    definition: Definition,
    conditions: Sequence[rules.Node],
    names: Collection[str],
    count: int,
    of_one_account: bool,
) -> sa.Select[Any]:
    """The statement of what subqueries find for so many records, whose values are parameters."""
    columns = [definition.table.c[name] for name in sorted(names)]
    account = sql.ACCOUNT if of_one_account else None
    # Citus does not derive the account from rows that are literals.
    reach = _within_one_account([account] if of_one_account else ())

    def given(prefix: str) -> sa.Subquery:
        rows = (_row_of_parameters(columns, n, prefix) for n in range(count))
        return sa.union_all(*rows).subquery()

    new = given("")
    source = TableColumns(definition, new, reach, reach, account)
    tables: Any = new
    if any(map(rules.names_old, conditions)):
        old = given("old_")
        source.before = TableColumns(definition, old, reach, reach, account)
        tables = new.join(old, new.c[PLACE] == old.c[PLACE])
    compiled = [sql.value(one, source) for one in conditions]
    query = sa.select(new.c[PLACE], *(one.expression for one in compiled))
    return query.select_from(tables)


def _row_of_parameters(
    columns: Sequence[sa.Column[Any]], place: int, prefix: str
) -> sa.Select[Any]:
    values = (
        _typed(sa.bindparam(f"{prefix}{place}_{one.name}", type_=one.type), one) for one in columns
    )
    return sa.select(sa.literal(place).label(PLACE), *values)


def _typed(value: Any, column: sa.Column[Any]) -> sa.Label[Any]:
    """A value as that of a column. SQLite would cast a date to a number: the year."""
    is_coerced = isinstance(column.type, sa.Date) and db.has_one_writer()
    cast: Any = sa.type_coerce if is_coerced else sa.cast
    typed: sa.Label[Any] = cast(value, column.type).label(column.name)
    return typed


def _before(row: Row) -> Row:
    before: Row = row.get(rules.OLD, row)
    return before


def _split(
    definition: Definition, paths: Collection[Path]
) -> tuple[dict[Path, set[Path]], Collection[Path]]:
    """The names of entries by the path of their list, and the other names, of the lists, too."""
    through: dict[Path, set[Path]] = {}
    plain = list[Path]()
    for path in paths:
        current: Any = definition
        for length, step in enumerate(path[:-1], start=1):
            if isinstance(current, Definition) and step in current.lists:
                through.setdefault(path[:length], set()).add(path[length:])
                plain += [path[:length]] if length > 1 else []
                break
            current = current.followed(step) if current else None
        else:
            plain.append(path)
    return through, list(dict.fromkeys(plain)) if through else paths


def _with_entries(
    definition: Definition, rows: Sequence[Row], through: Mapping[Path, Collection[Path]]
) -> list[Row]:
    """Add the entries of lists to records, each with the values of its names and its `id`."""
    result = [dict(row) for row in rows]
    for path, names in through.items():
        target: Any = definition
        for step in path:
            target = target.followed(step)
        whole, table = ".".join(path), target.table
        ids = [[str(id) for id in rules.items(row.get(whole))] for row in rows]
        accounts = {row["account_id"] for row, some in zip(rows, ids, strict=True) if some}
        source = TableColumns(target, table)
        columns = [source.column(name).label(f"n{n}") for n, name in enumerate(names)]
        query = sa.select(table.c.account_id, table.c.id, *columns).where(
            table.c.account_id.in_(accounts),
            filters.is_any_of(table.c.id, sorted({id for some in ids for id in some})),
        )
        found = db.connection().execute(query).all() if accounts else ()
        labels = [".".join(name) for name in names]
        entries = {
            (one[0], one[1]): {"id": one[1], **dict(zip(labels, one[2:], strict=True))}
            for one in found
        }
        for row, some in zip(result, ids, strict=True):
            keys = ((row["account_id"], id) for id in some)
            row[f"{whole}.*"] = [entries[key] for key in keys if key in entries]
    return list(result)


def _within_one_account(account_ids: Collection[Any]) -> Reach:
    """If all rows are of one account, limit their references to it by a constant.

    Citus does not derive it from rows that are literals.
    """
    own = [*account_ids] if len(account_ids) == 1 else []
    return lambda _, target: [target.c.account_id == id for id in own]


def _literal_row(columns: Sequence[sa.Column[Any]], place: int, row: Row) -> sa.Select[Any]:
    values = (_typed(sa.literal(row[one.name], one.type), one) for one in columns)
    return sa.select(sa.literal(place).label(PLACE), *values)


def _referring(
    definition: Definition, account_id: str, targets: Mapping[str, Sequence[str]]
) -> tuple[Any, ...]:
    table = definition.table
    conditions = [
        links.referring(definition, account_id, name, ids)
        if name in definition.lists
        else filters.is_any_of(table.c[name], ids)
        for name, ids in targets.items()
    ]
    return (table.c.account_id == account_id, sa.or_(*conditions))
