"""Figures of the connection pool for `/metrics`, summed over the processes of a server."""

from __future__ import annotations

from functools import partial

from prometheus_client import Counter, Gauge

_gauge = partial(Gauge, registry=None, multiprocess_mode="livesum")
LIMIT = _gauge("atrium_db_pool_limit", "Connections that the pools may open.")
OPEN = _gauge("atrium_db_pool_open", "Open connections of the pools.")
WAITS = Counter("atrium_db_pool_waits_total", "Waits for a connection.", registry=None)
WAIT_SECONDS = Counter(
    "atrium_db_pool_wait_seconds_total", "Time spent waiting for a connection.", registry=None
)
REPLICA_LAG = Gauge(
    "atrium_db_replica_lag_seconds",
    "Age of what the replica has, while somebody reads there.",
    registry=None,
    multiprocess_mode="livemax",
)
METRICS = (LIMIT, OPEN, WAITS, WAIT_SECONDS, REPLICA_LAG)
