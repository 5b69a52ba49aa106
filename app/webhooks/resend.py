"""Sends deliveries again: finished ones as copies under new ids, waiting retries at once.

What is pending or being sent is left alone. Copies and retries are made under the webhook's lock,
so that concurrent requests send nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from app import clock, db, jobs
from app.accounts.usage import models, quotas
from app.auth.principal import Principal
from app.db import counts
from app.db.functions import database_now
from app.errors import Conflict
from app.ids import first_id
from app.jobs.rq_queues import WEBHOOKS
from app.types import JSONMapping, JSONObject
from app.webhooks import delivery, log, outbox, payload, redaction, visibility
from app.webhooks.models import ATTEMPTS, DELIVERIES, IS_UNDELIVERED, STATES, DeliveryState, Webhook

MAX_SELECTED = 100
BATCH_SIZE, MAX_BATCH_BYTES = 500, 16 * 2**20  # deliveries, and bytes of their payloads
JOB = "webhooks.redeliver"
MAX_JOBS = 20  # unfinished ones of an account
CLOCK_TOLERANCE = timedelta(minutes=10)
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
TABLE = DELIVERIES.c
ROOT_ID = sa.func.coalesce(TABLE.replay_of, TABLE.id)  # the first of a delivery and its replays


@dataclass(frozen=True)
class Selection:
    """Which undelivered deliveries to send again."""

    since: datetime
    until: datetime
    event: str | None = None
    status: str | None = None
    ids: Sequence[str] | None = None
    by: str | None = None
    """The id of the user who asks for it."""
    rendered: str | None = None
    """An id from when the form was rendered; what was sent since is not sent again."""

    @classmethod
    def from_payload(cls, values: JSONMapping) -> Selection:
        """The selection that a job's payload holds."""
        since, until = (clock.parse(values[name]) for name in ("since", "until"))
        names = ("event", "status", "ids", "by", "rendered")
        return cls(since, until, *(values.get(name) for name in names))

    @property
    def payload(self) -> JSONObject:
        times = {"since": clock.iso(self.since), "until": clock.iso(self.until)}
        return {**asdict(self), **times}

    def conditions(self) -> list[Any]:
        """The SQL conditions of the selected deliveries, whatever their state."""
        found: list[Any] = [TABLE.created_at >= self.since, TABLE.created_at <= self.until]
        found += [TABLE[n] == v for n in ("event", "status") if (v := getattr(self, n))]
        if self.ids is not None:
            found.append(TABLE.id.in_(self.ids))
        return found + _unsent_since(self.rendered)


@dataclass(frozen=True)
class Undelivered:
    """The numbers of deliveries that can be sent again."""

    failed: int = 0
    retrying: int = 0

    @property
    def total(self) -> int:
        return self.failed + self.retrying


def redeliver(
    webhook: Webhook, delivery_id: str, *, by: Principal, rendered: str | None = None
) -> log.DeliveryWithAttempts:
    """Send a delivery again: under a new id, or at once if it waits for a retry.

    Returns the delivery that is sent, or was since the form was rendered. Raises NotFound,
    Conflict.
    """
    _check_enabled(webhook)
    quotas.check_stored(webhook.account_id, models.DELIVERIES)
    with db.transaction():
        _lock(webhook)
        original = log.get(webhook, delivery_id, by=by)
        if rendered and (sent := _sent_since(original, rendered)):
            return log.get(webhook, sent, by=by)
        if original.status == DeliveryState.PENDING:
            raise Conflict("This delivery is still pending.")
        if original.holds_pii and not visibility.is_sent_pii(webhook):
            raise Conflict(
                "The payload has personal data, which this webhook may no longer receive."
            )
        if original.superadmin_id not in (None, webhook.created_by):
            raise Conflict(
                "The payload shows a superadmin's view, and the webhook has another owner now."
            )
        may_view, same_delivery = redaction.may_be_received(webhook), TABLE.id == original.id
        if original.status == DeliveryState.RETRYING:
            ids = _batch_ids(*_waiting(webhook), same_delivery, may_view)
            if not _retry_now(webhook, ids, by.user_id):
                raise Conflict("This delivery is being sent, or may no longer be received.")
            return log.get(webhook, original.id, by=by)
        copies = _copies(webhook, by.user_id, same_delivery, may_view)
        if not copies:
            raise Conflict(delivery.PREVIOUS_OWNER)
        outbox.write(copies)
    return log.get(webhook, copies[0]["id"], by=by)


def resend_selected(
    webhook: Webhook, ids: Sequence[str], *, by: Principal, rendered: str | None = None
) -> int:
    """Send up to MAX_SELECTED deliveries again, also delivered ones; returns how many are sent.

    Of a delivery and its replays only one is sent, and none while another one is under way.
    """
    _check_enabled(webhook)
    quotas.check_stored(webhook.account_id, models.DELIVERIES)
    selected = [TABLE.id.in_(ids), *_receivable(webhook), *_unsent_since(rendered)]
    under_way, later = DELIVERIES.alias(), DELIVERIES.alias()
    unfinished = under_way.c.status.in_((DeliveryState.PENDING, DeliveryState.RETRYING))
    finished = (
        TABLE.status.in_((DeliveryState.DELIVERED, DeliveryState.FAILED)),
        ~sa.exists().where(*_is_same(under_way), unfinished),
        ~sa.exists().where(*_is_same(later), later.c.id > TABLE.id, later.c.id.in_(ids)),
    )
    with db.transaction():
        _lock(webhook)
        retried = _retry_now(webhook, _batch_ids(*_waiting(webhook), *selected), by.user_id)
        number = retried
        while copies := _copies(webhook, by.user_id, *selected, *finished):
            outbox.write(copies)
            number += len(copies)
    return number


def resend_undelivered(webhook: Webhook, selection: Selection) -> int:
    """Have a job send the selected undelivered deliveries again; returns how many.

    `progress` reports on the same selection. Raises Conflict.
    """
    _check_enabled(webhook)
    with db.transaction():
        (undelivered,) = count_undelivered([webhook], selection)
        count = undelivered.total
        if count:
            pending = (
                jobs.Job.account_id == webhook.account_id,
                jobs.Job.kind == JOB,
                jobs.Job.status == jobs.JobState.PENDING,
            )
            if counts.count_up_to(jobs.Job, pending, MAX_JOBS) >= MAX_JOBS:
                raise Conflict(
                    "Deliveries are already being sent again. Try again when that is over."
                )
            job_payload = {"webhook_id": webhook.id, **selection.payload}
            jobs.enqueue(JOB, job_payload, account_id=webhook.account_id)
    return count


def count_undelivered(
    webhooks: Sequence[Webhook], selection: Selection, limit: int | None = None
) -> Sequence[Undelivered]:
    """The selected deliveries of each webhook that failed or wait for a retry.

    Each number stops at `limit` + 1.
    """
    conditions = [
        [*state, *selection.conditions()]
        for webhook in webhooks
        for state in (_failed(webhook), [*_waiting(webhook), *_receivable(webhook)])
    ]
    numbers = iter(counts.count_each_up_to(DELIVERIES, conditions, limit))
    return [
        Undelivered(failed, retrying) for failed, retrying in zip(numbers, numbers, strict=True)
    ]


def undelivered_webhooks(account_id: str) -> set[str]:
    """The webhooks of an account that have failed or retrying deliveries."""
    query = sa.select(TABLE.webhook_id).where(TABLE.account_id == account_id, IS_UNDELIVERED)
    return set(db.connection().scalars(query.distinct()))


def progress(webhook: Webhook, selection: Selection) -> dict[str, int]:
    """The number of deliveries sent again by status; those not yet queued count as pending."""
    period = TABLE.id.between(*_keys(selection)[::2])
    by_status = dict.fromkeys(STATES, 0)
    for conditions in _sent_again(webhook, selection):
        query = sa.select(TABLE.status, sa.func.count()).where(*conditions)
        for status, number in db.connection().execute(query.group_by(TABLE.status)):
            by_status[status] += number
    not_queued = (*_failed(webhook), period, *selection.conditions())
    by_status[DeliveryState.PENDING] += counts.count_up_to(DELIVERIES, not_queued, None)
    return by_status


def newest_sent_again(webhooks: Sequence[Webhook], selection: Selection, limit: int) -> list[str]:
    """The ids of the newest deliveries that `progress` counts as queued."""
    queries = [
        sa.select(TABLE.id).where(*conditions).order_by(TABLE.id.desc()).limit(limit)
        for webhook in webhooks
        for conditions in _sent_again(webhook, selection)
    ]
    if not queries:
        return []
    ids = sa.union(*(sa.select(query.subquery().c.id) for query in queries)).subquery()
    newest = sa.select(ids.c.id).order_by(ids.c.id.desc()).limit(limit)
    return list(db.connection().scalars(newest))


def _keys(selection: Selection) -> tuple[str, str, str]:
    """The first id of the selected deliveries, of those sent again, and of the future."""
    # Ids begin with their time, so the primary key finds them, with a tolerance for clocks.
    start = max(selection.since, EARLIEST) - CLOCK_TOLERANCE
    moments = (start, selection.until, clock.now() + CLOCK_TOLERANCE)
    first_key, until_key, last_key = map(first_id, moments)
    return first_key, until_key, last_key


def _sent_again(webhook: Webhook, selection: Selection) -> list[list[Any]]:
    """The conditions of replays, of those retried, and of those that wait for the job."""
    first_key, until_key, last_key = _keys(selection)
    since_then, of_webhook = (until_key, last_key), _of_webhook(webhook)
    period, selected = TABLE.id.between(first_key, last_key), selection.conditions()
    of_any_state = replace(selection, status=None).conditions()
    replays = [*of_webhook, TABLE.replay_of.is_not(None), TABLE.id.between(*since_then)]
    replays += [TABLE.event == selection.event] if selection.event else []
    replays += [TABLE.id.in_(selection.ids)] if selection.ids is not None else []
    if selection.status == DeliveryState.FAILED:
        return [replays]
    retried = ATTEMPTS.join(DELIVERIES, sa.and_(_is_attempt(), *of_webhook, period, *of_any_state))
    was_retried = (ATTEMPTS.c.id.between(*since_then), ATTEMPTS.c.attempt_number > 1)
    of_account = ATTEMPTS.c.account_id == webhook.account_id
    tried = sa.select(TABLE.id).select_from(retried).where(of_account, *was_retried)
    waiting = (IS_UNDELIVERED, TABLE.status == DeliveryState.RETRYING, period, *selected)
    return [
        replays,
        [*of_webhook, TABLE.id.in_(tried)],
        [*of_webhook, *waiting, TABLE.id.not_in(tried)],
    ]


@jobs.job(JOB)
def _resend_batches(payload: JSONMapping) -> None:
    key, selection = (payload["account_id"], payload["webhook_id"]), Selection.from_payload(payload)
    # Failed ones first: what fails at a retry that this brings forward is not sent again.
    for resend_batch in (_copy_failed, _retry_waiting):
        last: str | None = ""
        while last is not None:
            with db.transaction() as session:
                webhook = session.get(Webhook, key, with_for_update=True)
                if webhook is None or not webhook.is_sending:
                    return
                last = resend_batch(webhook, selection, last)


def _copy_failed(webhook: Webhook, selection: Selection, after: str) -> str | None:
    failed = (*_failed(webhook), *selection.conditions(), TABLE.id > after)
    copies = _copies(webhook, selection.by, *failed)
    if not copies:
        return None
    outbox.write(copies)
    return after


def _retry_waiting(webhook: Webhook, selection: Selection, after: str) -> str | None:
    # By id: what fails again meanwhile is not retried twice.
    waiting = [*_waiting(webhook), *_receivable(webhook), *selection.conditions()]
    ids = _batch_ids(*waiting, TABLE.id > after)
    _retry_now(webhook, ids, selection.by)
    return ids[-1] if ids else None


def _retry_now(webhook: Webhook, ids: Sequence[str], by: str | None) -> int:
    if not ids:
        return 0
    # Repeats the conditions: a worker may have claimed one.
    statement = sa.update(DELIVERIES).where(*_waiting(webhook), TABLE.id.in_(ids))
    now = database_now()
    values = {"due_at": now, "next_retry_at": now, "requested_by": by}
    result = db.connection().execute(statement.values(values))
    jobs.announce_on_commit(WEBHOOKS, webhook.account_id)
    return int(result.rowcount)


def _copies(webhook: Webhook, by: str | None, *conditions: object) -> list[JSONObject]:
    same_webhook, is_cut = _of_webhook(webhook), outbox.payloads_cut(webhook.account_id)
    query = sa.select(DELIVERIES).where(
        *same_webhook, TABLE.id.in_(_batch_ids(*same_webhook, *conditions))
    )
    return [
        outbox.row(
            row.account_id,
            row.webhook_id,
            row.event,
            payload.cut_text(row.payload) if is_cut else row.payload,
            record_id=row.record_id,
            holds_pii=row.holds_pii,
            superadmin_id=row.superadmin_id,
            viewed_by=row.viewed_by and webhook.created_by,  # who may view it, as checked
            replay_of=row.replay_of or row.id,
            requested_by=by,
            depth=row.depth,
        )
        for row in db.connection().execute(query.order_by(TABLE.id))
    ]


def _batch_ids(*conditions: Any) -> list[str]:
    # Limited by size, but at least one.
    ids, remaining = list[str](), MAX_BATCH_BYTES
    query = sa.select(TABLE.id, TABLE.size).where(*conditions).order_by(TABLE.id).limit(BATCH_SIZE)
    for row in db.connection().execute(query):
        remaining -= row.size
        if ids and remaining < 0:
            break
        ids.append(row.id)
    return ids


def _failed(webhook: Webhook) -> list[Any]:
    later, original = DELIVERIES.alias(), DELIVERIES.alias()
    # Only the last of a delivery and its replays, and only if all of them failed.
    repeated = sa.exists().where(
        later.c.account_id == webhook.account_id,
        later.c.replay_of == ROOT_ID,
        sa.or_(later.c.status != DeliveryState.FAILED, later.c.id > TABLE.id),
    )
    original_succeeded = sa.exists().where(
        original.c.account_id == webhook.account_id,
        original.c.id == TABLE.replay_of,
        original.c.status != DeliveryState.FAILED,
    )
    return [
        *_of_webhook(webhook),
        IS_UNDELIVERED,
        TABLE.status == DeliveryState.FAILED,
        *_receivable(webhook),
        ~repeated,
        ~original_succeeded,
    ]


def _waiting(webhook: Webhook) -> list[Any]:
    """Retries that no worker has claimed, and that are not due yet."""
    idle = TABLE.claim <= sa.func.coalesce(TABLE.last_claim, 0)
    retrying = (IS_UNDELIVERED, TABLE.status == DeliveryState.RETRYING)
    return [*_of_webhook(webhook), *retrying, TABLE.due_at > database_now(), idle]


def _receivable(webhook: Webhook) -> list[Any]:
    conditions = [] if visibility.is_sent_pii(webhook) else [~TABLE.holds_pii]
    return [*conditions, redaction.may_be_received(webhook)]


def _unsent_since(rendered: str | None) -> list[Any]:
    if rendered is None:
        return []
    replay = DELIVERIES.alias()
    replayed = sa.exists().where(
        replay.c.account_id == TABLE.account_id,
        replay.c.replay_of == ROOT_ID,
        replay.c.id > rendered,
    )
    return [~replayed, ~sa.exists().where(_is_attempt(), ATTEMPTS.c.id > rendered)]


def _sent_since(delivery: log.DeliveryWithAttempts, rendered: str) -> str | None:
    """The id under which a delivery was sent since a form was rendered."""
    root_id = delivery.replay_of or delivery.id
    of_account, replay = TABLE.account_id == delivery.account_id, TABLE.replay_of == root_id
    query = sa.select(sa.func.max(TABLE.id)).where(of_account, replay, TABLE.id > rendered)
    is_retried = any(attempt.id > rendered for attempt in delivery.attempts)
    return db.connection().scalar(query) or (delivery.id if is_retried else None)


def _is_same(other: Any) -> tuple[Any, ...]:
    """Whether another delivery is the original or a replay of the same one."""
    return other.c.account_id == TABLE.account_id, sa.or_(
        other.c.id == ROOT_ID, other.c.replay_of == ROOT_ID
    )


def _is_attempt() -> Any:
    return sa.and_(ATTEMPTS.c.account_id == TABLE.account_id, ATTEMPTS.c.delivery_id == TABLE.id)


def _lock(webhook: Webhook) -> None:
    query = sa.select(Webhook.id).where(
        Webhook.account_id == webhook.account_id, Webhook.id == webhook.id
    )
    db.db.session.execute(query.with_for_update())


def _check_enabled(webhook: Webhook) -> None:
    if not webhook.enabled:
        raise Conflict("This webhook is disabled. Enable it first.")
    if webhook.paused_at:
        raise Conflict("This webhook is paused. Take it over first.")


def _of_webhook(webhook: Webhook) -> list[Any]:
    return [TABLE.account_id == webhook.account_id, TABLE.webhook_id == webhook.id]
