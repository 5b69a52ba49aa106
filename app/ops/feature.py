"""Commands, health, metrics, backups."""

from __future__ import annotations

from app.ops import backup_runs, cli, dashboard_routes, health, metrics
from app.web.feature import Feature

FEATURE = Feature(
    api=(dashboard_routes.blueprint, health.blueprint, metrics.blueprint),
    jobs=(backup_runs,),
    init=(cli.init_app,),
)
