"""How gunicorn serves Atrium; PORT, SERVICE_ENV and WEB_CONCURRENCY adjust it."""

import json
import os
import shutil
import tempfile
import uuid
from pathlib import Path

from gunicorn import util

# Only production is reached from other machines.
_host = "0.0.0.0" if os.environ.get("SERVICE_ENV") == "production" else "127.0.0.1"  # noqa: S104
bind = f"{_host}:{os.environ.get('PORT', '8000')}"

workers = int(os.environ.get("WEB_CONCURRENCY", "2"))
worker_class = "gthread"
threads = 4
preload_app = True

timeout = 60
graceful_timeout = 25
keepalive = 5

# The most that gunicorn takes, as far as it counts: docs/rules.md tells what fits in it.
limit_request_line = 8190
limit_request_fields = 100
limit_request_field_size = 8190

# The workers' heartbeat files must not wait for a disk.
if Path("/dev/shm").is_dir():  # noqa: S108
    worker_tmp_dir = "/dev/shm"  # noqa: S108

# The web processes count what they answer together, in files that go with them.
_counts = tempfile.mkdtemp(prefix="atrium-metrics-", dir=globals().get("worker_tmp_dir"))
os.environ["PROMETHEUS_MULTIPROC_DIR"] = _counts

# The access log is off. Where --access-logfile turns it on, it names no query
# string and no referrer, as both can carry secrets.
access_log_format = '%(h)s %(t)s "%(m)s %(U)s %(H)s" %(s)s %(b)s %(D)s'

# Nothing uses the control interface, whose socket would land in $HOME.
control_socket_disable = True


def _tell_in_json(sock, status, reason, message):
    """Refuse what does not get as far as the application in the shape of its errors."""
    from app.errors import HTTP_ERRORS

    error = HTTP_ERRORS.get(status, "internal_error" if status == 500 else "http_error")
    body = json.dumps({"error": error, "message": message or reason})
    head = (
        f"HTTP/1.1 {status} {reason}",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"X-Correlation-ID: {uuid.uuid4()}",
    )
    util.write_nonblock(sock, "\r\n".join((*head, "", body)).encode("latin1"))


util.write_error = _tell_in_json  # there is no setting for it


def post_fork(server, worker):
    """Keep the worker from sharing the master's database connections."""
    from app.db import dispose_after_fork

    dispose_after_fork(server.app.wsgi())


def on_exit(server):
    """Leave no counts behind."""
    shutil.rmtree(_counts, ignore_errors=True)
