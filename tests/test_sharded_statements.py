"""What is sent to PostgreSQL can run on Citus (docs/scaling.md, docs/adr/0053)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from app.audit.chain import verify
from app.audit.log import AUDIT
from app.jobs import worker
from tests import builders, sharded_sql, sql
from tests.builders import Cast
from tests.console import furnished
from tests.webhooks import delivering
from tests.workflows import running

# What names no account runs on all shards at once: reads, without a lock, of what no account asks.
DUE = "workers look for due rows of all accounts, and claim them account by account"
EXPIRED = "a job looks for expired rows of all accounts, and deletes them account by account"
SUPERADMIN = "superadmins list what is of all accounts"
COUNTED = "numbers over all accounts"
BY_TUPLES = "the ORM loads the groups of users by tuples of their keys"
READS: Mapping[str, str] = {
    "api_keys": SUPERADMIN,
    "audit_log": SUPERADMIN,
    "webhooks": SUPERADMIN,
    "workflows": SUPERADMIN,
    "account_domains": DUE,
    "account_exports": EXPIRED,
    "audit_changes": SUPERADMIN,
    "audit_checkpoints": SUPERADMIN,
    "audit_heads": DUE,
    "audit_pending": DUE,
    "audit_starts": SUPERADMIN,
    "chain_verifications": DUE,
    "feed_changes": EXPIRED,
    "files": EXPIRED,
    "group_members": BY_TUPLES,
    "groups": BY_TUPLES,
    "idempotency_keys": EXPIRED,
    "invitations": "roles are shared: is one in use anywhere?",
    "issuer_documents": EXPIRED,
    "jobs": DUE,
    "mailed_tokens": EXPIRED,
    "operator_events": SUPERADMIN,
    "provider_settings": DUE,
    "realtime_tickets": EXPIRED,
    "record_counts": COUNTED,
    "saml_metadata_reads": DUE,
    "saml_sessions": EXPIRED,
    "saved_views": "roles are shared: is one named in a filter anywhere?",
    "security_heads": DUE,
    "security_pending": DUE,
    "security_streams": DUE,
    "sessions": EXPIRED,
    "setup_links": EXPIRED,
    "sso_assertions": EXPIRED,
    "sso_flows": EXPIRED,
    "sso_refusals": EXPIRED,
    "trashed_records": EXPIRED,
    "usage_counts": COUNTED,
    "used_mfa_tokens": EXPIRED,
    "users": SUPERADMIN,
    "webhook_deliveries": DUE,
    "webhook_versions": DUE,
    "workflow_instances": DUE,
    "workflow_schedules": DUE,
    "workflow_versions": "a renamed collection looks for steps that name it",
}
# Changes over all accounts, which Citus runs shard by shard: no lock, no moved row.
CHANGES: Mapping[str, str] = {
    "files": "a job marks files that no record has",
    "record_counts": "a schema change counts its table, and forgets it with it",
    "record_links": "entries go with their field or collection, and follow a new name",
    "record_sequences": "counters go with their field or collection, and follow a new name",
    "saved_views": "views go with their collection",
    "trashed_records": "they go with their collection, and a job passes over files that they have",
    "usage_counts": "a job adds up days that are over",
    "usage_notices": "a job forgets notices of former periods",
}
# INSERTs of several rows are sent to their shards one by one.
SEVERAL = {
    "security_pending": "each account's log has what a superadmin saw of all accounts",
    "usage_counts": "levels of all accounts, once a day",
}


@pytest.fixture(params=("postgresql",))
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def statement(text: str, **parameters: object) -> sql.Statement:
    sent = sql.Statement(text)
    sent.parameters = parameters
    return sent


CASES = json.loads((Path(__file__).parent / "cases/sharded_statements.json").read_text())


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["statement"][:60])
def test_citus_check_recognizes_refused_statements(case: Mapping[str, str]) -> None:
    found = list(sharded_sql.problems(statement(case["statement"], a="1", b="2")))
    assert any(case["problem"] in one for one in found), found


@pytest.mark.parametrize("text", CASES["runs"], ids=lambda text: text[:60])
def test_citus_check_accepts_supported_statements(text: str) -> None:
    assert list(sharded_sql.problems(statement(text, a="1", b="2"))) == []


@pytest.mark.long
def test_citus_check_accepts_every_sent_statement(app: Flask, cast: Cast) -> None:
    with sql.statements(app) as sent:
        known = furnished.furnish(app, cast)
        work(app, cast, known)
    refused = {}
    for one in sent:
        for problem in sharded_sql.problems(one):
            if not excused(one, problem):
                refused[problem, str(one)] = problem
    assert len(sent) > 900  # else the journey has become too short to say anything
    assert refused == {}


def excused(sent: sql.Statement, problem: str) -> bool:
    """Whether the lists above have a reason for it."""
    tree = sharded_sql.parse(sent)
    assert tree is not None
    names = set(sharded_sql.tables(tree))
    if "names no account" in problem or problem.startswith("it changes rows of all"):
        names = set(sharded_sql.loose_tables(sent))
        listed: Mapping[str, Any] = CHANGES if sharded_sql.changes(tree) else READS
        return all(name in listed or name.startswith(sharded_sql.PREFIX) for name in names)
    return "several accounts" in problem and names <= SEVERAL.keys()


def work(app: Flask, cast: Cast, known: Mapping[str, str]) -> None:
    """What callers, superadmins and workers do where something of everything is."""
    alice, root = cast.alice, cast.root
    inside = root.acting_in(alice.account_id)
    book, record = f"records/books/{known['record_id']}", {"title": "more", "pages": 9}
    for caller in (alice, inside, root.acting_in("*")):
        for path in PATHS:
            answer = caller.get(path.format(**known))
            assert answer.status_code in (200, 400, 403, 404), (path, answer.json)
            if caller is alice and path.startswith(("records/shelf", "records/sums")):
                assert answer.status_code == 200, (path, answer.json)
        (group,) = caller.get("records/sums?limit=1&filter=count>0").json["items"]
        assert caller.get(f"records/sums/{group['id']}").status_code == 200
    for caller in (alice, inside):
        made = caller.post("records/books", record, headers={"Idempotency-Key": caller.email}).json
        caller.post("records/books", record, headers={"Idempotency-Key": caller.email})
        caller.patch(f"records/books/{made['id']}", {"pages": 10})
        caller.post("records/books/batch", {"records": [record, record]})
        of_made = f"records/books/{made['id']}"
        for _ in range(2):
            assert caller.delete(of_made).status_code == 204
            assert caller.post(f"{of_made}/restore", {"values": {"pages": 11}}).status_code == 200
        assert caller.delete(of_made).status_code == 204
        assert caller.delete(f"{of_made}?permanently=true").status_code == 204
        assert caller.get(book).status_code == 200
    root.patch(f"collections/{known['collection_id']}", {"list_rule": "pages > 1"})
    renamed = root.patch(f"collections/{known['collection_id']}", {"name": "volumes"})
    assert renamed.status_code == 200, renamed.json
    builders.make_collection(root, "short")
    root.delete(f"collections/{root.get('collections/short').json['id']}")
    role = root.post("roles", {"name": "guest"}).json["id"]
    root.delete(f"roles/{role}")
    alice.post("auth/login", {"account": alice.slug, "email": alice.email, "password": "wrong"})
    flow = running.make_workflow(alice, [running.create("one")], {"type": "webhook"}, name="token")
    assert alice.post(f"workflow-webhooks/{flow['trigger']['token']}").status_code == 202
    mail = {"to": [{"role": "admin"}, {"user": alice.id}], "subject": "s", "body": "b"}
    steps = [running.create("copy"), running.action("mail", "send_email", **mail)]
    walk = {"name": "walk", "type": "for_each", "collection": "posts", "steps": steps}
    counted = {"collection": "posts", "functions": "count()", "group_by": "title"}
    sums = running.action("sums", "aggregate_records", **counted)
    walked = running.ran(app, alice, running.make_workflow(alice, [walk, sums], name="walk"))
    assert walked["status"] == "completed", walked["error_message"]
    alice.delete(f"groups/{known['group_id']}")
    delivering.deliver(app)
    with app.app_context():
        worker.schedule_periodic()
        worker.run_due()
        verify.verify_all(AUDIT)


PATHS = (
    *("collections", "records/posts?sort=-title&include_total=true", "records/posts?limit=2"),
    *("records/books?expand=before&filter=pages>1", "records/books/{record_id}"),
    *("records/books?trash=true&filter=pages>1", "records/books?trash=true&sort=-deleted_at"),
    "records/books?trash=true&cursor=&limit=1",
    *("records/books/aggregate?functions=count()", "records/books/{record_id}/history"),
    *("audit-logs", "audit-logs?limit=2&skip=1", "audit-logs?sort_by=id", "audit-logs/verify"),
    *("audit-logs/{entry_id}", "audit-logs/export?format=jsonl"),
    *("users", "users/{user_id}", "groups", "roles", "accounts", "invitations", "api-keys"),
    *("webhooks", "workflows", "workflow-instances", "auth/sessions", "auth/me"),
    *("account/usage", "account/security-log", "account/domains", "account/setup-links"),
    *("records/books/export?format=csv", "changes", "account"),
    *("records/shelf?sort=before_title&filter=title != 'a'", "records/shelf/{record_id}"),
    *("records/shelf?cursor=&limit=1", "records/shelf/aggregate?functions=count()"),
    *("records/sums?sort=-sum_pages&filter=count > 0", "records/sums?cursor=&limit=1"),
    *("records/sums/export?format=csv", "records/shelf/export?format=json"),
    "records/sums/aggregate?functions=sum(count)&group_by=before_title",
)
