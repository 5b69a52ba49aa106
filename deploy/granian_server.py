"""Serve Atrium by granian instead of gunicorn: `python -m deploy.granian_server [application]`.

PORT, SERVICE_ENV and WEB_CONCURRENCY adjust it as they do gunicorn. docs/deployment.md says when.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from multiprocessing.util import Finalize
from typing import Any

from granian import Granian
from granian.constants import HTTPModes, Interfaces
from granian.log import LOGGING_CONFIG, LogLevels

from deploy import serving

WAITING = 64  # requests that a process takes in before it leaves them to another
SET_PARENT_DEATH_SIGNAL = 1
LOGGING = LOGGING_CONFIG | {
    "formatters": {name: {"()": serving.Lines} for name in ("generic", "access")}
}


class _Unreadable:
    """A body in chunks: of one that is malformed, or breaks off, granian says that it is over."""

    def read(self, size: int = -1) -> bytes:
        """Refuse, in the way that the application makes a 400 of."""
        raise OSError("bodies need a length")


def bounded(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """An application that reads no body whose length was not told."""

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if "HTTP_TRANSFER_ENCODING" in environ:
            environ["wsgi.input"] = _Unreadable()
        return application(environ, start_response)

    return serve


def _stop(number: int, frame: object) -> None:
    sys.exit()


def load(target: str) -> Callable[..., Iterable[bytes]]:
    """The application that a name such as `wsgi:app` stands for, in the process that serves it."""
    if sys.platform == "linux":  # or a process whose parent was killed would keep the port
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    signal.signal(signal.SIGTERM, _stop)  # until granian heeds it here: the parent's way is no use
    os.setpgrp()  # a terminal's Ctrl-C is the parent's: told twice, a process at work does not end
    serving.share_freed_memory()
    from app.db import engine  # not in the parent, which serves nothing

    Finalize(None, engine.close, exitpriority=0)  # these processes heed no atexit
    module, _, name = target.partition(":")
    return bounded(getattr(import_module(module), name))


def main(application: str = "wsgi:app") -> None:
    """Serve until a signal says to stop."""
    port, processes = serving.port(), serving.processes()
    serving.count_together()
    server = Granian(
        application,
        address=serving.host(),
        port=port,
        interface=Interfaces.WSGI,
        http=HTTPModes.http1,
        websockets=False,
        workers=processes,
        blocking_threads=serving.THREADS,
        backpressure=WAITING,
        respawn_failed_workers=True,
        workers_kill_timeout=serving.GRACEFUL_SECONDS,
        log_level=LogLevels.warning,
        log_dictconfig=LOGGING,
    )
    try:
        server.serve(target_loader=load)
    except (RuntimeError, ValueError) as error:  # of an address in use, say; a backtrace follows
        sys.exit(f"granian cannot serve: {str(error).partition(chr(10))[0]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
