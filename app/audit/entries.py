"""Entries as they are read: in the answers' form, by account and id, masked for who asks."""

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

Entry = dict[str, Any]
PIECE = 1000
TABLES = (AuditEntry, AuditChange, AuditHead)
LOG, CHANGES, HEADS = (Base.metadata.tables[one.__tablename__] for one in TABLES)
PERSONAL = {("users", "email"), ("users", "name"), ("invitations", "email")}


def shown(row: Any) -> Entry:
    """An entry as answers, exports and verifiers have it."""
    entry = dict(row._mapping)
    entry["occurred_at"] = clock.iso(entry["occurred_at"])
    if entry["es_timestamp"] is not None:
        entry["es_timestamp"] = clock.iso(entry["es_timestamp"])
    entry["masked"] = False
    return entry


def told_by(*which: Any, changes: sa.FromClause = CHANGES) -> sa.Join:
    """The entries of the changes that match, to select from."""
    its = LOG.c.id.between(changes.c.first_id, changes.c.last_id)
    return changes.join(LOG, sa.and_(LOG.c.account_id == changes.c.account_id, its, *which))


def in_order(where: Sequence[Any] = (), after: tuple[str, int] = ("", 0)) -> Iterator[Entry]:
    """Entries chain by chain, each in its order, piece by piece."""
    place = sa.tuple_(LOG.c.account_id, LOG.c.id)
    while True:
        chosen = sa.select(LOG).where(*where, place > after)
        chosen = chosen.order_by(LOG.c.account_id, LOG.c.id).limit(PIECE)
        rows = db.connection().execute(chosen).all()
        yield from map(shown, rows)
        if len(rows) < PIECE:
            return
        after = (rows[-1].account_id, rows[-1].id)


class Mask:
    """What a caller may not see: personal values, unless they are in the group `pii_access`."""

    def __init__(self, by: Principal) -> None:
        self._off = PII_GROUP in by.groups
        self._known: Mapping[str, Definition] | None = None

    def __call__(self, entry: Entry) -> Entry:
        """The entry, with personal values masked, and without the salt that would prove a guess."""
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
        """Whether the caller may not see the values that a column had at a moment."""
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
        if self._known is None:
            rows = db.db.session.scalars(sa.select(Collection))
            self._known = {row.table_name: definitions.from_row(row) for row in rows}
        definition = self._known.get(table_name)
        if definition is None or occurred_at < clock.iso(definition.created_at):
            return _hide  # what was deleted, and perhaps made anew, may have been personal
        field = definition.fields.get(column)
        if field is None:
            return _hide
        return partial(_masked, field) if field.pii else None


def _masked(field: Field, text: str) -> str:
    # Entries keep as JSON what is no text; such values have no mask that shows a part of them.
    is_text = field.rule_type not in (Type.NUMBER, Type.BOOLEAN, Type.JSON)
    shown: str = masking.masked(field, text) if is_text else masking.FULL
    return shown


def _hide(text: str) -> str:
    return HIDDEN
