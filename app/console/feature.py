"""The pages of admins: each area declares its modules, and each page its place in the menu."""

from __future__ import annotations

from app.console.records import saved_views
from app.web.feature import Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.console import dashboard, sample, search, sign_in_link
    from app.console import routes as home
    from app.console.admin import feature as admin
    from app.console.automation import feature as automation
    from app.console.collections import feature as collections
    from app.console.people import feature as people
    from app.console.records import feature as records
    from app.console.shell import checks
    from app.console.shell.blueprint import blueprint

    return Routes(
        pages=(blueprint,),
        modules=(
            *(home, sign_in_link, checks, dashboard, sample, search),
            *people.PAGES,
            *records.PAGES,
            *automation.PAGES,
            *collections.PAGES,
            *admin.PAGES,
        ),
    )


FEATURE = Feature(routes=routes, subscribers=(saved_views,))
