"""Definitions as a file."""

from __future__ import annotations

from app.manifest import rule_tests, templates, upgrades
from app.web.feature import Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.manifest import routes as manifest
    from app.manifest import template_routes

    return Routes(api=(manifest.blueprint, template_routes.blueprint))


FEATURE = Feature(routes=routes, jobs=(upgrades,), subscribers=(templates, rule_tests))
