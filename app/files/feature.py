"""Uploads and downloads."""

from __future__ import annotations

from app.files import purge
from app.files.routes import files
from app.web.feature import Feature

FEATURE = Feature(
    api=(files.blueprint,),
    jobs=(purge,),
    subscribers=(purge,),
)
