"""`/metrics` for Prometheus: requests by route, and what waits in the queues (contract section 11).

Nothing is counted by account or user. The processes of one server share their counts in the files
of PROMETHEUS_MULTIPROC_DIR (see `deploy/serving.py`), so each port tells its own; what waits is
asked of the database.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import prometheus_client
import sqlalchemy as sa
import structlog
from flask import Flask, Response
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.values import MutexValue, ValueClass

from app import config, db, jobs
from app.errors import NotFound, Unauthorized, Unavailable
from app.jobs import leases
from app.rest.access import across_accounts, public
from app.rest.blueprint import Blueprint
from app.rest.current_request import get_g, get_header, get_request
from app.rest.schemas import TEXT
from app.webhooks import models as webhooks
from app.workflows import models as workflows

log = structlog.get_logger()
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
MOST_KINDS = 4096
QUEUES = {"jobs": jobs.QUEUE, "deliveries": webhooks.QUEUE, "workflows": workflows.QUEUE}

blueprint = Blueprint("Metrics", __name__, description="For Prometheus.")
_own = CollectorRegistry()
_requests = prometheus_client.Counter(
    "atrium_requests_total", "Requests by route.", ("method", "route", "status"), registry=_own
)
_seconds = prometheus_client.Histogram(
    "atrium_request_seconds", "Time to the answer.", ("method", "route"), registry=_own
)


def init_app(app: Flask) -> None:
    """Count every request."""
    app.after_request(_count)


def _count(response: Response) -> Response:
    # The route's rule, not the path, which anybody can make up; a method can be made up, too.
    request = get_request()
    route = request.url_rule.rule if request.url_rule else ""
    method = request.method if request.method in METHODS else ""
    try:
        count, seconds = _of(method, route, response.status_code)
    except OSError as error:  # its folder is gone or full: the answer matters more
        _tell_uncounted(type(error).__name__)
        return response
    count.inc()
    seconds.observe(time.perf_counter() - get_g().started)
    return response


@lru_cache
def _tell_uncounted(reason: str) -> None:
    """Say it once, and not with every request."""
    log.warning("requests are not counted", reason=reason)


@lru_cache(MOST_KINDS)
def _of(method: str, route: str, status: int) -> tuple[Any, Any]:
    return _requests.labels(method, route, str(status)), _seconds.labels(method, route)


class _Waiting(Collector):
    """What waits for workers now."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """For each queue how much is due, and for how long the oldest has been."""
        due = GaugeMetricFamily("atrium_queue_due", "Due work by queue.", labels=["queue"])
        age = GaugeMetricFamily(
            "atrium_queue_oldest_seconds", "How long the oldest is due.", labels=["queue"]
        )
        for name, queue in QUEUES.items():
            number, seconds = leases.backlog(queue)
            due.add_metric([name], number)
            age.add_metric([name], seconds)
        failed = sa.select(sa.func.count()).where(jobs.TABLE.c.status == "failed")
        is_cut = webhooks.WebhookVersion.payloads_cut
        cut = sa.select(sa.func.count()).select_from(webhooks.WebhookVersion).where(is_cut)
        yield due
        yield age
        yield GaugeMetricFamily(
            "atrium_webhook_payloads_cut",
            "Accounts whose deliveries hold ids only, as they take too much.",
            db.connection().scalar(cut),
        )
        yield GaugeMetricFamily(
            "atrium_jobs_failed", "Jobs that were given up.", db.connection().scalar(failed)
        )


@blueprint.route("/metrics", methods=["GET"])
@blueprint.response(
    200,
    schema=TEXT,
    content_type="text/plain",
    example='atrium_queue_due{queue="jobs"} 0.0',
    description="The text that Prometheus reads.",
)
@blueprint.fails(401, 404)
@public
@across_accounts
def metrics() -> Response:
    """Tell counts and queue lengths to who has `SERVICE_METRICS_TOKEN`; without one set, nobody."""
    token = config.current().metrics_token
    if not token:
        raise NotFound
    if not hmac.compare_digest(token.encode(), _shown()):
        raise Unauthorized("Send the metrics' token as Bearer.")
    registry = _own
    if ValueClass is not MutexValue:
        registry = _of_all_processes()
    text = prometheus_client.generate_latest(registry) + prometheus_client.generate_latest(_waiting)
    return Response(text, content_type=prometheus_client.CONTENT_TYPE_LATEST)


def _of_all_processes() -> CollectorRegistry:
    registry = CollectorRegistry()
    try:
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    except ValueError:
        raise Unavailable("The folder of the counts is gone: start the server anew.") from None
    return registry


def _shown() -> bytes:
    scheme, _, token = (get_header("Authorization") or "").partition(" ")
    return token.strip().encode() if scheme.lower() == "bearer" else b""


_waiting = CollectorRegistry()
_waiting.register(_Waiting())
