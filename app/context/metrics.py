"""Counting for `/metrics` that never fails its caller."""

from __future__ import annotations

from functools import lru_cache

import structlog
from prometheus_client import Counter, Gauge, Histogram

log = structlog.get_logger()


def count(metric: Counter | Gauge, *labels: str, amount: float = 1) -> None:
    """Add to a counter or gauge, unless the metrics directory is missing or full."""
    try:
        (metric.labels(*labels) if labels else metric).inc(amount)
    except OSError as error:  # what is counted matters more
        _log_uncounted(type(error).__name__)


def observe(metric: Histogram, seconds: float, *labels: str) -> None:
    """Add to a histogram, unless the metrics directory is missing or full."""
    try:
        (metric.labels(*labels) if labels else metric).observe(seconds)
    except OSError as error:
        _log_uncounted(type(error).__name__)


def set_gauge(metric: Gauge, value: float) -> None:
    """Set a gauge, unless the metrics directory is missing or full."""
    try:
        metric.set(value)
    except OSError as error:
        _log_uncounted(type(error).__name__)


@lru_cache
def _log_uncounted(reason: str) -> None:
    # Cached, so that it logs each reason once.
    log.warning("metrics are not counted", reason=reason)
