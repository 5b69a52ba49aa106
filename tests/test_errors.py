"""Every answer other than success has one shape, and every answer an id."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
from flask import Flask
from werkzeug import formparser
from werkzeug.routing import Map, RequestRedirect, Rule
from werkzeug.test import TestResponse

from app import db
from app.accounts import service as accounts
from app.auth import passwords
from app.records import service as records
from tests import builders
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_record
from tests.conftest import make_app, settings_for
from tests.project import on_linux

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NEW_PASSWORD = {"current_password": PASSWORD, "new_password": f"{PASSWORD}2"}
UNKNOWN_ID = "019a9f00-0000-7000-8000-00000000dead"


@pytest.fixture
def record(root: Caller, alice: Caller) -> dict[str, Any]:
    unique = {"name": "title", "type": "text", "unique": True, "required": True}
    make_collection(root, schema=[unique, {"name": "n", "type": "number"}])
    return make_record(alice, title="taken")


def told(answer: TestResponse, status: int, error: str, *extra: str) -> dict[str, Any]:
    """The body of an error with exactly this status, code and these keys."""
    assert answer.status_code == status, answer.text
    assert answer.mimetype == "application/json"
    body: dict[str, Any] = answer.json
    assert set(body) == {"error", "message", *extra}
    assert body["error"] == error
    assert body["message"].endswith(".")
    return body


def test_body_with_wrong_shape_is_422_with_every_location(root: Caller) -> None:
    field = {"name": 5, "type": "text", "nope": 1}
    body = told(
        root.post("collections", {"schema": [{"name": "a", "type": "text"}, field], "x": 1}),
        422,
        "validation_error",
        "detail",
    )
    assert {(tuple(item["loc"]), item["type"]) for item in body["detail"]} == {
        (("body", "name"), "missing"),
        (("body", "x"), "unknown"),
        (("body", "schema", 1, "name"), "value_error"),
        (("body", "schema", 1, "nope"), "unknown"),
    }


def test_query_or_path_with_wrong_shape_is_422_with_location(root: Caller) -> None:
    body = told(root.get("collections?limit=x&nope=1"), 422, "validation_error", "detail")
    assert [item["loc"] for item in body["detail"]] == [["query", "limit"], ["query", "nope"]]
    body = told(root.delete("collections/nope"), 422, "validation_error", "detail")
    assert [item["loc"] for item in body["detail"]] == [["path", "collection_id"]]


def test_record_values_that_are_invalid_are_400_with_all_details(
    alice: Caller, record: dict[str, Any]
) -> None:
    answer = alice.post("records/posts", {"n": "x", "nope": 1})
    details = told(answer, 400, "validation_error", "details")["details"]
    assert {(item["field"], item["code"]) for item in details} == {
        ("title", "required_missing"),
        ("n", "invalid_type"),
        ("nope", "unknown_field"),
    }
    assert all(item["message"] for item in details)


def test_credential_missing_or_invalid_is_401_with_www_authenticate(anyone: Caller) -> None:
    bad = {"Authorization": "Bearer nonsense"}
    for answer in (anyone.get("auth/me"), anyone.get("auth/me", headers=bad)):
        told(answer, 401, "unauthorized")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    failed = anyone.post("auth/login", {"account": "x", "email": "a@b.example", "password": "x"})
    told(failed, 401, "authentication_failed")
    assert failed.headers["WWW-Authenticate"] == "Bearer"


def test_forbidden_request_is_403(root: Caller, alice: Caller, record: dict[str, Any]) -> None:
    told(alice.get("collections"), 403, "superadmin_required")
    told(alice.acting_in("globex").get("records/posts"), 403, "forbidden")
    root.put("collections/posts/rules", {"list_rule": None})
    told(alice.get("records/posts"), 403, "rule_denied", "explain_id")


def test_unknown_path_or_object_is_404(root: Caller, alice: Caller, record: dict[str, Any]) -> None:
    for answer in (
        alice.get(f"records/posts/{UNKNOWN_ID}"),
        alice.get("records/nope"),
        root.delete(f"collections/{UNKNOWN_ID}"),
        alice.get("nope"),
        alice.get("/nope"),
        alice.get("/static/nope"),
        root.acting_in("nowhere").get("records/posts"),
    ):
        told(answer, 404, "not_found")


def test_unknown_method_is_405_with_allow(alice: Caller) -> None:
    answer = alice.delete("auth/login")
    told(answer, 405, "method_not_allowed")
    assert answer.headers["Allow"] == "OPTIONS, POST"
    assert alice("OPTIONS", "auth/login").allow.as_set() == {"options", "post"}


def test_unique_conflict_is_409_with_field(alice: Caller, record: dict[str, Any]) -> None:
    answer = alice.post("records/posts", {"title": "taken"})
    body = told(answer, 409, "conflict", "field", "details")
    assert body["field"] == "title"
    assert [item["code"] for item in body["details"]] == ["not_unique"]


def test_body_over_limit_is_413_and_other_content_type_is_415(
    app: Flask, alice: Caller, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told(alice.post("records/posts", data="a=b"), 415, "unsupported_media_type")
    monkeypatch.setitem(app.config, "MAX_CONTENT_LENGTH", 10)
    told(alice.post("records/posts", {"title": "a" * 20}), 413, "payload_too_large")


@pytest.mark.parametrize(
    ("path", "body", "before", "status", "error"),
    [
        ("api-keys", {"name": "k"}, (accounts, "label"), 409, "conflict"),
        ("auth/change-password", NEW_PASSWORD, (passwords, "hash"), 404, "not_found"),
    ],
)
def test_user_deleted_during_own_request_gets_409_or_404(
    app: Flask,
    cast: Cast,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    before: tuple[Any, str],
    status: int,
    error: str,
) -> None:
    user = builders.make_user(app, cast.alice.account_id, "late@acme.example")
    caller, real = Caller(app, user), getattr(*before)

    def overtaken(given: str) -> Any:
        with ThreadPoolExecutor(1) as meanwhile:
            meanwhile.submit(cast.root.delete, f"users/{user.id}").result()
        return real(given)

    monkeypatch.setattr(*before, overtaken)
    told(caller.post(path, body), status, error)
    told(caller.post(path, body), 401, "unauthorized")


def test_internal_error_is_500_without_details(
    alice: Caller,
    record: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("the secret of alice@acme.example")

    monkeypatch.setattr(records, "page", fail)
    answer = alice.get("records/posts")
    told(answer, 500, "internal_error")
    assert UUID.fullmatch(answer.headers["X-Correlation-ID"])
    for word in ("secret", "RuntimeError", "Traceback", ".py", "alice"):
        assert word not in answer.text
    assert "alice@acme.example" not in "".join(capfd.readouterr())


def test_import_with_full_disk_is_503(
    alice: Caller, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "alice.csv")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    sent = {"file": (io.BytesIO(b"title\r\nlater\r\n"), "a.csv")}
    answer = alice.post("records/posts/import", data=sent, content_type="multipart/form-data")
    told(answer, 503, "unavailable")
    assert alice.get("records/posts").json["total"] == 1


@pytest.mark.parametrize(("number", "status"), [(errno.ENOSPC, 503), (errno.EACCES, 500)])
def test_multipart_upload_with_full_disk_is_503(
    app: Flask, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number), "alice.csv")

    monkeypatch.setattr(formparser, "SpooledTemporaryFile", full)
    sent = {"file": (io.BytesIO(b"title\r\nlater\r\n"), "a.csv")}
    answer = app.test_client().post(
        "/console/sign-in", data=sent, content_type="multipart/form-data"
    )
    assert answer.status_code == status


@on_linux  # /dev/full
def test_log_with_full_disk_does_not_fail_requests(
    alice: Caller, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Path("/dev/full").open("w")  # noqa: SIM115 - it refuses to be closed
    monkeypatch.setattr(sys, "stdout", full)
    assert make_record(alice, title="another")["title"] == "another"
    assert alice.get("records/none").status_code == 404
    structlog.get_logger().warning("worker cannot reach its jobs")  # which ended a line of work
    with suppress(OSError):
        full.close()


def test_internal_error_message_is_not_in_response(
    alice: Caller, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (KeyError("password_hash"), ValueError("col_posts"), LookupError("sqlite:///")):

        def fail(*args: Any, _error: Exception = error, **options: Any) -> None:
            raise _error

        monkeypatch.setattr(records, "get", fail)
        body = told(alice.get(f"records/posts/{record['id']}"), 500, "internal_error")
        assert str(error).strip("'") not in str(body)


ANYWHERE = [
    ("GET", "/api/v1/auth/me", 200),
    ("OPTIONS", "/api/v1/auth/me", 200),
    ("HEAD", "/api/v1/auth/me", 200),
    ("GET", "/api/v1/nope", 404),
    ("DELETE", "/api/v1/auth/me", 405),
    ("POST", "/api/v1/auth/login", 422),
    ("GET", "/api/v1/collections", 403),
    ("GET", "/health", 200),
    ("GET", "/openapi.json", 200),
    ("GET", "/docs", 200),
    ("GET", "/", 302),
    ("GET", "/console", 302),
    ("GET", "/console/sign-in", 200),
    ("POST", "/console/sign-in", 400),
    ("GET", "/static/pages/pages.css", 200),
    ("GET", "/static/nope", 404),
    ("GET", "/nope", 404),
]


def test_correlation_id_of_request_is_returned(alice: Caller) -> None:
    for given in ("a", "A-b_c.9", "x" * 128):
        for method, path, status in ANYWHERE:
            answer = alice(method, path, headers={"X-Correlation-ID": given})
            assert (answer.status_code, path) == (status, path)
            assert answer.headers.getlist("X-Correlation-ID") == [given]
            answer.close()


NO_IDS = [
    "",
    "a b",
    "x" * 129,
    "x" * 200,
    "a\r\nSet-Cookie: a=b",
    "a\n",
    "\u00e9",
    "a\0",
    "<b>",
    "a/b",
]


def test_correlation_id_that_is_malformed_is_replaced(alice: Caller) -> None:
    seen = set()
    for given in NO_IDS:
        for method, path, status in ANYWHERE:
            raw = {"HTTP_X_CORRELATION_ID": given.encode().decode("latin-1")}
            answer = alice(method, path, environ_overrides=raw)
            assert (answer.status_code, path) == (status, path)
            assert UUID.fullmatch(answer.headers["X-Correlation-ID"])
            assert "Set-Cookie: a=b" not in str(answer.headers)
            seen.add(answer.headers["X-Correlation-ID"])
            answer.close()
    assert len(seen) == len(NO_IDS) * len(ANYWHERE)


def paths_of(rule: Rule, url_map: Map) -> str:
    """A path of a rule, without a slash at its end."""
    fitting = {"IntegerPath": lambda one: "1", "AnyConverter": lambda one: min(one.items)}
    arguments = {
        name: fitting.get(type(converter).__name__, lambda one: UNKNOWN_ID)(converter)
        for name, converter in rule._converters.items()
    }
    return str(url_map.bind("atrium.test").build(rule.endpoint, arguments)).rstrip("/")


@pytest.mark.long
def test_route_answers_with_and_without_trailing_slash(app: Flask, root: Caller) -> None:
    checked = 0
    for rule in app.url_map.iter_rules():
        if rule.rule in ("/", "/static/<path:filename>"):
            continue
        path, matcher = paths_of(rule, app.url_map), app.url_map.bind("atrium.test")
        for method in rule.methods or ():
            try:
                found = [matcher.match(form, method) for form in (path, f"{path}/")]
            except RequestRedirect as redirect:
                pytest.fail(f"{method} {path} redirects to {redirect.new_url}")
            assert found[0] == found[1]
            answers = [root(method, form, environ_base={}) for form in (path, f"{path}/")]
            assert answers[0].status_code == answers[1].status_code != 308
            checked += 1
    assert checked > 50


# --- The database is gone -------------------------------------------------------


def test_foreign_database_file_makes_ready_503(tmp_path: Path) -> None:
    made = make_app(settings_for("sqlite", tmp_path))
    with made.app_context():
        db.db.engine.dispose()
    for file in tmp_path.glob("atrium.db*"):
        file.unlink()
    (tmp_path / "atrium.db").mkdir()
    answer = Caller(made).post("auth/verify-email", {"token": "AA0001-x"})
    told(answer, 503, "unavailable")
    ready = Caller(made).get("/ready")
    assert (ready.status_code, ready.json["checks"]["database"]) == (503, "unreachable")
