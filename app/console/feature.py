"""The pages of admins. Each declares its place in the menu."""

from __future__ import annotations

from importlib import import_module

from app.console.records import saved_views
from app.web.feature import Feature, Routes

PAGES = {
    "people": "api_keys directory groups users profile roles second_factors team",
    "records": "bulk file_previews files listing pages row_pages",
    "automation": "deliveries webhooks workflow_instances workflow_steps workflows",
    "collections": "fragments api_examples listing explain manifest rules schemas",
    "admin": (
        "account_settings account_templates attributes audit instance domains exports jobs"
        " mail_templates operation plans portals product retention scim security_log settings_home"
        " setup_links sso sso_saml usage"
    ),
}
"""The modules with pages in each area."""


def routes() -> Routes:
    """Import the routes."""
    from app.console import dashboard, sample, search, sign_in_link
    from app.console import routes as home
    from app.console.shell import checks
    from app.console.shell.blueprint import blueprint

    areas = [
        import_module(f"app.console.{area}.{name}")
        for area, names in PAGES.items()
        for name in names.split()
    ]
    return Routes(
        pages=(blueprint,),
        modules=(home, sign_in_link, checks, dashboard, sample, search, *areas),
    )


FEATURE = Feature(routes=routes, subscribers=(saved_views,))
