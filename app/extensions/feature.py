"""Extensions: code of the operator's own."""

from __future__ import annotations

from app.extensions import after, before, field_types, jobs, periodic, steps, tables
from app.web.feature import Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.extensions import endpoint_routes, page_routes

    return Routes(init=(endpoint_routes.init_app, page_routes.init_app))


FEATURE = Feature(
    routes=routes,
    jobs=(jobs,),
    subscribers=(after, before, field_types, jobs, periodic, steps, tables),
)
