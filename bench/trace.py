"""The way of a request: the modules that a write of the API and a page of the console run through.

    python -m bench.trace [sqlite|postgresql] [--page] [--calls]

Prints how many modules of `app` one warm request enters, and how often consecutive calls of their
functions change the module; then the calls of each module, or with `--calls` every call in order.
The request is `POST /api/v1/records/{collection}`, or with `--page` the list of these records in
the console. It passes the whole stack, middlewares and teardown included. Generators and
coroutines count once, where they are entered first.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from wsgiref.types import WSGIEnvironment

from flask import Flask
from werkzeug.test import EnvironBuilder, run_wsgi_app

from bench.product import application
from bench.serve import FIELDS, NEW
from tests import builders, conftest, services
from tests.console.browser import Browser

SOURCES = Path(__file__).resolve().parent.parent / "app"
WARM, TRACED = 20, 3
FIRST = 8  # a call from the start has gone no further: COPY_FREE_VARS, RETURN_GENERATOR, RESUME


class Trace:
    """The calls of functions of `app`, in order, as pairs of module and function."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self._resumed: set[int] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Record a call; `sys.setprofile` calls this."""
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(f"{SOURCES}/") or self._is_resumed(frame):
            return
        module = Path(path).relative_to(SOURCES.parent).with_suffix("")
        self.calls.append((".".join(module.parts), frame.f_code.co_qualname))

    def _is_resumed(self, frame: FrameType) -> bool:
        return frame.f_lasti > FIRST

    @property
    def modules(self) -> Counter[str]:
        """The modules entered, each with its number of calls."""
        return Counter(module for module, _ in self.calls)

    @property
    def changes(self) -> int:
        """How often consecutive calls are in different modules."""
        modules = [module for module, _ in self.calls]
        return sum(a != b for a, b in pairwise(modules))


def write(headers: dict[str, str]) -> WSGIEnvironment:
    """The request that creates a record, as a server hands it to the application."""
    builder = EnvironBuilder("/api/v1/records/posts", method="POST", json=NEW, headers=headers)
    return builder.get_environ()


def page(app: Flask, caller: builders.Caller) -> Callable[[], WSGIEnvironment]:
    """The request for the list of records in the console, by a browser that has signed in."""
    client = Browser(app, caller).client
    cookies = {"Cookie": "; ".join(f"{one.key}={one.value}" for one in client._cookies.values())}
    path = f"/console/records/{caller.account_id}/posts"
    return lambda: EnvironBuilder(path, headers=cookies).get_environ()


def trace(app: Flask, cast: builders.Cast, *, of_page: bool) -> Trace:
    """The calls of a warm request."""
    builders.make_collection(cast.root, schema=FIELDS)
    # Not by the test client, which leaves the end of each request to the next one.
    for _ in range(WARM):
        run_wsgi_app(app, write(cast.alice.headers), buffered=True)
    request, status = partial(write, cast.alice.headers), "201 CREATED"
    if of_page:
        request, status = page(app, cast.alice), "200 OK"
        for _ in range(WARM):
            run_wsgi_app(app, request(), buffered=True)
    # The shortest: what is due once a second falls into one of them at most.
    traced = [_traced(app, request(), status) for _ in range(TRACED)]
    return min(traced, key=lambda trace: len(trace.calls))


def _traced(app: Flask, environ: WSGIEnvironment, expected: str) -> Trace:
    traced = Trace()
    sys.setprofile(traced)
    try:
        _, status, _ = run_wsgi_app(app, environ, buffered=True)
    finally:
        sys.setprofile(None)
    if status != expected:
        raise SystemExit(f"the request failed: {status}")
    return traced


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("database", nargs="?", choices=conftest.DATABASES, default="sqlite")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--calls", action="store_true")
    options = parser.parse_args()
    server = services.Postgres()
    if options.database == "postgresql":
        server.start()
        os.environ["TEST_POSTGRES_URL"] = server.url
    try:
        app = application(conftest.settings_for(options.database, Path(tempfile.mkdtemp())))
        traced = trace(app, builders.make_cast(app), of_page=options.page)
    finally:
        if options.database == "postgresql":
            server.stop()
    modules = traced.modules
    sys.stdout.write(
        f"{len(modules)} modules, {traced.changes} changes of module, {len(traced.calls)} calls\n"
    )
    lines = [f"{module}.{name}" for module, name in traced.calls]
    if not options.calls:
        lines = [f"{count:5} {module}" for module, count in modules.most_common()]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
