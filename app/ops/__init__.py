"""Operating the service: commands, health checks, metrics, backups."""
