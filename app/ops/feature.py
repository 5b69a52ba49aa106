"""Commands, health, metrics, backups."""

from __future__ import annotations

from app.ops import backup_commands, backup_runs, cli, dashboard_routes, health, metrics
from app.web.feature import Check, Feature

FEATURE = Feature(
    api=(dashboard_routes.blueprint, health.blueprint, metrics.blueprint),
    jobs=(backup_runs,),
    checks=(Check("backups", backup_runs.check),),
    commands=(
        cli.setup,
        cli.release,
        cli.settings,
        cli.doctor,
        cli.work,
        cli.shard,
        cli.reencrypt,
        cli.migrations,
        backup_commands.backup,
        backup_commands.restore,
    ),
)
