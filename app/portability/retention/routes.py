"""`/account/retention`: how long the account keeps what it has."""

from __future__ import annotations

import marshmallow as ma

from app.accounts.own_account_routes import blueprint
from app.accounts.types import Body
from app.auth.guard import principal
from app.portability.retention import policy as policies
from app.portability.retention import service
from app.portability.retention.policy import CREATED, MAX_DAYS, MAX_RULES, Policy
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin
from app.web.fields import doc
from app.web.schemas import Schema, View

DELIVERIES = "Days that completed deliveries stay; null: 30."
INSTANCES = "Days that finished workflow instances stay; null: as long as the service keeps them."
AUDIT = (
    "Days that the audit log stays; null: for ever. At least SERVICE_AUDIT_RETENTION_MIN_DAYS. What"
    " is left begins with a signed start, and verifies."
)
SECURITY = (
    "Days that the security log stays; null: for ever. At least"
    " SERVICE_SECURITY_RETENTION_MIN_DAYS. Events that an enabled stream has not sent yet stay."
)
FIELD = "`created_at`, `updated_at`, or a field of the type date or datetime."
RULE = {"collection": "visits", "days": 365, "field": "created_at"}
EXAMPLE = {
    "audit_days": None,
    "security_days": None,
    "deliveries_days": 7,
    "instances_days": None,
    "records": [RULE],
}


class RecordRetention(Schema):
    """Records that are deleted so many days after a date."""

    collection = fields.Text(longest=100, required=True)
    days = fields.Integer(1, MAX_DAYS, required=True)
    field = fields.Text(longest=100, load_default=CREATED, **doc(FIELD))


class RetentionBody(Schema):
    """A retention policy; what is missing or null stays as long as the service keeps it."""

    audit_days = fields.Integer(1, MAX_DAYS, allow_none=True, **doc(AUDIT))
    security_days = fields.Integer(1, MAX_DAYS, allow_none=True, **doc(SECURITY))
    deliveries_days = fields.Integer(1, MAX_DAYS, allow_none=True, **doc(DELIVERIES))
    instances_days = fields.Integer(1, MAX_DAYS, allow_none=True, **doc(INSTANCES))
    records = ma.fields.List(
        ma.fields.Nested(RecordRetention), validate=ma.validate.Length(max=MAX_RULES)
    )


class RetentionView(RetentionBody):
    """The retention policy of an account."""

    is_paused = ma.fields.Boolean(
        required=True,
        **doc(
            "Whether records stay because the admin who saved the policy is no"
            " longer one: save it again."
        ),
    )


class PlannedRecords(View):
    """How many records of a collection would be deleted."""

    collection = ma.fields.String()
    count = ma.fields.Integer()


class RetentionPlan(View):
    """What a policy would delete now; numbers stop at 100,000."""

    records = ma.fields.List(ma.fields.Nested(PlannedRecords))
    deliveries = ma.fields.Integer()
    instances = ma.fields.Integer()
    audit_entries = ma.fields.Integer()
    security_events = ma.fields.Integer()


PLAN = {
    "records": [{"collection": "visits", "count": 1203}],
    "deliveries": 40,
    "instances": 0,
    "audit_entries": 0,
    "security_events": 0,
}


@blueprint.route("/retention", methods=["GET"])
@blueprint.response(200, RetentionView, example=EXAMPLE | {"is_paused": False})
@account_admin
def get_retention() -> JSONObject:
    """Get the retention policy of your account."""
    return _view(policies.of_account(principal().require_account_id()))


@blueprint.route("/retention", methods=["PUT"])
@blueprint.arguments(RetentionBody, example=EXAMPLE)
@blueprint.response(200, RetentionView, example=EXAMPLE | {"is_paused": False})
@account_admin(recent_sign_in=True, api_keys=False)
def replace_retention(body: Body) -> JSONObject:
    """Replace the retention policy of your account.

    Applied every hour, up to 5,000 records of a collection at once. Records are deleted with your
    rights, as you would delete them: rules, `on_delete` and webhooks apply, and the audit log names
    `retention`. Records that others refer to by `restrict` stay until these are gone. Plan it
    first.
    """
    by = principal()
    return _view(policies.save(policies.parse(body, by=by), by=by))


@blueprint.route("/retention/plan", methods=["POST"])
@blueprint.arguments(RetentionBody, example=EXAMPLE)
@blueprint.response(200, RetentionPlan, example=PLAN)
@account_admin(api_keys=False, reads=True)
def plan_retention(body: Body) -> JSONObject:
    """Count what a retention policy would delete now.

    Nothing is saved or deleted.
    """
    by = principal()
    plan = service.plan(policies.parse(body, by=by), by=by)
    records = [{"collection": name, "count": count} for name, count in plan.records]
    return {
        "records": records,
        "deliveries": plan.deliveries,
        "instances": plan.instances,
        "audit_entries": plan.audit_entries,
        "security_events": plan.security_events,
    }


def _view(policy: Policy) -> JSONObject:
    account_id = principal().require_account_id()
    rules = ((rule, rule.find_collection()) for rule in policy.records)
    records = [
        {"collection": collection.name, "days": rule.days, "field": rule.field}
        for rule, collection in rules
        if collection
    ]
    is_paused = bool(records) and service.holder(account_id, policy) is None
    return {**policy.log_days, "records": records, "is_paused": is_paused}
