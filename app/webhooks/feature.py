"""Webhooks, and the streams of the security log."""

from __future__ import annotations

from app.web.feature import Feature
from app.webhooks import (
    delivery_routes,
    dispatch,
    handover,
    handover_routes,
    outbox,
    purge,
    routes,
    security_stream_routes,
    security_streams,
    service,
    uses,
)

FEATURE = Feature(
    api=(routes.blueprint, delivery_routes.blueprint),
    routes=(security_stream_routes, handover_routes),
    jobs=(dispatch, security_streams, purge),
    version_sources=(outbox.version_checks,),
    subscribers=(handover, outbox, security_streams, service, uses),
)
