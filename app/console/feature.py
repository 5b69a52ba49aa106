"""The pages of admins. Each declares its place in the menu."""

from __future__ import annotations

from importlib import import_module

from app.console.records import saved_views
from app.web.feature import Feature, Routes

PAGES = {
    "people": "api_keys groups operator_keys users person_export profile roles second_factors team",
    "records": "bulk file_previews files listing pages row_pages trash",
    "automation": "deliveries webhooks workflow_instances workflow_steps workflows",
    "collections": "api_examples listing explain manifest rules schemas views",
    "admin": (
        "account_settings attributes audit instance domains exports jobs"
        " mail_templates operation operator_events portals product retention scim security_log"
        " settings_home setup_links sso usage"
    ),
}
"""The modules with pages in each area."""


def routes() -> Routes:
    """Import the routes."""
    from app.console import dashboard, home, search
    from app.console import routes as sign_in
    from app.console.shell import checks
    from app.console.shell.blueprint import blueprint

    areas = [
        import_module(f"app.console.{area}.{name}")
        for area, names in PAGES.items()
        for name in names.split()
    ]
    return Routes(
        pages=(blueprint,),
        modules=(sign_in, checks, dashboard, home, search, *areas),
    )


FEATURE = Feature(routes=routes, subscribers=(saved_views,))
