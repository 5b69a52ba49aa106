"""Definitions, their tables, and who may do what with them."""

from __future__ import annotations

from app.collections import expression_names, fragments, index_builds, links, service
from app.web.feature import Check, Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.collections import (
        fragment_routes,
        open_routes,
        permission_routes,
        revision_routes,
        transfer_routes,
        trial_routes,
    )
    from app.collections import routes as collections

    return Routes(
        api=(
            collections.blueprint,
            transfer_routes.blueprint,
            open_routes.blueprint,
            revision_routes.blueprint,
            trial_routes.blueprint,
            fragment_routes.blueprint,
        ),
        modules=(permission_routes,),
    )


FEATURE = Feature(
    routes=routes,
    jobs=(index_builds, service),
    subscribers=(expression_names, fragments, links),
    checks=(Check("names", expression_names.check),),
)
