"""Listing, reading, exporting and masking the audit log, and who signs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db
from app.accounts import service as accounts
from app.accounts.models import PII_GROUP, User
from app.audit import append, checkpoints, exports, service
from app.audit.models import AuditChange
from app.context import tenancy
from tests.audit.chains import entries, stand_alone, told, verified
from tests.builders import PASSWORD, Cast, make_collection, make_record
from tests.mailbox import body_of, outbox, run_jobs

NASTY = ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "'", "''x", "", 'a,b\r\n"c"', "ä\u2028", "null"]


def test_audit_log_of_record_has_one_entry_per_column(cast: Cast) -> None:
    schema = [{"name": "title", "type": "text"}, {"name": "n", "type": "number"}]
    make_collection(cast.root, schema=[*schema, {"name": "done", "type": "boolean"}])
    made = make_record(cast.alice, title="Hello", n=1.5)
    path = f"records/posts/{made['id']}"
    cast.alice.patch(path, {"title": "Hello", "n": 2, "done": True})
    cast.alice.delete(path)
    found = entries(cast.root, record_id=made["id"])
    assert told(found) == [
        ("CREATE", "col_posts", "id", None, made["id"]),
        ("CREATE", "col_posts", "title", None, "Hello"),
        ("CREATE", "col_posts", "n", None, "1.5"),
        ("UPDATE", "col_posts", "n", "1.5", "2"),
        ("UPDATE", "col_posts", "done", None, "true"),
        ("DELETE", "col_posts", "id", made["id"], None),
        ("DELETE", "col_posts", "title", "Hello", None),
        ("DELETE", "col_posts", "n", "2", None),
        ("DELETE", "col_posts", "done", "true", None),
    ]
    assert {entry["account_id"] for entry in found} == {cast.alice.account_id}


def test_audit_entry_holds_actor_address_and_request_id(app: Flask, cast: Cast) -> None:
    headers = {"User-Agent": "tester/1", "X-Correlation-ID": "request-7"}
    cast.alice.patch("auth/me", {"name": "Alice"}, headers=headers)
    (entry,) = entries(cast.root, table_name="users", operation="UPDATE", user_id=cast.alice.id)
    assert entry["user_email"] == entry["user_name"] == cast.alice.email
    assert entry["user_agent"] == "tester/1"
    assert entry["request_id"] == "request-7"
    assert entry["ip_address"] == "127.0.0.1"
    with app.app_context():
        accounts.create_account("Made by a command", "made")
    made = entries(cast.root, sort_order="desc")[0]
    assert (made["user_id"], made["request_id"]) == ("system", None)
    make_collection(cast.root, create_rule="")
    answer = type(cast.alice)(app).acting_in("acme").post("records/posts", {"title": "x"})
    assert answer.status_code == 201
    assert entries(cast.root, sort_order="desc")[0]["user_id"] == "anonymous"


def test_audit_log_filters_sorting_and_paging(cast: Cast) -> None:
    every = entries(cast.root)
    assert [entry["id"] for entry in every] == sorted(entry["id"] for entry in every)
    for name in ("account_id", "table_name", "record_id", "user_id", "operation"):
        for value in {entry[name] for entry in every}:
            found = entries(cast.root, **{name: value})
            assert found == [entry for entry in every if entry[name] == value]
    moment = every[10]["occurred_at"]
    assert entries(cast.root, from_date=moment, to_date=moment) == [
        entry for entry in every if entry["occurred_at"] == moment
    ]
    answer = cast.root.get("audit-logs?skip=3&limit=2").json
    newest = sorted(every, key=lambda entry: (entry["occurred_at"], entry["id"]), reverse=True)
    assert answer["items"] == newest[3:5]
    assert (answer["total"], answer["skip"], answer["limit"]) == (len(every), 3, 2)
    assert answer["audit_logging_enabled"] is True
    assert cast.root.get("audit-logs?include_total=false").json["total"] is None
    assert cast.root.get(f"audit-logs/{every[0]['id']}").json == every[0]


def test_audit_log_query_with_invalid_parameter_is_422(cast: Cast) -> None:
    for query in ("limit=501", "limit=0", "sort_order=up", "operation=READ", "from_date=x", "x=1"):
        assert cast.root.get(f"audit-logs?{query}").status_code == 422, query
    for column in ("old_value", "new_value", "salt", "values_digest", "nothing"):
        answer = cast.root.get("audit-logs", query_string={"sort_by": column})
        assert (answer.status_code, answer.json["details"][0]["field"]) == (400, "sort_by")
    assert cast.root.get("audit-logs/999999999999999999").status_code == 404
    assert cast.root.get("audit-logs/99999999999999999999").status_code == 422
    assert cast.root.get("audit-logs/export?format=xml").status_code == 422


def test_audit_log_masks_personal_values_except_for_pii_access(app: Flask, cast: Cast) -> None:
    cast.alice.post("invitations", {"email": "dora@acme.example"})
    personal = [e for e in entries(cast.root) if e["column_name"] == "email"]
    assert {e["table_name"] for e in personal} == {"users", "invitations"}
    for entry in personal:
        assert (entry["new_value"], entry["salt"], entry["masked"]) == ("***", None, True)
    assert "dora@acme" not in cast.root.get("audit-logs/export").text
    for format in exports.FORMATS:
        counts = cast.root.get(f"audit-logs/export?format={format}").headers
        assert counts["X-Service-Values-Masked"] == str(len(personal)), format
    by_name = cast.root.get("audit-logs/export?format=json").json
    assert by_name["values_masked"] == len(personal)
    assert verified(cast.root)["valid"]
    with app.app_context(), db.transaction() as session:
        user = session.scalars(sa.select(User).where(User.id == cast.root.id)).one()
        accounts.join_group(user, PII_GROUP)
        user.version += 1
    seen = [e for e in entries(cast.root, table_name="invitations") if e["column_name"] == "email"]
    assert [(e["new_value"], e["masked"]) for e in seen] == [("dora@acme.example", False)]


PERSON = [
    {"name": "title", "type": "text"},
    {"name": "mail", "type": "email", "pii": True, "mask_type": "email"},
    {"name": "phone", "type": "text", "pii": True, "mask_type": "phone"},
    {"name": "salary", "type": "number", "pii": True},
    {"name": "notes", "type": "json", "pii": True},
]
ADA = {"title": "Countess", "mail": "ada@acme.example", "phone": "555-123-4567"}
ADA_SHOWN = {"title": "Countess", "mail": "a***@acme.example", "phone": "***-***-4567"}
ADA_SHOWN |= {"salary": "********", "notes": "********"}


def test_audit_log_masks_record_values_by_field_flags(cast: Cast) -> None:
    make_collection(cast.root, schema=PERSON)
    made = make_record(cast.alice, **ADA, salary=9, notes={"a": "secret"})
    cast.alice.patch(f"records/posts/{made['id']}", {"phone": None})
    found = entries(cast.root, table_name="col_posts")
    created = {e["column_name"]: e for e in found if e["operation"] == "CREATE"}
    assert {name: created[name]["new_value"] for name in ADA_SHOWN} == ADA_SHOWN
    for name, entry in created.items():
        personal = name not in ("id", "title")
        assert (entry["masked"], entry["salt"] is None) == (personal, personal), name
        assert entry["user_email"] == cast.alice.email
    assert told(found[-1:]) == [("UPDATE", "col_posts", "phone", "***-***-4567", None)]
    one = cast.root.get(f"audit-logs/{found[-1]['id']}").json
    assert one == found[-1]
    exported = cast.root.get("audit-logs/export?table_name=col_posts").text
    assert "secret" not in exported
    assert "123-4567" not in exported
    assert verified(cast.root)["valid"]


def test_audit_log_masks_values_of_deleted_collection_with_reused_name(cast: Cast) -> None:
    made = make_collection(cast.root, schema=PERSON)
    make_record(cast.alice, **ADA)
    assert cast.root.delete(f"collections/{made['id']}").status_code == 200
    make_collection(cast.root, schema=[{"name": name, "type": "text"} for name in ADA])
    make_record(cast.alice, title="Open", mail="open@acme.example")
    found = entries(cast.root, table_name="col_posts", operation="CREATE")
    values = [(e["column_name"], e["new_value"]) for e in found if e["column_name"] != "id"]
    present = [("title", "Open"), ("mail", "open@acme.example")]
    assert values == [*((name, "***") for name in ADA), *present]
    for entry in found[: len(ADA)]:
        assert cast.root.get(f"audit-logs/{entry['id']}").json == entry
    for format in exports.FORMATS:
        exported = cast.root.get(f"audit-logs/export?table_name=col_posts&format={format}")
        assert "Countess" not in exported.text
        assert exported.headers["X-Service-Values-Masked"] == str(len(ADA)), format
    assert verified(cast.root)["valid"]


def test_audit_log_holds_no_secrets(app: Flask, cast: Cast) -> None:
    key = cast.alice.post("api-keys", {"name": "nightly"}).json
    cast.bob.post(
        "auth/change-password", {"current_password": PASSWORD, "new_password": "N" * 9 + "ew-1"}
    )
    with app.app_context():
        rows = db.connection().execute(sa.select(AuditChange.__table__)).all()
    text = str(rows)
    assert key["key"] not in text
    assert "argon2" not in text
    changed = entries(cast.root, record_id=cast.bob.id, operation="UPDATE", user_id=cast.bob.id)
    assert ("UPDATE", "users", "password_hash", "***", "***") in told(changed)


@pytest.mark.parametrize("format", exports.FORMATS)
def test_audit_export_verifies_offline(app: Flask, cast: Cast, tmp_path: Path, format: str) -> None:
    make_collection(cast.root)
    for title in NASTY:
        make_record(cast.alice, title=title)
    cast.root.delete(f"collections/{cast.root.get('collections').json['items'][0]['id']}")
    with app.app_context():
        assert checkpoints.create_due() == 3
        kept = list(checkpoints.for_account())
    answer = cast.root.get(f"audit-logs/export?format={format}")
    assert answer.mimetype == exports.FORMATS[format]
    file = tmp_path / f"export.{format}"
    file.write_bytes(answer.data)
    alone = stand_alone()
    given = list(alone.read(str(file)))
    assert given == list(exports.read(file))
    assert [entry["id"] for entry in sorted(given, key=lambda e: e["id"])] == [
        entry["id"] for entry in entries(cast.root)
    ]
    chains = alone.verify(given, kept, kept[0]["public_key"])
    assert {chain.fault for chain in chains.values()} == {None}
    lines = tmp_path / "checkpoints.jsonl"
    lines.write_text("\n".join(map(json.dumps, kept)))
    options = ["--file", str(file), "--checkpoint", str(lines)]
    found = app.test_cli_runner().invoke(args=["audit", "verify", *options])
    assert found.exit_code == 0, found.output
    one = cast.alice.account_id
    answer_of_one = cast.root.get(f"audit-logs/export?format={format}&account_id={one}")
    file.write_bytes(answer_of_one.data)
    assert {c.fault for c in alone.verify(alone.read(str(file)), kept, None, one).values()} == {
        None
    }
    for name in (one, one.upper()):  # of all the checkpoints, those of others say nothing of it
        mine = ["audit", "verify", *options, "--account", name]
        assert app.test_cli_runner().invoke(args=mine).exit_code == 0
    file.write_bytes(answer.data.replace(b"col_posts", b"col_ports", 1))
    found = app.test_cli_runner().invoke(args=["audit", "verify", *options])
    assert found.exit_code == 1
    assert "BROKEN" in found.output


def test_audit_csv_export_escapes_spreadsheet_formulas(cast: Cast) -> None:
    make_collection(cast.root)
    for title in NASTY:
        make_record(cast.alice, title=title)
    text = cast.root.get("audit-logs/export?format=csv").text
    for cell in ("=1+1", "+1", "-1", "@x"):
        assert f",{cell}," not in text
        assert f",'{cell}," in text


def test_audit_verify_command_checks_all_chains(app: Flask, cast: Cast) -> None:
    found = app.test_cli_runner().invoke(args=["audit", "verify"])
    assert found.exit_code == 0
    assert found.output.count("valid: ") == 3
    found = app.test_cli_runner().invoke(args=["audit", "verify", "--account", "nobody"])
    assert (found.exit_code, "No account or audit chain with the id nobody" in found.output) == (
        1,
        True,
    )
    assert cast.root.get("audit-logs/verify?account_id=nobody").status_code == 404
    assert "3 checkpoints" in app.test_cli_runner().invoke(args=["audit", "checkpoint"]).output
    assert "0 checkpoints" in app.test_cli_runner().invoke(args=["audit", "checkpoint"]).output
    assert cast.root.get("audit-logs/checkpoints").json["total"] == 3


def test_audit_checkpoints_are_mailed(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(app.extensions["atrium.config"], audit_checkpoint_email="a@audit.example")
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    with app.app_context():
        checkpoints.create(cast.alice.account_id)
        (kept,) = checkpoints.for_account()
    run_jobs(app)
    (mail,) = [mail for mail in outbox(app) if mail["To"] == "a@audit.example"]
    assert json.dumps(kept, sort_keys=True, separators=(",", ":")) in body_of(mail)


def test_audit_log_disabled_appends_nothing_and_lists_report_it(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(entries(cast.root))
    settings = replace(app.extensions["atrium.config"], audit_logging_enabled=False)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    make_collection(cast.root)
    make_record(cast.alice, title="x")
    answer = cast.root.get("audit-logs").json
    assert (answer["total"], answer["audit_logging_enabled"]) == (before, False)


SIGNED = {"X-ES-Username": "BOB@acme.example", "X-ES-Password": PASSWORD, "X-ES-Reason": "approved"}


def test_electronic_signature_is_recorded_in_audit_entries(cast: Cast) -> None:
    make_collection(cast.root)
    answer = cast.alice.post("records/posts", {"title": "x"}, headers=SIGNED)
    assert answer.status_code == 201
    for entry in entries(cast.root, record_id=answer.json["id"]):
        assert (entry["es_username"], entry["es_reason"]) == (cast.bob.email, "approved")
        assert entry["es_timestamp"] <= entry["occurred_at"]
        assert entry["user_id"] == cast.alice.id
    assert verified(cast.root)["valid"]
    unsigned = make_record(cast.alice, title="y")
    assert {e["es_username"] for e in entries(cast.root, record_id=unsigned["id"])} == {None}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"X-ES-Password": "wrong"}, 401),
        ({"X-ES-Username": "charlie@globex.example"}, 401),
        ({"X-ES-Username": "nobody@acme.example"}, 401),
        ({"X-ES-Password": ""}, 422),
        ({"X-ES-Reason": ""}, 422),
        ({"X-ES-Username": ""}, 422),
    ],
)
def test_electronic_signature_that_is_invalid_blocks_the_write(
    cast: Cast, change: dict[str, str], status: int
) -> None:
    make_collection(cast.root)
    answer = cast.alice.post("records/posts", {"title": "x"}, headers=SIGNED | change)
    assert answer.status_code == status
    assert cast.alice.get("records/posts").json["total"] == 0


def test_audit_tables_are_append_only_in_the_database(app: Flask, cast: Cast) -> None:
    statements = [
        "UPDATE audit_changes SET new_values = 'x'",
        "UPDATE audit_changes SET operation = 'READ'",
        "UPDATE audit_changes SET first_id = first_id + 1000000",
        "UPDATE audit_changes SET checksum = '\\x00', old_values = NULL",
        "UPDATE audit_changes SET extra_metadata = '{}'",
        "UPDATE audit_changes SET erased_digests = '{}'",
        "UPDATE audit_changes SET columns = '[]', old_values = NULL, salts = NULL",
        "UPDATE audit_changes SET record_id = 'x'",
        "DELETE FROM audit_changes",
        "DELETE FROM audit_changes WHERE first_id > 3",
        "UPDATE audit_pending SET new_values = 'x'",
        "UPDATE audit_pending SET salts = NULL",
        "DELETE FROM audit_pending",
    ]
    assert verified(cast.root)["valid"]  # or no change is sealed
    make_collection(cast.root)
    with app.app_context():
        if db.db.engine.dialect.name == "postgresql":
            statements += ["TRUNCATE audit_changes", "TRUNCATE audit_pending"]
        else:
            statements += [
                "INSERT OR REPLACE INTO audit_changes SELECT * FROM audit_changes LIMIT 1",
                "INSERT OR REPLACE INTO audit_pending SELECT * FROM audit_pending LIMIT 1",
            ]
        for statement in statements:
            with (
                pytest.raises(sa.exc.DBAPIError, match="append-only"),
                tenancy.as_owner(),
                db.transaction() as session,
            ):
                session.execute(sa.text(statement))
    assert verified(cast.root)["valid"]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_audit_log_sorted_by_request_id_has_nulls_last(cast: Cast, order: str) -> None:
    make_collection(cast.root)
    query = f"sort_by=request_id&sort_order={order}&limit=500"
    found = [one["request_id"] for one in cast.root.get(f"audit-logs/?{query}").json["items"]]
    named = [one for one in found if one is not None]
    assert named
    assert None in found
    assert found == sorted(named, reverse=order == "desc") + [None] * found.count(None)


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_audit_log_pages_by_id_are_ordered_across_accounts(cast: Cast, order: str) -> None:
    make_collection(cast.root)
    for caller in (cast.alice, cast.root, cast.alice):
        make_record(caller, title="A")
    query = f"sort_by=id&sort_order={order}"
    whole = cast.root.get(f"audit-logs/?{query}&limit=500").json["items"]
    ids = [one["id"] for one in whole]
    assert ids == sorted(ids, reverse=order == "desc")
    assert len({one["account_id"] for one in whole}) > 1
    pages = [
        cast.root.get(f"audit-logs/?{query}&limit=3&skip={skip}").json["items"]
        for skip in range(0, len(ids), 3)
    ]
    assert [one["id"] for page in pages for one in page] == ids
    assert [cast.root.get(f"audit-logs/{id}").json["id"] for id in ids[:20]] == ids[:20]


FILTERS: list[dict[str, Any]] = [
    {},
    *({name: "x"} for name in service.FILTERS),
    {"from_date": "2026-01-01T00:00:00Z"},
    {"to_date": "2026-01-01T00:00:00Z"},
]


@pytest.mark.parametrize("account", [{}, {"account_id": "y"}])
@pytest.mark.parametrize("asked", FILTERS, ids=[next(iter(one), "none") for one in FILTERS])
def test_audit_log_first_page_is_read_by_an_index(
    app: Flask, asked: dict[str, Any], account: dict[str, str]
) -> None:
    """In the order asked for: no table is walked, and nothing is sorted."""
    dates = {name: clock.parse(value) for name, value in asked.items() if "date" in name}
    full = {**account, **asked, **dates, "sort_by": "occurred_at", "sort_order": "desc"}
    with app.app_context(), db.transaction() as session:
        asked_for = {**full, "skip": 0, "limit": 50}
        statement = service._changes_of_page(asked_for, "occurred_at", False)
        text = str(statement.compile(db.db.engine, compile_kwargs={"literal_binds": True}))
        if db.db.engine.dialect.name == "sqlite":
            plan = session.execute(sa.text(f"EXPLAIN QUERY PLAN {text}")).all()
        else:
            session.execute(sa.text("SET LOCAL enable_seqscan = off"))
            session.execute(sa.text("SET LOCAL enable_sort = off"))
            session.execute(sa.text("SET LOCAL enable_bitmapscan = off"))
            plan = session.execute(sa.text(f"EXPLAIN {text}")).all()
    steps = str(plan)
    assert "ix_audit_changes" in steps
    assert steps.count("Sort  (") + steps.count("TEMP B-TREE") == 0, steps
    assert "Seq Scan" not in steps


def test_audit_values_are_stored_as_json_text() -> None:
    values = (1, 1.5, True, "true", None, {"ä": [1]})
    kept = ["1", "1.5", "true", "true", None, '{"ä":[1]}']
    assert [append.text(value) for value in values] == kept
