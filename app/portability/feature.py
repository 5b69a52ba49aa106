"""An account's data as a file, by age, and after its end."""

from __future__ import annotations

from app.portability import certificates
from app.portability.bundle import exports
from app.portability.retention import service
from app.web.feature import Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.portability import certificate_routes, person_routes
    from app.portability.bundle import routes as bundle
    from app.portability.retention import routes as retention

    return Routes(modules=(retention, bundle, certificate_routes, person_routes))


FEATURE = Feature(
    routes=routes,
    jobs=(certificates, exports, service),
    subscribers=(certificates,),
)
