"""Webhooks, and the streams of the security log."""

from __future__ import annotations

from app.web.feature import Feature, Routes
from app.webhooks import dispatch, handover, outbox, purge, resend, security_streams, service, uses


def routes() -> Routes:
    """Import the routes."""
    from app.webhooks import delivery_routes, handover_routes, security_stream_routes
    from app.webhooks import routes as webhooks

    return Routes(
        api=(webhooks.blueprint, delivery_routes.blueprint),
        modules=(security_stream_routes, handover_routes),
    )


FEATURE = Feature(
    routes=routes,
    jobs=(dispatch, handover, resend, security_streams, purge),
    version_sources=(outbox.version_checks,),
    subscribers=(handover, outbox, security_streams, service, uses),
)
