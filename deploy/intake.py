"""gunicorn's threads, which get a request when it has come in: a half-sent one holds none of them.

The worker's loop takes in the head and a short body. Of long bodies, of those in chunks, and where
a client waits to be told to go on, a thread reads the rest, but never the last of the threads. No
read, write or request takes longer than `deploy/serving.py` says.
"""

import errno
import re
import selectors
import time
from collections import deque
from contextlib import suppress
from functools import partial

from gunicorn import util
from gunicorn.http import errors, unreader
from gunicorn.workers.gthread import STOP_KEEPALIVE_LINGER, ThreadWorker

from deploy import serving

BUFFER_BYTES = 64 * 1024
PIECE = 64 * 1024
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*(?=\r\n)", re.IGNORECASE)
READ_ON = re.compile(rb"\r\n(transfer-encoding|expect)[ \t]*:", re.IGNORECASE)


class Intake(ThreadWorker):
    """Has threads answer requests that are there, and gives up on those that do not come in."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.half_sent = {}  # connections to the poller's callback
        self.unread = deque()  # connections whose rest a thread is to read
        self.reading = set()  # connections whose rest one is reading

    def enqueue_req(self, conn):
        """Have a thread answer the next request of a connection, once it is there."""
        if self.cfg.is_ssl:  # its bytes say nothing yet
            super().enqueue_req(conn)
            return
        conn.arrived = bytearray(conn.parser.unreader.take_buffered() if conn.parser else b"")
        conn.deadline = time.monotonic() + serving.REQUEST_SECONDS
        conn.idle_at = time.monotonic() + serving.READ_SECONDS
        conn.sock.setblocking(False)
        self._take_in(conn)

    def _take_in(self, conn, _=None):
        ended = False
        while len(conn.arrived) < BUFFER_BYTES and not (ended or _is_whole(conn.arrived)):
            try:
                some = conn.sock.recv(BUFFER_BYTES - len(conn.arrived))
            except (BlockingIOError, InterruptedError):
                self._await_more(conn)
                return
            except OSError:
                some = b""
            ended = not some
            conn.arrived += some
            conn.idle_at = time.monotonic() + serving.READ_SECONDS
        self._forget(conn)
        if ended and not conn.arrived:
            self._close(conn)
        elif ended or _is_whole(conn.arrived):
            super().enqueue_req(conn)
        else:
            self.unread.append(conn)
            self._have_rest_read()

    def _await_more(self, conn):
        # What a client waits for, or what its head does not tell the length of, is for a thread.
        if b"\r\n\r\n" in conn.arrived and READ_ON.search(_head(conn.arrived)):
            self._forget(conn)
            self.unread.append(conn)
            self._have_rest_read()
        elif conn not in self.half_sent:
            self.half_sent[conn] = None
            take_in = partial(self._take_in, conn)
            self.poller.register(conn.sock, selectors.EVENT_READ, take_in)

    def _have_rest_read(self):
        while self.unread and len(self.reading) < max(1, self.cfg.threads - 1):
            conn = self.unread.popleft()
            self.reading.add(conn)
            super().enqueue_req(conn)

    def finish_request(self, conn, fs):
        """Go on with the connection, and with others that waited for a thread."""
        self.reading.discard(conn)
        super().finish_request(conn, fs)
        self._have_rest_read()

    def handle(self, conn):
        """Answer a request, of which some has arrived. Runs in a thread."""
        if not self.cfg.is_ssl:
            conn.data_ready = True
            conn.init()
            conn.parser.unreader.arrived = conn.arrived
            conn.parser.unreader.deadline = conn.deadline
        try:
            stays = super().handle(conn)
        finally:
            if not self.cfg.is_ssl:
                conn.parser.unreader.keep_rest()
        if not stays and not self.cfg.is_ssl:
            # gunicorn's loop would wait for the client's last bytes, and answer nobody meanwhile.
            util.close_graceful(conn.sock, timeout=serving.DRAIN_SECONDS)
            conn.close = lambda graceful=False: None
        return stays

    def _keepalive_after(self, conn, keepalive):
        # Of a body that was refused unread, no more than what is on its way is waited for.
        deadline = time.monotonic() + serving.DRAIN_SECONDS
        return keepalive and bool(conn.parser.finish_body(deadline=deadline))

    def murder_pending(self):
        """Close connections whose request has not come in."""
        super().murder_pending()
        now = time.monotonic()
        linger = 0 if self.alive else serving.REQUEST_SECONDS - STOP_KEEPALIVE_LINGER
        for conn in [*self.half_sent, *self.unread]:
            # Where a thread is waited for, it is not the client who is slow.
            is_idle = now > conn.idle_at and conn in self.half_sent
            if is_idle or now > conn.deadline - linger:
                self._forget(conn)
                with suppress(ValueError):
                    self.unread.remove(conn)
                if conn.arrived:
                    self.refuse_slow(conn)
                self._close(conn)

    def refuse_slow(self, conn):
        """Tell a client that its request did not come in."""

    def _forget(self, conn):
        if conn in self.half_sent:
            del self.half_sent[conn]
            self.poller.unregister(conn.sock)

    def _close(self, conn):
        self.nr_conns -= 1
        conn.close()


def _head(arrived):
    return bytes(arrived[: arrived.find(b"\r\n\r\n") + 2])


def _is_whole(arrived):
    end = arrived.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = _head(arrived)
    if READ_ON.search(head):
        return False
    lengths = LENGTH.findall(head)  # of several the parser makes a refusal
    return len(arrived) >= end + 4 + max(map(int, lengths), default=0)


class Deadline(unreader.SocketUnreader):
    """What reads a request from its connection, for as long as that may take."""

    deadline = None
    arrived = b""

    def chunk(self, size_hint=None):
        """The next bytes. Raises NoMoreData where they do not come in time."""
        if self.arrived:  # in pieces as from the socket: the parser counts between them
            size = max(size_hint or 0, self.mxchunk)
            some, self.arrived = bytes(self.arrived[:size]), self.arrived[size:]
            return some
        if self.deadline is None:
            return super().chunk(size_hint)
        left = min(serving.READ_SECONDS, self.deadline - time.monotonic())
        before = self.sock.gettimeout()
        left = min(left, before) if before else left
        try:
            self.sock.settimeout(max(left, 0.001))
            return super().chunk(size_hint)
        except TimeoutError:
            raise errors.NoMoreData from None
        finally:
            self.sock.settimeout(before)

    def keep_rest(self):
        """Have what came with a request be the beginning of the next."""
        if self.arrived:
            self.buf.seek(0, 2)
            self.buf.write(self.arrived)
            self.arrived = b""


def write(sock, data, chunked=False):
    """Send bytes; a client that does not take them in time has gone."""
    if chunked:
        data = b"%X\r\n%b\r\n" % (len(data), data)
    view, before = memoryview(data), sock.gettimeout()
    try:
        if before != 0:  # else it is not to wait at all
            sock.settimeout(serving.WRITE_SECONDS)
        for start in range(0, len(view), PIECE):
            sock.sendall(view[start : start + PIECE])
    except TimeoutError:
        raise OSError(errno.EPIPE, "The client takes nothing.") from None
    finally:
        with suppress(OSError):
            sock.settimeout(before)


def install():
    """Have gunicorn read and write by these: there is no setting for it."""
    from gunicorn.http import parser

    parser.SocketUnreader = Deadline
    util.write = write
    util.write_chunk = partial(write, chunked=True)
