"""Numbers of records under many writers: unique and ascending, whoever is killed meanwhile."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from flask import Flask

from app import clock, create_app
from app.config import Config
from tests.builders import Caller, Cast, make_collection, make_record
from tests.bundle.accounts import run
from tests.conftest import WHOLE
from tests.processes import forked

SCHEMA = [
    {"name": "title", "type": "text"},
    {"name": "number", "type": "sequence", "options": {"prefix": "INC-", "digits": 5}},
]
ROOT = ("--as", "root@system.example")
WRITERS = 16


def write(settings: Config, writer: int, count: int, log: Path, token: dict[str, str]) -> None:
    """Create records by themselves, in batches and by imports; log the answered numbers in order.

    Every third writer is killed somewhere.
    """
    app = create_app(settings)
    alice, chosen = Caller(app, **token), random.Random(writer)
    with log.open("ab", buffering=0) as lines:
        for place in range(count):
            match chosen.randrange(8):
                case 0:
                    batch = {"records": [{"title": str(writer)}] * 5}
                    answer = alice.post("records/tickets/batch", batch)
                    made = [one["number"] for one in answer.json.get("created", ())]
                case 1:
                    sent = (
                        f"title,number\n{writer},{10_000 * (writer + 1) + 7 * place}\n{writer},\n"
                    )
                    path = "records/tickets/import"
                    alice.post(path, data=sent, content_type="text/csv")
                    made = []  # its answer names no numbers
                case _:
                    answer = alice.post("records/tickets", {"title": str(writer)})
                    made = [answer.json["number"]] if answer.status_code == 201 else []
            lines.write("".join(f"{writer} {number}\n" for number in made).encode())
            if writer % 3 == 0 and place > count // 2 and chosen.random() < 0.2:
                os.kill(os.getpid(), signal.SIGKILL)


def numbers(alice: Caller) -> list[int]:
    """The numbers of all records, in the order of the list by them."""
    found, cursor = list[int](), ""
    while True:
        query = {"sort": "number", "limit": 100, "fields": "number", "cursor": cursor}
        page = alice.get("records/tickets", query_string=query).json
        found += [int(one["number"].removeprefix("INC-")) for one in page["items"]]
        if not page["has_more"]:
            return found
        cursor = page["next_cursor"]


@WHOLE
def test_numbers_of_many_writers_are_unique_and_ascend(
    app: Flask, cast: Cast, tmp_path: Path, whole: bool
) -> None:
    alice, settings, log = cast.alice, app.extensions["atrium.config"], tmp_path / "log"
    make_collection(cast.root, "tickets", SCHEMA)
    count = 100 if whole else 6
    processes = [
        forked(write, settings, writer, count, log, alice.headers) for writer in range(WRITERS)
    ]
    for process in processes:
        process.join()
    assert {process.exitcode for process in processes} <= {0, -signal.SIGKILL}
    answered = [line.split() for line in log.read_text().splitlines()]
    assert len({number for _, number in answered}) == len(answered) > WRITERS
    for writer in map(str, range(WRITERS)):  # each saw its own ascend
        own = [int(number.removeprefix("INC-")) for one, number in answered if one == writer]
        assert own == sorted(own)
    stored = numbers(alice)
    assert stored == sorted(set(stored))
    assert {int(number.removeprefix("INC-")) for _, number in answered} <= {*stored}
    moment = clock.iso(clock.now())
    time.sleep(0.01)
    last = [make_record(alice, "tickets") for _ in range(3)]
    restored = run(app, "account", "restore", "acme", "--at", moment, "--yes", *ROOT)
    assert restored.exit_code == 0, restored.output
    assert numbers(alice) == stored
    new = make_record(alice, "tickets")["number"]
    assert int(new.removeprefix("INC-")) == max(stored) + 4
    assert new not in {one["number"] for one in last}
