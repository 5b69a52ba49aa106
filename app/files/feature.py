"""Uploads and downloads."""

from __future__ import annotations

from app.files import purge
from app.web.feature import Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.files.routes import files

    return Routes(api=(files.blueprint,))


FEATURE = Feature(routes=routes, jobs=(purge,), subscribers=(purge,))
