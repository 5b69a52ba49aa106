"""Which browser applications may read answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from flask import Flask
from werkzeug.test import TestResponse

from app.db import db
from tests.builders import Caller, Cast, make_collection
from tests.sql import statements

OURS, ACMES, STRANGE = "https://ours.example", "https://acme.example", "https://evil.example"
PREFLIGHT = {"Access-Control-Request-Method": "PATCH"}
PROJECT = Path(__file__).resolve().parent.parent
SENT = """Authorization If-Match If-None-Match Range Prefer Last-Event-ID traceparent tracestate
    baggage"""
READ = """ETag X-Correlation-ID Retry-After Content-Disposition Content-Range Accept-Ranges
    Idempotent-Replayed X-Service-Masked-Fields"""


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


def test_cors_headers_for_listed_origins_of_account(
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


def test_cors_preflight_needs_no_credential(anyone: Caller) -> None:
    for origin, opened in ((OURS, True), (ACMES, True), (STRANGE, False), ("null", False)):
        answer = anyone("OPTIONS", "records/posts/1", headers={"Origin": origin, **PREFLIGHT})
        assert (answer.status_code, allowed(answer)) == (204, origin if opened else None)
        if opened:
            assert "PATCH" in answer.headers["Access-Control-Allow-Methods"]
            assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]
            for header, names in (("Allow", SENT), ("Expose", READ)):
                named = answer.headers[f"Access-Control-{header}-Headers"].lower().split(", ")
                assert set(names.lower().split()) <= set(named)


def test_cors_exposes_export_headers(root: Caller, bob: Caller) -> None:
    mail = {"name": "mail", "type": "email", "pii": True}
    make_collection(root, "people", [mail])
    answer = bob.get("records/people/export?format=csv", headers={"Origin": ACMES})
    exposed = answer.headers["Access-Control-Expose-Headers"].split(", ")
    for name in ("X-Service-Masked-Fields", "Content-Disposition"):
        assert answer.headers[name]
        assert name in exposed


def test_cors_covers_every_documented_header(anyone: Caller) -> None:
    answer = anyone("OPTIONS", "records/posts/1", headers={"Origin": OURS, **PREFLIGHT})
    both = ", ".join(answer.headers[f"Access-Control-{one}-Headers"] for one in ("Allow", "Expose"))
    known = {name.lower() for name in both.split(", ")}
    text = "".join(page.read_text() for page in (PROJECT / "docs").glob("*.md"))
    named = set(re.findall(r"`((?:X-ES|X-Service-(?:Values|Masked)|Idempoten)[A-Za-z-]+)`", text))
    folders = (PROJECT / "app" / name for name in ("records", "files"))
    sources = "".join(f.read_text() for folder in folders for f in folder.rglob("*.py"))
    named |= set(re.findall(r"""(?:get_header\(|headers\[)"([A-Za-z-]+)"[\])]""", sources))
    assert named
    assert {name.lower() for name in named} - known <= {
        "cache-control",
        "vary",
        "connection",
        "content-length",
    }


def test_cors_headers_on_login(anyone: Caller) -> None:
    wrong = {"account": "acme", "email": "a@acme.example", "password": "wrong"}
    for origin, opened in ((ACMES, True), (STRANGE, False)):
        answer = anyone.post("auth/login", wrong, headers={"Origin": origin})
        assert (answer.status_code, allowed(answer)) == (401, origin if opened else None)


def test_cors_origin_removed_is_refused_at_once(alice: Caller) -> None:
    alice.patch("account", {"cors_origins": []})
    assert allowed(alice.get("auth/me", headers={"Origin": ACMES})) is None


def preflight(anyone: Caller, origin: str = ACMES) -> str | None:
    return allowed(anyone("OPTIONS", "records/posts", headers={"Origin": origin, **PREFLIGHT}))


def test_cors_preflight_follows_account_changes_at_once(cast: Cast, anyone: Caller) -> None:
    account = f"accounts/{cast.alice.account_id}"
    assert preflight(anyone) == ACMES
    cast.root.patch(account, {"is_active": False})
    assert preflight(anyone) is None
    cast.root.patch(account, {"is_active": True})
    assert preflight(anyone) == ACMES
    cast.alice.patch("account", {"name": "Acme Ltd"})
    assert preflight(anyone) == ACMES
    cast.alice.patch("account", {"cors_origins": ["https://new.example"] * 2})
    assert (preflight(anyone), preflight(anyone, "https://new.example")) == (
        None,
        "https://new.example",
    )
    cast.charlie.patch("account", {"cors_origins": ["https://new.example"]})
    cast.root.delete(account)
    assert preflight(anyone, "https://new.example") == "https://new.example"
    cast.root.delete(f"accounts/{cast.charlie.account_id}")
    assert preflight(anyone, "https://new.example") is None


@pytest.mark.parametrize("origin", ["https://%.example", '"', "https://a.example,", "a" * 3000])
def test_cors_origin_with_odd_text_is_not_allowed(anyone: Caller, origin: str) -> None:
    assert preflight(anyone, origin) is None


def test_cors_origin_is_looked_up_by_an_index(app: Flask, anyone: Caller) -> None:
    with statements(app) as sent:
        assert preflight(anyone, STRANGE) is None
    (asked,) = [one for one in sent if one.startswith("SELECT")]
    assert "account_origins" in asked
    assert "settings" not in asked
    with app.app_context():
        indexed = [
            one["column_names"] for one in sa.inspect(db.engine).get_indexes("account_origins")
        ]
    assert ["origin"] in indexed


@pytest.mark.parametrize("origin", ["*", "https://a.example/path", "ftp://a.example", "a.example"])
def test_cors_origin_setting_with_other_text_is_invalid_url(alice: Caller, origin: str) -> None:
    answer = alice.patch("account", {"cors_origins": [origin]})
    assert [(d["field"], d["code"]) for d in answer.json["details"]] == [
        ("cors_origins", "invalid_url")
    ]
