"""Settings, read once from the environment (docs/settings.md)."""

from app.config.settings import (
    PROJECT,
    Config,
    ConfigError,
    child_environment,
    context,
    current,
    is_under_process_manager,
    metrics_folder,
    names_extensions,
    running,
)

__all__ = [
    "PROJECT",
    "Config",
    "ConfigError",
    "child_environment",
    "context",
    "current",
    "is_under_process_manager",
    "metrics_folder",
    "names_extensions",
    "running",
]
