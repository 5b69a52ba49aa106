"""Webhook, delivery, attempt.

Deliveries and attempts have no foreign key to the webhook: there are many, every record change
writes them, and a job removes those of deleted webhooks.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.db import Base, partial_index
from app.db.policy import Audited, Bundled, NotAudited, NotBundled, Noun, Sample, TablePolicy
from app.db.types import Id, Text, UtcDateTime
from app.ids import new_id
from app.jobs import leases
from app.types import JSONObject
from app.web.languages import lazy_gettext

DISABLED_REASONS = ("failing", "gone")
OPERATIONS = ("create", "update", "delete")


class DeliveryState(StrEnum):
    """The state of a delivery; it ends as delivered or failed."""

    PENDING = "pending"
    DELIVERED = "delivered"
    RETRYING = "retrying"
    FAILED = "failed"


STATES = tuple(state.value for state in DeliveryState)


class WebhookVersion(Base):
    """Incremented with every change of an account's webhooks; its row lock serializes them."""

    __tablename__ = "webhook_versions"
    __policy__ = TablePolicy(
        audit=NotAudited("versions for checking caches"),
        bundle=NotBundled("versions for checking caches, set anew"),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    version: Mapped[int]
    # Whether new deliveries have ids only, as pending ones exceed the limit.
    payloads_cut: Mapped[bool] = mapped_column(default=False, server_default=sa.false())


class Webhook(Base):
    """A receiver of changes in one collection."""

    __tablename__ = "webhooks"
    __table_args__ = (sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),)
    __policy__ = TablePolicy(
        audit=Audited(ignored=("failing_since",), hidden=("headers", "secret", "previous_secret")),
        bundle=Bundled(order=170),
        encrypted=("secret", "previous_secret"),
        encrypted_json=("headers",),
        noun=Noun(
            lazy_gettext("Webhook"),
            lazy_gettext("Webhooks"),
            named_by="url",
            order=120,
            page="console.show_webhook",
            list_page="console.show_webhooks",
            event="webhook",
        ),
        id_names=("webhook_id",),
        sample={
            "url": "https://{mark}.example/",
            "collection": Sample.COLLECTION,
            "events": ["create", "update", "delete"],
            "types": None,
            "collections": None,
            "filter": None,
            "headers": {"X-Mark": "{mark}"},
            "enabled": Sample.IS_VICTIM,
            "secret": Sample.ENCRYPTED,
            "previous_secret": None,
        },
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    url: Mapped[str] = mapped_column(Text)
    collection: Mapped[str] = mapped_column(Text)
    events: Mapped[list[str]] = mapped_column(sa.JSON)
    filter: Mapped[str | None] = mapped_column(Text)
    headers: Mapped[JSONObject | None] = mapped_column(sa.JSON(none_as_null=True))  # encrypted
    enabled: Mapped[bool] = mapped_column(default=True)
    include_pii: Mapped[bool] = mapped_column(default=False)
    secret: Mapped[str] = mapped_column(Text)  # encrypted
    previous_secret: Mapped[str | None] = mapped_column(Text)  # encrypted
    previous_valid_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    failing_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    disabled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # by the service
    disabled_reason: Mapped[str | None] = mapped_column(Text)  # of DISABLED_REASONS
    created_by: Mapped[str | None] = mapped_column(Id)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    # Since the owner is no admin any more; until an admin takes it over, its deliveries wait.
    paused_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # Of the operator's webhooks (docs/events.md): the types of events that it is sent, and the
    # collections that it is sent changes of. Null for those of accounts.
    types: Mapped[list[str] | None] = mapped_column(sa.JSON(none_as_null=True))
    collections: Mapped[list[str] | None] = mapped_column(sa.JSON(none_as_null=True))
    key: Mapped[str | None] = mapped_column(Text)  # in the manifest

    @property
    def owner_id(self) -> str | None:
        """The user whose view payloads show."""
        return self.created_by

    @property
    def is_sending(self) -> bool:
        """Whether its deliveries are sent: it is enabled, and has an owner who may have it."""
        return self.enabled and self.paused_at is None


IS_OPERATORS = (Webhook.account_id == SYSTEM_ACCOUNT_ID, Webhook.types.is_not(None))
"""That a webhook is the operator's."""


class WebhookDelivery(Base):
    """One event for one webhook. `payload` is the exact text of the request."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        # Partial and covering: workers skip many rows of busy webhooks.
        partial_index(
            "ix_webhook_deliveries_due",
            "due_at",
            "webhook_id",
            "account_id",
            "id",
            where="due_at IS NOT NULL",
        ),
        # Covering: SQLite must read the whole payload to reach the columns after it.
        sa.Index("ix_webhook_deliveries_log", "account_id", "webhook_id", "id", "status", "size"),
        partial_index(
            "ix_webhook_deliveries_replay_of",
            "account_id",
            "replay_of",
            where="replay_of IS NOT NULL",
        ),
        partial_index(
            "ix_webhook_deliveries_undelivered",
            "account_id",
            "webhook_id",
            "id",
            where="status IN ('failed', 'retrying')",
        ),
        partial_index(
            "ix_webhook_deliveries_record",
            "account_id",
            "record_id",
            "id",
            where="record_id IS NOT NULL",
        ),
        partial_index(
            "ix_webhook_deliveries_in_order",
            "account_id",
            "webhook_id",
            "of_account",
            "event_number",
            where="status IN ('pending', 'retrying')",
        ),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("deliveries; the changes they announce are audited"),
        bundle=NotBundled("a log; each instance delivers its own events"),
        id_names=("delivery_id",),
        sample={
            "payload": Sample.JSON,
            "status": "failed",
            "event": "records.create",
            "last_claim": 1,
        },
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    webhook_id: Mapped[str] = mapped_column(Id)
    event: Mapped[str] = mapped_column(Text)
    record_id: Mapped[str | None] = mapped_column(Id)  # null in tests and older rows
    payload: Mapped[str] = mapped_column(Text)
    size: Mapped[int]  # bytes of the payload
    holds_pii: Mapped[bool] = mapped_column(default=False)
    # The user whose view the payload shows; null in older rows.
    viewed_by: Mapped[str | None] = mapped_column(Id)
    # The superadmin whose view it shows, which rules may hide from the account's admins.
    superadmin_id: Mapped[str | None] = mapped_column(Id)
    status: Mapped[str] = mapped_column(Text, default=DeliveryState.PENDING)
    attempt_number: Mapped[int] = mapped_column(default=0)  # number of attempts
    due_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # or the end of a worker's lease
    claim: Mapped[int] = mapped_column(default=0)  # number of claims
    last_claim: Mapped[int | None] = mapped_column()  # of the last attempt
    next_retry_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    delivered_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    replay_of: Mapped[str | None] = mapped_column(Id)
    requested_by: Mapped[str | None] = mapped_column(Id)  # who had it sent again
    depth: Mapped[int] = mapped_column(default=0, server_default="0")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    # Of an operator's webhook: the account of its event, whose deliveries are sent one after the
    # other, by the numbers of their events.
    of_account: Mapped[str | None] = mapped_column(Id)
    event_number: Mapped[int | None] = mapped_column(sa.BigInteger)


class WebhookAttempt(Base):
    """One delivery attempt and its response."""

    __tablename__ = "webhook_attempts"
    __table_args__ = (sa.Index("ix_webhook_attempts_delivery", "account_id", "delivery_id"),)
    __policy__ = TablePolicy(
        audit=NotAudited("attempts"),
        bundle=NotBundled("a log; each instance delivers its own events"),
        sample={"request": {"method": "POST", "url": "{mark}", "headers": {"X-Mark": "{mark}"}}},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    delivery_id: Mapped[str] = mapped_column(Id)
    claim: Mapped[int]
    attempt_number: Mapped[int]
    status_code: Mapped[int | None] = mapped_column()
    response_body: Mapped[str | None] = mapped_column(Text)
    error: Mapped[str | None] = mapped_column(Text)
    duration_ms: Mapped[int]
    attempted_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # As sent, without its body; values of custom headers are masked. Null if nothing was sent.
    request: Mapped[JSONObject | None] = mapped_column(sa.JSON(none_as_null=True))


DELIVERIES: Any = WebhookDelivery.__table__
ATTEMPTS: Any = WebhookAttempt.__table__
# Literal, so that planners see that the partial index fits.
IS_UNDELIVERED = sa.literal_column("webhook_deliveries.status").in_(
    (sa.literal_column("'failed'"), sa.literal_column("'retrying'"))
)
IS_UNFINISHED = sa.literal_column("webhook_deliveries.status").in_(
    (sa.literal_column("'pending'"), sa.literal_column("'retrying'"))
)
QUEUE = leases.Queue(
    DELIVERIES,
    DELIVERIES.c.claim,
    in_work=sa.and_(
        DELIVERIES.c.due_at.is_not(None),
        sa.func.coalesce(DELIVERIES.c.last_claim, 0) < DELIVERIES.c.claim,
    ),
)
