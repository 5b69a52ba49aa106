"""How fast one account's creates are beside those spread over many accounts, on PostgreSQL.

    python -m bench.hot_account [seconds]

16 connections create audited records, in turn in one account and in 16. Changes get their place in
the account's chain after the commit, so one account's writers should not wait for each other.
"""

from __future__ import annotations

import argparse
import itertools
import os
import secrets
import statistics
import tempfile
from pathlib import Path

from app import db
from app.config import Config
from bench import load
from bench.product import application
from bench.serve import FIELDS, NEW, message, say, serving
from tests import builders, services
from tests.processes import environment

CONNECTIONS = 16
ROUNDS = 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", nargs="?", type=float, default=3)
    seconds = parser.parse_args().seconds
    server = services.Postgres()
    server.start()
    os.environ["TEST_POSTGRES_URL"] = server.url
    try:
        folder = Path(tempfile.mkdtemp())
        url = services.Postgres().create_database(f"bench_{secrets.token_hex(4)}")
        settings = {"SERVICE_DATABASE_URL": url}
        app = application(Config.from_env(environment(folder, **settings)))
        cast = builders.make_cast(app)
        builders.make_collection(cast.root, schema=FIELDS)
        writers = [
            builders.Caller(app, builders.make_user(app, account_id, "amy@hot.example"))
            for account_id in [builders.make_account(app, f"hot{n}") for n in range(CONNECTIONS)]
        ]
        with app.app_context():
            db.db.engine.dispose()
        creates = [
            message("POST", "records/posts", one.headers["Authorization"], NEW) for one in writers
        ]
        ratios = list[float]()
        with serving("wsgi:app", settings, folder) as served:
            for turn in range(ROUNDS + 1):
                rates = [
                    load.run(
                        served.port,
                        served.session,
                        itertools.cycle(requests).__next__,
                        CONNECTIONS,
                        seconds,
                    ).rate
                    for requests in (creates[:1], creates)
                ]
                if turn:  # the first one warms
                    ratios.append(rates[0] / rates[1])
                    say(f"  one account {rates[0]:6.0f}/s   16 accounts {rates[1]:6.0f}/s")
        say(f"  one to 16: {statistics.median(ratios):.2f}")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
