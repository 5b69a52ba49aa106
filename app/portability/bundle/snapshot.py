"""An account as it is at one moment: what a bundle and a readable export are written from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, Role
from app.audit import sealing as changes
from app.audit.models import AuditHead
from app.audit.security_log import sealing
from app.collections import definitions, expression_names
from app.collections.definitions import Definition, ViewDefinition
from app.context import tenancy
from app.errors import Conflict, NotFound
from app.manifest.instance_kinds import ROLES
from app.portability.bundle import tables
from app.rules import named
from app.types import JSONMapping

PIECE, LONG_BYTES = 500, 16 * 1024
SYSTEM = "The system account cannot be exported."


@contextmanager
def opened(account_id: str) -> Iterator[Snapshot]:
    """Look at an account in the block; `seal_events` comes first.

    Raises Conflict for the system account.
    """
    refuse_system(account_id)
    with tenancy.in_account(account_id), changes.complete_snapshot(account_id) as seen:
        yield Snapshot(account_id, *seen)


def seal_events(account_id: str) -> None:
    """Give the newest events their place in the security log, as a snapshot has no others.

    Raises Conflict for the system account.
    """
    refuse_system(account_id)
    sealing.seal(account_id)


def refuse_system(account_id: str) -> None:
    """Raise Conflict for the system account."""
    if account_id == SYSTEM_ACCOUNT_ID:
        raise Conflict(SYSTEM)


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of an account, a later one that has the log of it, and where that log ends."""

    account_id: str
    connection: sa.Connection
    later: sa.Connection
    head: Any

    def account(self) -> JSONMapping:
        """The account's row. Raises NotFound."""
        table = tables.core_table(Account.__tablename__)
        is_open = (table.c.id == self.account_id, table.c.closed_at.is_(None))
        account = self.connection.execute(sa.select(table).where(*is_open)).mappings().first()
        if account is None:
            raise NotFound("There is no such account.")
        return dict(account)

    def definitions(self) -> list[Definition]:
        """The collections that the account uses, and those that they and their rules refer to.

        With the views of these.
        """
        by_name = {one.name.lower(): one for one in definitions.get_all(with_views=True)}
        views = [one for one in by_name.values() if isinstance(one, ViewDefinition)]
        named, used = self._named(), set[str]()
        for name, one in by_name.items():
            if one.view:
                continue
            mine = sa.select(1).where(one.table.c.account_id == self.account_id).limit(1)
            if {one.id, name} & named or self.connection.scalar(mine) is not None:
                used.add(name)
        pending = list(used)
        while pending:
            one = by_name[pending.pop()]
            fields = one.fields.values()
            targets = {field.collection.lower() for field in fields if field.collection}
            texts = [*expression_names.rules_and_rights(one).values(), *one.fragments.values()]
            if one.view and one.view["where"]:
                texts.append(one.view["where"])
            for text in texts:
                found = definitions.referenced_definitions(one, text)
                targets |= {target.name.lower() for target in found}
            own = (view for view in views if view.view["from"].lower() == one.name.lower())
            targets |= {view.name.lower() for view in own}
            pending += (targets & by_name.keys()) - used
            used |= targets & by_name.keys()
        return [by_name[name] for name in sorted(used)]

    def _named(self) -> set[str]:
        """The ids and names of collections that rows of the account have."""
        found: set[str] = set()
        for table, column in (
            ("files", "collection_id"),
            ("saved_views", "collection_id"),
            ("record_sequences", "collection_id"),
            ("trashed_records", "collection_id"),
            ("webhooks", "collection"),
        ):
            source = tables.core_table(table)
            mine = source.c.account_id == self.account_id
            values = self.connection.scalars(sa.select(source.c[column]).where(mine).distinct())
            found |= {value.lower() for value in values if value}
        workflows = tables.core_table("workflows")
        mine = workflows.c.account_id == self.account_id
        for row in self.connection.execute(
            sa.select(workflows.c.trigger, workflows.c.steps).where(mine)
        ):
            found |= set(_collections_in(list(row)))
        return found

    def _role_ids(self) -> set[int]:
        """The ids of roles that rows of the account have."""
        found: set[int] = set()
        for table in tables.included():
            for column in tables.ROLE_COLUMNS & set(table.c.keys()):
                mine = (table.c.account_id == self.account_id, table.c[column].is_not(None))
                ids = sa.select(table.c[column]).where(*mine).distinct()
                found.update(self.connection.scalars(ids))
        return found

    def roles(self, used: Sequence[Definition]) -> list[Role]:
        """The roles that rows of the account have, and those that its collections name."""
        ids, names = self._role_ids(), set[str]()
        for one in used:
            texts = (*expression_names.rules_and_rights(one).values(), *one.fragments.values())
            mentions = (mention for text in texts for mention in named.mentions(text))
            names |= {mention.value for mention in mentions if mention.kind == named.ROLE}
        return [row for row in ROLES.rows() if row.id in ids or row.name in names]

    def rows(
        self, table: sa.Table, connection: sa.Connection | None = None, *where: Any
    ) -> Iterator[Sequence[Any]]:
        """The rows of a table in pieces; rows with long values one by one, as each may be 10 MB."""
        connection = connection or self.connection
        names, columns = tables.names_of(table), tables.selected(table)
        key = [column for column in table.primary_key if column.name != "account_id"]
        places = [names.index(column.name) for column in key]
        mine = sa.select(*columns).where(table.c.account_id == self.account_id, *where)
        query = mine.with_only_columns(*tables.shortened(columns, key, LONG_BYTES))
        query = query.order_by(*key).limit(PIECE)

        def key_of(row: sa.Row[Any]) -> sa.Tuple:
            values = zip(places, key, strict=True)
            return sa.tuple_(*(sa.literal(row[place], column.type) for place, column in values))

        piece = query
        while True:
            rows = connection.execute(piece).all()
            for row in rows:
                if row.is_long:
                    whole = mine.where(sa.tuple_(*key) == key_of(row))
                    yield connection.execute(whole).one()
                else:
                    yield row[:-1]
            if len(rows) < PIECE:
                return
            piece = query.where(sa.tuple_(*key) > key_of(rows[-1]))

    def changes(self) -> Iterator[Sequence[Any]]:
        """The rows of the audit log, with those that were sealed after the first snapshot."""
        table = changes.CHANGES
        yield from self.rows(table)
        last_id = sa.select(AuditHead.last_id).where(AuditHead.account_id == self.account_id)
        last = self.connection.scalar(last_id) or 0
        sealed = (table.c.first_id > last, table.c.first_id <= self.head[0])
        yield from self.rows(table, self.later, *sealed)


def _collections_in(value: Any) -> Iterator[str]:
    """The texts that stand under `collection` anywhere in JSON."""
    if isinstance(value, list):
        for item in value:
            yield from _collections_in(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name == "collection" and isinstance(item, str):
                yield item.lower()
            else:
                yield from _collections_in(item)
