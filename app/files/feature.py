"""Uploads and downloads."""

from __future__ import annotations

from app.feature import Feature
from app.files import upkeep
from app.files.routes import files

FEATURE = Feature(
    api=(files.blueprint,),
    jobs=(upkeep,),
    subscribers=(upkeep,),
)
