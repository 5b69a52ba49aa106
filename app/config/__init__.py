"""Settings, read once from the environment (docs/settings.md)."""

from app.config.settings import PROJECT, Config, ConfigError, context, current, environment, running

__all__ = ["PROJECT", "Config", "ConfigError", "context", "current", "environment", "running"]
