"""Definitions, their tables, and who may do what with them."""

from __future__ import annotations

from app.collections import (
    definitions,
    expression_names,
    fragments,
    index_builds,
    links,
    search_words,
    sequences,
    service,
    trash,
)
from app.web.feature import Check, Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.collections import routes as collections
    from app.collections import rule_routes, transfer_routes

    return Routes(
        api=(
            collections.blueprint,
            transfer_routes.blueprint,
            collections.open_blueprint,
            collections.revision_blueprint,
            rule_routes.blueprint,
            rule_routes.fragment_blueprint,
        ),
    )


FEATURE = Feature(
    routes=routes,
    jobs=(index_builds, search_words, service),
    subscribers=(expression_names, fragments, links, sequences, trash),
    checks=(
        Check("names", expression_names.check),
        Check("types", definitions.check_types),
        Check("search", search_words.check),
    ),
)
