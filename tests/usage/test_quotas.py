"""Quotas: a hard limit refuses and names itself, a soft one sends mails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.accounts.usage import notices
from app.accounts.usage.models import METERS
from app.config import Config, ConfigError
from app.files import storage
from tests.builders import Caller, Cast, make_collection, make_drawer, make_record
from tests.mailbox import body_of, outbox, run_jobs
from tests.usage.test_meters import FIELDS, upload, used
from tests.webhooks.delivering import deliveries, make_webhook
from tests.workflows.running import action, create, make_workflow, start, work


def limit(root: Caller, account: Caller, **limits: int) -> None:
    """Set hard limits of an account."""
    body = {meter: {"hard": number} for meter, number in limits.items()}
    answer = root.patch(f"accounts/{account.account_id}/quotas", body)
    assert answer.status_code == 200, answer.json


def check_refused(answer: Any, quota: str, limit: int, seconds: int = 86_400) -> None:
    """The answer is the refusal of a quota, by its name and with the time to wait."""
    assert answer.status_code == 429, answer.json
    body = answer.json
    assert (body["error"], body["quota"], body["limit"]) == ("quota_exceeded", quota, limit)
    assert 1 <= int(answer.headers["Retry-After"]) <= seconds


def test_quota_of_requests_is_429_until_next_day(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    count = used(cast.alice)["requests"] + 1  # that one itself
    limit(cast.root, cast.alice, requests=count + 3)
    answers = [cast.bob.get("records/posts") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    check_refused(answers[-1], "requests", count + 3)
    check_refused(cast.alice.post("records/posts", {"title": "x"}), "requests", count + 3)
    assert cast.charlie.get("records/posts").status_code == 200
    # Admins still see why; refusals are not counted, and a raised quota applies at once.
    assert used(cast.alice)["requests"] == count + 3
    limit(cast.root, cast.alice, requests=count + 100)
    assert cast.bob.get("records/posts").status_code == 200


@pytest.mark.parametrize("rule", ["", "title = 'x'"])
def test_quota_of_requests_is_not_used_by_strangers(app: Flask, cast: Cast, rule: str) -> None:
    make_collection(cast.root, list_rule=rule)
    count = used(cast.alice)["requests"] + 1
    limit(cast.root, cast.alice, requests=2 * count + 20)
    strangers = Caller(app, **{"X-Account-ID": "acme"})
    answers = [strangers.get("records/posts") for _ in range(2 * count + 20)]
    assert answers[0].status_code == 200
    check_refused(answers[-1], "requests", (2 * count + 20) * 8 // 10)
    assert cast.bob.get("records/posts").status_code == 200
    # Callers of the account may use what is left.
    answers = [cast.bob.get("records/posts") for _ in range(2 * count + 20)]
    check_refused(answers[-1], "requests", 2 * count + 20)


def test_quota_change_applies_in_other_processes(app: Flask, cast: Cast) -> None:
    """Whose caches have the account without one."""
    make_collection(cast.root)
    assert cast.bob.get("records/posts").status_code == 200
    limits = {"quotas": {"requests": {"hard": 0}}}
    with app.app_context(), db.transaction() as session:
        statement = sa.text(
            "UPDATE accounts SET settings = :s, version = version + 1 WHERE id = :i"
        )
        statement = statement.bindparams(sa.bindparam("s", type_=sa.JSON))
        session.execute(statement, {"s": limits, "i": cast.bob.account_id})
    check_refused(cast.bob.get("records/posts"), "requests", 0)


def test_quota_of_records_and_files_is_enforced(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=FIELDS)
    limit(cast.root, cast.alice, records=2, file_bytes=1500)
    first = make_record(cast.alice, title="x")
    batch = cast.alice.post("records/posts/batch", {"records": [{"title": "y"}, {"title": "z"}]})
    check_refused(batch, "records", 2)
    make_record(cast.alice, title="y")
    check_refused(cast.alice.post("records/posts", {"title": "z"}), "records", 2)
    assert cast.alice.patch(f"records/posts/{first['id']}", {"title": "w"}).status_code == 200
    assert cast.alice.delete(f"records/posts/{first['id']}").status_code == 204
    make_record(cast.alice, title="z")
    make_drawer(cast.root)
    upload(cast.alice, 1000)
    file = {"file": (BytesIO(b"x" * 1000), "y.txt")}
    check_refused(cast.alice.post("files/upload", data=file), "file_bytes", 1500)
    make_record(cast.charlie, title="another account's")


def test_quota_of_files_holds_for_concurrent_uploads(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_drawer(cast.root)
    limit(cast.root, cast.alice, file_bytes=1500)
    with app.app_context():
        place = storage.current()
    put, alice, bob = place.put, cast.alice, cast.bob
    keys: list[str] = []

    def put_after_another_upload(key: str, *rest: Any) -> None:
        keys.append(key)
        if len(keys) == 1:
            with ThreadPoolExecutor() as pool:  # it passes the first check, too
                pool.submit(upload, bob).result()
        put(key, *rest)

    monkeypatch.setattr(place, "put", put_after_another_upload)
    answer = alice.post("files/upload", data={"file": (BytesIO(b"x" * 1000), "x.txt")})
    check_refused(answer, "file_bytes", 1500)
    assert used(alice)["file_bytes"] == 1000
    assert [blob.key for blob in place.blobs()] == keys[1:]


def test_quota_of_row_bytes_is_enforced(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    record = make_record(cast.alice, title="x" * 1000)
    limit(cast.root, cast.alice, row_bytes=1000)
    check_refused(cast.alice.post("records/posts", {"title": "y"}), "row_bytes", 1000)
    path = f"records/posts/{record['id']}"
    check_refused(cast.alice.patch(path, {"title": "x" * 2000}), "row_bytes", 1000)
    assert cast.alice.delete(path).status_code == 204
    make_record(cast.alice, title="y")


def test_quota_of_deliveries_delays_them_to_next_day(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    webhook = make_webhook(cast.alice, "http://127.0.0.1:9/")
    limit(cast.root, cast.alice, deliveries=1)
    for title in ("sent", "held"):
        make_record(cast.alice, title=title)
    sent, held = deliveries(app)
    assert (held.due_at - sent.due_at).total_seconds() > 1 or held.due_at.hour == 0
    check_refused(cast.alice.post(f"webhooks/{webhook['id']}/test"), "deliveries", 1)
    path = f"webhooks/{webhook['id']}/deliveries/{sent.id}/redeliver"
    check_refused(cast.alice.post(path), "deliveries", 1)


def test_quota_of_workflow_steps_blocks_start(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    flow = make_workflow(cast.alice, [create("one")])
    limit(cast.root, cast.alice, workflow_steps=1)
    start(cast.alice, flow)
    work(app)
    check_refused(cast.alice.post(f"workflows/{flow['id']}/trigger", {}), "workflow_steps", 1)


def test_quota_of_mails_fails_workflow_step(app: Flask, cast: Cast) -> None:
    mailing = action("one", "send_email", to=cast.bob.email, subject="s", body="b")
    flow = make_workflow(cast.alice, [mailing])
    limit(cast.root, cast.alice, mails=0)
    instance = start(cast.alice, flow)
    work(app)
    found = cast.alice.get(f"workflow-instances/{instance}").json
    assert found["status"] == "failed"
    assert "quota of mails" in found["error_message"]


def test_quota_mails_are_sent_at_80_and_100_percent(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    path = f"accounts/{cast.alice.account_id}/quotas"
    assert cast.root.patch(path, {"records": {"soft": 5}}).status_code == 200
    counts = []
    for n in range(6):
        make_record(cast.alice, title=str(n))
        with app.app_context():
            notices.check_quotas({})
            notices.check_quotas({})
        run_jobs(app)
        counts.append(len(outbox(app)))
    assert counts == [0, 0, 0, 1, 2, 2]
    mails = outbox(app)
    assert [mail["To"] for mail in mails] == [cast.alice.email] * 2
    assert ["80%" in mails[0]["Subject"], "100%" in mails[1]["Subject"]] == [True, True]
    assert "/console/usage" in body_of(mails[0])


def test_quota_limits_are_set_and_removed(cast: Cast) -> None:
    path = f"accounts/{cast.alice.account_id}/quotas"
    answer = cast.root.put(path, {"records": {"soft": 5, "hard": 10}, "mails": {"hard": 3}})
    assert answer.json["records"] == {"used": 0, "soft": 5, "hard": 10}
    assert cast.root.patch(path, {"records": None}).json["records"]["hard"] is None
    assert cast.root.get(path).json["mails"]["hard"] == 3
    assert cast.alice.get("account/usage").json["meters"]["mails"]["hard"] == 3
    # An admin's change of the account's settings leaves them, and cannot name them.
    assert cast.alice.patch("account", {"name": "Acme Ltd"}).status_code == 200
    assert cast.alice.patch("account", {"quotas": {}}).status_code == 422
    assert cast.root.get(path).json["mails"]["hard"] == 3


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"records": {"soft": 2, "hard": 1}}, 400, "validation_error"),
        ({"records": {"hard": -1}}, 422, "validation_error"),
        ({"records": 5}, 422, "validation_error"),
        ({"bananas": {"hard": 1}}, 422, "validation_error"),
    ],
)
def test_quota_with_invalid_limits_is_refused(
    cast: Cast, body: Any, status: int, code: str
) -> None:
    answer = cast.root.patch(f"accounts/{cast.alice.account_id}/quotas", body)
    assert (answer.status_code, answer.json["error"]) == (status, code)


def test_quota_of_system_account_is_409(cast: Cast) -> None:
    path = f"accounts/{cast.root.account_id}/quotas"
    assert cast.root.patch(path, {"requests": {"hard": 1}}).status_code == 409


def test_quota_defaults_of_service_apply_without_own(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root)
    settings = replace(app.extensions["atrium.config"], quotas=(("records", 1),))
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    monkeypatch.delitem(app.extensions, "atrium.caches")
    limit(cast.root, cast.charlie, records=2)
    make_record(cast.alice, title="x")
    check_refused(cast.alice.post("records/posts", {"title": "y"}), "records", 1)
    for title in "xy":
        make_record(cast.charlie, title=title)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("requests=100000,file_bytes=0", (("requests", 100_000), ("file_bytes", 0))),
        ("requests=many", None),
        ("bananas=1", None),
        ("requests", None),
    ],
)
def test_quota_setting_is_parsed(text: str, limits: Any) -> None:
    environ = {"SERVICE_ENV": "test", "SERVICE_QUOTAS": text}
    if limits is None:
        with pytest.raises(ConfigError, match="SERVICE_QUOTAS"):
            Config.from_env(environ)
    else:
        assert Config.from_env(environ).quotas == limits


def test_quota_covers_all_meters(cast: Cast) -> None:
    limit(cast.root, cast.alice, **dict.fromkeys(METERS, 1000))
    assert cast.alice.get("account/usage").json["meters"].keys() == set(METERS)
