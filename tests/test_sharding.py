"""`atrium shard` distributes the tables (docs/scaling.md).

Citus itself is replaced: functions in a schema of their own note what they are called with. What a
cluster does with it is tested by `make citus`.
"""

from __future__ import annotations

import secrets
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg2
import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, create_app, db
from app.accounts.models import Account
from app.collections import definitions
from app.context import tenancy
from app.db import errors, row_security, sharding, transactions
from app.ids import new_id
from app.ops import doctor
from app.portability.bundle import shard_inserts
from app.web.feature import Finding
from tests import builders, services, sql
from tests.builders import Caller, Cast
from tests.conftest import fill_by_hand, make_app, settings_for
from tests.usage.test_meters import upload, used

pytestmark = pytest.mark.needs_servers

STUBS = """
CREATE SCHEMA stubs;
CREATE TABLE stubs.pg_dist_partition (
  number serial, logicalrelid regclass, partmethod text, partkey text, colocationid int,
  colocate_with text, triggers text[]);
CREATE TABLE stubs.pg_dist_node (isactive bool, shouldhaveshards bool, noderole text);
CREATE TABLE stubs.pg_dist_shard (logicalrelid regclass, shardid int, shardminvalue text);
CREATE FUNCTION stubs.create_distributed_table(name text, key text, colocate_with text = 'default')
RETURNS void LANGUAGE sql AS $$
  INSERT INTO stubs.pg_dist_partition (logicalrelid, partmethod, partkey, colocationid,
    colocate_with, triggers)
  SELECT name::regclass, 'h', key, 1, colocate_with,
    array(SELECT tgname::text FROM pg_trigger WHERE tgrelid = name::regclass AND NOT tgisinternal)
$$;
CREATE FUNCTION stubs.create_reference_table(name text) RETURNS void LANGUAGE sql AS $$
  INSERT INTO stubs.pg_dist_partition (logicalrelid, partmethod, colocationid)
  VALUES (name::regclass, 'n', 2) $$;
CREATE TABLE stubs.functions (name text);
CREATE FUNCTION stubs.create_distributed_function(name text) RETURNS void LANGUAGE sql AS $$
  INSERT INTO stubs.functions VALUES (name::regprocedure) $$;
CREATE FUNCTION stubs.column_to_column_name(name regclass, key text) RETURNS text LANGUAGE sql
AS 'SELECT key';
CREATE FUNCTION stubs.relation_is_a_known_shard(name regclass) RETURNS boolean LANGUAGE sql AS $$
  SELECT name::text ~ '_[0-9]{6}$' $$;
GRANT USAGE ON SCHEMA stubs TO PUBLIC;
GRANT ALL ON ALL TABLES IN SCHEMA stubs TO PUBLIC;
GRANT ALL ON ALL SEQUENCES IN SCHEMA stubs TO PUBLIC;
"""
NODE = "INSERT INTO stubs.pg_dist_node VALUES (true, true, 'primary')"
PLACED = """
SELECT logicalrelid::text AS name, partmethod, partkey, colocate_with FROM stubs.pg_dist_partition
ORDER BY number
"""
KEYS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE contype = 'f' ORDER BY 1, 2
"""
TRIGGERS = """
SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'col_moved'::regclass
AND NOT tgisinternal ORDER BY 1
"""
PLAIN = {
    "SQLite": "SQLite has no shards",
    "no extension": "no extension citus",
    "no node": "No node has been added",
    "no triggers": "citus.enable_unsafe_triggers = on",
}


def driver_url(url: str) -> str:
    return url.replace("+psycopg2", "")


def execute(url: str, *statements: str) -> None:
    with (
        closing(psycopg2.connect(driver_url(url))) as connection,
        connection,
        connection.cursor() as cursor,
    ):
        for statement in statements:
            cursor.execute(statement)


def prepare(url: str, *, node: bool = True, triggers: bool = True) -> None:
    """Make a database look as if it had Citus."""
    fill_by_hand(url)
    name = urlsplit(url).path[1:]
    path = f"ALTER DATABASE {name} SET search_path = public, stubs"
    allowed = f"ALTER DATABASE {name} SET citus.enable_unsafe_triggers = on"
    execute(url, STUBS, path, *([NODE] if node else []), *([allowed] if triggers else []))


@pytest.fixture(scope="module")
def login() -> str:
    """A role that owns databases, and that no superuser's rights keep from policies."""
    if services.CITUS_NODES:
        pytest.skip("Citus is there")
    name, server = f"shards_{secrets.token_hex(4)}", services.Postgres().url
    execute(server, f"CREATE ROLE {name} LOGIN CREATEROLE")
    return name


@pytest.fixture(scope="module")
def sharded(login: str, tmp_path_factory: pytest.TempPathFactory) -> Flask:
    """An application on a sharded database."""
    settings = settings_for("postgresql", tmp_path_factory.mktemp("sharded"))
    prepare(settings.database_url)
    name = urlsplit(settings.database_url).path[1:]
    owner = (f"ALTER DATABASE {name} OWNER TO {login}", f"GRANT ALL ON SCHEMA public TO {login}")
    execute(settings.database_url, *owner)
    parts = urlsplit(settings.database_url)
    own = parts._replace(netloc=f"{login}@{parts.hostname}:{parts.port}")
    folder = tmp_path_factory.mktemp("own")
    app = make_app(settings_for("postgresql", folder, database_url=urlunsplit(own)))
    with app.app_context():
        app.extensions["foreign_keys"] = read(KEYS)
    result = app.test_cli_runner().invoke(args=["shard"])
    assert result.exit_code == 0, result.output
    return app


@pytest.fixture(scope="module")
def cast(sharded: Flask) -> Cast:
    """The cast on the sharded database."""
    return builders.cast_of(sharded, builders.make_people(sharded))


def read(query: str) -> list[tuple[Any, ...]]:
    with tenancy.as_owner():
        return [tuple(row) for row in db.connection().execute(sa.text(query))]


def copied_account(id: str) -> Account:
    return Account(
        id=id, slug="copied", account_code="zzzzzz", name="Copied", created_at=clock.now()
    )


@pytest.mark.parametrize("lacking", PLAIN)
def test_shard_command_without_citus_names_what_is_missing(lacking: str, tmp_path: Path) -> None:
    if services.CITUS_NODES:
        pytest.skip("Citus is there")
    settings = settings_for("sqlite" if lacking == "SQLite" else "postgresql", tmp_path)
    if lacking.startswith("no ") and lacking != "no extension":
        prepare(settings.database_url, node=lacking != "no node", triggers=lacking != "no triggers")
    result = make_app(settings).test_cli_runner().invoke(args=["shard"])
    assert result.exit_code == 1
    assert PLAIN[lacking] in result.output
    assert len(result.output.splitlines()) == 1


def test_shard_command_distributes_tables_shared_ones_first(sharded: Flask) -> None:
    with sharded.app_context():
        placed, keys = read(PLACED), read(KEYS)
    core = placed[: len(sharding.expected_core())]
    kinds = {name: "distributed" if kind == "h" else "reference" for name, kind, *_ in core}
    assert kinds == sharding.expected_core()
    methods = [kind for _, kind, *_ in core]
    assert methods == sorted(methods, reverse=True)  # n before h
    first, *others = [row for row in core if row[1] == "h"]
    assert first == ("users", "h", "account_id", "default")
    assert {row[2:] for row in others} == {("account_id", "users")}
    assert keys == sharded.extensions["foreign_keys"]
    with sharded.app_context():
        functions = {name.partition("(")[0] for (name,) in read("SELECT name FROM stubs.functions")}
    called = {"atrium_number", "atrium_joined", "count_records", "add_usage", "insert_audit_entry"}
    assert called <= functions


def test_shard_command_second_run_changes_nothing(sharded: Flask) -> None:
    with sharded.app_context():
        before = read(PLACED)
    result = sharded.test_cli_runner().invoke(args=["shard"])
    assert (result.exit_code, result.output) == (0, "All tables are distributed.\n")
    with sharded.app_context():
        assert read(PLACED) == before


def test_shard_command_after_an_upgrade_leaves_shards_alone(sharded: Flask) -> None:
    """Of shared tables, the coordinator has shards among its own tables."""
    of_shard = "SELECT oid FROM pg_constraint WHERE conname = 'fk_of_shard'"
    made = (
        "CREATE TABLE sessions_102008 (role_id integer CONSTRAINT fk_of_shard REFERENCES roles)",
        "DELETE FROM stubs.pg_dist_partition WHERE logicalrelid = 'template_jobs'::regclass",
    )
    with sharded.app_context(), tenancy.as_owner(), db.transaction() as session:
        for statement in made:
            session.execute(sa.text(statement))
    with sharded.app_context():
        before = read(of_shard)
    result = sharded.test_cli_runner().invoke(args=["shard"])
    assert (result.exit_code, result.output) == (0, "1 tables distributed.\n")
    with sharded.app_context():
        assert read(of_shard) == before != []
        with tenancy.as_owner(), db.transaction() as session:
            session.execute(sa.text("DROP TABLE sessions_102008"))
        assert read(KEYS) == sharded.extensions["foreign_keys"]


def test_shard_command_new_collections_are_distributed(sharded: Flask, cast: Cast) -> None:
    authors = builders.make_collection(cast.root, "authors")
    books = [
        {"name": "title", "type": "text"},
        {"name": "author", "type": "reference", "collection": "authors"},
    ]
    builders.make_collection(cast.root, "books", books)
    builders.make_record(cast.alice, "authors", title="mine")
    assert cast.alice.get("records/authors").json["total"] == 1
    assert cast.charlie.get("records/authors").json["total"] == 0
    with sharded.app_context():
        placed = {row[0]: row[1:] for row in read(PLACED)}
        assert placed["col_authors"] == placed["col_books"] == ("h", "account_id", "users")
        assert row_security.unforced(db.connection()) == []
    assert cast.root.delete(f"collections/{authors['id']}").status_code == 409


def test_shard_command_does_not_count_moved_rows_again(sharded: Flask, cast: Cast) -> None:
    builders.make_collection(cast.root, "moved")
    builders.make_record(cast.alice, "moved", title="before")
    placed = "FROM stubs.pg_dist_partition WHERE logicalrelid = 'col_moved'::regclass"
    with sharded.app_context():
        triggers = read(TRIGGERS)
    assert triggers
    execute(sharded.config["SQLALCHEMY_DATABASE_URI"], f"DELETE {placed}")
    result = sharded.test_cli_runner().invoke(args=["shard"])
    assert result.output == "1 tables distributed.\n"
    with sharded.app_context():
        assert read(f"SELECT triggers {placed}") == [([],)]
        assert read(TRIGGERS) == triggers
    builders.make_record(cast.alice, "moved", title="after")
    assert cast.alice.get("records/moved").json["total"] == 2


def test_sharded_file_metering_of_several_accounts_is_one_statement(
    sharded: Flask, cast: Cast
) -> None:
    callers = (cast.alice, cast.charlie)
    builders.make_drawer(cast.root)
    for caller in callers:
        upload(caller)
        assert used(caller)["file_bytes"] == 1000
    with sharded.app_context(), tenancy.across_accounts(), db.transaction() as session:
        session.execute(sa.text("UPDATE files SET removed_at = created_at"))
    assert [used(caller)["file_bytes"] for caller in callers] == [0, 0]


def test_sharded_row_security_applies_to_table_owner(sharded: Flask, cast: Cast) -> None:
    mine, everybody = cast.alice.account_id, sa.text("SELECT DISTINCT account_id FROM users")
    group = sa.text(
        "INSERT INTO groups (account_id, id, name, name_key, created_at, updated_at)"
        " VALUES (:account, 'x', 'x', 'x', now(), now())"
    )
    with sharded.app_context():
        with tenancy.in_account(mine):
            assert db.connection().scalars(everybody).all() == [mine]
            refused = pytest.raises(sa.exc.ProgrammingError, match="row-level security")
            with refused, db.transaction() as session:
                session.execute(group, {"account": cast.charlie.account_id})
        with tenancy.in_account(tenancy.NO_ACCOUNT):
            assert db.connection().scalars(everybody).all() == []
        with tenancy.across_accounts():
            assert len(db.connection().scalars(everybody).all()) == 3
    url = driver_url(sharded.config["SQLALCHEMY_DATABASE_URI"])
    with closing(psycopg2.connect(url)) as other, other.cursor() as cursor:
        cursor.execute(everybody.text)
        assert cursor.fetchall() == []


def test_sharded_schema_change_has_no_deadlock_prevention(sharded: Flask) -> None:
    setting = "SELECT current_setting('citus.enable_deadlock_prevention', true)"
    with sharded.app_context():
        assert read(setting) == [("off",)]


def test_sharded_snapshot_begins_before_account_setting(sharded: Flask, cast: Cast) -> None:
    emails = sa.text("SELECT count(*) FROM users")
    with sharded.app_context(), tenancy.in_account(cast.alice.account_id):
        for _ in range(2):
            with transactions.snapshot() as connection:
                level = connection.scalar(sa.text("SHOW transaction_isolation"))
                assert (level, connection.scalar(emails)) == ("repeatable read", 2)


def test_sharded_role_deletion_uses_one_connection_per_node(sharded: Flask, cast: Cast) -> None:
    role = cast.root.post("roles", {"name": "guest"}).json["id"]
    with sql.statements(sharded) as sent:
        assert cast.root.delete(f"roles/{role}").status_code == 204
    place = sent.index("SET LOCAL citus.multi_shard_modify_mode = 'sequential'")
    assert place < next(i for i, one in enumerate(sent) if "FROM users" in one and "role_id" in one)


def test_sharded_bundle_import_with_circular_references(sharded: Flask, cast: Cast) -> None:
    refers = {"type": "reference"}
    first = builders.make_collection(cast.root, "first", [{"name": "title", "type": "text"}])
    later = refers | {"name": "later", "collection": "second"}
    second = [
        {"name": "title", "type": "text"},
        refers | {"name": "before", "collection": "first", "required": True},
        refers | {"name": "same", "collection": "second"},
    ]
    builders.make_collection(cast.root, "second", second)
    schema = [{"name": "title", "type": "text"}, later]
    patched = cast.root.patch(f"collections/{first['id']}", {"schema": schema})
    assert patched.status_code == 200, patched.json
    one = builders.make_record(cast.charlie, "first", title="one")["id"]
    two = builders.make_record(cast.charlie, "second", title="two", before=one)["id"]
    own = {"same": two, "title": "own"}
    assert cast.charlie.patch(f"records/second/{two}", own).status_code == 200
    assert cast.charlie.patch(f"records/first/{one}", {"later": two}).status_code == 200
    account, target = cast.charlie.account_id, new_id()
    with sharded.app_context(), tenancy.as_owner():
        staged = [shard_inserts.Staged(definitions.get(n), f"b_{n}") for n in ("second", "first")]
        with db.transaction() as session:
            session.add(copied_account(target))
            session.flush()
            for each in staged:
                fill = f"CREATE TEMP TABLE {each.name} ON COMMIT DROP AS TABLE col_{each.name[2:]}"
                session.execute(sa.text(fill))
                copies = sa.table(each.name, sa.column("account_id"))
                session.execute(sa.delete(copies).where(copies.c.account_id != account))
                session.execute(sa.update(copies).values(account_id=target))
            shard_inserts.insert(staged, target, 500, 1000)
        (first_, second_) = (definitions.get(name).table for name in ("first", "second"))
        laters = sa.select(first_.c.later).where(first_.c.account_id == target)
        others = sa.select(second_.c.before, second_.c.same).where(second_.c.account_id == target)
        assert db.connection().execute(laters).all() == [(two,)]
        assert db.connection().execute(others).all() == [(one, two)]


def test_sharded_backup_is_restored_into_unsharded_database(
    sharded: Flask, cast: Cast, tmp_path: Path
) -> None:
    builders.make_collection(cast.root, "papers")
    builders.make_record(cast.alice, "papers", title="before")
    settings = sharded.extensions["atrium.config"]
    empty = settings_for("postgresql", tmp_path).database_url
    superuser = urlsplit(empty)._replace(path=urlsplit(settings.database_url).path).geturl()

    def run(url: str, *command: str) -> Flask:
        app = create_app(replace(settings, database_url=url, instance_dir=tmp_path))
        result = app.test_cli_runner().invoke(args=[*command])
        assert result.exit_code == 0, result.output
        return app

    file = str(tmp_path / "atrium.backup")
    run(superuser, "backup", file)
    alice = Caller(run(empty, "restore", file), **cast.alice.headers)
    builders.make_record(alice, "papers", title="after")
    listed = alice.get("records/papers?sort=id").json
    assert [one["title"] for one in listed["items"]] == ["before", "after"]
    assert listed["total"] == 2


def test_sharded_doctor_names_misplaced_tables(sharded: Flask) -> None:
    def finding(part: str) -> Finding:
        with sharded.app_context():
            return dict(doctor.run_checks())[part]

    assert finding("accounts").state == finding("shards").state == "ok"
    url = sharded.config["SQLALCHEMY_DATABASE_URI"]
    moved = "UPDATE stubs.pg_dist_partition SET {} WHERE logicalrelid = '{}'::regclass"
    for change, table, problem in (
        ("partmethod = 'x'", "jobs", "jobs is local, not distributed"),
        ("partkey = 'id'", "jobs", "jobs is distributed by id"),
        ("colocationid = 9", "jobs", "jobs is not colocated with users"),
        ("partmethod = 'h'", "roles", "roles is distributed, not reference"),
    ):
        was = "partmethod = 'h', partkey = 'account_id', colocationid = 1"
        execute(url, moved.format(change, table))
        found = finding("shards")
        assert (found.state, found.message) == ("fail", f"{problem}: run bin/atrium shard")
        back = was if table == "jobs" else "partmethod = 'n', colocationid = 2"
        execute(url, moved.format(back, table))
    assert finding("shards").state == "ok"


@pytest.mark.parametrize(
    ("table", "constraint", "message"),
    [
        ("roles", "uq_roles_name_key", ""),
        ("roles_102008", "uq_roles_name_key_102008", ""),
        (None, None, 'duplicate key value violates unique constraint "uq_roles_name_key_102008"'),
        (None, None, 'doppelter Schlüsselwert verletzt "uq_roles_name_key_102008"'),
    ],
)
def test_sharded_unique_violation_names_table_and_column(
    table: str | None, constraint: str | None, message: str
) -> None:
    diag = SimpleNamespace(
        table_name=table, constraint_name=constraint, message_primary=message or None
    )
    original: Any = SimpleNamespace(pgcode="23505", diag=diag)
    error = sa.exc.IntegrityError(None, None, original)
    violation = errors.violation_of(error)
    assert violation == errors.Violation("unique", "roles", ("name_key",))
