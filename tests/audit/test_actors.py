"""Whoever acts is named truthfully: by every way of acting, in every log, inside the chain."""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app import clock, db
from app.accounts.models import ADMIN, EDITOR
from app.audit import append, checkpoints, sealing
from app.audit.chain import cut, digest, verify
from app.audit.entries import CHANGES
from app.audit.log import AUDIT
from app.audit.security_log.entries import EVENTS
from app.audit.security_log.log import SECURITY
from app.auth import principal as principals
from app.auth.commands import superadmin
from app.context import actor
from app.context.actor import Actor, ActorKind
from app.records import leaving
from tests.audit.chains import entries, stand_alone
from tests.builders import Caller, Cast, change_user, make_collection, make_record, make_user
from tests.bundle.accounts import export, import_, run
from tests.bundle.test_round_trip import ROOT
from tests.logs import unguarded
from tests.mailbox import run_jobs
from tests.scim.conftest import Directory
from tests.workflows.running import action, make_workflow, ran

Acted = tuple[str, str, dict[str, Any]]
"""The id of the record that was written, that of the user, and what is said to have acted."""
alone = stand_alone()


@pytest.fixture(autouse=True)
def posts(root: Caller) -> None:
    """A collection to write to."""
    make_collection(root)


def by_session(cast: Cast) -> Acted:
    user = {"kind": "user", "id": cast.alice.id, "name": cast.alice.email}
    return make_record(cast.alice, title="x")["id"], cast.alice.id, user


def with_key(caller: Caller) -> tuple[Caller, dict[str, Any]]:
    made = caller.post("api-keys", {"name": "Nightly “sync”"}).json
    key = {"kind": "api_key", "id": made["id"], "name": "Nightly “sync”"}
    return Caller(caller.app, **{"X-API-Key": made["key"]}), key


def by_key(cast: Cast) -> Acted:
    program, key = with_key(cast.alice)
    return make_record(program, title="x")["id"], cast.alice.id, key


def by_workflow(cast: Cast) -> Acted:
    step = action("make", "create_record", collection="posts", data={"title": "x"})
    flow = make_workflow(cast.alice, [step], name="former")
    cast.alice.patch(f"workflows/{flow['id']}", {"name": "Close old tickets"})
    done = ran(cast.alice.app, cast.alice, flow)
    made = done["context"]["steps"]["make"]["output"]["id"]
    named = {"kind": "workflow", "id": flow["id"], "name": "Close old tickets"}
    return made, cast.alice.id, named


def by_import(cast: Cast) -> Acted:
    answer = cast.alice.post("records/posts/import", [{"title": "a"}, {"title": "b"}])
    assert answer.json["imported"] == 2
    ids = [one["id"] for one in cast.alice.get("records/posts").json["items"]]
    first, second = (entries(cast.root, record_id=id)[0]["actor"] for id in ids)
    assert first == second
    return ids[0], cast.alice.id, {"kind": "import", "id": first["id"], "name": "posts"}


def by_operator(cast: Cast) -> Acted:
    root = cast.root.acting_in(cast.alice.account_id)
    operator = {"kind": "operator", "id": root.id, "name": root.email}
    return make_record(root, title="x")["id"], root.id, operator


def by_service(cast: Cast) -> Acted:
    load, alice = principals._load_user, cast.alice
    program, _ = with_key(alice)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(principals, "_load_user", lambda *key: replace(load(*key), is_service=True))
        change_user(alice.app, alice.id, name="Bot")  # loads it anew
        made = make_record(program, title="x")
    change_user(alice.app, alice.id, name=None)
    return made["id"], alice.id, {"kind": "service", "id": alice.id, "name": "Bot"}


WAYS = [by_session, by_key, by_workflow, by_import, by_operator, by_service]


def of_list(cast: Cast, id: str) -> dict[str, Any]:
    return entries(cast.root, record_id=id)[0]


def of_account(cast: Cast, id: str) -> dict[str, Any]:
    return cast.alice.get(f"account/audit-logs?record_id={id}").json["items"][0]


def of_entry(cast: Cast, id: str) -> dict[str, Any]:
    return cast.root.get(f"audit-logs/{of_list(cast, id)['id']}").json


def of_lines(cast: Cast, id: str) -> dict[str, Any]:
    answer = cast.alice.get(f"account/audit-logs/export?format=jsonl&record_id={id}")
    return json.loads(answer.text.splitlines()[0])


def of_cells(cast: Cast, id: str) -> dict[str, Any]:
    answer = cast.root.get(f"audit-logs/export?format=csv&record_id={id}")
    row = next(csv.DictReader(StringIO(answer.text)))
    assert row["digest_version"] == "2"
    kind, id, name = (row[f"actor_{one}"] for one in ("kind", "id", "name"))
    return {**row, "actor": {"kind": kind, "id": id, "name": name}}


def of_history(cast: Cast, id: str) -> dict[str, Any]:
    return cast.alice.get(f"records/posts/{id}/history").json["items"][0]


def of_feed(cast: Cast, id: str) -> dict[str, Any]:
    items = cast.alice.get("changes").json["items"]
    return next(one for one in items if one.get("record_id") == id)


LOGS = [of_list, of_account, of_entry, of_lines, of_cells, of_history, of_feed]


@pytest.mark.parametrize("way", WAYS)
def test_every_log_names_what_acted(cast: Cast, way: Callable[[Cast], Acted]) -> None:
    record_id, user_id, expected = way(cast)
    for log in LOGS:
        found = log(cast, record_id)
        assert found["user_id"] == user_id, log
        shown = dict(expected)
        if log is of_feed and expected["kind"] in append.PEOPLE:
            shown["name"] = None
        assert found["actor"] == shown, log
    assert cast.root.get("audit-logs/verify").json["valid"]


@pytest.mark.parametrize("way", WAYS)
def test_filters_find_what_acted(cast: Cast, way: Callable[[Cast], Acted]) -> None:
    record_id, _, actor = way(cast)
    for other in WAYS[:1]:
        other(cast)
    for kind, id in product((actor["kind"], None), (actor["id"], None)):
        asked = {name: value for name, value in (("actor_kind", kind), ("actor_id", id)) if value}
        found = entries(cast.root, **asked)
        assert record_id in {one["record_id"] for one in found}
        for name, value in asked.items():
            assert {one[name] for one in found} == {value}
    assert entries(cast.root, actor_kind="extension") == []
    assert cast.root.get("audit-logs?actor_kind=somebody").status_code == 422


def test_superadmin_at_home_is_a_user(cast: Cast) -> None:
    (found,) = entries(cast.root, table_name="collections", operation="CREATE")[:1]
    assert found["actor"] == {"kind": "user", "id": cast.root.id, "name": cast.root.email}


def test_service_itself_is_named_by_its_id(cast: Cast) -> None:
    found = entries(cast.root, user_id="system")[0]
    assert found["actor"] == {"kind": "user", "id": "system", "name": "system"}


def test_unaudited_changes_in_feed_name_what_acted(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "enabled", lambda: False)
    program, key = with_key(cast.alice)
    made = make_record(program, title="x")
    assert of_feed(cast, made["id"])["actor"] == key
    made = make_record(cast.alice, title="x")
    assert of_feed(cast, made["id"])["actor"] == {
        "kind": "user",
        "id": cast.alice.id,
        "name": None,
    }
    dora = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", ADMIN))
    program, key = with_key(dora)
    made = make_record(program, title="x")
    assert cast.root.post(f"users/{dora.id}/erase").status_code == 200
    assert of_feed(cast, made["id"])["actor"] == {**key, "name": None}


def test_restoring_is_by_whoever_restores(cast: Cast) -> None:
    record_id, *_ = by_session(cast)
    cast.alice.patch(f"records/posts/{record_id}", {"title": "y"})
    program, key = with_key(cast.alice)
    first = cast.alice.get(f"records/posts/{record_id}/history").json["items"][-1]
    body = {"audit_id": first["audit_id"]}
    assert program.post(f"records/posts/{record_id}/restore", body).status_code == 200
    assert of_history(cast, record_id)["actor"] == key


SECURITY_WAYS = ("session", "key", "operator")


@pytest.mark.parametrize("way", SECURITY_WAYS)
def test_security_log_names_what_acted(cast: Cast, way: str) -> None:
    alice = cast.alice
    caller, expected = alice, {"kind": "user", "id": alice.id, "name": alice.email}
    if way == "key":
        caller, expected = with_key(alice)
    if way == "operator":
        caller = cast.root.acting_in(alice.account_id)
        expected = {"kind": "operator", "id": cast.root.id, "name": "Platform operator"}
    group = caller.post("groups", {"name": "team"}).json
    query = {"kind": "group.created", "record_id": group["id"]}
    (found,) = alice.get("account/security-log", query_string=query).json["items"]
    assert found["actor"] == expected
    for asked in ({"actor_kind": expected["kind"]}, {"actor_id": expected["id"]}):
        items = alice.get("account/security-log", query_string={**asked, **query}).json["items"]
        assert items == [found]
    other = "import" if way != "import" else "user"
    query["actor_kind"] = other
    assert alice.get("account/security-log", query_string=query).json["items"] == []
    lines = alice.get("account/security-log/export?format=jsonl").text.splitlines()
    entry = next(
        one
        for one in map(json.loads, lines)
        if (one["id"], one["digest_version"]) == (found["number"], 2)
    )
    assert entry["actor"] == expected
    lines = alice.get("account/security-log/export?format=ocsf").text.splitlines()
    event = next(
        one for one in map(json.loads, lines) if one["metadata"]["sequence"] == found["number"]
    )
    assert event["unmapped"]["actor"] == expected
    application = (expected["id"], expected["name"]) if way == "key" else (None, None)
    assert (event["actor"].get("app_uid"), event["actor"].get("app_name")) == application
    assert alice.get("account/security-log/verify").json["valid"]


def test_reads_of_personal_data_name_the_key(cast: Cast) -> None:
    schema = [{"name": "email", "type": "email", "pii": True}]
    make_collection(cast.root, "customers", schema)
    make_record(cast.alice, "customers", email="x@y.example")
    program, key = with_key(cast.alice)
    assert program.get("records/customers").json["items"][0]["email"] == "x@y.example"
    query = {"kind": "personal_data.read", "path": "list"}
    (found,) = cast.alice.get("account/security-log", query_string=query).json["items"]
    assert found["actor"] == key


def test_removal_of_user_by_job_is_by_whoever_asked(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "AT_ONCE", 1)
    dora = make_user(app, cast.alice.account_id, "dora@acme.example", EDITOR)
    make_collection(cast.root, "tasks", [{"name": "who", "type": "user", "on_delete": "set_null"}])
    made = [make_record(cast.alice, "tasks", who=dora.id) for _ in range(3)]
    program, key = with_key(cast.alice)
    assert program.delete(f"account/users/{dora.id}").status_code == 204
    assert not entries(cast.root, record_id=made[0]["id"], operation="UPDATE")
    run_jobs(app)
    for one in made:
        (found,) = entries(cast.root, record_id=one["id"], operation="UPDATE")
        assert (found["user_id"], found["actor"]) == (cast.alice.id, key)
        assert found["user_email"] == cast.alice.email


def test_actor_of_job_keeps_portal_and_signature(app: Flask) -> None:
    signed = Actor("u", "u@x.example", "U", portal="p", es_username="s", es_reason="r")
    signed = signed._replace(es_timestamp=clock.now(), kind=ActorKind.IMPORT, id="i", name=None)
    with app.app_context(), actor.acting(signed):
        text = actor.stored()
        assert "u@x.example" not in text
        assert actor.restored(text) == signed
        assert actor.restored("something else") == actor.SYSTEM


def test_erasure_of_user_erases_name_of_actor(app: Flask, cast: Cast) -> None:
    dora = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", EDITOR))
    made = make_record(dora, title="x")
    assert cast.root.post(f"users/{dora.id}/erase").status_code == 200
    for found in entries(cast.root, record_id=made["id"]):
        assert found["actor"] == {"kind": "user", "id": dora.id, "name": None}
        assert (found["actor_name"], found["actor_salt"]) == (None, None)
    assert cast.root.get("audit-logs/verify").json["valid"]
    assert cast.alice.get("account/security-log/verify").json["valid"]
    run_jobs(app)
    assert cast.root.get("audit-logs/verify").json["valid"]


NAMING = ("digest_version", *digest.NAMING)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("actor_kind", "user"),
        ("actor_id", "somebody"),
        ("actor_name", "Somebody"),
        ("digest_version", None),
        ("digest_version", 3),
        *((name, None) for name in digest.NAMING),
    ],
)
@pytest.mark.parametrize("log", [AUDIT, SECURITY], ids=["audit", "security"])
def test_tampering_with_actor_shows(
    app: Flask, cast: Cast, log: Any, column: str, value: object
) -> None:
    by_key(cast)
    program, _ = with_key(cast.alice)
    program.post("groups", {"name": "team"})
    with app.app_context():
        assert verify.verify_all(log)["valid"]
        mine = (log.rows.c.account_id == cast.alice.account_id, log.rows.c.actor_kind == "api_key")
        with db.transaction(), unguarded():
            edited = sa.update(log.rows).where(*mine)
            assert db.connection().execute(edited.values({column: value})).rowcount
        assert not verify.verify_all(log)["valid"]


def write_as_before(app: Flask, cast: Cast) -> None:
    """Write a change as a process of the version before does."""
    change = append.Change(
        cast.alice.account_id, (append.CREATE, "col_posts", "old"), [("title", None, "x")]
    )
    with app.app_context():
        sealing.settle(cast.alice.account_id)
        row = dict(zip(append.COLUMNS, next(append._rows([change])), strict=True))
        row = {name: value for name, value in row.items() if name not in NAMING}
        row["occurred_at"] = clock.parse(row["occurred_at"])
        if db.has_one_writer():
            row["id"] = 1  # else the database draws it
        with db.transaction():
            db.connection().execute(sa.insert(sealing.PENDING), row)
        sealing.settle(cast.alice.account_id)


def test_changes_of_version_before_are_sealed_as_version_1(app: Flask, cast: Cast) -> None:
    write_as_before(app, cast)
    found = entries(cast.root, record_id="old")[0]
    assert (found["digest_version"], found["actor"]) == (1, None)
    assert cast.root.get("audit-logs/verify").json["valid"]
    for column in digest.NAMING:
        with app.app_context(), db.transaction(), unguarded():
            mine = CHANGES.c.record_id == "old"
            db.connection().execute(sa.update(CHANGES).where(mine).values({column: "user"}))
            assert not verify.verify_all(AUDIT)["valid"]
            db.connection().execute(sa.update(CHANGES).where(mine).values({column: None}))
    assert cast.root.get("audit-logs/verify").json["valid"]


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_mixed_versions_verify(app: Flask, cast: Cast, olds: list[bool]) -> None:
    for is_old in olds:
        if is_old:
            write_as_before(app, cast)
        else:
            make_record(cast.alice, title="x")
    assert cast.root.get("audit-logs/verify").json["valid"]
    account = cast.alice.account_id
    lines = cast.root.get(f"audit-logs/export?format=jsonl&account_id={account}").text
    exported = [json.loads(line) for line in lines.splitlines()]
    assert {one["digest_version"] for one in exported} >= {1 if any(olds) else 2}
    (chain,) = alone.verify(exported).values()
    assert chain.fault is None
    assert chain.checked == len(exported)


def test_triggers_refuse_half_an_erasure(app: Flask, cast: Cast) -> None:
    by_session(cast)
    cast.alice.post("groups", {"name": "team"})
    assert cast.alice.get("account/security-log").json["items"]
    with app.app_context():
        sealing.settle(None)
        mine = CHANGES.c.account_id == cast.alice.account_id
        former = dict.fromkeys((*digest.ACTOR_COLUMNS[:-1], "actor_salts"))
        erased = {**former, "erased_digests": "{}"}
        for values in (erased, {"actor_kind": "workflow"}, {"actor_name": "x"}):
            with pytest.raises(sa.exc.DBAPIError), db.transaction() as session:
                session.execute(sa.update(CHANGES).where(mine).values(values))
        with pytest.raises(sa.exc.DBAPIError), db.transaction() as session:
            session.execute(sa.update(EVENTS).values(actor_id="x"))


def test_directory_is_a_key(cast: Cast) -> None:
    dora = Directory(cast.alice).make_user()
    (found, *_) = entries(cast.root, record_id=dora["id"], operation="CREATE")
    assert (found["actor"]["kind"], found["actor"]["name"]) == ("api_key", "SCIM")
    assert found["actor"]["id"] == found["user_id"]


def test_command_of_superadmin_is_the_operator(app: Flask, cast: Cast, tmp_path: Path) -> None:
    result = run(app, "account", "clone", "acme", "copy", *ROOT)
    assert result.exit_code == 0, result.output
    account_id = result.output.split("(")[1].split(")")[0]
    found = entries(cast.root, account_id=account_id, table_name="accounts")
    assert {one["actor"]["kind"] for one in found} == {"import"}
    assert {one["user_id"] for one in found} == {cast.root.id}
    with app.app_context(), superadmin(None) as by, db.transaction():
        append.record(append.Change(account_id, (append.UPDATE, "x", "y"), [("z", None, "1")]))
    (found,) = entries(cast.root, account_id=account_id, record_id="y")
    assert found["actor"] == {"kind": "operator", "id": by.user_id, "name": cast.root.email}


def test_bundle_with_both_versions_comes_back(app: Flask, cast: Cast, tmp_path: Path) -> None:
    write_as_before(app, cast)
    by_key(cast)
    file = export(app, tmp_path)
    before = entries(cast.root, account_id=cast.alice.account_id)
    assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
    run_jobs(app)
    result = import_(app, file, *ROOT)
    assert result.exit_code == 0, result.output
    after = entries(cast.root, account_id=cast.alice.account_id)
    assert after[: len(before)] == before
    assert {one["digest_version"] for one in before} == {1, 2}
    assert cast.root.get("audit-logs/verify").json["valid"]


def test_cut_goes_by_both_versions(app: Flask, cast: Cast) -> None:
    by_key(cast)
    write_as_before(app, cast)
    by_session(cast)
    key = base64.urlsafe_b64encode(bytes(range(32))).decode()
    settings = replace(app.extensions["atrium.config"], audit_checkpoint_key=(key,))
    with pytest.MonkeyPatch.context() as patch, app.app_context():
        patch.setitem(app.extensions, "atrium.config", settings)
        checkpoints.create_due()
        assert cut.cut(AUDIT, cast.alice.account_id, clock.now()) > 3
        found = verify.verify_all(AUDIT, cast.alice.account_id)
        assert (found["valid"], found["start"]["removed"] > 3) == (True, True)
