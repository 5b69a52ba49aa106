"""What travels together to PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from psycopg2 import extensions
from sqlalchemy.exc import DBAPIError
from structlog.testing import capture_logs

from app import create_app, db
from app.context import tenancy
from app.db import engine, postgres_driver
from app.db.prepared import PreparedStatement
from tests.builders import Caller, Cast, make_collection, make_record

pytestmark = pytest.mark.parametrize("database", ["postgresql"])
BEGUN = (
    rb"BEGIN; SET LOCAL statement_timeout = \d+; SET LOCAL lock_timeout = \d+;"
    rb" SET LOCAL app.account_id = "
)
MARK = "INSERT INTO rate_limits (key, count, expires_at) VALUES ('mark', 1, {})"
MARKED = "SELECT count FROM rate_limits WHERE key = 'mark'"


@pytest.fixture
def within(app: Flask) -> Iterator[None]:
    with app.app_context():
        yield


@pytest.fixture
def connected_anew(app: Flask) -> Iterator[None]:
    with app.app_context():
        engine.current_engine().dispose()
        yield


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is sent meanwhile, one message each."""
    sent: list[bytes] = []
    execute, say = postgres_driver.Cursor.execute, postgres_driver.Driver._send

    def note_executed(self: Any, query: Any, vars: Any = None) -> None:
        execute(self, query, vars)
        sent.append(self.query)

    def note_said(self: Any, text: bytes) -> None:
        sent.append(text)
        say(self, text)

    monkeypatch.setattr(postgres_driver.Cursor, "execute", note_executed)
    monkeypatch.setattr(postgres_driver.Driver, "_send", note_said)
    return sent


def defer(statement: str) -> None:
    with db.driver() as driver:
        driver.defer(statement.encode())


def marked() -> Any:
    return db.connection().scalar(sa.text(MARKED))


@pytest.mark.usefixtures("connected_anew")
@pytest.mark.parametrize("unique", [False, True])
def test_record_write_takes_two_messages_or_three_with_unique_field(
    cast: Cast, alice: Caller, messages: list[bytes], unique: bool
) -> None:
    make_collection(cast.root, schema=[{"name": "title", "type": "text", "unique": unique}])
    for write, path in ((alice.post, ""), (alice.patch, f"/{make_record(alice)['id']}")):
        for number in range(4):  # at first statements are still prepared
            messages.clear()
            assert write(f"records/posts{path}", {"title": f"{path} {number}"}).status_code < 300
        begun, *stored, audited = messages
        assert re.match(BEGUN, begun)
        assert b"; EXECUTE kept_" in begun
        assert [one.startswith(b"EXECUTE kept_") for one in stored] == [True] * unique
        assert audited.startswith(b"INSERT INTO audit_pending" if unique else b"EXECUTE kept_")
        assert b"INSERT INTO audit_pending (" in audited
        assert audited.endswith(b"; COMMIT")


@pytest.mark.usefixtures("within")
def test_transaction_without_statements_sends_no_message(messages: list[bytes]) -> None:
    with db.transaction():
        pass
    assert messages == []


@pytest.mark.usefixtures("within")
def test_deferred_statement_outside_transaction_raises_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="outside a transaction"), db.driver() as driver:
        driver.defer(b"SELECT 1")


@pytest.mark.usefixtures("within")
def test_deferred_statement_runs_before_next_statement() -> None:
    with db.transaction():
        defer(MARK.format("extract(epoch FROM now())"))
        assert marked() == 1
    assert marked() == 1


@pytest.mark.usefixtures("within")
@pytest.mark.parametrize("first", [True, False])
def test_deferred_statement_failure_rolls_back_transaction(first: bool) -> None:
    def divide() -> None:
        with db.transaction() as session:
            if not first:
                session.execute(sa.text(MARK.format(0)))
            defer("SELECT 1 / 0")

    with pytest.raises(DBAPIError):
        divide()
    assert marked() is None
    with db.transaction() as session:  # and the connection is of use
        session.execute(sa.text(MARK.format(0)))
    assert marked() == 1


@pytest.mark.usefixtures("within")
def test_deferred_statement_is_dropped_after_other_failure() -> None:
    def give_up() -> None:
        with db.transaction():
            defer(MARK.format(0))
            raise LookupError

    with pytest.raises(LookupError):
        give_up()
    assert marked() is None


@pytest.mark.usefixtures("within")
def test_savepoint_rollback_keeps_account_setting(cast: Cast) -> None:
    mine, theirs = cast.alice.account_id, cast.charlie.account_id
    seen = sa.text("SELECT DISTINCT account_id FROM users")

    def look_and_give_up() -> None:
        with db.savepoint():
            with tenancy.in_account(theirs):
                assert set(session.scalars(seen)) == {theirs}
            raise LookupError

    with tenancy.in_account(mine), db.transaction() as session:
        assert set(session.scalars(seen)) == {mine}
        with pytest.raises(LookupError):
            look_and_give_up()
        assert set(session.scalars(seen)) == {mine}
        with tenancy.in_account(theirs):
            defer("SELECT 1")
        assert set(session.scalars(seen)) == {mine}


@pytest.mark.usefixtures("within")
def test_pooled_connection_is_rolled_back_on_return() -> None:
    pooled = db.db.engine.raw_connection()
    driver: Any = pooled.driver_connection
    driver.begin()
    with driver.cursor() as cursor:
        cursor.execute(MARK.format(0))
    assert driver.get_transaction_status() == extensions.TRANSACTION_STATUS_INTRANS
    pooled.close()
    assert driver.get_transaction_status() == extensions.TRANSACTION_STATUS_IDLE
    assert marked() is None


def kept() -> list[str]:
    """What the server keeps for the connection at hand."""
    known = sa.text("SELECT statement FROM pg_prepared_statements ORDER BY prepare_time")
    return [text.partition(" AS ")[2] for text in db.connection().scalars(known)]


def run(statement: postgres_driver.ServerStatement, **values: Any) -> Any:
    with db.driver() as driver, driver.cursor() as cursor:
        cursor.execute(driver.call(statement), values)
        return cursor.fetchall()


@pytest.mark.usefixtures("connected_anew")
def test_prepared_statement_is_reused_and_renewed_by_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = postgres_driver.ServerStatement(
        "SELECT slug, name LIKE '%%x' FROM accounts WHERE id = %(id)s"
    )
    assert asked.text == "SELECT slug, name LIKE '%x' FROM accounts WHERE id = $1"
    with db.transaction():
        for _ in range(3):
            assert run(asked, id="none") == []
        assert kept() == [asked.text]
        monkeypatch.setattr(postgres_driver, "PREPARED_SECONDS", -1)
        for _ in range(3):
            run(asked, id="none")
        assert kept() == [asked.text]


@pytest.mark.usefixtures("connected_anew")
def test_prepared_statement_works_right_after_boot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_driver, "time", SimpleNamespace(monotonic=lambda: 1.0))
    assert (
        run(
            postgres_driver.ServerStatement("SELECT slug FROM accounts WHERE id = %(id)s"),
            id="none",
        )
        == []
    )


@pytest.mark.usefixtures("connected_anew")
def test_prepared_statements_are_bounded_by_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_driver, "MAX_PREPARED", 3)
    names = ("id", "slug", "name", "version", "is_active")
    asked = [
        postgres_driver.ServerStatement(f"TABLE accounts ORDER BY {name} LIMIT %(most)s")
        for name in names
    ]
    with db.transaction():
        for one in [*asked, asked[-1]]:
            run(one, most=1)
        assert kept() == [one.text for one in asked[-3:]]


@pytest.mark.usefixtures("within")
def test_prepared_statement_failure_leaves_nothing_behind() -> None:
    wrong = postgres_driver.ServerStatement("SELECT 1 FROM no_such_table WHERE id = %(id)s")
    for _ in range(2):
        with pytest.raises(DBAPIError, match="no_such_table"):
            run(wrong, id="none")
    assert (
        run(
            postgres_driver.ServerStatement("SELECT slug FROM accounts WHERE id = %(id)s"),
            id="none",
        )
        == []
    )


def test_prepared_statement_follows_table_recreated_by_other_process(
    cast: Cast, alice: Caller, app: Flask
) -> None:
    other = Caller(create_app(app.extensions["atrium.config"]), **cast.root.headers)
    made = make_collection(cast.root, schema=[{"name": "size", "type": "number"}])
    path = f"records/posts/{make_record(alice, size=7)['id']}"
    for type, size in (("text", "7"), ("boolean", True), ("number", 8)):
        for _ in range(4):
            assert alice.get(path).status_code == 200
        assert other.delete(f"collections/{made['id']}").status_code == 200
        made = make_collection(other, schema=[{"name": "size", "type": type}])
        assert alice.get(path).status_code == 404
        path = f"records/posts/{make_record(alice, size=size)['id']}"
        assert alice.patch(path, {"size": size}).json["size"] == size
        assert alice.get(path).json["size"] == size


@pytest.mark.usefixtures("connected_anew")
def test_prepared_statement_follows_changed_column_type() -> None:
    table = sa.table("shifting", sa.column("id"), sa.column("size"))
    found = sa.select(table.c.size).where(table.c.id == sa.bindparam("_id"))
    asked, also = (
        PreparedStatement(found, keyed=True),
        PreparedStatement(found.limit(1), keyed=True),
    )
    with tenancy.as_owner():
        change = db.connection().exec_driver_sql
        change("CREATE TEMPORARY TABLE shifting (id int, size int)")
        change("INSERT INTO shifting VALUES (1, 7)")
        for type, size in (("bigint", 7), ("text", "7")):
            for one in (asked, asked, also, also):
                one.all({"_id": 1})
            change(f"ALTER TABLE shifting ALTER size TYPE {type}")
            assert asked.all({"_id": 1}) == [(size,)]
        change("ALTER TABLE shifting ALTER size TYPE bigint USING size::bigint")
        with pytest.raises(DBAPIError, match="must not change"), db.transaction():
            asked.all({"_id": 1})
        with db.transaction():  # that it is tried again helps, at once
            assert asked.all({"_id": 1}) == also.all({"_id": 1}) == [(7,)]
        db.connection().exec_driver_sql("DROP TABLE shifting")


REFUSE = """CREATE FUNCTION pg_temp_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION '{}' USING ERRCODE = '0A000'; END $$"""


@pytest.mark.parametrize(
    ("message", "status"),
    [("tables of this kind take no rows", 500), ("cached plan must not change result type", 503)],
)
def test_database_feature_error_is_500_not_503(
    app: Flask, cast: Cast, message: str, status: int
) -> None:
    made = make_collection(cast.root)
    with app.app_context(), tenancy.as_owner(), db.transaction() as session:
        session.execute(sa.text(REFUSE.format(message)))
        session.execute(
            sa.text(
                "CREATE TRIGGER refuse BEFORE INSERT ON"
                f" col_{made['name']} EXECUTE FUNCTION pg_temp_refuse()"
            )
        )
    try:
        with capture_logs() as logs:
            refused = cast.alice.post("records/posts", {"title": "a"})
    finally:
        with app.app_context(), tenancy.as_owner(), db.transaction() as session:
            session.execute(sa.text("DROP FUNCTION pg_temp_refuse CASCADE"))
    assert refused.status_code == status
    assert ("Retry-After" in refused.headers) == (status == 503)
    if status == 500:
        told = [one for one in logs if one["log_level"] == "error"]
        assert told[0]["reason"] == f"{message} (0A000)"
        assert message not in refused.text
