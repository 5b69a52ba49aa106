"""Events of all accounts, and the operator's webhooks."""

from __future__ import annotations

from app.operator import changes, sealing, service, store, webhooks
from app.web.feature import Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.operator import routes as events
    from app.operator import webhook_routes

    return Routes(api=(events.blueprint, webhook_routes.blueprint))


FEATURE = Feature(
    routes=routes,
    jobs=(service,),
    subscribers=(changes, sealing, store, webhooks),
)
