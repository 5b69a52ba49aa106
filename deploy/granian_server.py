"""Serve Atrium by granian instead of gunicorn: `python -m deploy.granian_server [application]`.

PORT, SERVICE_ENV and WEB_CONCURRENCY adjust it as they do gunicorn. docs/deployment.md says when.

granian's WSGI interface reads a body in the thread that answers, without a timeout. Its ASGI one
waits in no thread, but asyncio's loop and a pool of threads cost a quarter to two fifths more of
the processor for a request. So granian's own threads answer what its ASGI worker takes in, and
stand for the loop: with nothing but what comes from its modules with an underscore and its worker,
which tests/test_granian.py and tests/test_slow_clients.py hold.
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

CONNECTIONS = 512  # of a process, as a half-sent request holds no more than one
SET_PARENT_DEATH_SIGNAL = 1
LOGGING = LOGGING_CONFIG | {
    "formatters": {name: {"()": serving.Lines} for name in ("generic", "access")}
}


class _Loop:
    """Stands for asyncio's: who awaits a future goes on in the thread that tells of its result."""

    @staticmethod
    def call_soon(callback: Callable[[Any], None], future: Any, context: Any = None) -> None:
        callback(future)

    call_soon_threadsafe = call_soon


class _Scheduler(CallbackScheduler):
    """Has granian's threads answer requests, where its own hands them to a loop."""

    def __init__(self, loop: _Loop, application: exchange.Application, *_: Any) -> None:
        super().__init__()
        config = getattr(application, "config", {})
        most_bytes = config.get("MAX_CONTENT_LENGTH") or exchange.MOST_BYTES
        deadlines = exchange.Deadlines()
        deadlines.start()

        def schedule(request: Any) -> None:
            exchange.begin(request, application, most_bytes, deadlines)

        self._schedule_fn = schedule


def _stop(number: int, frame: object) -> None:
    sys.exit()


def load(target: str) -> exchange.Application:
    """The application that a name such as `wsgi:app` stands for, in the process that serves it."""
    if sys.platform == "linux":  # or a process whose parent was killed would keep the port
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    signal.signal(signal.SIGTERM, _stop)  # until granian heeds it here: the parent's way is no use
    os.setpgrp()  # a terminal's Ctrl-C is the parent's: told twice, a process at work does not end
    serving.share_freed_memory()
    from app.db import engine  # not in the parent, which serves nothing

    Finalize(None, engine.close, exitpriority=0)  # these processes heed no atexit
    module, _, name = target.partition(":")
    application: exchange.Application = getattr(import_module(module), name)
    return application


@WorkerProcess.wrap_target
def work(number: int, application: exchange.Application, addresses: Any, *_: Any) -> None:
    """Serve in a process of its own, as granian's own function for WSGI does."""
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
    # Of a client who takes nothing the system ends the connection: nothing else would.
    listener = shared or address.build()
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        with socket.socket(fileno=os.dup(listener.get_fd())) as options:
            milliseconds = serving.WRITE_SECONDS * 1000
            options.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return listener


def main(application: str = "wsgi:app") -> None:
    """Serve until a signal says to stop."""
    port, processes = serving.port(), serving.processes()
    serving.count_together()
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
    except (RuntimeError, ValueError) as error:  # of an address in use, say; a backtrace follows
        sys.exit(f"granian cannot serve: {str(error).partition(chr(10))[0]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
