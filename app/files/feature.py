"""Uploads and downloads."""

from __future__ import annotations

from app.feature import Feature
from app.files import purge
from app.files.routes import files

FEATURE = Feature(
    api=(files.blueprint,),
    jobs=(purge,),
    subscribers=(purge,),
)
