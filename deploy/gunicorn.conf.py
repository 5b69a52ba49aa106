"""gunicorn's settings; configured by PORT, SERVICE_ENV and WEB_CONCURRENCY."""

import logging
import shutil
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

from gunicorn.glogging import Logger
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import BadRequest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from deploy import serving, worker

_host = serving.host()
bind = f"{f'[{_host}]' if ':' in _host else _host}:{serving.port()}"

workers = serving.processes()
threads = serving.THREADS
worker_class = worker.Worker
preload_app = True

timeout = 60
graceful_timeout = serving.GRACEFUL_SECONDS
keepalive = 5  # longer than nginx keeps its connections

# gunicorn's highest limits; docs/limits.md says what fits.
limit_request_line = 8190
limit_request_fields = 100
limit_request_field_size = 8190

# By default gunicorn trusts SCRIPT_NAME and PATH_INFO from local callers such as a proxy, and
# refuses contradictory scheme headers. Only SERVICE_TRUSTED_PROXIES decides whom to trust.
forwarder_headers = ""
secure_scheme_headers = {}

worker_tmp_dir = str(serving.FOLDER)
_metrics_folder = serving.share_metrics()
serving.share_freed_memory()

# The access log is off, as the application logs each request. If --access-logfile turns it on, it
# omits the URL, any part of which can carry secrets; the correlation id leads to the route.
access_log_format = "%(h)s %(t)s %(m)s %(s)s %(b)s %(D)s %({x-correlation-id}o)s"

# Nothing uses the control interface, whose socket would land in $HOME.
control_socket_disable = True


class Line(logging.Formatter):
    """A line as the application's; all but the first of a message may quote the request."""

    def format(self, record):
        """Format a record."""
        from app.errors import error_location
        from app.web.logging import line

        error = record.exc_info and record.exc_info[1]
        event = {"event": record.getMessage().partition("\n")[0], "pid": record.process}
        return line(record.levelname.lower(), event | (error_location(error) if error else {}))


class logger_class(Logger):
    """gunicorn's own log in the format of the application's."""

    def setup(self, cfg):
        """Set the formatter."""
        super().setup(cfg)
        for handler in (*self.error_log.handlers, *self.access_log.handlers):
            handler.setFormatter(Line())

    def exception(self, msg, *args, **kwargs):
        """Log an exception, unless a client was too slow for the system."""
        if not isinstance(sys.exc_info()[1], BlockingIOError):
            super().exception(msg, *args, **kwargs)


def when_ready(server):
    """Have the system end what a client neither sends nor reads: connections inherit it."""
    timeouts = (
        (socket.SO_RCVTIMEO, serving.READ_SECONDS),
        (socket.SO_SNDTIMEO, serving.WRITE_SECONDS),
    )
    for listener in server.LISTENERS:
        for option, seconds in timeouts:
            listener.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))


def post_fork(server, worker_):
    """Dispose of the master's database connections; leave the worker time to exit."""
    from app.accounts.usage import request_counter
    from app.audit import sealing
    from app.db import dispose_after_fork
    from app.web.error_handlers import http_error_response

    app = server.app.wsgi()
    worker_.cfg.set("graceful_timeout", max(0, worker_.cfg.graceful_timeout - worker.END_SECONDS))
    app.register_error_handler(ParseException, lambda _: http_error_response(BadRequest()))
    dispose_after_fork(app)
    request_counter.start_flushing(app)
    sealing.start(app)


def worker_exit(server, worker_):
    """End in order, and in time."""
    worker.exit_in_time(worker_)


def child_exit(server, worker_):
    """Count the open streams of an exited process no more."""
    from prometheus_client import multiprocess

    with suppress(OSError):
        multiprocess.mark_process_dead(worker_.pid)


def on_exit(server):
    """Remove the metrics folder, also as a daemon, which is a fork of the first process."""
    shutil.rmtree(_metrics_folder, ignore_errors=True)
