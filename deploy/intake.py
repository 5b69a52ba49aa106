"""gunicorn worker whose threads get only requests that have arrived: slow clients occupy none.

The worker's loop receives the head and a short body. A thread reads the rest of long or chunked
bodies, and of requests with `Expect: 100-continue`, but one thread always stays free, and a caller
holds half of the others. Reads, writes and requests have the timeouts of `deploy/serving.py`.
"""

import errno
import re
import selectors
import time
from collections import Counter, deque
from contextlib import suppress
from functools import partial

from flask import Flask
from gunicorn import util
from gunicorn.http import errors, unreader
from gunicorn.workers.gthread import STOP_KEEPALIVE_LINGER, ThreadWorker

from deploy import serving
from deploy.fair_pool import Callers, FairPool

BUFFER_BYTES = 64 * 1024
PIECE = 64 * 1024
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*(?=\r\n)", re.IGNORECASE)
NEEDS_THREAD = re.compile(rb"\r\n(transfer-encoding|expect)[ \t]*:", re.IGNORECASE)


CREDENTIAL = re.compile(rb"\r\n(?:authorization|x-api-key|cookie)[ \t]*:([^\r]*)", re.IGNORECASE)
CREDENTIALS = ("HTTP_AUTHORIZATION", "HTTP_X_API_KEY", "HTTP_COOKIE")
ACCOUNT = "atrium.account_id"


class Intake(ThreadWorker):
    """Threads handle requests that have arrived, accounts in turn; slow requests are refused."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.half_sent = {}  # connections that the poller watches
        self.unread = deque()  # connections that wait for a thread to read the rest
        self.reading = set()  # connections whose rest a thread is reading
        self.callers = Callers()

    def get_thread_pool(self):
        """Return the pool, whose threads serve accounts in turn."""
        return FairPool(self.cfg.threads, self._caller_of)

    def _caller_of(self, conn):
        arrived = getattr(conn, "arrived", b"")  # its head alone: bodies are long
        found = CREDENTIAL.search(arrived, 0, arrived.find(b"\r\n\r\n") + 2)
        return self.callers.of(found[1].strip()) if found else None

    def _sender_of(self, conn):
        """Return the caller, or the address of one that the application has not checked yet."""
        return self._caller_of(conn) or (conn.client and conn.client[0])

    def load_wsgi(self):
        """Load the application; learns the accounts of credentials from its answers."""
        super().load_wsgi()
        application = self.wsgi
        if isinstance(application, Flask):
            self.callers.account_of_token = partial(_account_of_token, application)

        def serve(environ, start_response):
            answer = application(environ, start_response)
            account_id = environ.get(ACCOUNT)
            if account_id is not None:
                credential = next(filter(None, map(environ.get, CREDENTIALS)), "")
                self.callers.learn(credential.strip().encode("latin1"), account_id)
            return answer

        self.wsgi = serve

    def enqueue_req(self, conn):
        """Hand the next request of a connection to a thread once it has arrived."""
        if self.cfg.is_ssl:  # encrypted bytes cannot be parsed here
            super().enqueue_req(conn)
            return
        conn.arrived = bytearray(conn.parser.unreader.take_buffered() if conn.parser else b"")
        conn.deadline = time.monotonic() + serving.REQUEST_SECONDS
        conn.idle_at = time.monotonic() + serving.READ_SECONDS
        conn.sock.setblocking(False)
        self._receive(conn)

    def _receive(self, conn, _=None):
        ended = False
        while len(conn.arrived) < BUFFER_BYTES and not (ended or _is_whole(conn.arrived)):
            try:
                chunk = conn.sock.recv(BUFFER_BYTES - len(conn.arrived))
            except (BlockingIOError, InterruptedError):
                self._await_more(conn)
                return
            except OSError:
                chunk = b""
            ended = not chunk
            conn.arrived += chunk
            conn.idle_at = time.monotonic() + serving.READ_SECONDS
        self._forget(conn)
        if ended and not conn.arrived:
            self._close(conn)
        elif self.tpool.is_full(conn):
            self.refuse_busy(conn)
            self._close(conn)
        elif ended or _is_whole(conn.arrived):
            super().enqueue_req(conn)
        else:
            self._queue_unread(conn)

    def _await_more(self, conn):
        # A thread handles 100-continue, and bodies without a length.
        if b"\r\n\r\n" in conn.arrived and NEEDS_THREAD.search(_head(conn.arrived)):
            self._forget(conn)
            self._queue_unread(conn)
        elif conn not in self.half_sent:
            self.half_sent[conn] = None
            take_in = partial(self._receive, conn)
            self.poller.register(conn.sock, selectors.EVENT_READ, take_in)

    def _queue_unread(self, conn):
        conn.sender = self._sender_of(conn)  # now: many may wait, and be looked at often
        self.unread.append(conn)
        self._dispatch_unread()

    def _dispatch_unread(self):
        readers = max(1, self.cfg.threads - 1)
        most, busy = max(1, readers // 2), Counter(conn.sender for conn in self.reading)
        for conn in list(self.unread):
            if len(self.reading) >= readers:
                return
            if busy[conn.sender] < most:
                busy[conn.sender] += 1
                self.unread.remove(conn)
                self.reading.add(conn)
                super().enqueue_req(conn)

    def finish_request(self, conn, fs):
        """Continue with this connection, and with others that wait for a thread."""
        self.reading.discard(conn)
        super().finish_request(conn, fs)
        self._dispatch_unread()

    def handle(self, conn):
        """Handle a request that has arrived at least in part. Runs in a thread."""
        if not self.cfg.is_ssl:
            conn.data_ready = True
            conn.init()
            conn.parser.unreader.arrived = conn.arrived
            conn.parser.unreader.deadline = conn.deadline
        try:
            stays = super().handle(conn)
        finally:
            if not self.cfg.is_ssl:
                conn.parser.unreader.push_back()
        if not stays and not self.cfg.is_ssl:
            # gunicorn would wait for the client's last bytes in its loop, and block all others.
            util.close_graceful(conn.sock, timeout=serving.DRAIN_SECONDS)
            conn.close = lambda graceful=False: None
        return stays

    def _keepalive_after(self, conn, keepalive):
        # Reads only what is already on its way of a body that was refused unread.
        deadline = time.monotonic() + serving.DRAIN_SECONDS
        return keepalive and bool(conn.parser.finish_body(deadline=deadline))

    def murder_pending(self):
        """Close connections whose request was not received in time."""
        super().murder_pending()
        now = time.monotonic()
        linger = 0 if self.alive else serving.REQUEST_SECONDS - STOP_KEEPALIVE_LINGER
        for conn in [*self.half_sent, *self.unread]:
            # In `unread` the client waits for a thread, so it is not idle.
            is_idle = now > conn.idle_at and conn in self.half_sent
            if is_idle or now > conn.deadline - linger:
                self._forget(conn)
                with suppress(ValueError):
                    self.unread.remove(conn)
                if conn.arrived:
                    self.refuse_slow(conn)
                self._close(conn)

    def refuse_slow(self, conn):
        """Send the timeout response."""

    def refuse_busy(self, conn):
        """Send the response to a caller with too many requests waiting."""

    def _forget(self, conn):
        if conn in self.half_sent:
            del self.half_sent[conn]
            self.poller.unregister(conn.sock)

    def _close(self, conn):
        self.nr_conns -= 1
        conn.close()


def _head(arrived):
    return bytes(arrived[: arrived.find(b"\r\n\r\n") + 2])


def _account_of_token(app, token):
    """The account of a valid access token, without a look at the database."""
    from app.auth import tokens  # loaded with the application
    from app.errors import Unauthorized

    try:
        with app.app_context():
            return tokens.read(token, tokens.ACCESS)["account_id"]
    except Unauthorized:
        return None


def _is_whole(arrived):
    end = arrived.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = _head(arrived)
    if NEEDS_THREAD.search(head):
        return False
    lengths = LENGTH.findall(head)  # the parser refuses several
    return len(arrived) >= end + 4 + max(map(int, lengths), default=0)


class DeadlineUnreader(unreader.SocketUnreader):
    """Reads a request from a connection until its deadline."""

    deadline = None
    arrived = b""
    # As much as the form parser asks for: gunicorn copies what it reads beyond that with each read
    # (1 MiB by default), which made a third of an upload's time.
    max_body_chunk = BUFFER_BYTES

    def chunk(self, size_hint=None):
        """Return the next bytes. Raises NoMoreData if they do not arrive in time."""
        if self.arrived:  # in chunks as from the socket: the parser checks its limits between them
            size = max(size_hint or 0, self.mxchunk)
            piece, self.arrived = bytes(self.arrived[:size]), self.arrived[size:]
            return piece
        if self.deadline is None:
            return super().chunk(size_hint)
        timeout = min(serving.READ_SECONDS, self.deadline - time.monotonic())
        before = self.sock.gettimeout()
        timeout = min(timeout, before) if before else timeout
        try:
            self.sock.settimeout(max(timeout, 0.001))
            data = super().chunk(size_hint)
            self.deadline += len(data) / serving.BYTES_PER_SECOND
            return data
        except TimeoutError:
            raise errors.NoMoreData from None
        finally:
            self.sock.settimeout(before)

    def push_back(self):
        """Push back surplus bytes: they start the next request."""
        if self.arrived:
            self.buf.seek(0, 2)
            self.buf.write(self.arrived)
            self.arrived = b""


def write(sock, data, chunked=False):
    """Send bytes. Raises OSError (EPIPE) if the client does not read them in time."""
    if chunked:
        data = b"%X\r\n%b\r\n" % (len(data), data)
    view, before = memoryview(data), sock.gettimeout()
    try:
        if before != 0:  # else it is non-blocking
            sock.settimeout(serving.WRITE_SECONDS)
        for start in range(0, len(view), PIECE):
            sock.sendall(view[start : start + PIECE])
    except TimeoutError:
        raise OSError(errno.EPIPE, "The client reads nothing.") from None
    finally:
        with suppress(OSError):
            sock.settimeout(before)


def install():
    """Patch gunicorn to read and write with timeouts; it has no setting for it."""
    from gunicorn.http import parser

    parser.SocketUnreader = DeadlineUnreader
    util.write = write
    util.write_chunk = partial(write, chunked=True)
