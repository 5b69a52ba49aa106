"""Commands, health, metrics, backups."""

from __future__ import annotations

from app.feature import Feature
from app.ops import backup_runs, cli, dashboard_routes, health, metrics

FEATURE = Feature(
    api=(dashboard_routes.blueprint, health.blueprint, metrics.blueprint),
    jobs=(backup_runs,),
    init=(cli.init_app,),
)
