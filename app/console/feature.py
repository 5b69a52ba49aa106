"""The pages of admins: each area declares its modules, and each page its place in the menu."""

from __future__ import annotations

from app.console import dashboard, routes, sample, search
from app.console.admin import feature as admin
from app.console.automation import feature as automation
from app.console.collections import feature as collections
from app.console.people import feature as people
from app.console.records import feature as records
from app.console.records import saved_views
from app.console.shell import checks, links
from app.console.shell.blueprint import blueprint
from app.web.feature import Feature

FEATURE = Feature(
    pages=(blueprint,),
    routes=(
        *(routes, links, checks, dashboard, sample, search),
        *people.PAGES,
        *records.PAGES,
        *automation.PAGES,
        *collections.PAGES,
        *admin.PAGES,
    ),
    subscribers=(saved_views,),
)
