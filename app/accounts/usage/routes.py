"""What accounts use, and their quotas."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app.accounts import own_account_routes, routes
from app.accounts.plans.stored import Limits
from app.accounts.types import Body, Query
from app.accounts.usage import service
from app.accounts.usage.models import METERS
from app.accounts.usage.schemas import ChangedQuotas
from app.accounts.usage.service import MeterState, Usage
from app.auth.guard import principal
from app.web.access import account_admin, superadmin
from app.web.fields import doc
from app.web.schemas import TEXT, Schema, View, example

FORMATS = ("json", "csv")
COLUMNS = ("day", *METERS)
LEVEL = "The level as the day ended; of today, now. Null for days without a measurement."


@example(requests=120, deliveries=120, workflow_steps=12, mails=7, records=4500)
class UsageOfDay(View):
    """What an account used on a day (UTC)."""

    day = ma.fields.Date()
    requests = ma.fields.Integer()
    deliveries = ma.fields.Integer()
    workflow_steps = ma.fields.Integer()
    mails = ma.fields.Integer()
    records = ma.fields.Integer(allow_none=True, **doc(LEVEL))
    row_bytes = ma.fields.Integer(allow_none=True, **doc(LEVEL))
    file_bytes = ma.fields.Integer(allow_none=True, **doc(LEVEL))


@example(used=1200, soft=80_000, hard=100_000)
class MeterView(View):
    """What an account uses now (of flows: today), and its limits; null for no limit."""

    used = ma.fields.Integer()
    soft = ma.fields.Integer(allow_none=True)
    hard = ma.fields.Integer(allow_none=True)


class QuotasView(View):
    """What an account uses now, with its limits, by meter."""

    requests = ma.fields.Nested(MeterView)
    deliveries = ma.fields.Nested(MeterView)
    workflow_steps = ma.fields.Nested(MeterView)
    mails = ma.fields.Nested(MeterView)
    records = ma.fields.Nested(MeterView)
    row_bytes = ma.fields.Nested(MeterView)
    file_bytes = ma.fields.Nested(MeterView)


@example(from_date="2026-11-20", to_date="2026-11-20")
class UsageView(View):
    """What an account used day by day, and uses now."""

    from_date = ma.fields.Date()
    to_date = ma.fields.Date()
    items = ma.fields.List(ma.fields.Nested(UsageOfDay))
    meters = ma.fields.Nested(QuotasView)


class UsageArgs(Schema):
    """Range of days and format of usage."""

    from_date = ma.fields.Date(**doc("The first day; by default 29 days before the last one."))
    to_date = ma.fields.Date(**doc("The last day; today by default."))
    format = ma.fields.String(
        load_default="json", validate=ma.validate.OneOf(FORMATS), **doc("json or csv.")
    )


@own_account_routes.blueprint.route("/usage", methods=["GET"])
@own_account_routes.blueprint.arguments(UsageArgs, location="query")
@own_account_routes.blueprint.response(200, UsageView)
@own_account_routes.blueprint.alt_response(
    200, schema=TEXT, content_type="text/csv", example="day,...", description="The days."
)
@account_admin(beyond_quota=True, operator="accounts")
def get_own_usage(args: Query) -> Usage | Response:
    """Get what your account used, day by day, and its quotas.

    The oldest day first; by default the last 30 days, at most 366. Works even if the account has
    used up its requests.
    """
    return _answer(principal().require_account_id(), args)


@routes.blueprint.route("/<uuid:account_id>/usage", methods=["GET"])
@routes.blueprint.arguments(UsageArgs, location="query")
@routes.blueprint.response(200, UsageView)
@routes.blueprint.alt_response(
    200, schema=TEXT, content_type="text/csv", example="day,...", description="The days."
)
@superadmin(operator="accounts")
def get_usage(args: Query, account_id: str) -> Usage | Response:
    """Get what an account used, day by day, and its quotas.

    Admins use `GET /account/usage`. The oldest day first.
    """
    return _answer(account_id, args)


def _answer(account_id: str, args: Query) -> Usage | Response:
    usage = service.usage(account_id, args.get("from_date"), args.get("to_date"))
    return csv_response(usage) if args["format"] == "csv" else usage


def csv_response(usage: Usage) -> Response:
    """Return the days as a CSV file."""
    lines = [",".join(COLUMNS)]
    for item in usage.items:
        lines.append(",".join("" if item[name] is None else str(item[name]) for name in COLUMNS))
    name = f"usage-{usage.from_date}-{usage.to_date}.csv"
    headers = {"Content-Disposition": f"attachment; filename={name}"}
    return Response("\r\n".join([*lines, ""]), headers=headers, mimetype="text/csv")


@routes.blueprint.route("/<uuid:account_id>/quotas", methods=["GET"])
@routes.blueprint.response(200, QuotasView)
@superadmin(operator="accounts")
def get_quotas(account_id: str) -> dict[str, MeterState]:
    """Get the quotas of an account, and what it uses now.

    Admins find them in `GET /account/usage`.
    """
    return service.meters(account_id)


@routes.blueprint.route("/<uuid:account_id>/quotas", methods=["PUT", "PATCH"])
@routes.blueprint.arguments(ChangedQuotas, example={"requests": {"hard": 100_000}})
@routes.blueprint.response(200, QuotasView)
@routes.blueprint.fails(409)
@superadmin(operator="accounts")
def update_quotas(body: Body, account_id: str) -> dict[str, MeterState]:
    """Set quotas of an account.

    Meters that are not sent keep theirs; null removes them. Beyond a hard limit requests are
    refused with 429 `quota_exceeded`, which names the quota; at 80 and 100 % of a soft one (else of
    the hard one) the account's admins get a mail. The system account has none (409).
    """
    quotas: dict[str, Limits | None] = dict(body)
    return service.change_quotas(account_id, quotas)
