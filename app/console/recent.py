"""Recent changes in an account that the caller may see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from flask import current_app, url_for

from app import db
from app.audit import recent
from app.audit.append import CREATE, DELETE
from app.collections import table as tables
from app.collections.definitions import ByFormerName, Definition
from app.console.admin import audit_names
from app.console.records import display, references
from app.console.shell.scopes import AccountScope
from app.db import Base
from app.web.languages import gettext, lazy_gettext

MAX_SHOWN, MAX_SCANNED = 8, 60
VERBS = {CREATE: lazy_gettext("created"), DELETE: lazy_gettext("deleted")}
CHANGED = lazy_gettext("changed")
Row = tuple[str, str]  # table, id


@dataclass(frozen=True)
class Change:
    """Successive changes of one user to rows of one kind."""

    what: str
    verb: str
    who: str
    when: datetime
    """The time of the last of them."""
    row: Row | None
    """The changed row, if it is only one."""
    target: str | None
    """Its page, or the list of several."""
    list_target: str | None
    count: int = 1
    name: str | None = None

    def is_like(self, other: Change) -> bool:
        """Whether the same user did the same to things of the same kind."""
        return (self.what, self.verb, self.who) == (other.what, other.verb, other.who)

    def plus(self, older: Change) -> Change:
        if self.row == older.row:
            return replace(self, count=self.count + 1)
        return replace(self, count=self.count + 1, row=None, target=self.list_target)


def changes(scope: AccountScope, collections: Sequence[Definition]) -> list[Change]:
    """The newest changes, those in a row that are alike as one; of records, only `collections`'."""
    by_table, found = ByFormerName(collections), list[Change]()
    for row in recent.changes(scope.account.id, MAX_SCANNED):
        collection = by_table.find(row.table_name, row.occurred_at)
        if collection is None and row.table_name.startswith(tables.PREFIX):
            continue
        change = _change(scope, collection, row)
        if found and found[-1].is_like(change):
            found[-1] = found[-1].plus(change)
        else:
            found.append(change)
    shown = found[:MAX_SHOWN]
    names = _names(scope, collections, [one.row for one in shown if one.row])
    return [replace(one, name=names.get(one.row)) if one.row else one for one in shown]


def _change(scope: AccountScope, collection: Definition | None, row: Any) -> Change:
    verb, actor = str(VERBS.get(row.operation, CHANGED)), row.user_email or row.user_id
    if collection is None:
        label, target = _list_link(scope, row)
        own = (row.table_name, row.record_id)
        return Change(label, verb, actor, row.occurred_at, own, target, target)
    url_args = {**scope.url_args, "name": collection.name}
    target = all_records = url_for("console.show_records", **url_args)
    if row.operation != DELETE and row.record_id:
        target = url_for("console.show_record", record_id=row.record_id, **url_args)
    what = gettext("Record of %(collection)s", collection=collection.name)
    own = (collection.table_name, row.record_id)
    return Change(what, verb, actor, row.occurred_at, own, target, all_records)


def _names(
    scope: AccountScope, collections: Sequence[Definition], rows: Sequence[Row]
) -> dict[Row, str]:
    """The names of rows that still exist, in one statement."""
    ids = defaultdict[str, list[str]](list)
    for table, id in rows:
        ids[table].append(id)
    records = (one for one in collections if one.table_name in ids)
    queries = {
        one.table_name: references.label_query(one, ids[one.table_name], scope.by)
        for one in records
    }
    for table in ids.keys() - {"accounts"}:
        name = audit_names.name_column(table)
        if name is not None and not audit_names.is_shared(table):
            queries[table] = _name_query(table, name, ids[table], scope.account.id)
    found = [
        query.add_columns(sa.literal(table).label("of"))
        for table, query in queries.items()
        if query is not None
    ]
    named = db.connection().execute(sa.union_all(*found)) if found else ()
    return {(row.of, row.id): display.shorten(row.label) for row in named if row.label}


def _name_query(
    table: str, name: sa.ColumnElement[Any], ids: Sequence[str], account_id: str
) -> sa.Select[Any]:
    columns = Base.metadata.tables[table].c
    query = sa.select(columns.id, name.label("label"))
    return query.where(columns.account_id == account_id, columns.id.in_(ids))


def _list_link(scope: AccountScope, row: Any) -> tuple[str, str | None]:
    table: str = row.table_name
    noun = None if audit_names.is_shared(table) else audit_names.nouns().get(table)
    label = str(noun.singular) if noun else table.replace("_", " ").capitalize()
    if noun is None or noun.list_page is None:
        return label, None
    # Some pages name the account also in one's own.
    rules = current_app.url_map.iter_rules(noun.list_page)
    own = (
        {"account_id": scope.account.id} if all("account_id" in r.arguments for r in rules) else {}
    )
    return label, url_for(noun.list_page, **{**scope.url_args, **own})
