"""Figures of deliveries for `/metrics`."""

from __future__ import annotations

from prometheus_client import Histogram

SECONDS = Histogram(
    "atrium_delivery_seconds",
    "Duration of delivery attempts, by what became of the delivery.",
    ("outcome",),
    registry=None,
)
METRICS = (SECONDS,)
