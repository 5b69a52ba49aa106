"""How gunicorn serves Atrium; PORT, SERVICE_ENV and WEB_CONCURRENCY adjust it."""

import json
import os
import shutil
import socket
import struct
import tempfile
import time
import uuid
from contextlib import suppress
from ctypes import addressof, create_string_buffer
from pathlib import Path

from gunicorn import util
from gunicorn.workers.gthread import ThreadWorker

# Only production is reached from other machines.
_host = "0.0.0.0" if os.environ.get("SERVICE_ENV") == "production" else "127.0.0.1"  # noqa: S104
bind = f"{_host}:{os.environ.get('PORT', '8000')}"

workers = int(os.environ.get("WEB_CONCURRENCY", "2"))
threads = 4
preload_app = True

timeout = 60
graceful_timeout = 24  # with STOP_TAKING_SECONDS, and what it takes to end, below 25 seconds
keepalive = 5  # longer than nginx keeps its connections

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

# The access log is off: the application tells of each request. Where --access-logfile turns it
# on, it names no address, as every part of one can carry secrets; the id leads to the route.
access_log_format = "%(h)s %(t)s %(m)s %(s)s %(b)s %(D)s %({x-correlation-id}o)s"

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

STOP_TAKING_SECONDS = 0.2
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


class Worker(ThreadWorker):
    """gunicorn's threads, but a worker that is told to stop closes its door at once.

    As long as one door is open, the system takes connections that nobody will answer any more.
    """

    def set_accept_enabled(self, enabled):
        """Begin or cease to take connections."""
        super().set_accept_enabled(enabled)
        if not self.alive:
            for listener in self.sockets:
                listener.close()

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
    """Keep the worker from sharing the master's database connections."""
    from app.db import dispose_after_fork

    dispose_after_fork(server.app.wsgi())


def on_exit(server):
    """Leave no counts behind."""
    shutil.rmtree(_counts, ignore_errors=True)
