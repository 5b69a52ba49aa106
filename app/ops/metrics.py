"""`/metrics` for Prometheus.

No metric has labels for accounts or users. The processes of one server share counts in the files of
PROMETHEUS_MULTIPROC_DIR (`deploy/serving.py`), so each port reports its own; a worker has a port of
its own. Queue lengths come from the database.
"""

from __future__ import annotations

import hmac
import os
import platform
import threading
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import prometheus_client
import sqlalchemy as sa
from flask import Flask, Response
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.values import MutexValue, ValueClass
from werkzeug import exceptions
from werkzeug.serving import WSGIRequestHandler, make_server

from app import clock, config, db, jobs, web
from app.accounts.usage import quotas
from app.audit import verifications
from app.db import engine as pool
from app.errors import NotFound, Unauthorized, Unavailable
from app.extensions import running as extensions
from app.jobs import leases
from app.ops import backup_runs
from app.realtime import limits as streams
from app.web import rate_limits
from app.web.access import public
from app.web.app import get_header
from app.web.blueprint import Blueprint
from app.web.schemas import TEXT
from app.webhooks import metrics as deliveries
from app.webhooks import models as webhooks
from app.workflows import models as workflows

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
MAX_LABELS = 4096
QUEUES = {"jobs": jobs.QUEUE, "deliveries": webhooks.QUEUE, "workflows": workflows.QUEUE}

blueprint = Blueprint("Metrics", __name__, description="For Prometheus.")
_own = CollectorRegistry()
_requests = prometheus_client.Counter(
    "atrium_requests_total", "Requests by route.", ("method", "route", "status"), registry=_own
)
_seconds = prometheus_client.Histogram(
    "atrium_request_seconds", "Time to the response.", ("method", "route"), registry=_own
)
for _metric in (
    *streams.METRICS,
    *pool.METRICS,
    *deliveries.METRICS,
    extensions.SECONDS,
    rate_limits.REFUSED,
    quotas.EXCEEDED,
):
    _own.register(_metric)


@lru_cache(MAX_LABELS)
def of_request(
    method: str, route: str | None, status: int
) -> tuple[prometheus_client.Counter, prometheus_client.Histogram]:
    """Return the counter and the histogram of seconds for requests like this.

    `route` is the URL rule: labels must not depend on what clients make up. Raises OSError if the
    metrics directory is missing or full.
    """
    labels = (method if method in METHODS else "", route or "")
    return _requests.labels(*labels, str(status)), _seconds.labels(*labels)


class _QueueCollector(Collector):
    """Queue lengths, read from the database."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        due = GaugeMetricFamily("atrium_queue_due", "Due work by queue.", labels=["queue"])
        age = GaugeMetricFamily(
            "atrium_queue_oldest_seconds", "Age of the oldest due item.", labels=["queue"]
        )
        for name, queue in QUEUES.items():
            number, seconds = leases.backlog(queue)
            due.add_metric([name], number)
            age.add_metric([name], seconds)
        failed = sa.select(sa.func.count()).where(jobs.TABLE.c.status == jobs.JobState.FAILED)
        is_cut = webhooks.WebhookVersion.payloads_cut
        cut = sa.select(sa.func.count()).select_from(webhooks.WebhookVersion).where(is_cut)
        yield due
        yield age
        yield from _chains()
        yield GaugeMetricFamily(
            "atrium_webhook_payloads_cut",
            "Accounts whose deliveries store ids only, as their log is full.",
            db.connection().scalar(cut),
        )
        yield GaugeMetricFamily(
            "atrium_jobs_failed", "Failed jobs.", db.connection().scalar(failed)
        )


class _BackupCollector(Collector):
    """Backups, read from the database; without samples as long as there are none."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        state = backup_runs.overview()
        age = GaugeMetricFamily(
            "atrium_backup_age_seconds", "Age of the data in the last proved backup."
        )
        failure = GaugeMetricFamily(
            "atrium_backup_failure_age_seconds", "Seconds since a backup failed."
        )
        for family, since in ((age, state.age), (failure, state.failure_age)):
            if since is not None:
                family.add_metric([], since.total_seconds())
            yield family
        yield GaugeMetricFamily(
            "atrium_backup_failing",
            "1 if the last backup failed, else 0.",
            int(state.has_failed_since),
        )


def _chains() -> Iterator[GaugeMetricFamily]:
    """Yield the number of broken chains, and the age of the oldest verification."""
    oldest = sa.func.min(verifications.TABLE.c.verified_at)
    is_broken = verifications.TABLE.c.is_valid.is_(False)
    query = sa.select(sa.func.count().filter(is_broken), oldest).select_from(verifications.TABLE)
    broken, verified_at = db.connection().execute(query).one()
    yield GaugeMetricFamily(
        "atrium_chains_broken", "Logs that were broken when last verified.", broken
    )
    age = GaugeMetricFamily(
        "atrium_chains_oldest_verification_seconds",
        "Time since the verification of the log that was verified least recently.",
    )
    if verified_at is not None:
        age.add_metric([], (clock.now() - verified_at).total_seconds())
    yield age


class ProcessesCollector(Collector):
    """The figures of prometheus-client's ProcessCollector, which knows one process only."""

    def collect(self) -> Iterator[Metric]:
        """Yield the sums over all processes, and their number."""
        processes = [_figures(pid) for pid in _pids()]
        found = [figures for figures in processes if figures]
        yield GaugeMetricFamily("atrium_processes", "Processes of this server.", value=len(found))
        for name, total in (found[0] if found else {}).items():
            values = [figures[name].samples[0].value for figures in found if name in figures]
            # The start of the server is that of its first process, and each has its own limit.
            is_sum = not name.startswith(("process_start_time", "process_max_fds"))
            sample = total.samples[0]
            total.samples = [sample._replace(value=sum(values) if is_sum else min(values))]
            yield total


class BuildCollector(Collector):
    """The running version."""

    def collect(self) -> Iterable[Metric]:
        """Yield a gauge that is 1, with the versions as labels."""
        labels = {"version": web.VERSION, "python": platform.python_version()}
        build = GaugeMetricFamily("atrium_build_info", "Running version.", labels=list(labels))
        build.add_metric(list(labels.values()), 1)
        return [build]


def _figures(pid: int) -> dict[str, Metric]:
    collector = ProcessCollector(pid=lambda: pid, registry=None)
    return {metric.name: metric for metric in collector.collect()}


def _pids() -> set[int]:
    """Return the processes that have counted something, and this one; some may have ended."""
    folder = config.metrics_folder()
    names = (file.stem.rpartition("_")[2] for file in Path(folder).glob("*.db")) if folder else ()
    return {os.getpid(), *(int(name) for name in names if name.isdecimal())}


@blueprint.route("/metrics", methods=["GET"])
@blueprint.response(
    200,
    schema=TEXT,
    content_type="text/plain",
    example='atrium_queue_due{queue="jobs"} 0.0',
    description="Metrics in Prometheus' text format.",
)
@blueprint.fails(401, 404)
@public(across_accounts=True)
def metrics() -> Response:
    """Return metrics; needs `SERVICE_METRICS_TOKEN` as Bearer, and is 404 if that is not set.

    In the text format of Prometheus, without labels for accounts or users. Queues are those of the
    whole instance; all else is about the processes behind this port.
    """
    token = config.current().metrics_token
    if not token:
        raise NotFound
    scheme, _, sent = (get_header("Authorization") or "").partition(" ")
    bearer = sent.strip() if scheme.lower() == "bearer" else ""
    if not hmac.compare_digest(token.encode(), bearer.encode()):
        raise Unauthorized("Send SERVICE_METRICS_TOKEN as the Bearer token.")
    text = prometheus_client.generate_latest(counted())
    text += prometheus_client.generate_latest(_shared)
    return Response(text, content_type=prometheus_client.CONTENT_TYPE_LATEST)


def counted() -> CollectorRegistry:
    """Return what the processes of this server have counted. Raises Unavailable."""
    if ValueClass is MutexValue:
        return _own
    registry = CollectorRegistry()
    try:
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    except ValueError:
        raise Unavailable("Metrics directory is missing. Restart the server.") from None
    return registry


class _Handler(WSGIRequestHandler):
    """Logs nothing, as the application logs each request."""

    def log(self, type: str, message: str, *args: object) -> None:
        """Log nothing."""


def serve(app: Flask, url: str) -> int:
    """Serve `/metrics` at an address in a thread, for a worker; returns the port."""

    def respond(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        is_metrics = environ["PATH_INFO"] == "/metrics"
        return (app if is_metrics else exceptions.NotFound())(environ, start_response)

    address = urlsplit(url)
    host, port = address.hostname or "", address.port or 0
    server = make_server(host, port, respond, request_handler=_Handler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server.port


_shared = CollectorRegistry()
for _collector in (_QueueCollector(), _BackupCollector(), ProcessesCollector(), BuildCollector()):
    _shared.register(_collector)
