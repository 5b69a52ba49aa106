"""Liveness (`/health`, `/live`) and readiness (`/ready`)."""

from __future__ import annotations

import marshmallow as ma
import sqlalchemy as sa
from flask import Response
from sqlalchemy.exc import SQLAlchemyError

from app import config, db, jobs, web
from app.collections import revisions
from app.db import disk, postgres_driver, sqlite_driver
from app.db.postgres_driver import Driver
from app.extensions import registry
from app.web import fields
from app.web.access import public
from app.web.blueprint import Blueprint
from app.web.schemas import View
from app.web.serialization import json_response

OK, UNAVAILABLE = "ok", "unavailable"
LONGEST_LOCK_SECONDS = 2
LOCKED = "locked: one writer has blocked all others for several seconds"
blueprint = Blueprint("Health", __name__, description="For load balancers and monitors.")


class Health(View):
    """The process is up."""

    status = fields.Choice((OK,))
    version = ma.fields.String()


class Readiness(View):
    """The readiness checks: each is `ok`, or says what is wrong."""

    status = fields.Choice((OK, UNAVAILABLE))
    checks = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.String())


def checks() -> dict[str, str]:
    """Check database, migrations, disk and queue: each is `ok`, or says what is wrong."""
    results = {}
    try:
        db.connection().execute(sa.select(sa.literal(1)))
        with db.driver() as driver:
            if isinstance(driver, Driver):
                postgres_driver.check_session(driver)
        results["database"] = "ok"
        results["migrations"] = (
            "missing: run bin/atrium db upgrade" if revisions.lacks_core() else "ok"
        )
    except SQLAlchemyError as error:
        missing = "missing: run bin/atrium db upgrade" if "database" in results else "unknown"
        results.setdefault("database", postgres_driver.session_refusal(error) or "unreachable")
        results.setdefault("migrations", missing)
    if results["migrations"] == "ok" and registry.EXTENSIONS:
        from app.extensions import migrations  # takes memory

        lacking = ", ".join(migrations.lacking())
        results["extensions"] = f"{lacking}: run bin/atrium release" if lacking else "ok"
    file = db.sqlite_file()
    if file and results["database"] == "ok" and sqlite_driver.is_locked(file, LONGEST_LOCK_SECONDS):
        results["database"] = LOCKED
    if file:
        free = disk.free_bytes(file)
        results["disk"] = "ok" if disk.may_write(file) else "not writable"
        if free is not None and free < disk.LOW_BYTES:
            results["disk"] = f"full: less than {disk.LOW_BYTES // disk.MIB} MiB free"
    if config.current().redis_url:
        results["queue"] = "ok" if jobs.is_redis_up() else "unreachable"
    return results


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
    `queue` with Redis, `extensions` for the tables of those that are loaded. Never rate-limited.
    """
    results = checks()
    ok = all(result == OK for result in results.values())
    body = {"status": OK if ok else UNAVAILABLE, "checks": results}
    return json_response(body, 200 if ok else 503)
