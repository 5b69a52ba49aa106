"""The way of a write: the modules that `POST /api/v1/records/{collection}` runs through.

    python -m bench.trace [sqlite|postgresql] [--calls]

Prints how many modules of `app` one warm request enters, and how often consecutive calls of their
functions change the module; then the calls of each module, or with `--calls` every call in order.
The request passes the whole stack, middlewares and teardown included. Generators and coroutines
count once, where they are entered first.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import FrameType
from wsgiref.types import WSGIEnvironment

from flask import Flask
from werkzeug.test import EnvironBuilder, run_wsgi_app

from bench.product import application
from bench.serve import FIELDS, NEW
from tests import builders, conftest, services

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


def environ(headers: dict[str, str]) -> WSGIEnvironment:
    """The request as a server hands it to the application."""
    builder = EnvironBuilder("/api/v1/records/posts", method="POST", json=NEW)
    builder.headers.update(headers)
    return builder.get_environ()


def trace(app: Flask, cast: builders.Cast) -> Trace:
    """The calls of a warm request."""
    builders.make_collection(cast.root, schema=FIELDS)
    # Not by the test client, which leaves the end of each request to the next one.
    environs = [environ(cast.alice.headers) for _ in range(WARM + TRACED)]
    for warm in environs[TRACED:]:
        run_wsgi_app(app, warm, buffered=True)
    # The shortest: what is due once a second falls into one of them at most.
    traced = [_traced(app, one) for one in environs[:TRACED]]
    return min(traced, key=lambda trace: len(trace.calls))


def _traced(app: Flask, environ: WSGIEnvironment) -> Trace:
    traced = Trace()
    sys.setprofile(traced)
    try:
        _, status, _ = run_wsgi_app(app, environ, buffered=True)
    finally:
        sys.setprofile(None)
    if status != "201 CREATED":
        raise SystemExit(f"the request failed: {status}")
    return traced


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("database", nargs="?", choices=conftest.DATABASES, default="sqlite")
    parser.add_argument("--calls", action="store_true")
    options = parser.parse_args()
    server = services.Postgres()
    if options.database == "postgresql":
        server.start()
        os.environ["TEST_POSTGRES_URL"] = server.url
    try:
        app = application(conftest.settings_for(options.database, Path(tempfile.mkdtemp())))
        traced = trace(app, builders.make_cast(app))
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
