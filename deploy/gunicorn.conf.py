"""How gunicorn serves Atrium; PORT, SERVICE_ENV and WEB_CONCURRENCY adjust it."""

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

# The most that gunicorn takes, as far as it counts: docs/rules.md tells what fits in it.
limit_request_line = 8190
limit_request_fields = 100
limit_request_field_size = 8190

# Of callers on this machine, a proxy's too, it would take SCRIPT_NAME and PATH_INFO, and refuse who
# says contradictory things of encryption: whom to believe is for SERVICE_TRUSTED_PROXIES to say.
forwarder_headers = ""
secure_scheme_headers = {}

# The workers' heartbeat files must not wait for a disk.
if serving.in_memory():
    worker_tmp_dir = str(serving.in_memory())

_counts = serving.count_together()
serving.share_freed_memory()

# The access log is off: the application tells of each request. Where --access-logfile turns it
# on, it names no address, as every part of one can carry secrets; the id leads to the route.
access_log_format = "%(h)s %(t)s %(m)s %(s)s %(b)s %(D)s %({x-correlation-id}o)s"

# Nothing uses the control interface, whose socket would land in $HOME.
control_socket_disable = True


class Log(Logger):
    """gunicorn's own log, in lines as those of the application."""

    def setup(self, cfg):
        """Begin to write."""
        super().setup(cfg)
        for handler in (*self.error_log.handlers, *self.access_log.handlers):
            handler.setFormatter(serving.Lines())


logger_class = Log

FAULT = "500 Internal Server Error", "Something went wrong on our side."
# What is told of a request that cannot be read: gunicorn would quote it, in its log, too.
REFUSALS = (
    (errors.InvalidResponseHeader, *FAULT),
    (errors.InvalidResponseHeaderName, *FAULT),
    (errors.LimitRequestLine, "414 URI Too Long", "The address is too long."),
    (errors.LimitRequestHeaders, "431 Headers Too Large", "The headers are too large."),
    (errors.ExpectationFailed, "417 Expectation Failed", "No more than 100-continue is expected."),
    (errors.ParseException, "400 Bad Request", "This is not a request that can be understood."),
    (ssl.SSLError, "400 Bad Request", "This is not a connection that can be understood."),
    (Exception, *FAULT),
)


def _refusal(status, message):
    headers, told = serving.refusal(status, message)
    head = (f"HTTP/1.1 {status}", *map(": ".join, headers), "", "")
    return "\r\n".join(head).encode("latin1") + told


_read_chunks = body.ChunkedReader.read


def _read(reader, size):
    # An application knows what to make of a body that breaks off, but not of gunicorn's errors.
    try:
        return _read_chunks(reader, size)
    except errors.ParseException:
        raise errors.NoMoreData from None


body.ChunkedReader.read = _read  # there is no setting for it
intake.install()

STOP_TAKING_SECONDS, STOP_STEP = 0.2, 0.1
END_SECONDS = 1  # of those to stop, for a worker to end in order before the master kills it
STEP_SECONDS, MOST_STEPS = 0.0001, 8
SO_ATTACH_FILTER = 26
# What opens a connection (SYN without ACK) is dropped, all else passes: in classic BPF.
ONLY_OPEN_CONNECTIONS = struct.pack(
    "=" + "HBBI" * 5,
    *(0x30, 0, 0, 13),  # the flags of the segment
    *(0x54, 0, 0, 0x12),  # SYN and ACK of them
    *(0x15, 0, 1, 0x02),  # just SYN?
    *(0x06, 0, 0, 0),  # then nothing of it is kept
    *(0x06, 0, 0, 0xFFFFFFFF),  # else all of it
)


class Worker(intake.Intake):
    """gunicorn's threads, but a worker that is told to stop closes its door at once.

    As long as one door is open, the system takes connections that nobody will answer any more.
    And what it refuses it does not write down.
    """

    told_before = SimpleQueue()

    def handle_error(self, req, client, addr, exc):
        """Refuse what was sent."""
        _, status, message = next(one for one in REFUSALS if isinstance(exc, one[0]))
        if (status, message) == FAULT:
            self.log.error("unexpected error", exc_info=exc)
        else:
            self.log.warning("request refused: %s", type(exc).__name__)
        with suppress(OSError):
            util.write_nonblock(client, _refusal(status, message))

    def accept(self, listener):
        """Take a connection, unless a process that has fewer does so first.

        Whoever woke first would take all that come at once, and keep them as long as they live.
        """
        if self.cfg.workers > 1:
            time.sleep(min(self.nr_conns, MOST_STEPS) * STEP_SECONDS)
        super().accept(listener)

    def init_signals(self):
        """Heed signals, those too that have come since it began, as a copy of its master."""
        super().init_signals()
        while not self.told_before.empty():
            if self.told_before.get() in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
                sys.exit()

    def handle_quit(self, sig, frame):
        """Stop at once, without the pool of threads: what is interrupted may hold its lock."""
        super(intake.ThreadWorker, self).handle_quit(sig, frame)

    def refuse_slow(self, conn):
        """Tell a client that its request did not come in."""
        self.log.warning("request refused: too slow")
        with suppress(OSError):
            util.write_nonblock(conn.sock, _refusal(*serving.too_slow()))

    def set_accept_enabled(self, enabled):
        """Begin or cease to take connections."""
        super().set_accept_enabled(enabled)
        if not self.alive:
            for listener in self.sockets:
                listener.close()

    def wait_for_and_dispatch_events(self, timeout):
        """Wait; as it stops, never past the moment at which it must have stopped."""
        super().wait_for_and_dispatch_events(timeout if self.alive else min(timeout, STOP_STEP))

    def is_parent_alive(self):
        """Whether the master is there: that it was killed is as if it had said to stop."""
        self.alive = self.alive and super().is_parent_alive()
        return self.alive


worker_class = Worker


def when_ready(server):
    """Have TERM take no new connections first, then what has come in, and only then stop.

    Who is turned away tries again by itself (TCP), and is then refused, so that a proxy turns to
    another process: none is accepted and then reset, which no proxy may repeat a POST after.
    """
    end = server.handle_term

    def handle_term():
        # Others go on listening on sockets that are systemd's, or that a new master took over.
        if not (server.systemd or server.reexec_pid or server.master_pid):
            for listener in server.LISTENERS:
                _turn_away(listener)
            time.sleep(STOP_TAKING_SECONDS)
        end()

    server.handle_term = handle_term


def _turn_away(listener):
    if listener.FAMILY not in (socket.AF_INET, socket.AF_INET6):
        return
    code = create_string_buffer(ONLY_OPEN_CONNECTIONS, len(ONLY_OPEN_CONNECTIONS))
    program = struct.pack("HP", len(ONLY_OPEN_CONNECTIONS) // 8, addressof(code))
    with suppress(OSError):  # not Linux: a connection of the last moment may be reset
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def post_fork(server, worker):
    """Keep the worker from sharing the master's database connections, and all its time to stop."""
    from app.db import dispose_after_fork

    worker.cfg.set("graceful_timeout", max(0, worker.cfg.graceful_timeout - END_SECONDS))
    worker.told_before = server.SIG_QUEUE
    dispose_after_fork(server.app.wsgi())


def worker_exit(server, worker):
    """End also where a request is not over: its thread would be waited for."""
    from app.db import engine

    stopped = os.getpid() == worker.pid and worker.booted and not worker.alive
    if stopped and worker.nr_conns > 0:
        engine.close()
        os._exit(0)


def on_exit(server):
    """Leave no counts behind, a daemon's neither, which is a copy of the process that began."""
    shutil.rmtree(_counts, ignore_errors=True)
