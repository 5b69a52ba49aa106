"""How much one account's load delays another account's requests.

    python -m bench.fair_share [seconds] [--connections N]

gunicorn serves PostgreSQL with as many processes as by default. A quiet account reads a record 20
times a second: first alone, then beside a noisy one that keeps N connections busy with lists of 30
records, by default ten times the requests that all processes run at once.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from app import db
from app.auth.guard import fair_turns
from app.config import Config
from bench import load
from bench.product import application
from bench.serve import FIELDS, NEW, Served, filled, message, say, serving
from deploy import serving as deployed
from tests import builders, services
from tests.processes import environment, forked

INTERVAL = 0.05
ROUNDS = 3
WARM_SECONDS = 0.5


class Times(NamedTuple):
    """Response times of the quiet account, in milliseconds."""

    p50: float
    p95: float


def read(port: int, request: bytes, seconds: float) -> Times:
    """Send a request at each interval over one connection."""
    connection = load.Connection(port, lambda: request)
    times, end = list[float](), time.perf_counter() + seconds
    while time.perf_counter() < end:
        while not connection.read():
            pass
        times.append(time.perf_counter() - connection.begun)
        time.sleep(INTERVAL)
        connection.begin()
    connection.socket.close()
    cuts = statistics.quantiles(times, n=20)
    return Times(cuts[9] * 1000, cuts[18] * 1000)


def _make_noise(served: Served, request: bytes, count: int, seconds: float) -> None:
    load.run(served.port, served.session, lambda: request, count, seconds)


def measure(served: Served, quiet: bytes, noisy: bytes, count: int, seconds: float) -> list[Times]:
    """Return the quiet account's times alone and beside the noisy one, in turn."""
    found = list[Times]()
    for _ in range(ROUNDS):
        found.append(read(served.port, quiet, seconds))
        noise = forked(_make_noise, served, noisy, count, seconds + 2 * WARM_SECONDS)
        time.sleep(WARM_SECONDS)
        found.append(read(served.port, quiet, seconds))
        noise.join()
    return found


def run(seconds: float, count: int) -> list[Times]:
    """Serve the product, and measure it."""
    folder = Path(tempfile.mkdtemp())
    url = services.Postgres().create_database(f"bench_{secrets.token_hex(4)}")
    settings = {"SERVICE_DATABASE_URL": url}
    app = application(Config.from_env(environment(folder, **settings)))
    cast = builders.make_cast(app)
    filled(app, cast, 1000, NEW, schema=FIELDS)
    record = builders.make_record(cast.charlie, **NEW)["id"]
    with app.app_context():
        db.db.engine.dispose()
    quiet = message("GET", f"records/posts/{record}", cast.charlie.headers["Authorization"])
    noisy = message("GET", "records/posts?limit=30", cast.alice.headers["Authorization"])
    with serving("wsgi:app", settings, folder) as served:
        for request in (quiet, noisy):
            _make_noise(served, request, 8, WARM_SECONDS)
        return measure(served, quiet, noisy, count, seconds)


def main() -> None:
    """Measure and print."""
    places = fair_turns.PLACES * deployed.processes()
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", nargs="?", type=float, default=5)
    parser.add_argument("--connections", type=int, default=10 * places)
    options = parser.parse_args()
    server = services.Postgres()
    server.start()
    os.environ["TEST_POSTGRES_URL"] = server.url
    try:
        found = run(options.seconds, options.connections)
    finally:
        server.stop()
    for name, times in (("alone", found[::2]), ("beside", found[1::2])):
        p50, p95 = (statistics.median(values) for values in zip(*times, strict=True))
        say(f"  {name:7} p50 {p50:6.1f} ms   p95 {p95:6.1f} ms")
    say(f"  {options.connections} connections of the noisy account, {places} places")


if __name__ == "__main__":
    main()
