"""The extension in an instance of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.extend.testing import Client, Instance


@pytest.fixture
def instance() -> Iterator[Instance]:
    with Instance(Path(__file__).parent.parent) as instance:
        instance.collection("orders", {"title": "text"})
        yield instance


@pytest.fixture
def ann(instance: Instance) -> Client:
    """An admin of an account."""
    return instance.account("acme").user("ann")


def test_titles_are_stripped_and_not_empty(ann: Client) -> None:
    assert ann.post("records/orders", {"title": " A lamp "}).json["title"] == "A lamp"
    refused = ann.post("records/orders", {"title": " "})
    assert refused.status_code == 400
    assert [one["code"] for one in refused.json["details"]] == ["title_missing"]


def test_guests_are_greeted(instance: Instance, ann: Client) -> None:
    answer = ann.post("x/starter/greetings", {"name": "Bea"})
    assert answer.json == {"text": "Welcome to Acme, Bea!"}
    assert instance.anybody.post("x/starter/greetings", {"name": "Bea"}).status_code == 401
