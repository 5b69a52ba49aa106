"""Figures of an account, or for superadmins of all, in a fixed number of bounded statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import sqlalchemy as sa

from app import clock, db
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, User, UserKind
from app.audit import append, recent
from app.audit import service as audit
from app.auth.models import ApiKey, Invitation, SignInSession
from app.auth.principal import Principal
from app.collections import access, definitions, totals
from app.context import shown_accounts
from app.db import Base, counts
from app.db.counts import Where, count_all_up_to
from app.files.models import StoredFile
from app.jobs.queue import Job, JobState
from app.types import JSONObject
from app.webhooks.models import DELIVERIES, STATES, Webhook
from app.workflows.models import HOOK, WORKFLOW, InstanceState, Workflow, WorkflowInstance

MAX_COUNTED, MAX_LISTED, MAX_ACCOUNTS = 10_000, 10, 100
WEEK = 7
INSTANCES: Any = WorkflowInstance.__table__
USERS: Any = User.__table__
Source = tuple[type[Base], Where]
Days = Counter[tuple[str, str]]  # by day and kind


def stats(days: int, *, by: Principal) -> JSONObject:
    """Return the figures, with series of so many days. Superadmins get those of all accounts.

    In an account other than the system's, they get those of the account.
    """
    spans_all = by.is_superadmin and by.account_id in (None, SYSTEM_ACCOUNT_ID)
    account_id = None if spans_all else by.account_id
    accounts, users = _accounts_by_day(account_id, 2 * days), _users_by_day(account_id, 2 * days)
    this, previous = _days(days), _days(2 * days)[:days]
    return {
        **_totals(account_id),
        **_collections(account_id, by),
        "new_accounts_7d": _sum(accounts, _days(WEEK)),
        "new_users_7d": _sum(users, _days(WEEK)),
        "previous_period": {
            "new_accounts": _sum(accounts, previous),
            "new_users": _sum(users, previous),
        },
        "time_series": {
            "accounts_created": _series(accounts, this),
            "users_created": _series(users, this),
            "audit_by_operation": _operations(account_id, this),
        },
        "recent_registrations": _newest_users(account_id),
        "recent_audit_logs": _newest_entries(account_id, by),
        **_outcomes(account_id, this[0]),
    }


def _totals(account_id: str | None) -> JSONObject:
    sources = {
        name: (model, [*_within(model, account_id), *where])
        for name, (model, where) in _counted().items()
    }
    numbers = count_all_up_to(list(sources.values()), MAX_COUNTED - 1)
    counts: dict[str, Any] = dict(zip(sources, numbers, strict=True))
    grouped: JSONObject = {"feature_counts": {"endpoints": 0, "macros": 0}, "jobs_by_status": {}}
    for name in [name for name in counts if "." in name]:
        group, _, key = name.partition(".")
        grouped[group][key] = counts.pop(name)
    grouped["jobs_by_status"]["dead"] = 0
    where = (*_within(StoredFile, account_id), StoredFile.removed_at.is_(None))
    sizes = sa.select(StoredFile.size).where(*where).limit(MAX_COUNTED).subquery()
    octets = db.connection().scalar(sa.select(sa.func.coalesce(sa.func.sum(sizes.c.size), 0)))
    stored_megabytes = round(float(octets or 0) / 2**20, 2)
    health = {"database_status": "ok", "storage_usage_mb": stored_megabytes}
    return {**counts, **grouped, "system_health": health}


def _counted() -> Mapping[str, Source]:
    now = clock.now()
    is_key_active = sa.or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now)
    is_new, has_failed = Job.attempts == 0, Job.last_error.is_not(None)
    is_pending, is_hook = Job.status == JobState.PENDING, Workflow.kind == HOOK
    open_sessions = (SignInSession.revoked_at.is_(None), SignInSession.expires_at > now)
    open_invitations = (Invitation.state == "pending", Invitation.expires_at > now)
    return {
        "total_accounts": (Account, [Account.closed_at.is_(None), Account.id != SYSTEM_ACCOUNT_ID]),
        "total_users": (User, []),
        "active_sessions": (SignInSession, open_sessions),
        "feature_counts.hooks": (Workflow, [is_hook]),
        "feature_counts.hooks_enabled": (Workflow, [is_hook, Workflow.enabled.is_(True)]),
        "feature_counts.webhooks": (Webhook, []),
        "feature_counts.webhooks_enabled": (Webhook, [Webhook.enabled.is_(True)]),
        "feature_counts.workflows": (Workflow, [Workflow.kind == WORKFLOW]),
        "feature_counts.api_keys_active": (ApiKey, [~ApiKey.is_revoked, is_key_active]),
        "feature_counts.invitations_pending": (Invitation, open_invitations),
        "jobs_by_status.pending": (Job, [is_pending, is_new]),
        "jobs_by_status.running": (Job, [is_pending, ~is_new, ~has_failed]),
        "jobs_by_status.retrying": (Job, [is_pending, ~is_new, has_failed]),
        "jobs_by_status.completed": (Job, [Job.status == JobState.DONE]),
        "jobs_by_status.failed": (Job, [Job.status == JobState.FAILED]),
    }


def _within(model: Any, account_id: str | None) -> Where:
    if account_id is None:
        return ()
    return ((Account.id if model is Account else model.account_id) == account_id,)


def _collections(account_id: str | None, by: Principal) -> JSONObject:
    every = definitions.get_all()
    known = totals.by_collection([one.id for one in every])
    counts = known if account_id is None else totals.of_account(account_id)
    numbers = {}  # of collections of which the caller may list all records
    for one in every:
        found = access.if_open(by, one, "list")
        if found is not None and found.condition is None:
            numbers[one.name] = counts.get(one.id, 0)
    largest = sorted(numbers.items(), key=lambda pair: -pair[1])[:MAX_LISTED]
    return {
        "total_collections": len(every),
        "public_collections_count": sum(one.is_public for one in every),
        "total_records": sum(numbers.values()),
        "records_by_collection": [{"name": name, "count": count} for name, count in largest],
    }


def _days(count: int) -> Sequence[date]:
    today = clock.now().date()
    return [today - timedelta(days=offset) for offset in reversed(range(count))]


def _start(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _by_day(queries: Sequence[Any]) -> Days:
    found = Days()
    for day, kind, _, number in counts.count_by_day(queries):
        found[day, kind] += number
    return found


def _accounts_by_day(account_id: str | None, days: int) -> Days:
    nothing = (sa.literal("").label("kind"), sa.literal("").label("source"))
    query = sa.select(counts.day(Account.created_at), *nothing)
    where = (*_within(Account, account_id), Account.created_at >= _start(_days(days)[0]))
    order = Account.created_at.desc()
    return _by_day([query.where(*where).order_by(order).limit(MAX_COUNTED)])


def _users_by_day(account_id: str | None, days: int) -> Days:
    since = _start(_days(days)[0])
    newest = counts.select_newest_by_day(USERS.c, sa.literal(""), since, MAX_COUNTED, account_id)
    return _by_day([newest])


def _sum(counts: Days, days: Sequence[date]) -> int:
    return sum(counts[day.isoformat(), ""] for day in days)


def _series(counts: Days, days: Sequence[date]) -> list[JSONObject]:
    return [{"date": day.isoformat(), "count": counts[day.isoformat(), ""]} for day in days]


def _operations(account_id: str | None, days: Sequence[date]) -> list[JSONObject]:
    counts = _by_day([recent.select_days(account_id, _start(days[0]), MAX_COUNTED)])
    return [
        {
            "date": day.isoformat(),
            **{name.lower(): counts[day.isoformat(), name] for name in append.OPERATIONS},
        }
        for day in days
    ]


def _newest_users(account_id: str | None) -> list[JSONObject]:
    columns = (User.id, User.email, User.account_id, Account.account_code)
    query = sa.select(*columns, Account.name.label("account_name"), User.created_at)
    query = query.join(Account, Account.id == User.account_id).where(*_within(User, account_id))
    query = query.where(User.kind == UserKind.PERSON)
    rows = db.connection().execute(query.order_by(User.id.desc()).limit(MAX_LISTED)).all()
    for row in rows:
        shown_accounts.note(row.account_id)
    return [row._asdict() for row in rows]


def _newest_entries(account_id: str | None, by: Principal) -> list[JSONObject]:
    of_account = {} if account_id is None else {"account_id": account_id}
    query = {"skip": 0, "limit": MAX_LISTED, **of_account}
    changes, _ = audit.list_changes(query, by=by, max_total=0)
    found = [entry for change in changes for entry in reversed(change.entries)]
    return found[:MAX_LISTED]


def _outcomes(account_id: str | None, since: date) -> JSONObject:
    accounts: Sequence[str] = [account_id or ""]
    if account_id is None:
        query = sa.select(Account.id).where(Account.closed_at.is_(None))
        newest = query.order_by(Account.id.desc()).limit(MAX_ACCOUNTS)
        accounts = db.db.session.scalars(newest).all()
    kind = INSTANCES.c.kind.concat(":").concat(INSTANCES.c.status)
    hooks = _by_kind(INSTANCES.c, kind, since, accounts)
    deliveries = _by_kind(DELIVERIES.c, DELIVERIES.c.status, since, accounts)
    return {
        "hook_executions_summary": {
            "success": hooks[f"{HOOK}:{InstanceState.COMPLETED}"],
            "failed": hooks[f"{HOOK}:{InstanceState.FAILED}"],
            "partial": 0,
        },
        "webhook_deliveries_summary": {state: deliveries[state] for state in STATES},
    }


def _by_kind(table: Any, kind: Any, since: date, accounts: Sequence[str]) -> Counter[str]:
    limit, found = MAX_COUNTED // len(accounts), Counter[str]()
    queries = [
        counts.select_newest_by_day(table, kind, _start(since), limit, one) for one in accounts
    ]
    for _, name, _, number in counts.count_by_day(queries):
        found[name] += number
    return found
