"""Definitions as a file."""

from __future__ import annotations

from app.manifest import commands, routes
from app.web.feature import Feature

FEATURE = Feature(
    api=(routes.blueprint,),
    commands=(commands.export, commands.plan, commands.apply),
)
