"""What is read of records, mostly in the very statement that checks the stamps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from app import db
from app.collections.definition import Definition
from app.db.prepared import PreparedStatement
from app.db.versioned_cache import VersionChecks, version_columns
from app.records import store
from app.records.store import ACCOUNT, NO_PARAMETERS, Condition, Row, sizes
from app.records.store.sizes import SizeLimit
from app.types import JSONMapping


class Part(NamedTuple):
    """A range of a list: its conditions, and its order."""

    where: Sequence[Condition]
    order_by: Sequence[Any]


def read_one(
    definition: Definition,
    account_id: str | None,
    record_id: str,
    checked: VersionChecks,
    where: Condition | None = None,
    parameters: JSONMapping = NO_PARAMETERS,
    *,
    to_show: bool = False,
) -> Row | None:
    """One record, in the statement that also checks the stamps. Raises Stale.

    What is only `to_show` has moments as they are stored.
    """
    about = (definition, to_show, account_id is None, where, checked.tables)
    bound = {"_account": account_id, "_id": record_id, **parameters}
    return one_row(definition, definition.memo.get(_one, *about), bound, checked)


def one_row(
    definition: Definition,
    statement: PreparedStatement,
    parameters: JSONMapping,
    checked: VersionChecks,
) -> Row | None:
    """The one row of a statement that has the stamps' columns behind its own. Raises Stale."""
    rows = statement.all({**parameters, **checked.parameters})
    if not rows:
        return None
    columns, row = definition.columns, rows[0]
    checked.check(row[len(columns) :])
    return dict(zip(columns, row, strict=False))


def _one(
    definition: Definition,
    to_show: bool,
    anywhere: bool,
    where: Condition | None,
    tables: tuple[str, ...],
) -> PreparedStatement:
    # What a rule asks may compare its parameters with anything.
    keyed = where is None
    return PreparedStatement(of_id(definition, to_show, anywhere, where, tables), keyed=keyed)


def of_id(
    definition: Definition,
    to_show: bool,
    anywhere: bool,
    where: Condition | None,
    tables: tuple[str, ...],
) -> sa.Select[Any]:
    """The row with the id that is sent, and behind its columns those of the stamps."""
    columns = definition.listed if to_show else definition.selected
    statement = sa.select(*columns, *version_columns(tables))
    scoped = store.scope(definition, None if anywhere else ACCOUNT, where)
    return statement.where(*scoped, definition.table.c.id == sa.bindparam("_id"))


def read_page(
    definition: Definition,
    account_id: str | None,
    where: Condition | None,
    conditions: Sequence[object],
    parts: Callable[[], Sequence[Part]],
    skip: int,
    limit: int,
    count: bool,
    checked: VersionChecks,
    parameters: JSONMapping = NO_PARAMETERS,
    most: int | None = None,
    *,
    wanted: frozenset[str],
    room: SizeLimit,
    kept: bool = False,
    cut: int | None = None,
) -> tuple[list[Row], int | None]:
    """A page and the total, in the statement that also checks the stamps. Raises Stale.

    Where there are more than `most`, no more than one beyond it is counted. What is `kept` comes
    with the very same conditions and parts again, so its statement is. Long values that are not
    `wanted` are not read; with `cut`, of each as many characters. Raises AnswerTooLarge.
    """
    tables, anywhere = checked.tables, account_id is None
    how = (count, most, tables, wanted, cut)
    asked = (definition, anywhere, where, tuple(conditions), parts, *how)
    statement = definition.memo.get(_prepared_page, *asked) if kept else _paged(*asked)
    place = {"_account": account_id, "_skip": skip, "_limit": limit, "_most": skip + limit}
    bound = {**place, **parameters, **checked.parameters}
    within = [*store.scope(definition, None if anywhere else ACCOUNT, where), *conditions]
    reading = _Reading(definition, definition.listed, within, bound, wanted, room)
    rows, facts = reading.found(statement, checked, limit, 1)
    return rows, facts[0]


def _prepared_page(*asked: Any) -> PreparedStatement:
    return PreparedStatement(_paged(*asked))


def _paged(
    definition: Definition,
    anywhere: bool,
    narrowed: Any,
    conditions: tuple[Any, ...],
    parts: Callable[[], Sequence[Part]],
    count: bool,
    most: int | None,
    tables: tuple[str, ...],
    wanted: frozenset[str],
    cut: int | None,
) -> sa.Select[Any]:
    where = [*store.scope(definition, None if anywhere else ACCOUNT, narrowed), *conditions]
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
    page = _page(definition, where, parts(), reached, wanted, cut).offset(skip).limit(limit)
    return _beside(page, [total.label("total"), *version_columns(tables)])


def read_parts(
    definition: Definition,
    where: Sequence[Condition],
    parts: Sequence[Part],
    limit: int,
    checked: VersionChecks,
    parameters: JSONMapping = NO_PARAMETERS,
    *,
    wanted: frozenset[str],
    room: SizeLimit,
) -> list[Row]:
    """The first rows of a list, and whether one follows, in the statement that checks the stamps.

    What follows is a last row, perhaps without its long values. Raises Stale.
    Long values that are not `wanted` are not read. Raises AnswerTooLarge.
    """
    page = _page(definition, where, parts, limit + 1, wanted).limit(limit + 1)
    reading = _Reading(definition, definition.listed, where, parameters, wanted, room)
    return reading.rows(page, checked, limit)


def _page(
    definition: Definition,
    where: Sequence[Condition],
    parts: Sequence[Part],
    most: Any,
    wanted: frozenset[str],
    cut: int | None = None,
) -> sa.Select[Any]:
    """The rows of parts of a list, which follow each other; of each no more than `most`."""
    rows = sa.select(*sizes.measured(definition, definition.listed, wanted, cut))
    chosen = [rows.where(*where, *own).order_by(*order) for own, order in parts]
    if len(chosen) == 1:
        return chosen[0]
    # Both databases read the parts of UNION ALL in turn, and no further than to the limit.
    one_by_one = (sa.select(one.limit(most).subquery()) for one in chosen)
    return sa.select(sa.union_all(*one_by_one).subquery())


def read_by_ids(
    definition: Definition,
    scoped: Sequence[Any],
    record_ids: Sequence[str],
    checked: VersionChecks,
    parameters: JSONMapping = NO_PARAMETERS,
    *,
    wanted: frozenset[str],
    room: SizeLimit,
) -> list[Row]:
    """Those of these records within reach, in the statement that checks the stamps. Raises Stale.

    The versions are checked even if there are none. Raises AnswerTooLarge.
    """
    reached = (*scoped, store.is_any_of(definition.table.c.id, record_ids))
    columns = sizes.measured(definition, definition.selected, wanted)
    reading = _Reading(definition, definition.selected, scoped, parameters, wanted, room)
    return reading.rows(sa.select(*columns).where(*reached), checked, len(record_ids))


def _beside(chosen: sa.Select[Any], facts: Sequence[object]) -> sa.Select[Any]:
    """What was chosen, and facts that stand beside it: also where nothing is found."""
    once, page = sa.select(sa.literal(1).label("one")).subquery(), chosen.subquery()
    return sa.select(*page.c, *facts).select_from(once.outerjoin(page, sa.true()))


@dataclass(frozen=True)
class _Reading:
    """What reads rows, and those whose values were too long for it in a second statement."""

    definition: Definition
    columns: Sequence[Any]
    within: Sequence[Any]
    """The conditions of the rows."""
    parameters: JSONMapping
    wanted: frozenset[str]
    room: SizeLimit

    def rows(self, chosen: sa.Select[Any], checked: VersionChecks, limit: int) -> list[Row]:
        """What was chosen, in a statement that tells of the stamps also where nothing is found."""
        return self.found(_beside(chosen, checked.columns), checked, limit, 0)[0]

    def found(
        self,
        statement: sa.Select[Any] | PreparedStatement,
        checked: VersionChecks,
        limit: int,
        facts: int,
    ) -> tuple[list[Row], Sequence[Any]]:
        """The rows of a statement of `_beside`, and its facts but for the stamps. Raises Stale."""
        most = sizes.room_for(limit * len(sizes.long_names(self.definition, self.wanted)))
        bound = {**self.parameters, **checked.parameters, "_room": most}
        if isinstance(statement, PreparedStatement):
            rows: Sequence[Any] = statement.all(bound)
        else:
            rows = db.connection().execute(statement, bound).all()
        width = len(self.definition.columns)
        behind = width + 1 + facts
        checked.check(rows[0][behind:])
        id = list(self.definition.columns).index("id")
        there = [row for row in rows if row[id] is not None]
        found = store.rows(self.definition, [row[:width] for row in there])
        lengths = [row[width] for row in there[:limit]]
        whole = self._whole(found[:limit], lengths, most)
        return [*whole, *found[limit:]], rows[0][width + 1 : behind]

    def _whole(self, rows: list[Row], lengths: Sequence[int], most: int) -> list[Row]:
        self.room.take(sum(lengths))
        lacking = [row["id"] for row, size in zip(rows, lengths, strict=True) if size > most]
        if not lacking:
            return rows
        reached = (*self.within, store.is_any_of(self.definition.table.c.id, lacking))
        read = db.connection().execute(sa.select(*self.columns).where(*reached), self.parameters)
        whole = {_key(row): row for row in store.rows(self.definition, read)}
        # What was changed or deleted meanwhile is not shown.
        sized = zip(rows, lengths, strict=True)
        read_again = [row if size <= most else whole.get(_key(row)) for row, size in sized]
        return [row for row in read_again if row is not None]


def _key(row: Row) -> tuple[str, str]:
    return row["account_id"], row["id"]


def check_room(definition: Definition, where: Sequence[Condition]) -> None:
    """Refuse to read records that are too large together. Raises AnswerTooLarge."""
    names = sizes.long_names(definition, definition.columns)
    if names:
        octets = [sa.func.coalesce(sizes.Octets(definition.expressions[n]), 0) for n in names]
        whole = sa.select(sa.func.sum(sum(octets[1:], octets[0]))).where(*where)
        SizeLimit().take(int(db.connection().execute(whole).scalar() or 0))


def existing_ids(
    definition: Definition,
    scoped: Sequence[Any],
    record_ids: Iterable[str],
    parameters: JSONMapping = NO_PARAMETERS,
) -> set[str]:
    """Which of these ids are records within reach."""
    table = definition.table
    statement = sa.select(table.c.id).where(*scoped, table.c.id.in_(list(record_ids)))
    return set(db.connection().execute(statement, parameters).scalars())


def find_conflicts(definition: Definition, rows: Sequence[Row]) -> dict[int, list[str]]:
    """By place, the unique fields whose value another record has, stored or further ahead."""
    table = definition.table
    found: dict[int, list[str]] = {}
    for name in (name for name, field in definition.fields.items() if field.unique):
        places: dict[object, int] = {}
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
