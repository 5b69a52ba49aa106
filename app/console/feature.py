"""The pages of admins."""

from __future__ import annotations

from app.console import routes
from app.console.records import saved_views
from app.web.feature import Feature

FEATURE = Feature(
    pages=(routes.blueprint,),
    subscribers=(saved_views,),
)
