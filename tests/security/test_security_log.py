"""The security log of an account: what it records, for whom, and that it verifies."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flask import Flask
from sqlalchemy.exc import DBAPIError

from app import db
from app.audit.chain.digest import FIRST_PREVIOUS
from app.audit.security_log import sealing
from app.audit.security_log.entries import EVENTS
from app.audit.security_log.recording import Event, record
from app.context import tenancy
from tests.audit.chains import stand_alone
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_record, make_user
from tests.console.browser import Browser
from tests.logs import unguarded
from tests.security.reading import CUSTOMERS, events, reads


@pytest.fixture
def customer(cast: Cast) -> dict[str, Any]:
    """A record with personal data, made by somebody who may see it."""
    make_collection(cast.root, "customers", CUSTOMERS)
    return make_record(cast.alice, "customers", name="Zoe", email="zoe@example.org")


def test_security_log_list_read_is_one_event_with_ids_and_fields(
    cast: Cast, customer: dict[str, Any]
) -> None:
    other = make_record(cast.alice, "customers", name="Max", email="max@example.org")
    cast.alice.get("records/customers", headers={"X-Correlation-ID": "list-1"})
    (event,) = reads(cast.alice, path="list")
    assert event["target_type"] == "col_customers"
    assert event["user_id"] == cast.alice.id
    assert event["request_id"] == "list-1"
    assert event["details"]["fields"] == ["email"]
    assert sorted(event["details"]["records"]) == sorted([customer["id"], other["id"]])


def test_security_log_has_no_event_of_masked_read(cast: Cast, customer: dict[str, Any]) -> None:
    before = len(events(cast.alice))
    for path in ("records/customers", f"records/customers/{customer['id']}"):
        assert cast.bob.get(path).status_code == 200
    cast.alice.get("records/customers", query_string={"fields": "name"})
    assert len(events(cast.alice)) == before


def test_security_log_records_sign_in_and_failure(cast: Cast) -> None:
    body = {"account": "acme", "email": cast.bob.email}
    cast.bob.post("auth/login", {**body, "password": PASSWORD}, headers={"Authorization": ""})
    cast.bob.post("auth/login", {**body, "password": "wrong"}, headers={"Authorization": ""})
    (good,) = events(cast.alice, kind="sign_in.succeeded")
    (bad,) = events(cast.alice, kind="sign_in.failed")
    assert (good["user_id"], good["target_id"]) == (cast.bob.id, cast.bob.id)
    assert (bad["user_id"], bad["target_id"]) == ("anonymous", cast.bob.id)
    assert bad["details"]["reason"] == "authentication_failed"
    assert "wrong" not in json.dumps(bad)


def test_security_log_is_readable_by_account_admins_only(
    cast: Cast, customer: dict[str, Any]
) -> None:
    assert cast.bob.get("account/security-log").status_code == 403
    assert all("customers" not in event["target_type"] for event in events(cast.charlie))


def test_security_log_export_verifies_offline(
    cast: Cast, customer: dict[str, Any], tmp_path: Path
) -> None:
    cast.alice.get("records/customers")
    verifier = stand_alone()
    for format in ("jsonl", "json", "csv"):
        file = tmp_path / f"log.{format}"
        file.write_bytes(cast.alice.get(f"account/security-log/export?format={format}").data)
        (chain,) = verifier.verify(verifier.read(str(file))).values()
        assert (chain.fault, chain.checked) == (None, events(cast.alice)[-1]["number"])
    found = cast.alice.get("account/security-log/verify").json
    assert found["valid"], found
    assert found["checked"] == events(cast.alice)[-1]["number"]


def test_security_log_numbers_have_no_gaps(
    app: Flask, cast: Cast, customer: dict[str, Any]
) -> None:
    for _ in range(3):
        cast.alice.get(f"records/customers/{customer['id']}")
    numbers = [event["number"] for event in events(cast.alice)]
    assert numbers == list(range(1, len(numbers) + 1))


SIGN_INS: dict[str, Any] = {"account": "acme", "email": "bob@acme.example"}


@pytest.mark.parametrize("email", ["bob@acme.example", "nobody@acme.example"])
def test_security_log_sign_in_failure_names_tried_user_to_own_admins_only(
    app: Flask, cast: Cast, email: str
) -> None:
    Caller(app).post("auth/login", {**SIGN_INS, "email": email, "password": "Wrong-horse-1"})
    (failure,) = events(cast.alice, kind="sign_in.failed")
    assert failure["details"]["email"] == email
    assert failure["target_id"] == (cast.bob.id if email.startswith("bob") else "")
    assert events(cast.charlie, kind="sign_in.failed") == []


def test_security_log_failures_of_unknown_accounts_belong_to_operator(
    app: Flask, cast: Cast
) -> None:
    Caller(app).post("auth/login", {**SIGN_INS, "account": "nowhere", "password": "x"})
    assert events(cast.alice, kind="sign_in.failed") == []
    assert len(events(cast.root, kind="sign_in.failed")) == 1


def test_security_log_is_not_filled_by_guesses(app: Flask, cast: Cast) -> None:
    settings = app.extensions["atrium.config"]
    app.extensions["atrium.config"] = replace(settings, login_rate_limit="on")
    try:
        for _ in range(70):
            Caller(app).post("auth/login", {**SIGN_INS, "password": "Wrong-horse-1"})
    finally:
        app.extensions["atrium.config"] = settings
    failed = events(cast.alice, kind="sign_in.failed")
    locked = events(cast.alice, kind="sign_in.locked")
    assert failed
    assert locked
    assert len(failed) + len(locked) <= 60


ACTS: dict[str, Any] = {
    "api_key.created": lambda cast: cast.alice.post("api-keys", {"name": "nightly"}),
    "group.created": lambda cast: cast.alice.post("groups", {"name": "finance"}),
    "domain.created": lambda cast: cast.alice.post("account/domains", {"domain": "a.example"}),
    "scim_token.created": lambda cast: cast.alice.post("account/scim/tokens"),
    "saml_key.created": lambda cast: cast.alice.post("account/sso/keys"),
    "user.created": lambda cast: cast.alice.post("account/users", {"email": "d@x.example"}),
    "user.changed": lambda cast: cast.alice.patch(f"account/users/{cast.bob.id}", {"name": "B"}),
    "account.changed": lambda cast: cast.alice.patch("account", {"name": "Acme Ltd"}),
    "invitation.created": lambda cast: cast.alice.post("invitations", {"email": "e@x.example"}),
    "security_stream.created": lambda cast: cast.alice.put(
        "account/security-log/stream", {"url": "http://127.0.0.1:9/"}
    ),
    "password.changed": lambda cast: cast.alice.post(
        "auth/change-password",
        {"current_password": PASSWORD, "new_password": "Another-horse-2"},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", ACTS)
def test_security_log_records_every_access_change(cast: Cast, kind: str) -> None:
    answer = ACTS[kind](cast)
    assert answer.status_code in (200, 201, 204), answer.text
    # A new password ends the tokens of alice, too.
    event = events(cast.root.acting_in("acme"), kind=kind)[-1]
    assert event["user_id"] == cast.alice.id
    assert event["request_id"]
    assert all(word not in json.dumps(event) for word in ("Another-horse-2", PASSWORD))


def test_security_log_records_ended_sessions(app: Flask, cast: Cast) -> None:
    Caller(app).post("auth/login", {**SIGN_INS, "password": PASSWORD})
    cast.alice.delete(f"account/users/{cast.bob.id}/sessions")
    (event,) = events(cast.alice, kind="sessions.ended")
    assert (event["target_id"], event["details"]["count"]) == (cast.bob.id, 1)


def test_security_log_records_console_sign_in(app: Flask, cast: Cast) -> None:
    Browser(app, cast.bob)
    (event,) = events(cast.alice, kind="sign_in.succeeded")
    assert (event["user_id"], event["details"]["application"]) == (cast.bob.id, "console")


def test_security_log_pages_by_cursor(cast: Cast) -> None:
    for name in range(5):
        cast.alice.post("groups", {"name": str(name)})
    whole = [event["number"] for event in reversed(events(cast.alice))]
    found, query = list[int](), {"limit": 2}
    while True:
        page = cast.alice.get("account/security-log", query_string=query).json
        found += [event["number"] for event in page["items"]]
        if not page["has_more"]:
            break
        query["before"] = page["next_before"]
    assert found == whole


FILTERS = {
    "kind": "group.created",
    "target_type": "groups",
    "user_id": "{alice}",
    "from_date": "2020-01-01T00:00:00Z",
    "to_date": "2020-01-01T00:00:00Z",
    "record_id": "nothing",
    "path": "list",
}


@pytest.mark.parametrize("name", FILTERS)
def test_security_log_filters(cast: Cast, name: str) -> None:
    cast.alice.post("groups", {"name": "finance"})
    cast.bob.patch("auth/me", {"name": "Bob"})
    value = FILTERS[name].format(alice=cast.alice.id)
    found = events(cast.alice, **{name: value})
    if name in ("to_date", "record_id", "path"):
        assert found == []
    elif name != "from_date":
        assert {event[name] for event in found} == {value}
        assert len(found) < len(events(cast.alice))


@pytest.mark.parametrize(
    "query", [{"kind": "x"}, {"limit": 0}, {"before": 0}, {"from_date": "x"}, {"nothing": "x"}]
)
def test_security_log_query_with_invalid_parameter_is_refused(
    cast: Cast, query: dict[str, Any]
) -> None:
    assert cast.alice.get("account/security-log", query_string=query).status_code in (400, 422)


def test_security_log_readers_report_of_record(cast: Cast, customer: dict[str, Any]) -> None:
    other = make_record(cast.alice, "customers", name="Max", email="max@example.org")
    cast.alice.get("records/customers")
    cast.alice.get(f"records/customers/{other['id']}")
    cast.root.acting_in("acme").get(f"records/customers/{customer['id']}")
    query = {"record_id": customer["id"], "target_type": "col_customers"}
    report = cast.alice.get("account/security-log/access-report", query_string=query).json
    found = {(one["user_id"], one["path"]): one["reads"] for one in report["items"]}
    assert found == {
        (cast.root.id, "get"): 1,
        (cast.alice.id, "list"): 1,
        (cast.alice.id, "write"): 1,
    }
    assert report["is_complete"]
    query = {"user_id": cast.alice.id}
    report = cast.alice.get("account/security-log/access-report", query_string=query).json
    assert {one["path"] for one in report["items"]} == {"list", "get", "write"}


def test_security_log_ocsf_export_has_object_per_event(
    app: Flask, cast: Cast, customer: Any
) -> None:
    Caller(app).post("auth/login", {**SIGN_INS, "password": "Wrong-horse-1"})
    text = cast.alice.get("account/security-log/export?format=ocsf").data
    found = [json.loads(line) for line in text.splitlines()]
    whole = events(cast.alice)
    assert [one["metadata"]["sequence"] for one in found] == [one["number"] for one in whole]
    for one in found:
        assert one["type_uid"] == one["class_uid"] * 100 + one["activity_id"]
        assert one["category_uid"] == one["class_uid"] // 1000
        assert isinstance(one["time"], int)
    kinds = {one["metadata"]["event_code"]: one for one in found}
    assert kinds["sign_in.failed"]["status"] == "Failure"
    assert kinds["sign_in.failed"]["class_name"] == "Authentication"
    assert kinds["personal_data.read"]["class_name"] == "Datastore Activity"


def test_security_log_of_erased_user_still_verifies(
    app: Flask, cast: Cast, customer: dict[str, Any], tmp_path: Path
) -> None:
    dora = make_user(app, cast.alice.account_id, "dora@acme.example")
    body = {"account": "acme", "email": "dora@acme.example"}
    Caller(app).post("auth/login", {**body, "password": PASSWORD})
    Caller(app).post("auth/login", {**body, "password": "Wrong-horse-1"})
    before = len(events(cast.alice))
    assert cast.root.post(f"users/{dora.id}/erase").status_code == 200
    file = tmp_path / "log.jsonl"
    file.write_bytes(cast.alice.get("account/security-log/export").data)
    assert "dora@" not in file.read_text()
    verifier = stand_alone()
    (chain,) = verifier.verify(verifier.read(str(file))).values()
    assert chain.fault is None
    assert chain.erased >= 2
    assert events(cast.alice, kind="log.erased")
    assert len(events(cast.alice)) > before
    found = cast.alice.get("account/security-log/verify").json
    assert found["valid"], found
    for kind in ("sign_in.succeeded", "sign_in.failed"):
        (event,) = events(cast.alice, kind=kind)
        assert event["details"] is None


EDITS = {
    "another actor": "UPDATE security_events SET user_email = 'eve@x.example' WHERE number = 2",
    "another kind": "UPDATE security_events SET kind = 'group.changed' WHERE number = 2",
    "other details": "UPDATE security_events SET details = '[]' WHERE number = 2",
    "another time": "UPDATE security_events SET path = 'x' WHERE number = 2",
    "an event is missing": "DELETE FROM security_events WHERE number = 2",
    "the end is missing": "DELETE FROM security_events WHERE number > 2",
    "emptied without a trace": "UPDATE security_events SET details = NULL, salt = NULL"
    " WHERE number = 2",
}


@pytest.mark.parametrize("edit", EDITS)
def test_security_log_tampering_breaks_chain(app: Flask, cast: Cast, edit: str) -> None:
    for name in range(3):
        cast.alice.post("groups", {"name": str(name)})
    assert cast.alice.get("account/security-log/verify").json["valid"]
    with app.app_context(), db.transaction(), unguarded():
        statement = f"{EDITS[edit]} AND account_id = '{cast.alice.account_id}'"
        assert db.connection().execute(sa.text(statement)).rowcount
    found = cast.alice.get("account/security-log/verify").json
    assert not found["valid"]


def test_security_log_rewritten_is_not_signed_again(app: Flask, cast: Cast) -> None:
    account_id = cast.alice.account_id
    cast.alice.post("groups", {"name": "first"})
    assert cast.alice.get("account/security-log/verify").json["valid"]
    with app.app_context(), tenancy.in_account(account_id), db.transaction(), unguarded():
        own = EVENTS.c.account_id == account_id
        query = sa.select(EVENTS).where(own).order_by(EVENTS.c.number)
        rows = [dict(row) for row in db.connection().execute(query).mappings()]
        db.connection().execute(sa.delete(EVENTS).where(own))
        sealing.append(account_id, [row | {"path": "/other"} for row in rows], 0, FIRST_PREVIOUS)
    cast.alice.post("groups", {"name": "second"})
    for _ in range(2):
        assert not cast.alice.get("account/security-log/verify").json["valid"]


@pytest.mark.parametrize("edit", [edit for edit in EDITS if edit != "emptied without a trace"])
def test_security_log_is_append_only_in_database(app: Flask, cast: Cast, edit: str) -> None:
    for name in range(3):
        cast.alice.post("groups", {"name": str(name)})
    events(cast.alice)
    with app.app_context(), pytest.raises(DBAPIError, match="append-only"), db.transaction():
        db.connection().execute(sa.text(EDITS[edit]))


def test_security_log_verify_command_checks_every_log(app: Flask, cast: Cast) -> None:
    cast.alice.post("groups", {"name": "finance"})
    run = app.test_cli_runner().invoke
    found = run(args=["audit", "verify-security"])
    assert found.exit_code == 0, found.output
    assert f"{cast.alice.account_id}/security: valid" in found.output
    with app.app_context(), db.transaction(), unguarded():
        own = (EVENTS.c.account_id == cast.alice.account_id, EVENTS.c.number == 1)
        db.connection().execute(sa.update(EVENTS).where(*own).values(kind="x"))
    found = run(args=["audit", "verify-security"])
    assert found.exit_code == 1
    assert "BROKEN" in found.output
    other = ["audit", "verify-security", "--account", cast.charlie.account_id]
    assert run(args=other).exit_code == 0


def test_security_log_checkpoint_belongs_to_its_chain(
    app: Flask, cast: Cast, tmp_path: Path
) -> None:
    key = Ed25519PrivateKey.generate().private_bytes_raw()
    settings = app.extensions["atrium.config"]
    text = urlsafe_b64encode(key).decode()
    app.extensions["atrium.config"] = replace(settings, audit_checkpoint_key=(text,))
    try:
        cast.alice.post("groups", {"name": "finance"})
        checkpoint = cast.alice.get("account/security-log/verify").json["checkpoint"]
        export = cast.alice.get("account/security-log/export?format=json").json
    finally:
        app.extensions["atrium.config"] = settings
    assert checkpoint["account_id"] == f"{cast.alice.account_id}/security"
    verifier = stand_alone()
    (chain,) = verifier.verify(export["items"], [checkpoint]).values()
    assert chain.fault is None
    assert export["checkpoints"][0]["public_key"] == checkpoint["public_key"]
    (chain,) = verifier.verify(export["items"][:-1], [checkpoint]).values()
    assert chain.fault


def test_security_log_concurrent_sealing_numbers_each_event_once(app: Flask, cast: Cast) -> None:
    with app.app_context():
        for number in range(1200):
            record(Event(cast.alice.account_id, "group.created", "groups", str(number)))
        db.db.session.remove()

    def seal(_: int) -> None:
        with app.app_context():
            sealing.seal(cast.alice.account_id)
            db.db.session.remove()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(seal, range(4)))
    found = cast.alice.get("account/security-log/verify").json
    assert found["valid"], found
    with app.app_context():
        own = EVENTS.c.account_id == cast.alice.account_id
        query = sa.select(EVENTS.c.number).where(own).order_by(EVENTS.c.number)
        numbers = list(db.connection().scalars(query))
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 1200


def test_account_audit_log_shows_own_account_only(cast: Cast, customer: dict[str, Any]) -> None:
    make_record(cast.charlie, "customers", name="Max", email="max@example.org")
    query = {"table_name": "col_customers", "limit": 500}
    found = cast.alice.get("account/audit-logs", query_string=query).json
    assert {entry["record_id"] for entry in found["items"]} == {customer["id"]}
    assert {entry["account_id"] for entry in found["items"]} == {cast.alice.account_id}
    assert "zoe@example.org" in str(found)
    assert found["total"] == len(found["items"])
    export = cast.alice.get("account/audit-logs/export").data
    entries = [json.loads(line) for line in export.splitlines()]
    (chain,) = stand_alone().verify(entries).values()
    assert chain.fault is None
    assert cast.bob.get("account/audit-logs").status_code == 403
    foreign = {"account_id": cast.charlie.account_id}
    assert cast.alice.get("account/audit-logs", query_string=foreign).status_code in (400, 422)
