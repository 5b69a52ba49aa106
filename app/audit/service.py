"""Reading the audit log.

Superadmins read all chains. `list_changes`, `get` and `export` also serve admins of an account, who
read its chain only, and values of records as far as they may see the record's history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from app import clock, db
from app.accounts.types import Query
from app.audit import entries, sealing
from app.audit.chain.log import BrokenRow
from app.audit.entries import CHANGES, HEADS, LOG, Entry, Mask
from app.auth.principal import Principal
from app.collections.definitions import from_row
from app.collections.models import Collection
from app.context.actor import ActorKind
from app.db import filters
from app.db.errors import is_invalid_data
from app.errors import Forbidden, InvalidValues, NotFound, problem

# Not the values and digests, as their order could reveal masked values.
SORTABLE = (
    "id",
    "account_id",
    "operation",
    "table_name",
    "record_id",
    "column_name",
    "user_id",
    "request_id",
    "occurred_at",
)
FILTERS = ("account_id", "record_id", "user_id", "operation")
NO_ENTRY = "There is no such entry."
MAX_SIZE = 65_536  # characters of the values of a change in a list


def page(
    query: Query, *, by: Principal, max_total: int | None = None
) -> tuple[list[Entry], int | None]:
    """One page of the entries that match, by default the newest first, and the total.

    The total is approximate beyond `max_total`.
    """
    sealing.settle_for_list(query.get("account_id"))
    total = None
    if query["include_total"]:
        counts = sa.select(CHANGES.c.entries).where(*_conditions(query, CHANGES))
        if max_total is not None:
            counts = counts.limit(max_total + 1)  # changes, which have at least one entry each
        changes = counts.subquery()
        total = int(db.connection().scalar(sa.select(sa.func.sum(changes.c.entries))) or 0)
    return _masked(_on_page(query), Mask(by)), total


def _masked(found: Iterable[Entry], mask: Mask) -> list[Entry]:
    masked = list(map(mask, found))
    mask.publish()
    return masked


def page_of_account(
    account_id: str, query: Query, *, by: Principal
) -> tuple[list[Entry], int | None]:
    """The same of one account's chain, with values as far as the caller may see them."""
    query, total = {**query, "account_id": account_id}, None
    sealing.settle_for_list(query.get("account_id"))
    if query["include_total"]:
        counts = sa.select(sa.func.sum(CHANGES.c.entries)).where(*_conditions(query, CHANGES))
        total = int(db.connection().scalar(counts) or 0)
    found, mask = _on_page(query), Mask(by)
    mask.load({**entry, "occurred_at": clock.parse(entry["occurred_at"])} for entry in found)
    return _masked(found, mask), total


def _on_page(query: Query) -> list[Entry]:
    name, ascending = query["sort_by"], query["sort_order"] == "asc"
    if name not in SORTABLE:
        message = f"Cannot sort by {name[:80]}. Use one of {', '.join(SORTABLE)}."
        raise InvalidValues([problem("sort_by", "unknown_field", message)])
    if name not in CHANGES.c:
        try:
            return _sorted_entries(query, name, ascending)
        except (DBAPIError, BrokenRow) as error:
            if isinstance(error, DBAPIError) and not is_invalid_data(error):
                raise
            name = "occurred_at"  # SQL cannot read the change either
    found: list[Entry] = []
    skip = query["skip"]
    for row in db.connection().execute(_changes_of_page(query, name, ascending)).all():
        if not found:
            skip -= int(row.passed)
        change = entries.readable(row._asdict())
        found += change if ascending else reversed(change)
        if len(found) >= skip + query["limit"]:
            break  # the first page reads a change for each entry
    return found[skip : skip + query["limit"]]


def _changes_of_page(query: Query, name: str, ascending: bool) -> sa.Select[Any]:
    """The changes of the entries on a page; `passed` is the number of entries before each."""
    place = ("account_id", "first_id")
    names = list(dict.fromkeys((*place, name, "entries")))
    # Each change has at least one entry, so later changes cannot be on this page.
    last = query["skip"] + query["limit"]
    conditions, order = _conditions(query, CHANGES), _placed(CHANGES, name, ascending)
    if not query["skip"]:
        page = sa.select(*entries.columns(), sa.literal(0).label("passed")).where(*conditions)
        return page.order_by(*order).limit(last)
    keys = sa.select(*(CHANGES.c[name] for name in names)).where(*conditions)
    found = keys.order_by(*order).limit(last).subquery()
    until = sa.func.sum(found.c.entries).over(order_by=_placed(found, name, ascending))
    counted = sa.select(found, (until - found.c.entries).label("passed")).subquery()
    on_page = (counted.c.passed < last, counted.c.passed + counted.c.entries > query["skip"])
    same = (counted.c[name] == CHANGES.c[name] for name in place)
    page = sa.select(*entries.columns(), counted.c.passed).where(*on_page, *same)
    return page.order_by(*_placed(counted, name, ascending))


def _placed(changes: sa.FromClause, name: str, ascending: bool) -> list[Any]:
    return _order((changes.c[name], changes.c.first_id), ascending)


def _sorted_entries(query: Query, name: str, ascending: bool) -> list[Entry]:
    """The entries of a page by a column of their own. Raises DBAPIError or BrokenRow."""
    changes = CHANGES.select().where(*_conditions(query, CHANGES))
    if name == "id":
        end = CHANGES.c.first_id if ascending else CHANGES.c.last_id
        changes = changes.order_by(*_order((end,), ascending)).limit(query["skip"] + query["limit"])
    selected = changes.subquery()
    same = (LOG.c.account_id == selected.c.account_id, LOG.c.first_id == selected.c.first_id)
    page = sa.select(LOG.c.id.label("entry_id"), *entries.columns(selected, LOG))
    page = page.select_from(selected.join(LOG, sa.and_(*same)))
    page = page.order_by(*_order((LOG.c[name], LOG.c.id), ascending))
    found = []
    for row in db.connection().execute(page.offset(query["skip"]).limit(query["limit"])):
        change = entries.of_change(row._asdict())
        found += [entry for entry in change if entry["id"] == row.entry_id]
    return found


@dataclass(frozen=True)
class Change:
    """One change of a row, with an entry for each changed column."""

    account_id: str
    first_id: int
    operation: str
    table_name: str
    record_id: str
    user_id: str
    user_email: str | None
    user_name: str | None
    actor_kind: str | None
    actor_id: str | None
    actor_name: str | None
    es_username: str | None
    es_reason: str | None
    occurred_at: datetime
    is_complete: bool
    """Whether the values were small enough to be read."""
    entries: list[Entry]

    @property
    def is_anonymized(self) -> bool:
        """Whether the actor was erased."""
        return self.entries[0]["actor_salt"] is None


def list_changes(
    query: Query, *, by: Principal, max_total: int | None = None
) -> tuple[list[Change], int]:
    """One page of the changes that match, the newest first, and their number.

    The number is at most `max_total` + 1. Large values are left out.
    """
    query = _scoped(query, by)
    sealing.settle_for_list(query.get("account_id"))
    conditions = _conditions(query, CHANGES)
    matching = sa.select(sa.literal(1)).select_from(CHANGES).where(*conditions)
    if max_total is not None:
        matching = matching.limit(max_total + 1)
    total = db.connection().scalar(sa.select(sa.func.count()).select_from(matching.subquery()))
    values = ("old_values", "new_values")
    lengths = (sa.func.coalesce(sa.func.length(CHANGES.c[name]), 0) for name in values)
    is_complete = sa.func.coalesce(CHANGES.c.size, sum(lengths, sa.literal(0))) <= MAX_SIZE
    page = sa.select(
        *(column for column in entries.columns() if column.name not in values),
        *(sa.case((is_complete, CHANGES.c[name])).label(name) for name in values),
        is_complete.label("is_complete"),
    )
    page = page.where(*conditions).order_by(*_placed(CHANGES, "occurred_at", False))
    rows = db.connection().execute(page.offset(query["skip"]).limit(query["limit"]))
    found, mask = [row._asdict() for row in rows], Mask(by)
    mask.load(found)
    names = Change.__dataclass_fields__.keys() - {"entries", "is_complete"}
    changes = [
        Change(
            **{name: row[name] for name in names},
            is_complete=bool(row["is_complete"]),
            entries=[mask(entry) for entry in entries.readable(row)],
        )
        for row in found
    ]
    mask.publish()
    return changes, total or 0


def neighbours(
    occurred_at: datetime, first_id: int, query: Query, *, by: Principal
) -> tuple[int | None, int | None]:
    """The next newer and the next older change that match, by the id of their last entry."""
    conditions, sides = _conditions(_scoped(query, by), CHANGES), []
    moment, id = CHANGES.c.occurred_at, CHANGES.c.first_id
    for ascending in (True, False):
        bound = moment >= occurred_at if ascending else moment <= occurred_at
        follows = id > first_id if ascending else id < first_id
        place = (bound, sa.or_(moment != occurred_at, follows))
        side = sa.select(sa.literal(int(ascending)).label("is_newer"), CHANGES.c.last_id)
        side = side.where(*conditions, *place).order_by(*_placed(CHANGES, "occurred_at", ascending))
        sides.append(side.limit(1).subquery().select())
    rows = db.connection().execute(sa.union_all(*sides)).all()
    found = {bool(row.is_newer): row.last_id for row in rows}
    return found.get(True), found.get(False)


def find_cutoff(account_id: str | None, offset: int) -> datetime | None:
    """The time of the change after the `offset` newest ones, if there is one."""
    query = sa.select(CHANGES.c.occurred_at).order_by(*_placed(CHANGES, "occurred_at", False))
    if account_id is not None:
        query = query.where(CHANGES.c.account_id == account_id)
    cutoff: datetime | None = db.connection().scalar(query.offset(offset).limit(1))
    return cutoff


def get(id: int, *, by: Principal) -> Entry:
    """The entry with this id. Raises NotFound."""
    # No further than the entry: what is not shown is no read of personal data.
    for entry in _of_change(id, by):
        if entry["id"] == id:
            return entry
    raise NotFound(NO_ENTRY)


def of_same_change(id: int, *, by: Principal) -> list[Entry]:
    """All entries of the change that the entry with this id is part of. Raises NotFound."""
    found = list(_of_change(id, by))
    if not found:
        raise NotFound(NO_ENTRY)
    return found


def _of_change(id: int, by: Principal) -> Iterator[Entry]:
    # The primary key starts with the account, so the id is looked up in every chain.
    mine = CHANGES.alias("mine")
    before = (mine.c.account_id == HEADS.c.account_id, mine.c.first_id <= id)
    newest = sa.select(sa.func.max(mine.c.first_id)).where(*before).scalar_subquery()
    in_chain = CHANGES.c.account_id == filters.without_index(HEADS.c.account_id)
    same = (in_chain, CHANGES.c.first_id == newest)
    chains = HEADS.join(CHANGES, sa.and_(*same))
    place = (CHANGES.c.last_id >= id, *_conditions(_scoped({}, by), CHANGES))
    changes = sa.select(*entries.columns()).select_from(chains).where(*place)
    found = [row._asdict() for row in db.connection().execute(changes)]
    # Changes of other accounts may have the ids before and after it.
    own = [one for one in found if any(entry["id"] == id for entry in entries.readable(one))]
    return iter(Mask(by).entries(own))


def export(query: Query, *, by: Principal) -> Iterator[Entry]:
    """All entries that match, chain by chain in order of their ids."""
    query = _scoped(query, by)
    sealing.settle_for_list(query.get("account_id"))
    return Mask(by).entries(entries.iter_changes(_conditions(query, CHANGES)))


def count_hidden(query: Query, *, by: Principal) -> dict[str, int]:
    """The numbers of an export's entries with masked and with erased values."""
    mask, is_collection = Mask(by), Collection.table_name == LOG.c.table_name
    if mask.depends_on_time:
        return _count_one_by_one(query, by)
    groups = [
        LOG.c.table_name,
        LOG.c.column_name,
        LOG.c.salt.is_(None).label("erased"),
        (LOG.c.occurred_at < Collection.created_at).label("earlier"),
    ]
    first, total = sa.func.min(LOG.c.occurred_at), sa.func.count()
    counts = sa.select(*groups, first.label("first"), total.label("total")).group_by(*groups)
    statement = counts.select_from(LOG.outerjoin(Collection, is_collection)).where(
        *_conditions(query, LOG)
    )
    totals = {"values_masked": 0, "values_erased": 0}
    try:
        rows = db.connection().execute(statement).all()
    except DBAPIError as error:
        if not is_invalid_data(error):
            raise
        return _count_one_by_one(query, by)
    for row in rows:
        if row.erased:
            totals["values_erased"] += row.total
        elif mask.hides(row.table_name, row.column_name, clock.iso(row.first)):
            totals["values_masked"] += row.total
    return totals


def _count_one_by_one(query: Query, by: Principal) -> dict[str, int]:
    totals = {"values_masked": 0, "values_erased": 0}
    for entry in export(query, by=by):
        totals["values_masked"] += entry["masked"]
        totals["values_erased"] += entry["salt"] is None and not entry["masked"]
    return totals


def _scoped(query: Query, by: Principal) -> Query:
    """The query within what the caller may read. Raises Forbidden."""
    if by.is_superadmin:
        return query
    if not by.is_admin:
        raise Forbidden("The audit log is for admins of the account.")
    return {**query, "account_id": by.require_account_id()}


def _conditions(query: Query, table: sa.FromClause) -> list[sa.ColumnElement[bool]]:
    columns: dict[str, sa.ColumnElement[Any]] = {
        name: table.c[name] for name in (*FILTERS, "table_name") if name in query
    }
    if "record_id" in query:  # whose index is the best
        for name in columns.keys() - {"record_id"}:
            columns[name] = filters.without_index(columns[name])
    table_name = columns.pop("table_name", None)
    conditions = [column == query[name] for name, column in columns.items()]
    conditions += _is_by(query, table)
    if table_name is not None:
        name = query["table_name"]
        is_of_table = table_name == name
        row = db.db.session.scalar(sa.select(Collection).where(Collection.table_name == name))
        if row is not None and row.former_names:  # or of its collection under an earlier name
            is_former = entries.is_of(from_row(row), table_name, table.c.occurred_at)
            is_of_table = sa.or_(is_of_table, is_former)
        conditions.append(is_of_table)
    if "from_date" in query:
        conditions.append(table.c.occurred_at >= query["from_date"])
    if query.get("after") is not None:
        conditions.append(table.c.occurred_at > query["after"])
    if "to_date" in query:
        conditions.append(table.c.occurred_at <= query["to_date"])
    return conditions


def _is_by(query: Query, table: sa.FromClause) -> list[sa.ColumnElement[bool]]:
    """The conditions for what acted."""
    kind, id = query.get("actor_kind"), query.get("actor_id")
    # In the words of the indexes of what is no user.
    is_other = table.c.actor_kind != sa.literal_column("'user'")
    if id is None:
        is_kind = [] if kind is None else [table.c.actor_kind == kind]
        return is_kind if kind in (None, ActorKind.USER) else [*is_kind, is_other]
    by_user = sa.and_(table.c.user_id == id, table.c.actor_kind == ActorKind.USER.value)
    by_other = sa.and_(table.c.actor_id == id, is_other)
    if kind is None:
        return [sa.or_(by_user, by_other)]
    return [table.c.actor_kind == kind, by_user if kind == ActorKind.USER else by_other]


def _order(columns: Iterable[sa.ColumnElement[Any]], ascending: bool) -> list[Any]:
    # Ids have the direction of the other columns, so that one index serves both.
    orders = (column.asc() if ascending else column.desc() for column in columns)
    return [
        order.nulls_last() if getattr(order.element, "name", "") == "request_id" else order
        for order in orders
    ]
