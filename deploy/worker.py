"""gunicorn's threaded worker, and what it has no setting for (docs/adr/0060).

Unreadable requests get the application's error shape, and no log quotes them. A client that does
not close its side delays nobody: gunicorn waits for each up to two seconds in the loop that accepts
connections, here their threads do. Processes share connections that come at once. What arrived
before a stop is served; streams end in order.
"""

import json
import os
import ssl
import sys
import time
import uuid
from contextlib import suppress
from select import select

from gunicorn import util
from gunicorn.http import errors
from gunicorn.workers.gthread import ThreadWorker
from werkzeug.http import HTTP_STATUS_CODES

DRAIN_SECONDS = 0.5  # for the rest of what a client sends while its connection is closed
STEP_SECONDS, MAX_STEPS = 0.0001, 8
SHORT = 0.00001  # seconds until another thread gets the interpreter
END_SECONDS = 1  # of the time to stop: for a worker to exit before the master kills it
OURS = errors.InvalidResponseHeader, errors.InvalidResponseHeaderName
STATUS = {errors.LimitRequestLine: 414, errors.LimitRequestHeaders: 431}
STATUS |= {errors.ExpectationFailed: 417, ssl.SSLError: 400, errors.ParseException: 400}
MESSAGES = {
    400: "This is not a valid HTTP request.",
    414: "The URL is too long.",
    417: "Only 100-continue is supported.",
    431: "The headers are too large.",
    500: "Something went wrong on our side.",
}


class Worker(ThreadWorker):
    """Refuses in the application's shape, and stops in order."""

    stops_until = 0.0  # when its time to stop is over

    def handle_error(self, req, client, addr, exc):
        """Send the error response for an unreadable request."""
        from app.web.error_handlers import HTTP_ERRORS

        found = (status for kind, status in STATUS.items() if isinstance(exc, kind))
        status = 500 if isinstance(exc, OURS) else next(found, 500)
        if status == 500:
            self.log.error("unexpected error", exc_info=exc)
        else:
            self.log.warning("request refused: %s", type(exc).__name__)
        error = "internal_error" if status == 500 else HTTP_ERRORS.get(status, "http_error")
        body = json.dumps({"error": error, "message": MESSAGES[status]})
        text = (
            f"HTTP/1.1 {status} {HTTP_STATUS_CODES[status]}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"X-Correlation-ID: {uuid.uuid4()}\r\n\r\n{body}"
        )
        with suppress(OSError):
            util.write_nonblock(client, text.encode())

    def accept(self, listener):
        """Accept a connection, unless a less busy process does so first.

        The first to wake would take all that come at once: seventeen of eighteen were seen.
        """
        time.sleep(min(self.nr_conns, MAX_STEPS) * STEP_SECONDS)
        super().accept(listener)

    def handle(self, conn):
        """Handle a request, and wait for the client's last bytes, in a thread."""
        stays = super().handle(conn)
        if stays is False:
            util.close_graceful(conn.sock, timeout=DRAIN_SECONDS)
            conn.close = lambda graceful=False: None
        return stays

    def handle_quit(self, sig, frame):
        """Stop at once without the thread pool, whose lock the interrupted code may hold."""
        super(ThreadWorker, self).handle_quit(sig, frame)

    def set_accept_enabled(self, enabled):
        """Start or stop accepting connections; at the end, take those that arrived, and close.

        While a listening socket is open, the kernel accepts connections that nobody would answer.
        """
        super().set_accept_enabled(enabled and self.alive)  # told to stop, it may still start to
        if not self.alive and not self.stops_until:
            self.stops_until = time.monotonic() + self.cfg.graceful_timeout
            sys.setswitchinterval(SHORT)  # nothing arrives between the last look and the end
            for listener in self.sockets:
                while select([listener], (), (), 0)[0]:
                    self.accept(listener)
                listener.close()
            _close_streams()


def exit_in_time(worker):
    """Finish downloads and streams, then exit even if a request still runs."""
    if os.getpid() != worker.pid or not worker.booted or worker.alive:
        return
    if downloads := sys.modules.get("app.files.downloads"):  # gunicorn counts them as finished
        downloads.registry.wait_closed(worker.stops_until - time.monotonic())
    _close_streams(END_SECONDS / 2)
    if worker.nr_conns > 0:
        from app.context import tracing
        from app.db import engine

        engine.close()
        tracing.close()
        os._exit(0)  # Python would wait for the request's thread


def _close_streams(seconds=0):
    if connections := sys.modules.get("app.realtime.connections"):
        connections.stop()
        connections.registry.wait_closed(seconds)
