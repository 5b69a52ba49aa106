"""gunicorn's settings; configured by PORT, SERVICE_ENV and WEB_CONCURRENCY."""

import os
import shutil
import signal
import socket
import ssl
import struct
import sys
import time
from contextlib import suppress
from ctypes import addressof, create_string_buffer
from pathlib import Path
from queue import SimpleQueue

from gunicorn import util
from gunicorn.glogging import Logger
from gunicorn.http import body, errors

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from deploy import intake, serving

_host = serving.host()
bind = f"{f'[{_host}]' if ':' in _host else _host}:{serving.port()}"

workers = serving.processes()
threads = serving.THREADS
preload_app = True

timeout = 60
graceful_timeout = serving.GRACEFUL_SECONDS
keepalive = 5  # longer than nginx keeps its connections

# gunicorn's highest limits; docs/rules.md says what fits.
limit_request_line = 8190
limit_request_fields = 100
limit_request_field_size = 8190

# By default gunicorn trusts SCRIPT_NAME and PATH_INFO from local callers such as a proxy, and
# refuses contradictory scheme headers. Only SERVICE_TRUSTED_PROXIES decides whom to trust.
forwarder_headers = ""
secure_scheme_headers = {}

# The workers' heartbeat files must not wait for a disk.
if serving.memory_folder():
    worker_tmp_dir = str(serving.memory_folder())

_metrics_folder = serving.share_metrics()
serving.share_freed_memory()

# The access log is off, as the application logs each request. If --access-logfile turns it on, it
# omits the URL, any part of which can carry secrets; the correlation id leads to the route.
access_log_format = "%(h)s %(t)s %(m)s %(s)s %(b)s %(D)s %({x-correlation-id}o)s"

# Nothing uses the control interface, whose socket would land in $HOME.
control_socket_disable = True


class Log(Logger):
    """gunicorn's own log in the format of the application's."""

    def setup(self, cfg):
        """Set the formatter."""
        super().setup(cfg)
        for handler in (*self.error_log.handlers, *self.access_log.handlers):
            handler.setFormatter(serving.log_formatter())


logger_class = Log

INTERNAL_ERROR = "500 Internal Server Error", "Something went wrong on our side."
# Responses to unreadable requests; gunicorn's own would quote them, in its log, too.
REFUSALS = (
    (errors.InvalidResponseHeader, *INTERNAL_ERROR),
    (errors.InvalidResponseHeaderName, *INTERNAL_ERROR),
    (errors.LimitRequestLine, "414 URI Too Long", "The URL is too long."),
    (errors.LimitRequestHeaders, "431 Headers Too Large", "The headers are too large."),
    (errors.ExpectationFailed, "417 Expectation Failed", "Only 100-continue is supported."),
    (errors.ParseException, "400 Bad Request", "This is not a valid HTTP request."),
    (ssl.SSLError, "400 Bad Request", "The TLS handshake failed."),
    (Exception, *INTERNAL_ERROR),
)


def _refusal(status, message):
    return _response(status, *serving.error_response(status, message))


def _response(status, headers, body):
    head = (f"HTTP/1.1 {status}", *map(": ".join, headers), "", "")
    return "\r\n".join(head).encode("latin1") + body


_read_chunks = body.ChunkedReader.read


def _read(reader, size):
    # The application handles NoMoreData, but not gunicorn's other errors.
    try:
        return _read_chunks(reader, size)
    except errors.ParseException:
        raise errors.NoMoreData from None


body.ChunkedReader.read = _read  # gunicorn has no setting for it
intake.install()

STOP_TAKING_SECONDS, STOP_STEP = 0.2, 0.1
END_SECONDS = 1  # of the time to stop: for a worker to exit before the master kills it
STEP_SECONDS, MAX_STEPS = 0.0001, 8
SO_ATTACH_FILTER = 26
# Classic BPF: drops SYN without ACK, which opens a connection; passes everything else.
DROP_SYN_FILTER = struct.pack(
    "=" + "HBBI" * 5,
    *(0x30, 0, 0, 13),  # load the TCP flags
    *(0x54, 0, 0, 0x12),  # mask SYN and ACK
    *(0x15, 0, 1, 0x02),  # only SYN?
    *(0x06, 0, 0, 0),  # then drop
    *(0x06, 0, 0, 0xFFFFFFFF),  # else pass
)


class Worker(intake.Intake):
    """A threaded worker that closes its listening sockets as soon as it is told to stop.

    While one is open, the kernel accepts connections that nobody would answer any more. The log
    does not quote refused requests.
    """

    earlier_signals = SimpleQueue()
    stops_until = 0.0  # when its time to stop is over

    def handle_error(self, req, client, addr, exc):
        """Send the error response for an unreadable request."""
        _, status, message = next(refusal for refusal in REFUSALS if isinstance(exc, refusal[0]))
        if (status, message) == INTERNAL_ERROR:
            self.log.error("unexpected error", exc_info=exc)
        else:
            self.log.warning("request refused: %s", type(exc).__name__)
        with suppress(OSError):
            util.write_nonblock(client, _refusal(status, message))

    def accept(self, listener):
        """Accept a connection, unless a less busy process does so first.

        Otherwise the first process to wake would accept all simultaneous connections.
        """
        if self.cfg.workers > 1:
            time.sleep(min(self.nr_conns, MAX_STEPS) * STEP_SECONDS)
        super().accept(listener)

    def init_signals(self):
        """Install the handlers; exit on signals received since the fork."""
        super().init_signals()
        while not self.earlier_signals.empty():
            if self.earlier_signals.get() in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
                sys.exit()

    def handle_quit(self, sig, frame):
        """Stop at once without the thread pool, whose lock the interrupted code may hold."""
        super(intake.ThreadWorker, self).handle_quit(sig, frame)

    def refuse_slow(self, conn):
        """Send the timeout response."""
        self.log.warning("request refused: too slow")
        with suppress(OSError):
            util.write_nonblock(conn.sock, _refusal(*serving.timeout_response()))

    def refuse_busy(self, conn):
        """Send the response to an account with too many requests waiting."""
        with suppress(OSError):
            util.write_nonblock(conn.sock, _response(*serving.busy_response()))

    def set_accept_enabled(self, enabled):
        """Start or stop accepting connections; closes the sockets when stopping."""
        super().set_accept_enabled(enabled)
        if not self.alive:
            for listener in self.sockets:
                listener.close()
            self.stops_until = time.monotonic() + self.cfg.graceful_timeout
            _close_streams()

    def wait_for_and_dispatch_events(self, timeout):
        """Wait for events; in short steps while stopping."""
        super().wait_for_and_dispatch_events(timeout if self.alive else min(timeout, STOP_STEP))

    def is_parent_alive(self):
        """Whether the master lives; stops this worker if it was killed."""
        self.alive = self.alive and super().is_parent_alive()
        return self.alive


worker_class = Worker


def when_ready(server):
    """On TERM drop new connections first, accept those that have arrived, and only then stop.

    TCP retries a dropped SYN and is then refused, so a proxy chooses another server. No connection
    is accepted and then reset, after which a proxy must not repeat a POST.
    """
    end = server.handle_term

    def handle_term():
        # Others still listen on sockets of systemd, or that a new master took over.
        if not (server.systemd or server.reexec_pid or server.master_pid):
            for listener in server.LISTENERS:
                _drop_new_connections(listener)
            time.sleep(STOP_TAKING_SECONDS)
        end()

    server.handle_term = handle_term


def _drop_new_connections(listener):
    if listener.FAMILY not in (socket.AF_INET, socket.AF_INET6):
        return
    code = create_string_buffer(DROP_SYN_FILTER, len(DROP_SYN_FILTER))
    program = struct.pack("HP", len(DROP_SYN_FILTER) // 8, addressof(code))
    with suppress(OSError):  # not Linux: a connection at the last moment may be reset
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def post_fork(server, worker):
    """Dispose of the master's database connections; leave the worker time to exit."""
    from app.accounts.usage import request_counter
    from app.db import dispose_after_fork

    worker.cfg.set("graceful_timeout", max(0, worker.cfg.graceful_timeout - END_SECONDS))
    worker.earlier_signals = server.SIG_QUEUE
    dispose_after_fork(server.app.wsgi())
    request_counter.start_flushing(server.app.wsgi())


def worker_exit(server, worker):
    """Exit even if a request still runs: Python would wait for its thread."""
    from app.context import tracing
    from app.db import engine

    stopped = os.getpid() == worker.pid and worker.booted and not worker.alive
    if stopped:
        _finish_downloads(worker.stops_until - time.monotonic())
        _close_streams(END_SECONDS / 2)
    if stopped and worker.nr_conns > 0:
        engine.close()
        tracing.close()
        os._exit(0)


def _finish_downloads(seconds):
    # gunicorn counts them as finished.
    downloads = sys.modules.get("app.files.downloads")
    if downloads:
        downloads.registry.wait_closed(seconds)


def _close_streams(seconds=0):
    # `wsgi:app` may be another application.
    connections = sys.modules.get("app.realtime.connections")
    if connections:
        connections.stop()
        connections.registry.wait_closed(seconds)


def child_exit(server, worker):
    """Count the open streams of an exited process no more."""
    from prometheus_client import multiprocess

    with suppress(OSError):
        multiprocess.mark_process_dead(worker.pid)


def on_exit(server):
    """Remove the metrics folder, also as a daemon, which is a fork of the first process."""
    shutil.rmtree(_metrics_folder, ignore_errors=True)
