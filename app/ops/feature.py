"""Commands, health, metrics, backups."""

from __future__ import annotations

from app.ops import backup_runs
from app.web.feature import Check, Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.ops import dashboard_routes, health, metrics

    return Routes(api=(dashboard_routes.blueprint, health.blueprint, metrics.blueprint))


FEATURE = Feature(
    routes=routes,
    jobs=(backup_runs,),
    checks=(Check("backups", backup_runs.check),),
)
