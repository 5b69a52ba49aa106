"""Serve Atrium by granian instead of gunicorn: `python -m deploy.granian_server [application]`.

PORT, SERVICE_ENV and WEB_CONCURRENCY configure it as they do gunicorn; docs/deployment.md says when
to use it.

granian's WSGI interface reads a body in the thread that responds, without a timeout. Its ASGI
interface blocks no thread, but asyncio's loop and a thread pool cost 25 to 40 % more CPU. So
granian's own threads run the application on what its ASGI worker receives, and replace the loop.
This uses private modules of granian; test_granian.py and test_slow_clients.py of tests/system pin
them.
"""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from multiprocessing.util import Finalize
from threading import Event
from typing import Any

from granian import Granian
from granian._granian import ASGIWorker, CallbackScheduler
from granian._signals import set_sync_signals
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LOGGING_CONFIG, LogLevels
from granian.server.mp import WorkerProcess

from deploy import exchange, serving

CONNECTIONS = 512  # per process: an incomplete request occupies one
SET_PARENT_DEATH_SIGNAL = 1
LOGGING = LOGGING_CONFIG | {
    "formatters": {name: {"()": serving.log_formatter} for name in ("generic", "access")}
}


class _Loop:
    """Replaces asyncio's loop: a future's callbacks run in the thread that completes it."""

    @staticmethod
    def call_soon(callback: Callable[[Any], None], future: Any, context: Any = None) -> None:
        callback(future)

    call_soon_threadsafe = call_soon


class _Scheduler(CallbackScheduler):
    """Handles requests on granian's threads instead of an event loop."""

    def __init__(self, loop: _Loop, application: exchange.Application, *_: Any) -> None:
        super().__init__()
        config = getattr(application, "config", {})
        max_bytes = (
            config.get("LARGEST_BODY")
            or config.get("MAX_CONTENT_LENGTH")
            or exchange.DEFAULT_MAX_BYTES
        )
        deadlines = exchange.Deadlines()
        deadlines.start()

        def schedule(request: Any) -> None:
            exchange.begin(request, application, max_bytes, deadlines)

        self._schedule_fn = schedule


def _stop(number: int, frame: object) -> None:
    sys.exit()


def load(target: str) -> exchange.Application:
    """Import the application, such as `wsgi:app`, in the worker process."""
    if sys.platform == "linux":  # else a worker whose parent was killed would hold the port
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    signal.signal(signal.SIGTERM, _stop)  # until granian installs its own handler
    os.setpgrp()  # only the parent handles Ctrl-C: a second signal would block a busy worker's exit
    serving.share_freed_memory()
    from app.accounts.usage import request_counter
    from app.context import tracing  # not needed in the parent
    from app.db import engine

    for close in (engine.close, tracing.close):
        Finalize(None, close, exitpriority=0)  # worker processes skip atexit
    module, _, name = target.partition(":")
    application: exchange.Application = getattr(import_module(module), name)
    request_counter.start_flushing(application)
    return application


@WorkerProcess.wrap_target
def work(number: int, application: exchange.Application, addresses: Any, *_: Any) -> None:
    """Serve in a worker process; replaces granian's function for WSGI."""
    loop, stopped, signals = _Loop(), Event(), set_sync_signals()
    signals.add_cb(stopped.set)
    worker = ASGIWorker(
        number,
        (None, _listener(*addresses)),
        None,
        py_threads=serving.THREADS,
        backpressure=CONNECTIONS,
        http1_opts=HTTP1Settings(header_read_timeout=serving.READ_SECONDS * 1000),
    )
    worker.serve_mtr(_Scheduler(loop, application, None, None, None), loop, signals)
    stopped.wait()


def _listener(address: Any, shared: Any) -> Any:
    # The kernel closes connections whose client reads nothing: granian has no timeout for that.
    listener = shared or address.build()
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        with socket.socket(fileno=os.dup(listener.get_fd())) as options:
            milliseconds = serving.WRITE_SECONDS * 1000
            options.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return listener


def main(application: str = "wsgi:app") -> None:
    """Serve until a signal stops it."""
    port, processes = serving.port(), serving.processes()
    serving.share_metrics()
    server = Granian(
        application,
        address=serving.host(),
        port=port,
        interface=Interfaces.ASGINL,
        http=HTTPModes.http1,
        websockets=False,
        workers=processes,
        respawn_failed_workers=True,
        workers_kill_timeout=serving.GRACEFUL_SECONDS,
        log_level=LogLevels.warning,
        log_dictconfig=LOGGING,
    )
    try:
        server.serve(work, load)
    except (RuntimeError, ValueError) as error:  # e.g. the address is in use
        sys.exit(f"granian cannot serve: {str(error).partition(chr(10))[0]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
