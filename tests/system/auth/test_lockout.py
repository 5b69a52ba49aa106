"""Limits of guesses while their Redis is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from flask import Flask

from tests import services
from tests.auth.test_lockout import address, limit, limited, login, statuses, storage  # noqa: F401
from tests.builders import PASSWORD, Caller


@pytest.fixture
def own_redis() -> Iterator[services.Redis]:
    """A Redis to crash."""
    with services.Redis(private=True) as server:
        yield server


@pytest.mark.timing
def test_lockout_counts_in_database_without_redis(
    app: Flask, bob: Caller, own_redis: services.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited, here = limit(app, monkeypatch, redis_url=own_redis.url), address()
    assert statuses(11, limited, here) == [401] * 10 + [429]
    own_redis.kill()
    started = time.monotonic()
    assert statuses(11, limited, here) == [401] * 10 + [429]
    assert time.monotonic() - started < 10
    assert login(limited, address(), PASSWORD).status_code == 200
