"""Reading entries: serialized for responses, in chain order, masked for the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa

from app import clock, db
from app.accounts.models import PII_GROUP
from app.audit.append import HIDDEN
from app.audit.models import AuditChange, AuditEntry, AuditHead
from app.auth.principal import Principal
from app.collections import definition as definitions
from app.collections import masking
from app.collections import table as tables
from app.collections.definition import Definition
from app.collections.fields import Field
from app.collections.models import Collection
from app.db import Base
from app.rules import Type
from app.types import JSONObject

Entry = JSONObject
BATCH_SIZE = 1000
TABLES = (AuditEntry, AuditChange, AuditHead)
LOG, CHANGES, HEADS = (Base.metadata.tables[model.__tablename__] for model in TABLES)
PERSONAL = {("users", "email"), ("users", "name"), ("invitations", "email")}


def to_dict(row: sa.Row[Any]) -> Entry:
    """An entry as in responses, exports and verification."""
    entry = dict(row._mapping)
    entry["occurred_at"] = clock.iso(entry["occurred_at"])
    if entry["es_timestamp"] is not None:
        entry["es_timestamp"] = clock.iso(entry["es_timestamp"])
    entry["masked"] = False
    return entry


def join_entries(*conditions: sa.ColumnElement[bool], changes: sa.FromClause = CHANGES) -> sa.Join:
    """A join of changes with their entries, to select from."""
    in_change = LOG.c.id.between(changes.c.first_id, changes.c.last_id)
    return changes.join(
        LOG, sa.and_(LOG.c.account_id == changes.c.account_id, in_change, *conditions)
    )


def iter_entries(
    conditions: Sequence[sa.ColumnElement[bool]] = (), after: tuple[str, int] = ("", 0)
) -> Iterator[Entry]:
    """Entries chain by chain in order of their ids, read in batches."""
    key = sa.tuple_(LOG.c.account_id, LOG.c.id)
    while True:
        query = sa.select(LOG).where(*conditions, key > after)
        query = query.order_by(LOG.c.account_id, LOG.c.id).limit(BATCH_SIZE)
        rows = db.connection().execute(query).all()
        yield from map(to_dict, rows)
        if len(rows) < BATCH_SIZE:
            return
        after = (rows[-1].account_id, rows[-1].id)


class Mask:
    """Masks personal values for callers outside the group `pii_access`."""

    def __init__(self, by: Principal) -> None:
        self._off = PII_GROUP in by.groups
        self._definitions: Mapping[str, Definition] | None = None

    def __call__(self, entry: Entry) -> Entry:
        """The entry with personal values masked, without the salt that could confirm a guess."""
        if entry["salt"] is None:
            return entry
        mask = self._mask_of(entry["table_name"], entry["column_name"], entry["occurred_at"])
        if mask is None:
            return entry
        for name in ("old_value", "new_value"):
            entry[name] = None if entry[name] is None else mask(entry[name])
        entry["salt"], entry["masked"] = None, True
        return entry

    def hides(self, table_name: str, column: str, occurred_at: str) -> bool:
        """Whether the values of a column at that time are masked for the caller."""
        return self._mask_of(table_name, column, occurred_at) is not None

    def _mask_of(
        self, table_name: str, column: str, occurred_at: str
    ) -> Callable[[str], str] | None:
        if self._off:
            return None
        if not table_name.startswith(tables.PREFIX):
            return _hide if (table_name, column) in PERSONAL else None
        if column == "id":
            return None
        if self._definitions is None:
            rows = db.db.session.scalars(sa.select(Collection))
            self._definitions = {row.table_name: definitions.from_row(row) for row in rows}
        definition = self._definitions.get(table_name)
        if definition is None or occurred_at < clock.iso(definition.created_at):
            return _hide  # a deleted, perhaps recreated, collection may have held personal data
        field = definition.fields.get(column)
        if field is None:
            return _hide
        return partial(_masked, field) if field.pii else None


def _masked(field: Field, text: str) -> str:
    # Values other than strings are stored as JSON and masked completely.
    is_text = field.rule_type not in (Type.NUMBER, Type.BOOLEAN, Type.JSON)
    masked: str = masking.masked(field, text) if is_text else masking.FULL
    return masked


def _hide(text: str) -> str:
    return HIDDEN
