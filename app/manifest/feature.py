"""Definitions as a file."""

from __future__ import annotations

from app.feature import Feature
from app.manifest import routes

FEATURE = Feature(
    api=(routes.blueprint,),
)
