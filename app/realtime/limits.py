"""Limits of streams (docs/limits.md), and their counts for `/metrics`."""

from __future__ import annotations

import resource

from prometheus_client import Counter, Gauge

from app import config
from app.files import downloads
from app.web.feature import Finding

MAX_STREAMS = 5000  # of a process
MAX_STREAMS_PER_ACCOUNT = 2500  # of these
MAX_SUBSCRIPTIONS = 100  # of a stream
MAX_MESSAGE_BYTES = 64 * 1024  # of a message from a client
MAX_FRAGMENTS = 1000  # of one message
# Messages and control frames from a client: every subscription, and more. Further ones are
# answered with an error, until the client is cut off.
MAX_MESSAGES, WINDOW_SECONDS = 60 + MAX_SUBSCRIPTIONS, 10
FLOOD = 2 * MAX_MESSAGES
PAUSE_BYTES = 2**18  # unread by one client: it is sent no changes until it has read some
MAX_BUFFERED_BYTES = 2**20  # unread by one client: it is cut off at the next message
STALLED_SECONDS = 30  # without reading, while bytes wait: the client is cut off
MAX_UNREAD_BYTES = 2**26  # of all clients of a process together
GRACE_SECONDS = 2  # beyond that, clients with bytes that have waited longer are cut off, ...
ROOM_SHARE = 0.75  # ... until the unread bytes are below this share of MAX_UNREAD_BYTES
HEARTBEAT_SECONDS = 15
CLOSE_SECONDS = 2  # for a client to read the end and close, too
OTHER_FILES = 200  # that a process has open
_LABELS = ("protocol",)
OPEN = Gauge(
    "atrium_streams_open", "Open streams.", _LABELS, registry=None, multiprocess_mode="livesum"
)
SENT = Counter("atrium_stream_messages_total", "Messages to streams.", _LABELS, registry=None)
CUT_OFF = Counter(
    "atrium_streams_cut_off_total",
    "Streams closed because their clients read too slowly.",
    _LABELS,
    registry=None,
)
METRICS = (OPEN, SENT, CUT_OFF)


def check() -> Finding:
    """Check that a process may open as many streams and downloads as it accepts."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = MAX_STREAMS + 2 * downloads.MAX_DOWNLOADS + OTHER_FILES
    if most != resource.RLIM_INFINITY and most < needed:
        message = f"a process may open {most} files, and needs up to {needed} for its streams"
        return Finding("warn", f"{message}: raise the hard limit (ulimit -Hn)")
    announced = "Redis" if config.current().redis_url else "the database"
    return Finding("ok", f"up to {MAX_STREAMS} each process, by {announced}")
