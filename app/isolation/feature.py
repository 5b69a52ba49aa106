"""The check that accounts see nothing of each other."""

from __future__ import annotations

from app.isolation import commands
from app.web.feature import Feature

FEATURE = Feature(
    commands=(commands.isolation_check,),
)
