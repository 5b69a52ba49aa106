"""Fixtures of the tests of files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from flask import Flask

from app.files import storage
from tests.builders import make_drawer
from tests.services import S3


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server of its own."""
    with S3(private=True) as server:
        yield server


@pytest.fixture(autouse=True)
def _drawer(request: pytest.FixtureRequest) -> None:
    """Somewhere to put files, for whoever signs in."""
    if "cast" in request.fixturenames:
        make_drawer(request.getfixturevalue("cast").root)


@pytest.fixture
def in_bucket(app: Flask, s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """Keep the bytes of files in a bucket."""
    settings = replace(app.extensions["atrium.config"], files_url=s3.url)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    yield s3
    with app.app_context():
        place = storage.current()
        for blob in [*place.blobs()]:
            place.delete(blob.key)
