"""`/dashboard/stats`: figures in the shape of `@snackbase/sdk`."""

from __future__ import annotations

from typing import Any

import marshmallow as ma
from flask import Response

from app import web
from app.audit import routes as audit
from app.auth.guard import principal
from app.ops import dashboard
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.schemas import Schema, View, example
from app.web.serialization import json_response
from app.webhooks.models import STATES

RANGES = {"7d": 7, "30d": 30, "90d": 90}
OPERATIONS = ("create", "update", "delete")
FEATURES = (
    *("hooks", "hooks_enabled", "webhooks", "webhooks_enabled", "workflows"),
    *("endpoints", "macros", "api_keys_active", "invitations_pending"),
)
JOB_STATES = ("pending", "running", "completed", "failed", "retrying", "dead")
OUTCOMES = ("success", "failed", "partial")
POINT = {"date": "2026-11-20", "count": 1}

blueprint = Blueprint(
    "Dashboard",
    __name__,
    url_prefix=f"{web.PREFIX}/dashboard",
    description="Figures of an account, or for superadmins of all.",
)


def counts(schema_name: str, names: tuple[str, ...], **more: Any) -> type[ma.Schema]:
    return View.from_dict({**more, **{one: ma.fields.Integer() for one in names}}, name=schema_name)


DATE: Any = {"date": ma.fields.String(metadata={"format": "date"})}
DayCount = counts("DayCount", ("count",), **DATE)
DayOperations = counts("DayOperations", OPERATIONS, **DATE)
PreviousPeriod = counts("PreviousPeriod", ("new_accounts", "new_users"))
FeatureCounts = counts("FeatureCounts", FEATURES)
JobsByStatus = counts("JobsByStatus", JOB_STATES)
HookOutcomes = counts("HookOutcomes", OUTCOMES)
DeliveryStates = counts("DeliveryStates", STATES)
CollectionCount = counts("CollectionCount", ("count",), name=ma.fields.String())


class TimeSeries(View):
    """Counts of each day of the range, in UTC."""

    accounts_created = ma.fields.Nested(DayCount, many=True)
    users_created = ma.fields.Nested(DayCount, many=True)
    audit_by_operation = ma.fields.Nested(DayOperations, many=True)


class RecentRegistration(View):
    """A new user."""

    id = fields.Id()
    email = ma.fields.String(metadata=fields.EMAIL)
    account_id = fields.Id()
    account_code = ma.fields.String()
    account_name = ma.fields.String()
    created_at = fields.Timestamp()


class SystemHealth(View):
    """Database and storage."""

    database_status = fields.Choice(("ok",))
    storage_usage_mb = ma.fields.Float(**doc("Of uploaded files; up to 10,000 files count."))


@example(
    time_series={
        "accounts_created": [POINT],
        "users_created": [POINT],
        "audit_by_operation": [{"date": "2026-11-20", "create": 12, "update": 3, "delete": 0}],
    },
    system_health={"database_status": "ok", "storage_usage_mb": 1.5},
    records_by_collection=[{"name": "posts", "count": 12}],
    feature_counts=dict.fromkeys(FEATURES, 0),
    jobs_by_status=dict.fromkeys(JOB_STATES, 0),
    hook_executions_summary=dict.fromkeys(OUTCOMES, 0),
    webhook_deliveries_summary=dict.fromkeys(STATES, 0),
)
class DashboardStats(View):
    """Figures of an account, or of all."""

    range = fields.Choice(RANGES)
    total_accounts = ma.fields.Integer(**doc("Without the system account."))
    total_users = ma.fields.Integer()
    total_collections = ma.fields.Integer()
    total_records = ma.fields.Integer(
        **doc("Of the collections of which the caller may list all records.")
    )
    new_accounts_7d = ma.fields.Integer()
    new_users_7d = ma.fields.Integer()
    active_sessions = ma.fields.Integer()
    public_collections_count = ma.fields.Integer(**doc('Collections with a rule that is `""`.'))
    previous_period = ma.fields.Nested(PreviousPeriod, **doc("As many days before the range."))
    time_series = ma.fields.Nested(TimeSeries)
    recent_registrations = ma.fields.Nested(RecentRegistration, many=True)
    system_health = ma.fields.Nested(SystemHealth)
    records_by_collection = ma.fields.Nested(
        CollectionCount, many=True, **doc("The ten largest that `total_records` counts.")
    )
    feature_counts = ma.fields.Nested(
        FeatureCounts, **doc("There are no endpoints and macros: their counts are 0.")
    )
    jobs_by_status = ma.fields.Nested(
        JobsByStatus, **doc("`failed` jobs have no attempts left; `dead` is always 0.")
    )
    hook_executions_summary = ma.fields.Nested(
        HookOutcomes, **doc("Of the range; `partial` is always 0.")
    )
    webhook_deliveries_summary = ma.fields.Nested(DeliveryStates, **doc("Of the range."))
    recent_audit_logs = ma.fields.Nested(audit.AuditEntry, many=True)


class StatsArgs(Schema):
    """The range of the figures."""

    range = fields.Choice(RANGES, load_default="7d", **doc("The days of the series."))


@blueprint.route("/stats", methods=["GET"])
@blueprint.arguments(StatsArgs, location="query")
@blueprint.response(200, DashboardStats)
@account_admin
def get_dashboard_stats(args: JSONObject) -> Response:
    """Get figures of your account; superadmins get those of all accounts.

    Superadmins who name an account get that account's. Numbers other than those of records stop at
    10,000. For all accounts, deliveries and executions of hooks are those of the 100 newest
    accounts. Values in audit entries are as the caller may see them.
    """
    days = RANGES[args["range"]]
    return json_response({"range": args["range"], **dashboard.stats(days, by=principal())})
