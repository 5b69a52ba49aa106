"""The check that accounts see nothing of each other."""

from __future__ import annotations

from app.feature import Feature
from app.isolation import commands

FEATURE = Feature(
    init=(commands.init_app,),
)
