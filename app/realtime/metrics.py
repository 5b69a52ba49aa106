"""Counts of streams for `/metrics`."""

from __future__ import annotations

import structlog
from prometheus_client import Counter, Gauge

log = structlog.get_logger()

_LABELS = ("protocol",)
OPEN = Gauge(
    "atrium_streams_open", "Open streams.", _LABELS, registry=None, multiprocess_mode="livesum"
)
SENT = Counter("atrium_stream_messages_total", "Messages to streams.", _LABELS, registry=None)
CUT_OFF = Counter(
    "atrium_streams_cut_off_total",
    "Streams closed because their clients read too slowly.",
    _LABELS,
    registry=None,
)
METRICS = (OPEN, SENT, CUT_OFF)


def count(metric: Counter | Gauge, protocol: str, amount: int = 1) -> None:
    """Count, unless the metrics directory is missing or full: the stream matters more."""
    try:
        metric.labels(protocol).inc(amount)
    except OSError as error:
        log.warning("streams are not counted", reason=type(error).__name__)
