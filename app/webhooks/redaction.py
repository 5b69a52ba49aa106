"""Hides payloads in the delivery log from readers who see less than the webhook's owner."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from app import db
from app.accounts.models import PII_GROUP
from app.auth import principal as principals
from app.auth.principal import NOBODY_ID, Principal
from app.collections import access as accesses
from app.collections import definitions
from app.collections import table as tables
from app.collections.definitions import ByFormerName, Definition
from app.types import cached_property
from app.webhooks import payload
from app.webhooks.models import DELIVERIES, DeliveryState, Webhook

MAX_OF_RECORD = 1000  # deliveries that a search by record finds
MAX_BEGINNING = 200  # characters of a payload that hold its collection's name


class HiddenBy(StrEnum):
    """The reason why a reader does not see a delivery's records and response."""

    PERSONAL_DATA = "personal data"
    RULES = "rules"


class Reader:
    """A reader of the log; caches what rules and field lists hide."""

    def __init__(self, by: Principal) -> None:
        self._by = by
        self._covered: dict[Definition, bool] = {}

    def hidden_by(self, row: sa.RowMapping) -> HiddenBy | None:
        """The reason why the reader does not see records and response; None if the reader does.

        Either personal data, or rules that let the reader view less than the owner.
        """
        if row["holds_pii"] and PII_GROUP not in self._by.groups:
            return HiddenBy.PERSONAL_DATA
        if self._by.is_superadmin or row["event"] == payload.TEST_EVENT:
            return None
        if row["superadmin_id"] is not None:
            return HiddenBy.RULES
        is_theirs = row["viewed_by"] is not None and row["viewed_by"] == self._by.user_id
        return None if is_theirs or self._covers(row) else HiddenBy.RULES

    def visible_ids(self, account_id: str, record_id: str) -> list[str]:
        """The newest deliveries about a record whose payload the reader may see.

        Others are left out: that they match would tell which record they hold.
        """
        table = DELIVERIES.c
        columns = ("id", "event", "holds_pii", "superadmin_id", "viewed_by", "created_at")
        beginning = sa.func.substr(table.payload, 1, MAX_BEGINNING).label("payload")
        query = sa.select(*(table[name] for name in columns), beginning)
        query = query.where(table.account_id == account_id, table.record_id == record_id.lower())
        rows = db.connection().execute(query.order_by(table.id.desc()).limit(MAX_OF_RECORD))
        return [row["id"] for row in rows.mappings() if self.hidden_by(row) is None]

    def _covers(self, row: sa.RowMapping) -> bool:
        table_name = tables.table_name_for(payload.collection_name(row["payload"]))
        definition = self._collections.find(table_name, row["created_at"])
        if definition is None:
            return False
        if definition not in self._covered:
            self._covered[definition] = is_open(definition, self._by)
        return self._covered[definition]

    @cached_property
    def _collections(self) -> ByFormerName:
        # Uncached, in one statement.
        return ByFormerName(definitions.get_all())


def is_open(definition: Definition, by: Principal) -> bool:
    """Whether the caller may view all records and fields of a collection."""
    access = accesses.if_open(by, definition, "view")
    everything = definition.columns.keys()
    return access is not None and access.condition is None and access.readable.keys() == everything


def may_be_received(webhook: Webhook) -> Any:
    """An SQL condition: deliveries whose payload the webhook's owner may receive."""
    table = DELIVERIES.c
    is_own = table.viewed_by.in_([NOBODY_ID, webhook.created_by])
    conditions = [table.viewed_by.is_(None), is_own, *_open_collection_conditions(webhook)]
    return sa.and_(
        sa.or_(*conditions),
        sa.or_(table.superadmin_id.is_(None), table.superadmin_id == webhook.created_by),
    )


def transfer_pending(webhook: Webhook) -> None:
    """Keep pending deliveries that a webhook's new owner may view as well.

    The others fail at their next attempt (`delivery.attempt`).
    """
    db.db.session.flush()  # lock the webhook first, in the workers' order
    table = DELIVERIES.c
    same_webhook = (table.account_id == webhook.account_id, table.webhook_id == webhook.id)
    is_pending = (
        table.status.in_((DeliveryState.PENDING, DeliveryState.RETRYING)),
        table.viewed_by.is_not(None),
    )
    change = sa.update(DELIVERIES).where(*same_webhook, *is_pending, may_be_received(webhook))
    db.connection().execute(change.values(viewed_by=webhook.created_by))


def _open_collection_conditions(webhook: Webhook) -> list[object]:
    maker = principals.for_user_in_account(webhook.account_id, webhook.created_by)
    if maker and maker.is_superadmin:
        return [sa.true()]
    definitions_by_name = {one.name.lower(): one for one in definitions.get_all()} if maker else {}
    definition = definitions_by_name.get(webhook.collection.lower())
    if maker is None or definition is None or not is_open(definition, maker):
        return []
    conditions, created_at = list[object](), DELIVERIES.c.created_at
    for era in definition.eras:
        within = [created_at >= era.since]
        within += [] if era.until is None else [created_at < era.until]
        conditions += (
            sa.and_(DELIVERIES.c.payload.startswith(beginning, autoescape=True), *within)
            for beginning in payload.beginnings(era.collection)
        )
    return conditions
