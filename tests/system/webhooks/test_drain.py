"""A long queue: delivered whole, once, and within bounded memory; on PostgreSQL by RQ."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from flask import Flask

from bench.webhooks import drained
from tests.builders import Cast, make_collection
from tests.services import Redis

QUEUED, MEBIBYTES, PER_SECOND = 100_000, 150, 150


@pytest.mark.slow
def test_delivery_queue_of_100_000_drains_in_bounded_memory(
    app: Flask, database: str, cast: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root)
    with Redis(private=True) if database == "postgresql" else nullcontext() as server:
        settings = app.extensions["atrium.config"]
        settings = replace(settings, redis_url=server.url if server else "")
        monkeypatch.setitem(app.extensions, "atrium.config", settings)
        found = drained(app, cast, tmp_path, QUEUED)
    assert (found.distinct, found.attempts, found.waiting) == (QUEUED, QUEUED, 0)
    assert found.requests == QUEUED
    assert found.memory < MEBIBYTES
    # Of the processor, not of the clock: that holds on a busy machine, too.
    assert found.cpu < QUEUED / PER_SECOND
