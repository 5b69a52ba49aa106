"""Warnings about collections that another process has changed."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from app import create_app
from tests.builders import Caller, Cast, make_collection
from tests.webhooks.delivering import make_webhook
from tests.workflows.running import create, make_workflow

pytestmark = pytest.mark.both_databases


@pytest.fixture
def other(app: Flask, cast: Cast) -> Caller:
    """A superadmin who asks another process."""
    elsewhere = create_app(app.extensions["atrium.config"])
    return Caller(elsewhere, **cast.root.headers)


def codes(answer: Any) -> list[str]:
    return [one["code"] for one in answer.json["warnings"]]


def test_workflow_warnings_follow_schema_changes_of_other_process(
    cast: Cast, other: Caller
) -> None:
    posts = make_collection(cast.root)
    trigger = {"type": "event", "event": "records.create", "collection": "posts"}
    condition = {"condition": "record.extra = 'x'"}
    flow = make_workflow(cast.alice, [create("a")], trigger | condition)
    webhook = make_webhook(cast.alice, "https://example.com")
    workflow, webhook_path = f"workflows/{flow['id']}", f"webhooks/{webhook['id']}"
    assert codes(cast.alice.get(workflow)) == ["field_missing"]
    path = f"collections/{posts['id']}"
    added = {"schema": [{"name": "extra", "type": "select", "options": {"choices": ["x", "y"]}}]}
    assert other.patch(path, added).status_code == 200
    assert codes(cast.alice.get(workflow)) == []
    assert codes(cast.alice.patch(workflow, {"trigger": trigger | condition})) == []
    body = {"filter": "extra = 'z'"}
    assert codes_of(cast.alice.patch(webhook_path, body)) == ["unknown_choice"]
    assert other.delete(path).status_code == 200
    assert "collection_missing" in codes(cast.alice.get(workflow))
    assert codes(cast.alice.get(webhook_path)) == ["collection_missing"]


def codes_of(answer: Any) -> list[str]:
    return [one["code"] for one in answer.json["details"]]
