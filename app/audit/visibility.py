"""Which values in the audit log an admin of the account may see.

Superadmins see those of all records. Others see what the history of a record shows them: fields
that they may view, of records that the view and the update rule open to them. Records that are
gone show their values only where no rule depends on the record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from app import db
from app.auth.principal import Principal
from app.collections import access
from app.collections import table as tables
from app.collections.access import Access
from app.collections.definitions import ByFormerName, Definition

OPERATIONS = ("view", "update")


class RecordVisibility:
    """Decides for a caller and one batch of changes."""

    def __init__(
        self, by: Principal, changes: Iterable[Mapping[str, Any]], collections: ByFormerName
    ) -> None:
        self._by, self._collections = by, collections
        self._accesses: dict[str, tuple[Access, Access] | None] = {}
        self._visible: dict[str, Set[str]] = {}
        if not by.is_superadmin:
            self._load(changes)

    def hides(self, table_name: str, record_id: str, column: str, moment: datetime) -> bool:
        """Whether the values of a column of a row are hidden from the caller."""
        if self._by.is_superadmin or column == "id" or not table_name.startswith(tables.PREFIX):
            return False
        definition = self._collections.find(table_name, moment)
        accesses = self._accesses.get(definition.id) if definition else None
        if definition is None or accesses is None:
            return True
        view, _ = accesses
        if definition.era_at(moment).present_name(column) not in view.readable:
            return True
        is_conditional = any(one.condition is not None for one in accesses)
        return is_conditional and record_id not in self._visible[definition.id]

    def _load(self, changes: Iterable[Mapping[str, Any]]) -> None:
        ids, definitions = defaultdict[str, set[str]](set), dict[str, Definition]()
        for change in changes:
            definition = self._collections.find(change["table_name"], change["occurred_at"])
            if definition is not None:
                ids[definition.id].add(change["record_id"])
                definitions[definition.id] = definition
        for id, definition in definitions.items():
            view, update = (access.if_open(self._by, definition, name) for name in OPERATIONS)
            self._accesses[id] = (view, update) if view and update else None
            if view and update:
                seen = (self._allowed(one, ids[id]) for one in (view, update))
                self._visible[id] = frozenset.intersection(*seen)

    def _allowed(self, access: Access, ids: Set[str]) -> frozenset[str]:
        if access.where is None:
            return frozenset(ids)
        table = access.definition.table
        account_id = self._by.require_account_id()
        scoped = (table.c.account_id == account_id, table.c.id.in_(sorted(ids)))
        query = sa.select(table.c.id).where(*scoped, access.where)
        return frozenset(db.connection().scalars(query, access.parameters))
