"""Which browser applications may read answers (contract section 1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from tests.builders import Caller, make_collection

OURS, ACMES, STRANGE = "https://ours.example", "https://acme.example", "https://evil.example"
PREFLIGHT = {"Access-Control-Request-Method": "PATCH"}


@pytest.fixture
def app(app: Flask) -> Iterator[Flask]:
    settings = app.extensions["atrium.config"]
    app.extensions["atrium.config"] = replace(settings, cors_origins=(OURS,))
    yield app
    app.extensions["atrium.config"] = settings


@pytest.fixture(autouse=True)
def origins_of_acme(alice: Caller) -> None:
    assert alice.patch("account", {"cors_origins": [ACMES]}).status_code == 200


def allowed(answer: TestResponse) -> str | None:
    return answer.headers.get("Access-Control-Allow-Origin")


def test_a_listed_origin_may_read_the_answers_of_its_account(
    root: Caller, alice: Caller, charlie: Caller
) -> None:
    make_collection(root)
    for caller, origin, opened in (
        (alice, OURS, True),
        (alice, ACMES, True),
        (alice, STRANGE, False),
        (charlie, OURS, True),
        (charlie, ACMES, False),
        (root.acting_in("acme"), ACMES, True),
    ):
        for path in ("auth/me", "records/posts", "records/posts/none", "nowhere"):
            answer = caller.get(path, headers={"Origin": origin})
            if path != "nowhere":
                assert allowed(answer) == (origin if opened else None), (path, origin)
            assert "Origin" in answer.headers["Vary"]
            assert "Access-Control-Allow-Credentials" not in answer.headers


def test_a_preflight_needs_no_credential(anyone: Caller) -> None:
    for origin, opened in ((OURS, True), (ACMES, True), (STRANGE, False), ("null", False)):
        answer = anyone("OPTIONS", "records/posts/1", headers={"Origin": origin, **PREFLIGHT})
        assert (answer.status_code, allowed(answer)) == (204, origin if opened else None)
        if opened:
            assert "PATCH" in answer.headers["Access-Control-Allow-Methods"]
            assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]
            exposed = "ETag, X-Correlation-ID, Retry-After"
            assert answer.headers["Access-Control-Expose-Headers"] == exposed


def test_an_application_may_sign_its_users_in(anyone: Caller) -> None:
    wrong = {"account": "acme", "email": "a@acme.example", "password": "wrong"}
    for origin, opened in ((ACMES, True), (STRANGE, False)):
        answer = anyone.post("auth/login", wrong, headers={"Origin": origin})
        assert (answer.status_code, allowed(answer)) == (401, origin if opened else None)


def test_an_origin_taken_back_is_refused_at_once(alice: Caller) -> None:
    alice.patch("account", {"cors_origins": []})
    assert allowed(alice.get("auth/me", headers={"Origin": ACMES})) is None


@pytest.mark.parametrize("origin", ["*", "https://a.example/path", "ftp://a.example", "a.example"])
def test_only_origins_can_be_listed(alice: Caller, origin: str) -> None:
    answer = alice.patch("account", {"cors_origins": [origin]})
    assert [(d["field"], d["code"]) for d in answer.json["details"]] == [
        ("cors_origins", "invalid_url")
    ]
