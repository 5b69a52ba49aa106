"""Every path by which personal data is shown unmasked is in the security log."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.accounts.models import GroupMember, User
from app.audit.security_log import sealing
from app.audit.security_log.recording import PENDING
from app.context import tenancy
from tests.builders import Caller, Cast, make_collection, make_record
from tests.console.browser import Browser
from tests.realtime.clients import Events
from tests.realtime.conftest import serving
from tests.receivers import receiving
from tests.security.reading import CUSTOMERS, events, reads
from tests.webhooks.delivering import make_webhook
from tests.workflows.running import action, make_workflow, ran

Act = Callable[[Caller, str], Any]

ACTS: dict[str, Act] = {
    "get": lambda caller, id: caller.get(f"records/customers/{id}"),
    "list": lambda caller, id: caller.get("records/customers"),
    "export": lambda caller, id: caller.get("records/customers/export?format=csv").data,
    "aggregate": lambda caller, id: caller.get(
        "records/customers/aggregate?functions=count()&group_by=email"
    ),
    "history": lambda caller, id: caller.get(f"records/customers/{id}/history"),
    "write": lambda caller, id: caller.patch(f"records/customers/{id}", {"name": "Zed"}),
    "changes": lambda caller, id: caller.get("changes?since=0"),
    "audit": lambda caller, id: caller.get(f"account/audit-logs?record_id={id}"),
    "expand": lambda caller, id: caller.get("records/orders?expand=customer"),
}


@pytest.fixture
def customer(cast: Cast) -> dict[str, Any]:
    """A customer with an order; `email` is personal."""
    make_collection(cast.root, "customers", CUSTOMERS)
    reference = {"name": "customer", "type": "reference", "collection": "customers"}
    make_collection(cast.root, "orders", [reference])
    made = make_record(cast.alice, "customers", name="Zoe", email="zoe@example.org")
    make_record(cast.alice, "orders", customer=made["id"])
    return made


@pytest.mark.parametrize("path", ACTS)
def test_personal_data_read_is_recorded_for_every_path(
    cast: Cast, customer: dict[str, Any], path: str
) -> None:
    before = len(reads(cast.alice, path=path))
    answer = ACTS[path](cast.alice, customer["id"])
    assert isinstance(answer, bytes) or answer.status_code == 200, answer.text
    event = reads(cast.alice, path=path)[before:][-1]
    assert event["user_id"] == cast.alice.id
    assert event["target_type"] == "col_customers"
    assert event["details"]["fields"] == ["email"]
    assert event["details"]["records"] == ([] if path == "aggregate" else [customer["id"]])


@pytest.mark.parametrize("path", ACTS)
def test_personal_data_read_masked_is_not_recorded_for_any_path(
    cast: Cast, customer: dict[str, Any], path: str
) -> None:
    before = len(events(cast.alice))
    answer = ACTS[path](cast.bob, customer["id"])
    assert isinstance(answer, bytes) or answer.status_code in (200, 400, 403), answer.text
    assert len(events(cast.alice)) == before


def test_superadmin_read_is_recorded_as_platform_operator(
    cast: Cast, customer: dict[str, Any]
) -> None:
    root = cast.root.acting_in("acme")
    root.get("records/customers")
    root.get("records/orders")
    root.get("account/users")
    by_root = events(cast.alice, user_id=cast.root.id)
    kinds = [event["kind"] for event in by_root][-3:]
    assert kinds == ["personal_data.read", "operator.records_read", "operator.request"]
    assert {event["user_name"] for event in by_root} == {"Platform operator"}
    assert {(event["user_email"], event["ip_address"]) for event in by_root} == {(None, None)}
    assert by_root[-1]["details"] == {"method": "GET", "route": "/api/v1/account/users"}


def test_superadmin_requests_about_account_are_recorded(app: Flask, cast: Cast) -> None:
    browser = Browser(app, cast.root)
    browser.get(f"security-log/{cast.alice.account_id}")
    cast.root.get(f"accounts/{cast.alice.account_id}")
    routes = [one["details"]["route"] for one in events(cast.alice, kind="operator.request")]
    assert routes == [
        "/console/security-log/<uuid:account_id>",
        "/api/v1/accounts/<uuid:account_id>",
    ]


def test_superadmin_read_across_accounts_is_recorded_in_each(
    cast: Cast, customer: dict[str, Any]
) -> None:
    make_record(cast.charlie, "customers", name="Max", email="max@example.org")
    cast.root.get("records/customers", headers={"X-Account-ID": "*"})
    for admin in (cast.alice, cast.charlie):
        (event,) = reads(admin, user_id=cast.root.id)
        assert event["details"]["count"] == 1


def test_superadmin_aggregate_across_accounts_is_recorded_in_each(
    app: Flask, cast: Cast, customer: dict[str, Any]
) -> None:
    make_record(cast.charlie, "customers", name="Max", email="max@example.org")
    path = "records/customers/aggregate?functions=count()&group_by=email&filter=name='Zoe'"
    answer = cast.root.get(path, headers={"X-Account-ID": "*"})
    assert "zoe@example.org" in answer.text
    (event,) = reads(cast.alice, user_id=cast.root.id)
    assert (event["path"], event["details"]["fields"]) == ("aggregate", ["email"])
    assert not reads(cast.charlie, user_id=cast.root.id)


def test_personal_data_read_by_webhook_is_recorded(
    app: Flask, cast: Cast, customer: dict[str, Any]
) -> None:
    with receiving() as receiver:
        options = {"collection": "customers", "include_pii": True}
        make_webhook(cast.alice, receiver.url, **options)
        cast.bob.patch(f"records/customers/{customer['id']}", {"name": "Zed"})
    (event, *_) = reads(cast.alice, path="webhook")
    assert (event["user_id"], event["target_id"]) == (cast.alice.id, customer["id"])


def test_personal_data_read_by_workflow_is_recorded(
    app: Flask, cast: Cast, customer: dict[str, Any]
) -> None:
    find = action("find", "query_records", collection="customers")
    ran(app, cast.alice, make_workflow(cast.alice, [find]))
    (event, *_) = reads(cast.alice, path="workflow")
    assert event["details"]["records"] == [customer["id"]]


def test_personal_data_read_of_file_is_recorded(cast: Cast) -> None:
    schema = [{"name": "passport", "type": "file", "pii": True}]
    make_collection(cast.root, "people", schema)
    data = {"passport": (io.BytesIO(b"secret"), "passport.txt")}
    made = cast.alice.post("records/people", data=data, content_type="multipart/form-data").json
    file_id = made["passport"]["id"]
    assert cast.alice.get(f"files/{file_id}").status_code == 200
    (event,) = reads(cast.alice, path="file")
    assert (event["target_id"], event["details"]["fields"]) == (made["id"], ["passport"])


def test_personal_data_read_in_console_is_recorded(
    app: Flask, cast: Cast, customer: dict[str, Any]
) -> None:
    browser = Browser(app, cast.alice)
    browser.get(f"records/{cast.alice.account_id}/customers/{customer['id']}")
    assert reads(cast.alice, path="console")[-1]["target_id"] == customer["id"]


@pytest.mark.parametrize("format", ["csv", "json", "jsonl"])
def test_personal_data_read_by_audit_export_is_recorded(
    cast: Cast, customer: dict[str, Any], format: str
) -> None:
    cast.alice.get(f"account/audit-logs/export?format={format}").get_data()
    (event,) = reads(cast.alice, path="audit")
    assert (event["user_id"], event["target_id"]) == (cast.alice.id, customer["id"])


def test_personal_data_read_with_304_or_412_is_not_recorded(
    cast: Cast, customer: dict[str, Any]
) -> None:
    path = f"records/customers/{customer['id']}"
    etag = cast.alice.get(path).headers["ETag"]
    before = len(reads(cast.alice))
    assert cast.alice.get(path, headers={"If-None-Match": etag}).status_code == 304
    assert cast.alice.get(path, headers={"If-Match": '"x"'}).status_code == 412
    assert len(reads(cast.alice)) == before


def test_personal_data_read_that_cannot_be_recorded_is_500(
    app: Flask, cast: Cast, customer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError("no room")

    app.config["PROPAGATE_EXCEPTIONS"] = False
    monkeypatch.setattr("app.audit.security_log.reads.record", fail)
    answer = cast.alice.get("records/customers")
    assert answer.status_code == 500
    assert "zoe@" not in answer.text


def test_personal_data_read_that_is_retried_is_recorded_as_answered(
    app: Flask, cast: Cast, customer: dict[str, Any]
) -> None:
    # The cached caller is in pii_access until the database says that this has changed.
    assert cast.alice.get("records/customers").status_code == 200
    before = len(reads(cast.charlie)) + len(reads(cast.alice))
    group = next(g for g in cast.alice.get("groups").json["items"] if g["name"] == "pii_access")
    with app.app_context(), db.transaction() as session:
        own = (
            GroupMember.account_id == cast.alice.account_id,
            GroupMember.user_id == cast.alice.id,
        )
        session.execute(sa.delete(GroupMember).where(*own))
        user = session.get_one(User, (cast.alice.account_id, cast.alice.id))
        user.version += 1
    assert group
    assert "zoe@" not in cast.alice.get("records/customers").text
    assert len(reads(cast.charlie)) + len(reads(cast.alice)) == before


def test_personal_data_reads_are_not_blocked_by_sealing(
    app: Flask, cast: Cast, customer: dict[str, Any]
) -> None:
    with app.app_context():
        if db.has_one_writer():
            return
    locked, done = Event(), Event()

    def seal() -> None:
        with app.app_context(), tenancy.in_account(cast.alice.account_id), db.transaction():
            sealing.lock_head(cast.alice.account_id)
            locked.set()
            assert done.wait(20)

    thread = Thread(target=seal)
    thread.start()
    try:
        assert locked.wait(20)
        assert cast.alice.get("records/customers").status_code == 200
    finally:
        done.set()
        thread.join()
    assert reads(cast.alice, path="list")


def test_personal_data_read_is_stored_before_response(
    app: Flask, cast: Cast, customer: dict[str, Any]
) -> None:
    # Nothing that a killed process would lose.
    def pending() -> int:
        with app.app_context():
            query = sa.select(sa.func.count()).select_from(PENDING)
            return int(db.connection().scalar(query.where(PENDING.c.path == "list")) or 0)

    before = pending()
    assert cast.alice.get("records/customers").status_code == 200
    assert pending() == before + 1


def test_personal_data_export_is_recorded_before_each_chunk(
    cast: Cast, customer: dict[str, Any]
) -> None:
    for name in range(150):
        body = {"name": str(name), "email": f"{name}@example.org"}
        assert cast.alice.post("records/customers", body).status_code == 201
    text = cast.alice.get("records/customers/export?format=jsonl").data
    sent = {json.loads(line)["id"] for line in text.splitlines()}
    found = reads(cast.alice, path="export")
    recorded = [id for event in found for id in event["details"]["records"]]
    assert set(recorded) == sent
    assert len(recorded) == len(sent) == 151


def test_personal_data_read_event_has_at_most_1000_ids() -> None:
    from app.audit.security_log.reads import _events, _Key
    from app.context import actor

    key = _Key("a", "col_x", "list", ("email",), "u", None, None, None)
    actor.source.set(actor.system)
    ids = dict.fromkeys(map(str, range(2500)))
    assert [len(one.details["records"]) for one in _events(key, ids)] == [1000, 1000, 500]


def test_personal_data_read_by_stream_is_recorded_per_listener(
    app: Flask, cast: Cast, customer: dict[str, Any]
) -> None:
    with serving(app) as port:
        masked = Events(port, "collections=customers", headers=cast.bob.headers)
        plain = Events(port, "collections=customers", headers=cast.alice.headers)
        cast.bob.patch(f"records/customers/{customer['id']}", {"name": "Zed"})
        for client in (masked, plain):
            while client.next()["event"] != "message":
                pass
    (event,) = reads(cast.alice, path="realtime")
    assert (event["user_id"], event["target_id"]) == (cast.alice.id, customer["id"])
