"""A read-only API key reads what its user may read, and changes nothing by any operation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from app.web.access import AccessLevel, access_of
from tests.builders import Caller, Cast, make_collection, make_record

CASES = Path(__file__).parents[1] / "cases"
OPERATIONS = [line.split() for line in (CASES / "operations.txt").read_text().splitlines()]
# Of each operation that is no GET: it reads, writes, or is public, where credentials do not count.
KINDS = dict(line.split() for line in (CASES / "read_only_keys.txt").read_text().splitlines())
PARAMETERS = {"collection": "posts", "collection_name": "posts", "role_id": "1"}
ANY_ID = "019a9f00-0000-7000-8000-00000000dead"
BY_A_CALLER = [  # public, but for the caller's own sign-in
    ("auth/mfa/totp", {}),
    ("auth/mfa/passkeys/options", {}),
    ("auth/resend-verification", {}),
]


def reader(app: Flask, owner: Caller, **limits: Any) -> Caller:
    """A program with a new read-only key of that user."""
    made = owner.post("api-keys", {"name": "reports", "read_only": True, **limits})
    assert made.status_code == 201, made.json
    return Caller(app, **{"X-API-Key": made.json["key"]})


def filled(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: PARAMETERS.get(found[1], ANY_ID), path)


def test_read_only_key_table_has_every_non_get_operation() -> None:
    assert list(KINDS) == [name for name, method, _ in OPERATIONS if method != "GET"]
    assert set(KINDS.values()) == {"reads", "writes", "public"}


@pytest.mark.parametrize("who", ["root", "alice"])
def test_read_only_key_on_writing_operations_is_403(app: Flask, cast: Cast, who: str) -> None:
    make_collection(cast.root)
    program = reader(app, getattr(cast, who))
    for name, method, path in OPERATIONS:
        kind = KINDS.get(name, "reads")
        if kind == "public":
            continue
        answer = program(method, filled(path), {} if method != "GET" else None)
        if kind == "writes":
            # Those above the caller are refused in any case, whoever asks.
            refusals = {"read_only_key"} | ({"superadmin_required"} if who == "alice" else set())
            assert answer.status_code == 403, (name, answer.text)
            assert answer.json["error"] in refusals, (name, answer.text)
        else:
            assert "read_only_key" not in answer.text, (name, answer.text)


def test_every_operation_declares_what_a_read_only_key_may_do(app: Flask) -> None:
    rules = {
        (method, re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)): rule.endpoint
        for rule in app.url_map.iter_rules()
        for method in rule.methods or ()
    }
    for name, method, path in OPERATIONS:
        if method != "GET":
            view = app.view_functions[rules[method, path]]
            access = access_of(view)
            is_public = access.level is AccessLevel.PUBLIC
            kind = "public" if is_public else "reads" if access.reads else "writes"
            assert kind == KINDS[name], name


@pytest.mark.parametrize(("path", "body"), BY_A_CALLER)
def test_read_only_key_on_public_operations_is_403(
    app: Flask, alice: Caller, path: str, body: Any
) -> None:
    answer = reader(app, alice).post(path, body)
    assert (answer.status_code, answer.json["error"]) == (403, "read_only_key")


def test_read_only_key_reads_as_its_owner(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    record = make_record(cast.alice, title="One")
    program = reader(app, cast.alice)
    one = f"records/posts/{record['id']}"
    for path in ("auth/me", "account", "account/users", "records/posts", one, f"{one}/history"):
        assert program.get(path).status_code == 200, path
    assert program("HEAD", one).status_code == 200
    assert program("OPTIONS", one).status_code in (200, 204)
    assert program.post("account/sso/plan", {}).status_code == 200
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert program(method, one, {"title": "Two"}).status_code in (403, 405), method
    assert cast.alice.get(one).json["title"] == "One"
    assert reader(app, cast.bob).get("account/users").status_code == 403


def test_read_only_key_with_scopes_applies_both(app: Flask, cast: Cast) -> None:
    for name in ("posts", "drafts"):
        make_collection(cast.root, name)
    program = reader(app, cast.alice, scopes={"collections": ["posts"]})
    cases = [
        ("GET", "records/posts", None, 200, None),
        ("POST", "records/posts", {"title": "x"}, 403, "read_only_key"),
        ("GET", "records/drafts", None, 403, "scope_denied"),
        ("GET", "account/users", None, 403, "scope_denied"),
        ("POST", "files/upload", None, 403, "read_only_key"),
    ]
    for method, path, body, status, error in cases:
        answer = program(method, path, body)
        assert (answer.status_code, answer.json.get("error")) == (status, error), (method, path)


def test_read_only_key_hides_workflow_webhook_token(app: Flask, alice: Caller) -> None:
    steps = [{"name": "rest", "type": "wait_delay", "duration": "1h"}]
    body = {"name": "flow", "trigger": {"type": "webhook"}, "steps": steps}
    made = alice.post("workflows", body).json
    token = made["trigger"]["token"]
    program = reader(app, alice)
    for path in ("workflows", f"workflows/{made['id']}", "account/audit-logs"):
        answer = program.get(path)
        assert answer.status_code == 200
        assert token not in answer.text, path
    assert token in alice.get(f"workflows/{made['id']}").text


def test_read_only_key_flag_is_shown(alice: Caller) -> None:
    for sent, shown in (({}, False), ({"read_only": False}, False), ({"read_only": True}, True)):
        made = alice.post("api-keys", {"name": "x", **sent}).json
        assert made["read_only"] is shown
        assert alice.get(f"api-keys/{made['id']}").json["read_only"] is shown
    for wrong in ("true", 1, None):
        assert alice.post("api-keys", {"name": "x", "read_only": wrong}).status_code == 422


def test_read_only_key_flag_cannot_be_removed(app: Flask, alice: Caller) -> None:
    made = alice.post("api-keys", {"name": "x", "read_only": True}).json
    one = f"api-keys/{made['id']}"
    assert alice.patch(one, {"read_only": False}).status_code == 422
    assert alice.post(f"{one}/rotate").json["read_only"] is True
    assert alice.get(one).json["read_only"] is True
