"""Counts of streams for `/metrics`."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

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
