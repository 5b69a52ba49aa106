"""What a search costs beside an indexed equality that finds as many records.

    python -m bench.search [--records N] [--rounds N] [--databases sqlite postgresql]

One account has the records, with texts of a dozen words; words and values occur in as many of them.
Each request is a first page with its total, in turn with its counterpart; the quickest counts. A
ratio is to the equality.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

from app import db
from app.collections import definitions
from app.context import tenancy
from app.db import words
from bench.growth import WARMING, Request, instance, say
from tests import builders, conftest, services

RECORDS, ROUNDS = 500_000, 20
SHARES = (50_000, 500, 50, 20, 2, 1)
"""One of so many records has the word and the value."""
COMMON = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india")
NAME = "notes"


def word(share: int) -> str:
    """The word that one of so many records has."""
    return f"word{share}x"


def fill(cast: builders.Cast, records: int, database: str) -> None:
    """Create the collection and its records, newest last."""
    values = [{"name": f"v{share}", "type": "text", "options": {"index": True}} for share in SHARES]
    text = {"name": "text", "type": "text", "options": {"search": True}}
    builders.make_collection(cast.root, NAME, [text, *values])
    builders.make_record(cast.alice, NAME, text="a record")
    moved = "created_at - i * interval '1 second'"
    if database == "sqlite":
        moved = "strftime('%Y-%m-%dT%H:%M:%S.000000Z', created_at, -i || ' seconds')"
    common = "||".join(
        f"CASE WHEN (i * {place + 3}) % {place + 2} = 0 THEN '<{one}>' ELSE '<{one}ly>' END"
        for place, one in enumerate(COMMON)
    )
    rare = "||".join(
        f"CASE WHEN i % {share} = 0 THEN '<{word(share)}>' ELSE '' END" for share in SHARES
    )
    columns = ", ".join(f"v{share}" for share in SHARES)
    found = ", ".join(f"CASE WHEN i % {share} = 0 THEN 'yes' END" for share in SHARES)
    with tenancy.as_owner(), db.transaction():
        filling = (
            "WITH RECURSIVE n(i) AS"  # noqa: S608 - constants
            f" (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {records}),"
            f" one AS (SELECT * FROM col_{NAME}),"
            f" texts AS (SELECT i, {common}||'<'||i||'>'||{rare} AS words FROM n)"
            f" INSERT INTO col_{NAME} (account_id, id, created_at, updated_at, text,"
            f" _words_text, {columns})"
            f" SELECT account_id, substr(id, 1, 27) || i, {moved}, updated_at,"
            f" replace(replace(words, '<', ''), '>', ' '), words, {found} FROM texts, one"
        )
        for statement in (filling, f"ANALYZE col_{NAME}"):
            options = {"no_parameters": True}
            db.connection().exec_driver_sql(statement, execution_options=options)
        table = definitions.get(NAME).table
        some = db.connection().execute(table.select().limit(3)).mappings().all()
        if any(words.marked(one["text"]) != one["_words_text"] for one in some):
            raise LookupError("the words are not those of the texts")


def compare(requests: Sequence[Request], rounds: int) -> list[float]:
    """The milliseconds of each request."""
    times: list[list[float]] = [[] for _ in requests]
    for number in range(rounds + WARMING):
        for request, found in zip(requests, times, strict=True):
            begun = time.perf_counter()
            request()
            if number >= WARMING:
                found.append((time.perf_counter() - begun) * 1000)
    return [min(found) for found in times]


def measure(database: str, records: int, rounds: int) -> None:
    """Print the costs on one database."""
    with instance(database) as app:
        cast = builders.make_cast(app)
        begun = time.perf_counter()
        with app.app_context():
            fill(cast, records, database)
        say(f"{database}, {records:,} records, filled in {time.perf_counter() - begun:.0f} s:")

        def asks(**query: str) -> Request:
            return lambda: cast.alice.get(f"records/{NAME}", query_string=query).json

        for share in SHARES:
            name = word(share)
            searches = {
                "word": f'"{name}"',
                "beginning": name[:-1],
                "word and another": f"{COMMON[0]} {name}",
                "not another": f'"{name}" -{COMMON[1]}',
            }
            equality = asks(**{f"v{share}": "yes"})
            found = [asks(search=text) for text in searches.values()]
            number = equality()["total"]  # type: ignore[index]
            base, *costs = compare([equality, *found], rounds)
            ratios = ", ".join(
                f"{name} {cost / base:.2f}" for name, cost in zip(searches, costs, strict=True)
            )
            say(f"  {number:8,} records: equality {base:7.1f} ms; {ratios}")
        for text in ("a", "al", "a* b* c*", "-alpha bravo"):
            (cost,) = compare([asks(search=text)], rounds)
            say(f"  {text!r}: {cost:.1f} ms")


def main() -> None:
    """Print the costs on both databases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--databases", nargs="+", default=conftest.DATABASES)
    asked = parser.parse_args()
    server = services.Postgres()
    server.start()
    os.environ["TEST_POSTGRES_URL"] = server.url
    try:
        for database in asked.databases:
            measure(database, asked.records, asked.rounds)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
