"""Liveness (`/health`, `/live`) and readiness (`/ready`)."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import web
from app.ops import readiness
from app.web import fields
from app.web.access import public
from app.web.blueprint import Blueprint
from app.web.schemas import View
from app.web.serialization import json_response

OK, UNAVAILABLE = "ok", "unavailable"
blueprint = Blueprint("Health", __name__, description="For load balancers and monitors.")


class Health(View):
    """The process is up."""

    status = fields.Choice((OK,))
    version = ma.fields.String()


class Readiness(View):
    """The readiness checks: each is `ok`, or says what is wrong."""

    status = fields.Choice((OK, UNAVAILABLE))
    checks = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.String())


@blueprint.route("/health", methods=["GET"])
@blueprint.route("/live", methods=["GET"], endpoint="live")
@blueprint.response(200, Health, example={"status": "ok", "version": web.VERSION})
@public
def health() -> dict[str, str]:
    """Check that the process is up.

    Needs no credential, and does not look at database or queue, which `/ready` does. Never
    rate-limited. `/health` and `/live` are the same.
    """
    return {"status": OK, "version": web.VERSION}


@blueprint.route("/ready", methods=["GET"])
@blueprint.response(
    200,
    Readiness,
    example={"status": "ok", "checks": {"database": "ok", "migrations": "ok", "disk": "ok"}},
)
@blueprint.alt_response(
    503,
    schema=Readiness,
    description="A dependency is unavailable.",
    example={"status": "unavailable", "checks": {"database": "unreachable"}},
)
@public
def ready() -> Response:
    """Check database, migrations, disk and queue; a 503 names what is unavailable.

    Needs no credential. Only `database` and `migrations` are always checked: `disk` with SQLite,
    `queue` with Redis. Never rate-limited.
    """
    checks = readiness.checks()
    ok = all(result == OK for result in checks.values())
    body = {"status": OK if ok else UNAVAILABLE, "checks": checks}
    return json_response(body, 200 if ok else 503)
