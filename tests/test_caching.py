"""Answers say which caches may keep them, and what of a request they depend on."""

from __future__ import annotations

import pytest
from flask import Flask

from tests.builders import Caller, Cast, make_collection, make_record
from tests.console.browser import Browser

DEPENDS_ON = {"Origin", "Authorization", "X-API-Key", "X-Account-ID"}


def varies(answer: object) -> set[str]:
    lists = answer.headers.getlist("Vary")  # type: ignore[attr-defined]
    return {name.strip() for one in lists for name in one.split(",")}


@pytest.fixture
def record(cast: Cast) -> str:
    made = make_collection(cast.root, list_rule="true", view_rule="true")
    assert made["name"] == "posts"
    return str(make_record(cast.alice, title="a")["id"])


def test_cache_control_of_authenticated_responses_is_no_store(
    cast: Cast, alice: Caller, record: str
) -> None:
    key = alice.post("api-keys", {"name": "nightly"})
    invited = alice.post("invitations", {"email": "new@acme.example"})
    webhook = {"url": "https://receiver.example/", "events": ["create"], "collection": "posts"}
    answers = {
        "secret of a key": key,
        "token of an invitation": invited,
        "secret of a webhook": alice.post("webhooks", webhook),
        "list": alice.get("records/posts"),
        "created": alice.post("records/posts", {"title": "b"}),
        "me": alice.get("auth/me"),
        "refused": alice.get("accounts"),
        "nowhere": alice.get("records/none"),
        "malformed": alice.post("records/posts", data="{", content_type="application/json"),
        "by key": Caller(alice.app).get("auth/me", headers={"X-API-Key": key.json["key"]}),
        "bad credential": Caller(alice.app).get("auth/me", headers={"Authorization": "Bearer x"}),
    }
    for name, answer in answers.items():
        assert answer.headers["Cache-Control"] == "no-store", name
        assert varies(answer) == DEPENDS_ON, name


def test_cache_control_of_record_is_private_no_cache(alice: Caller, record: str) -> None:
    found = alice.get(f"records/posts/{record}")
    assert found.headers["Cache-Control"] == "private, no-cache"
    same = alice.get(f"records/posts/{record}", headers={"If-None-Match": found.headers["ETag"]})
    assert (same.status_code, same.headers["Cache-Control"]) == (304, "private, no-cache")
    assert varies(found) == varies(same) == DEPENDS_ON


def test_cache_control_of_anonymous_responses_is_private(anyone: Caller, cast: Cast) -> None:
    rules = {"list_rule": "true", "view_rule": "true"}
    make_collection(cast.root, "open", **rules)
    listed = anyone.get("records/open", headers={"X-Account-ID": "acme"})
    assert listed.headers["Cache-Control"] == "private, no-cache"
    assert varies(listed) == DEPENDS_ON
    refused = anyone.post("auth/login", {"account": "acme", "email": "a@b.example"})
    assert refused.headers["Cache-Control"] == "no-store"


def test_cache_control_of_pages_and_files(app: Flask, alice: Caller, record: str) -> None:
    browser = Browser(app, alice)
    for path in ("/console", "/console/users", "/console/webhooks", "/console/none"):
        assert browser.client.get(path).headers["Cache-Control"] == "no-store", path
    with app.test_client().get("/docs") as docs:
        assert docs.status_code == 200
        assert "no-store" not in docs.headers.get("Cache-Control", "")
    with app.test_client().get("/static/pages/pages.css") as file:
        assert file.status_code == 200
        assert "no-store" not in file.headers.get("Cache-Control", "")
    typed = alice.get("/openapi.json?collections=1")
    assert typed.headers["Cache-Control"] == "private, no-cache"
    assert varies(typed) >= {"Authorization"}
