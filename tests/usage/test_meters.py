"""The meters say what the logs and the rows say, whatever is killed meanwhile."""

from __future__ import annotations

from datetime import date, timedelta
from io import BytesIO

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db
from app.accounts.usage import metering, request_counter
from app.context import tenancy
from tests.builders import Caller, Cast, make_collection, make_record
from tests.mailbox import run_jobs
from tests.webhooks.delivering import make_webhook
from tests.workflows.running import create, make_workflow, start, work

FIELDS = [
    {"name": "title", "type": "text"},
    {"name": "done", "type": "boolean"},
    # Names that the triggers use, too.
    {"name": "c", "type": "text"},
    {"name": "step", "type": "number"},
    {"name": "file", "type": "file"},
]
# What the tables have of an account, by meter.
STORED = {
    "records": "SELECT count(*) FROM {table} t WHERE account_id = :id",
    "row_bytes": "SELECT coalesce(sum({size}), 0) FROM {table} t WHERE account_id = :id",
    "file_bytes": "SELECT coalesce(sum(size), 0) FROM files WHERE account_id = :id"
    " AND removed_at IS NULL",
    "deliveries": "SELECT count(*) FROM webhook_deliveries WHERE account_id = :id",
    "workflow_steps": "SELECT count(*) FROM workflow_step_logs WHERE account_id = :id",
}


def used(caller: Caller) -> dict[str, int]:
    """What the caller's account uses now, by meter."""
    answer = caller.get("account/usage")
    assert answer.status_code == 200, answer.json
    return {meter: state["used"] for meter, state in answer.json["meters"].items()}


def upload(caller: Caller, size: int = 1000) -> str:
    """Upload a file of so many bytes; returns its id."""
    answer = caller.post("files/upload", data={"file": (BytesIO(b"x" * size), "x.txt")})
    assert answer.status_code == 201, answer.json
    return str(answer.json["file"]["id"])


def stored(app: Flask, caller: Caller) -> dict[str, int]:
    """What the tables have of the caller's account."""
    with app.app_context(), tenancy.as_owner():
        engine = db.db.engine
        table = db.connection().scalar(sa.text("SELECT table_name FROM collections"))
        names = [column["name"] for column in sa.inspect(engine).get_columns(table)]
        lengths = (f'coalesce(length(CAST("{name}" AS BLOB)), 0)' for name in names)
        is_sqlite = engine.dialect.name == "sqlite"
        size = " + ".join(lengths) if is_sqlite else "octet_length((t.*)::text)"
        parameters = {"id": caller.account_id}
        return {
            meter: int(
                db.connection().scalar(sa.text(query.format(table=table, size=size)), parameters)
                or 0
            )
            for meter, query in STORED.items()
        }


@pytest.fixture
def busy(cast: Cast) -> Cast:
    """The cast, with a collection that a webhook and a workflow follow."""
    make_collection(cast.root, schema=FIELDS)
    make_webhook(cast.alice, "http://127.0.0.1:9/")
    return cast


def test_usage_requests_count_for_account_of_caller(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    before = {caller.id: used(caller)["requests"] for caller in (cast.alice, cast.charlie)}
    for _ in range(3):
        assert cast.bob.get("records/posts").status_code == 200
    assert cast.bob.get("account").status_code == 403  # an answer like any other
    assert cast.root.acting_in("globex").get("records/posts").status_code == 200
    assert Caller(app).get("records/posts").status_code == 401
    assert Caller(app, Authorization="Bearer x").get("records/posts").status_code == 401
    # Each look counts itself for the next one.
    assert used(cast.alice)["requests"] == before[cast.alice.id] + 4 + 1
    assert used(cast.charlie)["requests"] == before[cast.charlie.id] + 1


def test_usage_anonymous_requests_count_only_where_rules_allow(app: Flask, cast: Cast) -> None:
    """Else anybody could use up the requests of any account."""
    make_collection(cast.root, "news", list_rule="true", view_rule="@request.auth.id != ''")
    stranger, before = Caller(app, **{"X-Account-ID": "acme"}), used(cast.alice)["requests"]
    cast.root.patch("collections/news/rules", {"list_rule": "public"})
    statuses = [stranger.get(path).status_code for path in ("records/none", "records/news/x")]
    assert all(status >= 400 for status in statuses)
    assert used(cast.alice)["requests"] == before + 1


def test_usage_of_rows_and_files_follows_changes(app: Flask, busy: Cast) -> None:
    alice, before = busy.alice, used(busy.charlie)
    first = make_record(alice, title="x" * 300)
    second = make_record(alice, title="é" * 10, done=True)
    assert stored(app, alice).items() <= used(alice).items()
    file = upload(alice)
    assert used(alice)["file_bytes"] == 1000
    assert (
        alice.patch(f"records/posts/{first['id']}", {"title": "short", "file": [file]}).status_code
        == 200
    )
    assert alice.delete(f"records/posts/{second['id']}").status_code == 204
    now = used(alice)
    assert stored(app, alice).items() <= now.items()
    assert (now["records"], now["deliveries"]) == (1, 4)
    assert used(busy.charlie).items() >= {**before, "requests": before["requests"] + 1}.items()


def test_usage_of_rows_is_recounted_after_schema_change(app: Flask, busy: Cast) -> None:
    alice = busy.alice
    made = [make_record(alice, title=f"{n}" * 20, done=True) for n in range(3)]
    posts = busy.root.get("collections/posts").json
    schema = [field for field in posts["schema"] if field["name"] != "done"]
    schema.append({"name": "note", "type": "text", "default": "as new"})
    answer = busy.root.patch(f"collections/{posts['id']}", {"schema": schema})
    assert answer.status_code == 200, answer.json
    alice.delete(f"records/posts/{made[0]['id']}")
    run_jobs(app)
    make_record(alice, title="later")
    assert stored(app, alice).items() <= used(alice).items()


def test_usage_counts_workflow_steps_and_mails(app: Flask, busy: Cast) -> None:
    alice = busy.alice
    flow = make_workflow(alice, [create("one", "a", next="two"), create("two", "b")])
    start(alice, flow)
    work(app)
    alice.post("account/users", {"email": "dora@acme.example", "role": "viewer"})
    run_jobs(app)
    now = used(alice)
    assert stored(app, alice).items() <= now.items()
    assert (now["workflow_steps"], now["records"], now["mails"]) == (2, 2, 1)
    assert used(busy.charlie)["mails"] == 0


def move_back(app: Flask, days: int) -> date:
    """Make what was counted today a count of an earlier day; returns that day."""
    day = (clock.now() - timedelta(days=days)).date()
    with app.app_context():
        request_counter.current().collect_all()
        moved = sa.text("UPDATE usage_counts SET day = :day WHERE day <> 'now'")
        with db.transaction() as session:
            session.execute(moved, {"day": day.isoformat()})
    return day


def test_usage_days_list_counts_and_levels(app: Flask, busy: Cast) -> None:
    alice = busy.alice
    make_record(alice, title="x")
    with app.app_context():
        metering.record_levels({})
    day = move_back(app, 1)
    make_record(alice, title="y")
    days = alice.get("account/usage").json["items"]
    assert len(days) == 30
    assert [item["records"] for item in days[-2:]] == [1, 2]
    assert [item["deliveries"] for item in days[-2:]] == [1, 1]
    assert days[0]["records"] is None
    lines = alice.get(f"account/usage?format=csv&from_date={day}").text.splitlines()
    assert lines[0].startswith("day,requests,deliveries,")
    assert len(lines) == 3


def test_usage_parts_of_past_days_are_summed(app: Flask, busy: Cast) -> None:
    alice = busy.alice
    make_record(alice, title="x")
    day = move_back(app, 40)
    query = f"account/usage?from_date={day}&to_date={day}"
    before = alice.get(query).json["items"]
    with app.app_context():
        metering.fold({})
        metering.fold({})
    assert alice.get(query).json["items"] == before
    assert (before[0]["requests"], before[0]["deliveries"]) == (2, 1)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("from_date=2026-11-02&to_date=2026-11-01", 400),
        ("from_date=2020-01-01", 400),
        ("from_date=soon", 422),
        ("format=xml", 422),
    ],
)
def test_usage_with_invalid_date_range_is_refused(alice: Caller, query: str, status: int) -> None:
    assert alice.get(f"account/usage?{query}").status_code == status


def test_usage_rows_are_deleted_with_account(app: Flask, busy: Cast) -> None:
    make_record(busy.alice, title="x")
    used(busy.alice)
    assert busy.root.delete(f"accounts/{busy.alice.account_id}").status_code == 204
    run_jobs(app)
    with app.app_context():
        left = sa.text("SELECT count(*) FROM usage_counts WHERE account_id = :id AND amount <> 0")
        assert db.connection().scalar(left, {"id": busy.alice.account_id}) == 0


def test_usage_of_rows_with_over_100_fields(app: Flask, cast: Cast) -> None:
    """SQLite's functions take 100 arguments only."""
    make_collection(cast.root, schema=[{"name": f"f{n}", "type": "text"} for n in range(120)])
    record = make_record(cast.alice, f0="é", f119="x" * 50)
    cast.alice.patch(f"records/posts/{record['id']}", {"f100": "%s"})
    assert stored(app, cast.alice).items() <= used(cast.alice).items()
