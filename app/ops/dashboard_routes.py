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


def number(description: str = "") -> ma.fields.Integer:
    """Return a required count."""
    return ma.fields.Integer(
        required=True, metadata={"description": description} if description else {}
    )


def counts(schema_name: str, names: tuple[str, ...], **more: Any) -> type[ma.Schema]:
    return Schema.from_dict({**more, **{one: number() for one in names}}, name=schema_name)


def nested(
    schema: type[ma.Schema], *, many: bool = False, description: str = ""
) -> ma.fields.Nested:
    """Return a required object, or array of objects."""
    metadata = {"description": description} if description else {}
    return ma.fields.Nested(schema, many=many, required=True, metadata=metadata)


DATE: Any = {"date": ma.fields.String(required=True, metadata={"format": "date"})}
DayCount = counts("DayCount", ("count",), **DATE)
DayOperations = counts("DayOperations", OPERATIONS, **DATE)
PreviousPeriod = counts("PreviousPeriod", ("new_accounts", "new_users"))
FeatureCounts = counts("FeatureCounts", FEATURES)
JobsByStatus = counts("JobsByStatus", JOB_STATES)
HookOutcomes = counts("HookOutcomes", OUTCOMES)
DeliveryStates = counts("DeliveryStates", STATES)
CollectionCount = counts("CollectionCount", ("count",), name=ma.fields.String(required=True))


class TimeSeries(Schema):
    """Counts of each day of the range, in UTC."""

    accounts_created = nested(DayCount, many=True)
    users_created = nested(DayCount, many=True)
    audit_by_operation = nested(DayOperations, many=True)


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
    storage_usage_mb = ma.fields.Float(
        metadata={"description": "Of uploaded files; up to 10,000 files count."}
    )


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
    total_accounts = number("Without the system account.")
    total_users = number()
    total_collections = number()
    total_records = number("Of the collections of which the caller may list all records.")
    new_accounts_7d = number()
    new_users_7d = number()
    active_sessions = number()
    public_collections_count = number('Collections with a rule that is `""`.')
    previous_period = nested(PreviousPeriod, description="As many days before the range.")
    time_series = nested(TimeSeries)
    recent_registrations = nested(RecentRegistration, many=True)
    system_health = nested(SystemHealth)
    records_by_collection = nested(
        CollectionCount, many=True, description="The ten largest that `total_records` counts."
    )
    feature_counts = nested(
        FeatureCounts, description="There are no endpoints and macros: their counts are 0."
    )
    jobs_by_status = nested(
        JobsByStatus, description="`failed` jobs have no attempts left; `dead` is always 0."
    )
    hook_executions_summary = nested(
        HookOutcomes, description="Of the range; `partial` is always 0."
    )
    webhook_deliveries_summary = nested(DeliveryStates, description="Of the range.")
    recent_audit_logs = nested(audit.AuditEntry, many=True)


class StatsArgs(Schema):
    """The range of the figures."""

    range = fields.Choice(
        RANGES, load_default="7d", metadata={"description": "The days of the series."}
    )


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
