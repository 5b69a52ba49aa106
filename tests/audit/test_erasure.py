"""What was erased is nowhere any more, and every chain still verifies."""

from __future__ import annotations

import threading
from dataclasses import replace
from json import dumps, loads
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db, jobs
from app.accounts import users
from app.accounts.models import ADMIN, SYSTEM_ACCOUNT_ID, User
from app.audit import erase
from app.audit.entries import LOG
from app.auth import principal as principals
from app.db.functions import database_now
from app.errors import NotFound
from app.jobs import worker
from app.records.history import erasure
from app.records.history import service as history
from tests.audit.chains import entries, stand_alone, verified
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_record, make_user
from tests.parallel import under_way
from tests.receivers import Request, receiving
from tests.sql import statements
from tests.webhooks.delivering import deliver, make_webhook
from tests.workflows.running import action, make_workflow, ran, rows, work

SCHEMA = [
    {"name": "title", "type": "text", "required": True},
    {"name": "mail", "type": "email", "pii": True},
]
ONE = "records/posts/{}"
ADA = "Ada Lovelace"
JSON = "application/json"


def everything(app: Flask) -> str:
    """All that the database holds, as text."""
    found = []
    with app.app_context():
        for name in sa.inspect(db.connection()).get_table_names():
            # Not by the models, which not every table has, nor reflected, which takes seconds.
            rows = db.connection().execute(sa.text(f'SELECT * FROM "{name}"'))  # noqa: S608
            found += [f"{tuple(row)} {[decoded(value) for value in row]}" for row in rows]
    return "\n".join(found)


def decoded(value: object) -> object:
    """What JSON text stands for, as SQLite stores JSON with escapes; else the value."""
    try:
        return loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def check(root: Caller, folder: Path) -> dict[str, Any]:
    """Every chain verifies, online and from an export without the service."""
    found = verified(root)
    assert found["valid"], found
    file, alone = folder / "export.jsonl", stand_alone()
    file.write_bytes(root.get("audit-logs/export").data)
    chains = alone.verify(alone.read(str(file)))
    assert [chain.fault for chain in chains.values()] == [None] * len(found["chains"])
    return found


def test_record_erasure_removes_values_everywhere(app: Flask, cast: Cast, tmp_path: Path) -> None:
    make_collection(cast.root, schema=SCHEMA)
    make_webhook(cast.alice, "http://127.0.0.1:9/", include_pii=True)
    id = make_record(cast.alice, title=ADA, mail="ada@x.example")["id"]
    kept = make_record(cast.alice, title="kept")
    cast.alice.patch(ONE.format(id), {"title": f"{ADA}, Countess"})
    deliver(app)
    before = verified(cast.root)
    assert before["valid"]
    answer = cast.alice.post(f"{ONE.format(id)}/erase")
    assert answer.status_code == 200, answer.text
    assert answer.json["values_erased"] == 7  # 3 created, 1 changed, 3 deleted
    assert answer.json["deliveries_erased"] == 3
    text = everything(app)
    assert ADA not in text
    assert "ada@x.example" not in text
    assert "kept" in text
    assert cast.alice.get(ONE.format(id)).status_code == 404
    assert cast.alice.get("records/posts").json["items"] == [kept]
    after = check(cast.root, tmp_path)
    assert after["values_erased"] == 7
    erased = entries(cast.root, table_name="audit_log")
    of_record = {e["id"] for e in entries(cast.root, record_id=id)}
    assert {int(one["record_id"]) for one in erased} == of_record
    assert {(one["user_id"], one["column_name"]) for one in erased} == {(cast.alice.id, "salt")}
    changes = cast.alice.get(f"{ONE.format(id)}/history").json["items"]
    assert [one["operation"] for one in changes] == ["DELETE", "UPDATE", "CREATE"]
    assert all(one["erased"] for change in changes for one in change["changes"])
    again = cast.alice.post(f"{ONE.format(id)}/erase").json
    assert (again["values_erased"], again["deliveries_erased"]) == (0, 0)


def let_an_hour_pass(app: Flask) -> None:
    with app.app_context():
        with db.transaction() as session:
            later = sa.update(jobs.Job).where(jobs.Job.status == "pending")
            session.execute(later.values(due_at=database_now()))
        worker.run_due()


def test_record_erasure_includes_concurrent_webhook_response(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA)

    def erase_and_repeat(request: Request) -> tuple[int, str]:
        assert cast.alice.post(f"{ONE.format(record['id'])}/erase").status_code == 200
        with app.app_context():
            worker.run_due()
        return 200, request.body.decode()

    with receiving(erase_and_repeat) as receiver:
        make_webhook(cast.alice, receiver.url, events=["create"])
        record = make_record(cast.alice, title=ADA)
        deliver(app)
    let_an_hour_pass(app)
    assert ADA not in everything(app)


def test_record_erasure_includes_webhook_response_without_auditing(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(app.extensions["atrium.config"], audit_logging_enabled=False)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    test_record_erasure_includes_concurrent_webhook_response(app, cast)


def made_anew(app: Flask, cast: Cast) -> str:
    """The id of a record that was erased, and is there again."""
    make_collection(cast.root, schema=SCHEMA)
    id: str = make_record(cast.alice, title=ADA)["id"]
    assert cast.alice.post(f"{ONE.format(id)}/erase").status_code == 200
    with app.app_context():
        worker.run_due()
    bring_back(cast, {"id": id, "title": "anew"})
    return id


def bring_back(cast: Cast, record: dict[str, str]) -> None:
    """Import a record under the id that it had."""
    anew = {"data": dumps([record]), "content_type": JSON}
    imported = cast.root.acting_in("acme").post("records/posts/import?keep_ids=true", **anew)
    assert imported.status_code == 200, imported.text


def test_record_erasure_spares_history_of_recreated_record(app: Flask, cast: Cast) -> None:
    id = made_anew(app, cast)
    let_an_hour_pass(app)
    change = cast.alice.get(f"{ONE.format(id)}/history").json["items"][0]["changes"][0]
    assert (change["new_value"], change["erased"]) == ("anew", False)
    assert ADA not in everything(app)


def test_record_erasure_spares_history_of_recreated_and_deleted_record(
    app: Flask, cast: Cast
) -> None:
    id = made_anew(app, cast)
    assert cast.alice.delete(ONE.format(id)).status_code == 204
    let_an_hour_pass(app)
    told = cast.alice.get(f"{ONE.format(id)}/history").json["items"][0]["changes"]
    assert ("anew", False) in [(one["old_value"], one["erased"]) for one in told]


def test_record_erasure_without_auditing_spares_recreated_record(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(app.extensions["atrium.config"], audit_logging_enabled=False)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    make_webhook(cast.alice, "http://127.0.0.1:9/")
    made_anew(app, cast)
    let_an_hour_pass(app)
    assert '"anew"' in everything(app)


def test_record_restore_of_erased_values_is_404(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA[1:])
    id = (made := make_record(cast.alice, mail="ada@x.example"))["id"]
    entry = cast.alice.get(f"{ONE.format(id)}/history").json["items"][0]["audit_id"]
    then = f"{ONE.format(id)}?as_of={made['created_at']}"
    assert cast.alice.get(then).json["mail"] == "ada@x.example"
    assert cast.alice.post(f"{ONE.format(id)}/erase").status_code == 200
    assert "erased" in cast.alice.get(then).json["message"]
    assert "erased" not in cast.charlie.get(then).json["message"]
    with app.app_context():
        alice = principals.for_user(cast.alice.account_id, cast.alice.id)
        assert alice is not None
        with pytest.raises(NotFound, match="erased"):
            history.undelete("posts", id, by=alice)
    bring_back(cast, {"id": id, "mail": "eve@x.example"})
    assert cast.alice.get(then).status_code == 404
    assert cast.alice.post(f"{ONE.format(id)}/restore", {"audit_id": entry}).status_code == 404
    present = cast.alice.get(ONE.format(id)).json
    assert present["mail"] == "eve@x.example"
    moment = present["created_at"]
    assert cast.alice.get(f"{ONE.format(id)}?as_of={moment}").json["mail"] == "eve@x.example"


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("part", ["writer", "signer"])
def test_user_erasure_includes_concurrent_writes_and_signatures(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Here, where whoever deletes a user does not wait for what is written meanwhile."""
    make_collection(cast.root, schema=SCHEMA)
    signed = {"X-ES-Username": cast.bob.email, "X-ES-Password": PASSWORD, "X-ES-Reason": "seen"}
    writer = cast.bob if part == "writer" else Caller(app, **cast.alice.headers, **signed)
    with under_way(writer, monkeypatch):
        assert cast.root.post(f"users/{cast.bob.id}/erase").status_code == 200
        with app.app_context():
            worker.run_due()
    assert cast.bob.email in everything(app)
    let_an_hour_pass(app)
    assert cast.bob.email not in everything(app)
    made_by = cast.alice.get("records/posts").json["items"][0]["created_by"]
    assert made_by == (None if part == "writer" else cast.alice.id)
    assert verified(cast.root)["valid"]


def test_user_erasure_includes_failed_jobs(
    app: Flask, cast: Cast, anyone: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in jobs.kinds():
        monkeypatch.setitem(jobs.KINDS, kind, worker.UNKNOWN._replace(attempts=1))
    for email in (cast.bob.email.upper(), cast.alice.email):
        asked = {"account": "acme", "email": email}
        assert anyone.post("auth/forgot-password", asked).status_code == 200
    namesake = cast.charlie.patch("auth/me", {"email": cast.bob.email})  # in another account
    assert namesake.status_code == 200, namesake.text
    wanted = "robert@acme.example"  # an address that is never proved
    assert cast.bob.patch("auth/me", {"email": wanted}).status_code == 200
    with app.app_context():
        worker.run_due()
    monkeypatch.undo()
    assert wanted in everything(app)
    assert cast.bob.email.upper() in everything(app)
    assert cast.root.post(f"users/{cast.bob.id}/erase").status_code == 200
    assert cast.bob.email.upper() not in everything(app)
    assert wanted not in everything(app)
    with app.app_context():
        given_up = db.db.session.scalars(sa.select(jobs.Job).where(jobs.Job.status == "failed"))
        left = {(job.kind, job.payload["email"]) for job in given_up}
    changing = ("auth.send_email_change", cast.bob.email)
    assert left == {("auth.forgot_password", cast.alice.email), changing}


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_user_erasure_includes_invitations_with_other_email_case(
    app: Flask, cast: Cast, is_cancelled: bool
) -> None:
    invited = cast.alice.post("invitations", {"email": "DORA@Acme.example"}).json
    other = cast.alice.post("invitations", {"email": "eudora@acme.example"}).json
    if is_cancelled:
        assert cast.alice.delete(f"invitations/{invited['id']}").status_code in (200, 204)
    dora = make_user(app, cast.alice.account_id, "dora@acme.example")
    with app.app_context():
        worker.run_due()
    assert cast.root.post(f"users/{dora.id}/erase").status_code == 200
    text = everything(app)
    assert "DORA@" not in text
    assert text.count(other["email"]) > 1
    assert verified(cast.root)["valid"]


@pytest.mark.parametrize("cut_off", [False, True])
def test_user_erasure_without_auditing_removes_user_everywhere(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch, cut_off: bool
) -> None:
    settings = replace(app.extensions["atrium.config"], audit_logging_enabled=False)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    dora = make_user(app, cast.alice.account_id, "dora@acme.example")
    wait = {"name": "w", "type": "wait_delay", "duration": "1d"}
    waiting = ran(app, cast.alice, make_workflow(cast.alice, [wait]), {"to": dora.email})
    if cut_off:
        with monkeypatch.context() as patch:
            patch.setattr(erasure, "_erase_traces_of_user", lambda what: 1 / 0)
            assert cast.root.post(f"users/{dora.id}/erase").status_code == 500
        with app.app_context():
            worker.run_due()
    else:
        assert cast.root.post(f"users/{dora.id}/erase").status_code == 200
    assert dora.email not in everything(app)
    found = cast.alice.get(f"workflow-instances/{waiting['id']}").json
    assert (found["status"], found["context"]["trigger"]) == ("waiting", {"to": "***"})


def test_user_erasure_spares_signatures_of_user_who_rejoined(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA)
    assert cast.root.post(f"users/{cast.bob.id}/erase").status_code == 200
    make_user(app, cast.alice.account_id, cast.bob.email)
    signed = {"X-ES-Username": cast.bob.email, "X-ES-Password": PASSWORD, "X-ES-Reason": "seen"}
    make_record(Caller(app, **cast.alice.headers, **signed), title="signed")
    let_an_hour_pass(app)
    told = entries(cast.root, table_name="col_posts")
    assert {one["es_username"] for one in told} == {cast.bob.email}


def test_record_erasure_access_per_role_and_rule(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA, delete_rule="title != 'held'")
    id = make_record(cast.alice, title=ADA)["id"]
    held = make_record(cast.alice, title="held")["id"]
    path, anyone = f"{ONE.format(id)}/erase", Caller(app).acting_in("acme")
    assert cast.bob.post(path).status_code == 403  # not in pii_access
    assert cast.charlie.post(path).status_code == 404
    assert anyone.post(path).status_code in (401, 403)
    refused = cast.alice.post(f"{ONE.format(held)}/erase")
    assert (refused.status_code, refused.json["error"]) == (403, "rule_denied")
    assert cast.alice.get("records/posts").json["total"] == 2
    assert cast.root.acting_in("acme").post(f"{ONE.format(held)}/erase").status_code == 200
    cast.alice.delete(ONE.format(id))
    assert cast.alice.post(path).json["values_erased"] == 4
    assert cast.alice.post(f"{ONE.format(cast.bob.id)}/erase").status_code == 404


def test_record_erasure_in_former_collection_with_reused_name(
    app: Flask, cast: Cast, tmp_path: Path
) -> None:
    posts = make_collection(cast.root, schema=[{"name": "views", "type": "text"}])
    gone, there = [make_record(cast.alice, views=ADA)["id"] for _ in range(2)]
    assert cast.alice.delete(ONE.format(gone)).status_code == 204
    assert cast.root.delete(f"collections/{posts['id']}").status_code == 200
    make_collection(cast.root, schema=[{"name": "views", "type": "number"}])
    root = cast.root.acting_in("acme")
    for id in (gone, there):
        assert cast.alice.post(f"{ONE.format(id)}/erase").status_code == 404
        assert root.post(f"{ONE.format(id)}/erase").json["values_erased"] >= 1
    assert ADA not in everything(app)
    check(cast.root, tmp_path)
    assert root.post(f"{ONE.format(cast.bob.id)}/erase").status_code == 404


def test_record_erasure_in_deleted_collection(app: Flask, cast: Cast, tmp_path: Path) -> None:
    posts = make_collection(cast.root, schema=SCHEMA)
    id = make_record(cast.alice, title=ADA)["id"]
    assert cast.root.delete(f"collections/{posts['id']}").status_code == 200
    assert cast.alice.post(f"{ONE.format(id)}/erase").status_code == 404
    assert cast.root.acting_in("globex").post(f"{ONE.format(id)}/erase").status_code == 404
    root = cast.root.acting_in("acme")
    assert root.post(f"{ONE.format(cast.bob.id)}/erase").status_code == 404
    assert root.post(f"records/Posts/{id}/erase").json["values_erased"] == 2
    assert ADA not in everything(app)
    check(cast.root, tmp_path)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_record_and_user_erasure_of_one_change_can_be_concurrent(app: Flask, cast: Cast) -> None:
    """Each keeps the digests that the other one adds; SQLite has one writer anyway."""
    make_collection(cast.root)
    record = make_record(cast.alice, title="a")
    erased, go_on = threading.Event(), threading.Event()

    def erase_values() -> None:
        with app.app_context():
            with db.transaction():
                erase.erase_values(cast.alice.account_id, "col_posts", record["id"])
                erased.set()
                assert go_on.wait(10)
            db.db.session.remove()

    def erase_actor() -> None:
        with app.app_context():
            erase.erase_actor(cast.alice.account_id, cast.alice.id, cast.alice.email)
            db.db.session.remove()

    threads = [threading.Thread(target=one) for one in (erase_values, erase_actor)]
    threads[0].start()
    assert erased.wait(10)
    threads[1].start()
    threads[1].join(0.5)
    assert threads[1].is_alive()  # it waits for the other one
    go_on.set()
    for thread in threads:
        thread.join(10)
    (*_, entry) = entries(cast.root, record_id=record["id"])
    assert (entry["salt"], entry["actor_salt"]) == (None, None)
    assert verified(cast.root)["valid"]


def test_user_erasure_removes_user_everywhere(app: Flask, cast: Cast, tmp_path: Path) -> None:
    make_collection(cast.root, schema=SCHEMA)
    make_webhook(cast.alice, "http://127.0.0.1:9/")
    invited = cast.alice.post("invitations", {"email": "dora@acme.example"}).json["token"]
    body = {"password": PASSWORD, "name": "Dora Dot"}
    assert Caller(app).post(f"invitations/{invited}/accept", body).status_code in (200, 201)
    with app.app_context():
        user = db.db.session.scalars(sa.select(User).where(User.email == "dora@acme.example")).one()
        dora = Caller(app, user)
    cast.root.post(f"users/{dora.id}/verify")  # the inviter's token proves no address
    dora.post("api-keys", {"name": "dora's laptop"})
    record = make_record(dora, title="by her")
    signature = {"X-ES-Username": "dora@acme.example", "X-ES-Password": PASSWORD}
    signature["X-ES-Reason"] = "as Dora wishes"
    signed = cast.alice.patch(ONE.format(record["id"]), {"title": "signed"}, headers=signature)
    assert signed.status_code == 200, signed.text
    with app.app_context():
        worker.run_due()
    assert cast.alice.post(f"users/{dora.id}/erase").status_code == 403
    answer = cast.root.post(f"users/{dora.id}/erase")
    assert answer.status_code == 200, answer.text
    assert answer.json["actors_erased"] > 3
    text = everything(app)
    for word in ("dora@", "Dora Dot", "dora's", "as Dora wishes"):
        assert word not in text, [line for line in text.splitlines() if word in line]
    with app.app_context():
        payloads = sa.text("SELECT payload FROM webhook_deliveries")
        assert dora.id not in str(db.connection().execute(payloads).all())
    shown = cast.alice.get(ONE.format(record["id"])).json
    assert (shown["title"], shown["created_by"]) == ("signed", None)
    assert check(cast.root, tmp_path)["values_erased"] > 5
    told = cast.alice.get(f"{ONE.format(record['id'])}/history").json["items"]
    assert {(one["user_email"], one["es_username"]) for one in told} >= {(None, None)}
    named = {int(one["record_id"]) for one in entries(cast.root, table_name="audit_log")}
    with app.app_context():
        gone = sa.or_(LOG.c.salt.is_(None), LOG.c.actor_salt.is_(None))
        assert named == set(db.db.session.scalars(sa.select(LOG.c.id).where(gone)))
    assert cast.root.post(f"users/{dora.id}/erase").json["values_erased"] == 0
    assert cast.root.post(f"users/{record['id']}/erase").status_code == 404
    assert cast.root.post(f"users/{cast.root.id}/erase").status_code == 403


def test_erasure_interrupted_by_crash_is_finished_by_worker(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root, schema=SCHEMA)
    id = make_record(cast.alice, title=ADA)["id"]

    def stop(what: Any) -> Any:
        raise RuntimeError("the process is gone")

    monkeypatch.setattr(erasure, "_erase_traces_of_record", stop)
    assert cast.alice.post(f"{ONE.format(id)}/erase").status_code == 500
    monkeypatch.undo()
    assert ADA in everything(app)
    with app.app_context():
        worker.run_due()
    assert ADA not in everything(app)
    assert verified(cast.root)["valid"]


def test_user_erasure_works_long_after_deletion(app: Flask, cast: Cast) -> None:
    with app.app_context():
        users.delete(None, cast.bob.id, by=None)
    assert cast.root.post(f"users/{cast.bob.id}/erase").json["values_erased"] > 3
    assert cast.bob.email not in everything(app)
    assert verified(cast.root)["valid"]


def test_audit_chain_verifies_after_erasure_without_auditing(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root, schema=SCHEMA)
    id = make_record(cast.alice, title=ADA)["id"]
    settings = replace(app.extensions["atrium.config"], audit_logging_enabled=False)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    assert cast.alice.post(f"{ONE.format(id)}/erase").json["values_erased"] > 1
    assert cast.root.post(f"users/{cast.bob.id}/erase").json["values_erased"] > 1
    assert {ADA in everything(app), cast.bob.email in everything(app)} == {False}
    found = verified(cast.root)
    assert found["valid"], found


def test_erasure_includes_stored_idempotent_responses(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA)
    once = {"Idempotency-Key": "once"}
    made = cast.alice.post("records/posts", {"title": ADA}, headers=once)
    assert made.status_code == 201, made.text
    path = f"{ONE.format(made.json['id'])}/erase"
    erased = cast.alice.post(path, headers={"Idempotency-Key": "erase"})
    assert erased.status_code == 200, erased.text
    with app.app_context():
        worker.run_due()
    assert ADA not in everything(app)
    assert cast.alice.post(path, headers={"Idempotency-Key": "erase"}).json == erased.json
    assert verified(cast.root)["valid"]


def test_record_erasure_includes_idempotent_responses_to_superadmin(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA, view_rule="title != ''")
    body = {"account_id": cast.alice.account_id, "title": ADA}
    for number, caller in enumerate((cast.root, cast.root.acting_in("globex"))):
        once = {"Idempotency-Key": "once"}
        made = caller.post("records/posts", {**body, "mail": f"{number}@x.example"}, headers=once)
        other = caller.post("records/posts", {"title": "other"}, headers={"Idempotency-Key": "2"})
        assert (made.status_code, other.status_code) == (201, 201)
        asked = {"operation": "view", "user_id": cast.bob.id, "record_id": made.json["id"]}
        why = {"Idempotency-Key": f"why {number}"}
        assert ADA in caller.post("collections/posts/rules/explain", asked, headers=why).text
        assert cast.alice.post(f"{ONE.format(made.json['id'])}/erase").status_code == 200
        again = caller.post("records/posts", {"title": "other"}, headers={"Idempotency-Key": "2"})
        assert again.json == other.json
    assert ADA not in everything(app)
    assert verified(cast.root)["valid"]


def test_superadmin_erasure_covers_accounts_they_acted_in(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA)
    hook = make_webhook(cast.alice, "http://127.0.0.1:9/")
    make_workflow(
        cast.alice, [], {"type": "event", "event": "records.create", "collection": "posts"}
    )
    sue = Caller(app, make_user(app, SYSTEM_ACCOUNT_ID, "sue@system.example", ADMIN))
    record = make_record(sue.acting_in("acme"), title="by her")
    path = f"webhooks/{hook['id']}/deliveries"
    assert sue.id in cast.alice.get(path).text
    assert sue.id in rows(app)[0].context
    assert cast.root.post(f"users/{sue.id}/erase").json["deliveries_erased"] == 1
    told = cast.alice.get(path)
    assert record["id"] in told.text
    assert sue.id not in told.text
    assert sue.id not in rows(app)[0].context
    history = cast.alice.get(f"{ONE.format(record['id'])}/history").json["items"]
    assert [one["user_email"] for one in history] == [None]
    assert "sue@system" not in everything(app)
    assert verified(cast.root)["valid"]


def test_user_erasure_searches_only_accounts_user_could_write_in(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    sue = Caller(app, make_user(app, SYSTEM_ACCOUNT_ID, "sue@system.example", ADMIN))
    for caller, whole in ((cast.bob, False), (sue, True)):
        record = make_record(sue.acting_in("acme") if whole else cast.bob)["id"]
        with statements(app) as sent:
            assert cast.root.post(f"users/{caller.id}/erase").status_code == 200
        looked = ["account_id = " not in one for one in sent if one.startswith("UPDATE col_posts")]
        assert looked == [whole, whole]
        left = cast.alice.get(ONE.format(record)).json
        assert (left["created_by"], left["updated_by"]) == (None, None)


def test_signer_erasure_covers_changes_by_superadmins(app: Flask, cast: Cast) -> None:
    """What they do in an account may change what is all accounts', or another's."""

    def sign(email: str, name: str) -> None:
        make_user(app, cast.alice.account_id, email)
        headers = {"X-ES-Username": email, "X-ES-Password": PASSWORD, "X-ES-Reason": "as I wish"}
        acting, body = cast.root.acting_in("acme"), {"name": name}
        for method, path in (("POST", "roles"), ("PATCH", f"accounts/{cast.charlie.account_id}")):
            assert acting(method, path, body, headers=headers).status_code in (200, 201)

    sign("dora@acme.example", "one")
    sign("eve@acme.example", "two")
    make_user(app, cast.charlie.account_id, "eve@acme.example")
    team = cast.alice.get("account/users").json["items"]
    ids = {one["email"]: one["id"] for one in team}
    for email in ("dora@acme.example", "eve@acme.example"):
        assert cast.root.post(f"users/{ids[email]}/erase").status_code == 200
    assert "dora@" not in everything(app)
    signers = {entry["es_username"] for entry in entries(cast.root)}
    assert signers == {None, "eve@acme.example"}  # it could be the one of globex
    assert verified(cast.root)["valid"]


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("note", "is_told"),
    [
        ("ask {}, please", True),
        ("Write to:\n{}.", True),
        ("<{}>", True),
        ("ask x.{} or {}.org", False),  # addresses of others
    ],
)
def test_user_erasure_includes_idempotent_response_with_email_in_text(
    app: Flask, cast: Cast, note: str, is_told: bool
) -> None:
    make_collection(cast.root)
    step = action("a", "delete_record", collection="posts", record_id="none")
    body = {"note": note.format(*[cast.bob.email.upper()] * 2)}
    failed = ran(app, cast.alice, make_workflow(cast.alice, [step]), body)
    path, once = f"workflow-instances/{failed['id']}/resume", {"Idempotency-Key": "once"}
    assert cast.bob.email.upper() in cast.alice.post(path, headers=once).text
    work(app)
    assert cast.root.post(f"users/{cast.bob.id}/erase").status_code == 200
    again = cast.alice.post(path, headers=once)
    assert (again.headers.get("Idempotent-Replayed") == "true") is not is_told
    assert (cast.bob.email.upper() in again.text) is not is_told


def test_user_erasure_includes_idempotent_response_with_non_ascii_email(
    app: Flask, cast: Cast
) -> None:
    make_collection(cast.root)
    zoe = make_user(app, cast.alice.account_id, "zoë@acme.example")
    once = {"Idempotency-Key": "once"}
    told = {"title": "Ask ZOË@acme.example"}
    assert cast.alice.post("records/posts", told, headers=once).status_code == 201
    assert cast.root.post(f"users/{zoe.id}/erase").status_code == 200
    assert "Idempotent-Replayed" not in cast.alice.post("records/posts", told, headers=once).headers


def test_user_erasure_includes_idempotent_responses_across_accounts(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever whoever asked acted, and also where a worker erases for the user's account."""
    once = {"Idempotency-Key": "once"}
    body = {"account_id": cast.alice.account_id, "email": "dora@acme.example", "name": "Dora Dot"}
    made = cast.root.post("users", body, headers=once)
    assert made.status_code == 201, made.text
    path = f"users/{made.json['id']}"
    elsewhere = cast.root.acting_in("globex")
    assert "Dora Dot" in elsewhere.post(f"{path}/verify", headers=once).text
    monkeypatch.setattr(erasure, "_erase_traces_of_user", lambda what: 1 / 0)
    assert cast.root.post(f"{path}/erase").status_code == 500
    monkeypatch.undo()
    with app.app_context():
        worker.run_due()
    assert "Dora Dot" not in everything(app)
    erased = cast.root.post(f"{path}/erase", headers={"Idempotency-Key": "erase"})
    assert erased.status_code == 200, erased.text
    with app.app_context():
        worker.run_due()
    assert elsewhere.post(f"{path}/verify", headers=once).status_code == 404
    assert "Idempotent-Replayed" not in cast.root.post("users", body, headers=once).headers
    again = cast.root.post(f"{path}/erase", headers={"Idempotency-Key": "erase"})
    assert again.json == erased.json
