"""Definitions as a file."""

from __future__ import annotations

from app.web.feature import Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.manifest import routes as manifest

    return Routes(api=(manifest.blueprint,))


FEATURE = Feature(routes=routes)
