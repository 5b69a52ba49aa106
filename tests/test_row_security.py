"""PostgreSQL's own lock between accounts: what the application forgets, the database holds."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg2
import pytest
import sqlalchemy as sa
from flask import Flask
from psycopg2 import extensions, sql
from psycopg2.errors import InsufficientPrivilege

from app import db
from app.auth import api_keys
from app.auth.guard import request_context
from app.collections.models import Collection
from app.context import tenancy
from app.db import row_security
from app.ids import new_id
from app.records import store
from tests import builders, services
from tests.builders import Caller, Cast, make_collection, make_record
from tests.conftest import make_app, settings_for

pytestmark = pytest.mark.needs_servers

TABLES = sorted(
    table.name for table in db.Base.metadata.tables.values() if "account_id" in table.columns
)
PASSWORD = secrets.token_hex(8)


@pytest.fixture(params=("postgresql",))
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def filled(app: Flask, cast: Cast) -> Cast:
    """Two accounts with a record each."""
    make_collection(cast.root)
    for caller in (cast.alice, cast.charlie):
        make_record(caller, title="a secret")
    return cast


def driver_of(app: Flask) -> Any:
    """A connection as the pool hands it out, past everything that the application does to it."""
    with app.app_context():
        return closing(db.db.engine.raw_connection())


def bare_cursor(connection: Any) -> Any:
    """The driver's own kind of cursor, which says nothing by itself."""
    return connection.cursor(cursor_factory=extensions.cursor)


def seen_in(cursor: Any, table: str) -> set[str]:
    cursor.execute(f"SELECT DISTINCT account_id FROM {table}")  # noqa: S608 - a constant
    return {row[0] for row in cursor.fetchall()}


def accounts_of_posts() -> set[str]:
    return set(db.connection().scalars(sa.text("SELECT account_id FROM col_posts")))


# --- What the schema says -------------------------------------------------------------------------


def test_row_security_policies_exist_for_every_account_table(app: Flask, filled: Cast) -> None:
    with app.app_context():
        policies = db.connection().execute(
            sa.text("SELECT tablename, roles[1]::text, qual, cmd, with_check FROM pg_policies")
        )
        found = {(table, role): rest for table, role, *rest in policies}
        enabled = sa.text("SELECT relname FROM pg_class WHERE relrowsecurity")
        locked = set(db.connection().scalars(enabled))
        roles = row_security.active_roles(db.connection())
        assert roles is not None
        attributes = "rolcanlogin, rolsuper, rolbypassrls, rolcreaterole"
        weak = sa.text(f"SELECT {attributes} FROM pg_roles WHERE rolname IN (:one, :every)")  # noqa: S608
        assert {tuple(row) for row in db.connection().execute(weak, roles._asdict())} == {
            (False,) * 4
        }
    assert locked == {*TABLES, "col_posts"}
    mine = "(account_id = current_setting('app.account_id'::text, true))"
    for table in locked:
        assert found.pop((table, roles.one)) == [mine, "ALL", None], table
        assert found.pop((table, roles.every)) == ["true", "ALL", None], table
    assert not found


def test_row_security_covers_every_new_collection(app: Flask, root: Caller) -> None:
    make_collection(root, "one")
    make_collection(root, "two")
    kept = root.get("collections/export").json
    for one in root.get("collections").json["items"]:
        assert root.delete(f"collections/{one['id']}").status_code == 200
    answer = root.post("collections/import", {"data": kept})
    assert answer.status_code in (200, 201), answer.json
    with app.app_context():
        roles = row_security.active_roles(db.connection())
        assert roles is not None
        assert row_security.uncovered(db.connection(), roles) == []
        with tenancy.as_owner(), db.transaction() as session:
            session.execute(sa.text("CREATE TABLE col_bare (account_id text)"))
        assert row_security.uncovered(db.connection(), roles) == ["col_bare"]


# --- What hand-written statements see -------------------------------------------------------------


def test_row_security_without_account_setting_shows_no_rows(app: Flask, filled: Cast) -> None:
    with driver_of(app) as connection, closing(bare_cursor(connection)) as cursor:
        for table in [*TABLES, "col_posts"]:
            assert seen_in(cursor, table) == set(), table
        for change in ("UPDATE col_posts SET title = 'x'", "DELETE FROM col_posts"):
            cursor.execute(change)
            assert cursor.rowcount == 0
        row = (filled.alice.account_id, new_id())
        with pytest.raises(InsufficientPrivilege):
            cursor.execute(
                "INSERT INTO col_posts (account_id, id, created_at, updated_at)"
                " VALUES (%s, %s, now(), now())",
                row,
            )
        for beyond in ("DROP TABLE col_posts", "ALTER TABLE users DISABLE ROW LEVEL SECURITY"):
            with pytest.raises(InsufficientPrivilege):
                cursor.execute(beyond)


def test_row_security_hides_the_trash_of_other_accounts(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, options={"trash": {"days": 30}})
    for caller in (cast.alice, cast.charlie):
        caller.delete(f"records/posts/{make_record(caller, title='a secret')['id']}")
    mine, theirs = cast.alice.account_id, cast.charlie.account_id
    with driver_of(app) as connection, closing(bare_cursor(connection)) as cursor:
        assert seen_in(cursor, "trashed_records") == set()
        cursor.execute(f"SET app.account_id = '{mine}'")
        assert seen_in(cursor, "trashed_records") == {mine}
        for change in ("UPDATE trashed_records SET size = 0", "DELETE FROM trashed_records"):
            cursor.execute(f"{change} WHERE account_id = %s", (theirs,))
            assert cursor.rowcount == 0
    for caller in (cast.alice, cast.charlie):
        assert caller.get("records/posts?trash=true").json["total"] == 1


def test_row_security_with_account_setting_hides_other_accounts(app: Flask, filled: Cast) -> None:
    mine, theirs = filled.alice.account_id, filled.charlie.account_id
    with driver_of(app) as connection, closing(bare_cursor(connection)) as cursor:
        cursor.execute(f"SET app.account_id = '{mine}'")
        for table in TABLES:
            assert seen_in(cursor, table) <= {mine}, table
        assert seen_in(cursor, "users") == seen_in(cursor, "col_posts") == {mine}
        for change in (
            "UPDATE col_posts SET title = 'x' WHERE account_id = %s",
            "DELETE FROM col_posts WHERE account_id = %s",
        ):
            cursor.execute(change, (theirs,))
            assert cursor.rowcount == 0
        for wrong in (
            "UPDATE col_posts SET account_id = %s",
            "INSERT INTO groups (account_id, id, name) VALUES (%s, 'x', 'x')",
        ):
            with pytest.raises(InsufficientPrivilege, match="row-level security"):
                cursor.execute(wrong, (theirs,))
        cursor.execute("RESET app.account_id")


def test_row_security_views_show_one_account_and_are_read_only(app: Flask, filled: Cast) -> None:
    mine, theirs = filled.alice.account_id, filled.charlie.account_id
    view = f"{row_security.VIEWS}.col_posts"
    with driver_of(app) as connection, closing(bare_cursor(connection)) as cursor:
        assert seen_in(cursor, view) == set()
        cursor.execute(f"SET app.account_id = '{mine}'")
        assert seen_in(cursor, view) == {mine}
        cursor.execute(f"SELECT count(*) FROM {view} WHERE account_id = %s", (theirs,))  # noqa: S608
        assert cursor.fetchone() == (0,)
        for change in (f"DELETE FROM {view}", f"UPDATE {view} SET title = 'x'"):  # noqa: S608
            with pytest.raises(InsufficientPrivilege):
                cursor.execute(change)
        cursor.execute("RESET app.account_id")


def test_row_security_view_follows_collection_change(app: Flask, filled: Cast) -> None:
    def unviewed() -> list[str]:
        with app.app_context():
            roles = row_security.active_roles(db.connection())
            assert roles is not None
            return row_security.unviewed(db.connection(), roles)

    def listed() -> dict[str, Any]:
        (item,) = filled.alice.get("records/posts?filter=title != ''").json["items"]
        return dict(item)

    made = filled.root.get("collections/posts").json
    schema = [*made["schema"], {"name": "size", "type": "number", "options": {"index": True}}]
    assert unviewed() == []
    assert filled.root.put(f"collections/{made['id']}", {"schema": schema}).status_code == 200
    assert unviewed() == []
    assert listed()["size"] is None
    # A process of an older release knows no views.
    with app.app_context(), tenancy.as_owner(), db.transaction() as session:
        row = session.query(Collection).one()
        row.schema, row.version = [*row.schema, {"name": "more", "type": "text"}], row.version + 1
        session.flush()
        session.execute(sa.text("ALTER TABLE col_posts ADD COLUMN more text"))
    assert unviewed() == ["col_posts"]
    assert "use no index in col_posts" in told(app)
    assert listed()["more"] is None
    with app.app_context():
        row_security.install(db.db.engine)
    assert unviewed() == []
    assert listed()["more"] is None
    with app.app_context(), tenancy.as_owner(), db.transaction() as session:
        session.execute(sa.text("DELETE FROM collections"))
        session.execute(sa.text("DROP TABLE col_posts"))


def test_record_lists_succeed_during_collection_changes(app: Flask, filled: Cast) -> None:
    id = filled.root.get("collections/posts").json["id"]
    over = threading.Event()

    def read() -> set[int]:
        statuses = set()
        while not over.is_set():
            statuses.add(filled.alice.get("records/posts?filter=title != ''").status_code)
        return statuses

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        for number in range(8):
            field = {"name": f"field_{number}", "type": "number"}
            answer = filled.root.patch(f"collections/{id}", {"schema": [field]})
            assert answer.status_code == 200, answer.json
        over.set()
        assert set().union(*(reader.result() for reader in readers)) == {200}


# --- What travels along with statements -----------------------------------------------------------


def test_tenancy_context_limits_statements(app: Flask, filled: Cast) -> None:
    mine, theirs = filled.alice.account_id, filled.charlie.account_id
    with app.app_context():
        assert accounts_of_posts() == {mine, theirs}  # a command
        with tenancy.scoped_to(tenancy.NO_ACCOUNT):
            assert accounts_of_posts() == set()
        with tenancy.in_account(mine), db.transaction():
            assert accounts_of_posts() == {mine}
            with tenancy.in_account(theirs):
                assert accounts_of_posts() == {theirs}
            with tenancy.across_accounts():
                assert accounts_of_posts() == {mine, theirs}
            with tenancy.scoped_to(tenancy.NO_ACCOUNT):
                assert accounts_of_posts() == set()
            assert accounts_of_posts() == {mine}
        with tenancy.in_account(theirs):
            assert accounts_of_posts() == {theirs}
        with tenancy.in_account("x'; RESET ROLE; --"):
            assert accounts_of_posts() == set()


def test_tenancy_setting_survives_savepoint_rollback(app: Flask, filled: Cast) -> None:
    mine, theirs = filled.alice.account_id, filled.charlie.account_id
    with app.app_context(), tenancy.in_account(mine), db.transaction():
        for harm in ("SELECT 1", "SELECT 1 / 0", "SELECT nothing"):
            with pytest.raises((LookupError, sa.exc.DBAPIError)), db.savepoint():  # noqa: PT012
                with tenancy.in_account(theirs):
                    assert accounts_of_posts() == {theirs}
                    db.connection().execute(sa.text(harm))
                raise LookupError
            assert accounts_of_posts() == {mine}
            with tenancy.in_account(theirs):
                assert accounts_of_posts() == {theirs}


def test_tenancy_setting_is_reset_on_pooled_connection(app: Flask, filled: Cast) -> None:
    def fail() -> None:
        with db.transaction():
            db.connection().execute(sa.text("SELECT 1 / 0"))

    with app.app_context():
        for scope in (filled.alice.account_id, tenancy.ALL_ACCOUNTS, tenancy.OWNER):
            with tenancy.scoped_to(scope):
                accounts_of_posts()
                with db.transaction():
                    accounts_of_posts()
                with pytest.raises(sa.exc.DBAPIError):
                    fail()
            db.db.session.remove()
            for _ in range(db.db.engine.pool.checkedin()):  # type: ignore[attr-defined]
                with driver_of(app) as connection, closing(bare_cursor(connection)) as cursor:
                    assert seen_in(cursor, "col_posts") == set()


def test_tenancy_holds_for_large_batches_and_exports(app: Flask, filled: Cast) -> None:
    alice = filled.alice
    answer = alice.post("records/posts/batch", {"records": [{"title": "x"}] * 60})
    assert answer.status_code in (200, 201), answer.json
    lines = alice.get("records/posts/export", query_string={"format": "jsonl"}).text.splitlines()
    assert len(lines) == 61
    with app.app_context():
        verified = app.test_cli_runner().invoke(args=["audit", "verify"])
    assert verified.exit_code == 0, verified.output


# --- What a bug still cannot do -------------------------------------------------------------------


def test_row_security_hides_rows_when_filter_is_missing(
    app: Flask, filled: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, charlie = filled.alice, filled.charlie
    for caller in (alice, charlie):
        assert caller.post("api-keys", {"name": "k"}).status_code == 201
    theirs = charlie.get("records/posts").json["items"][0]["id"]
    monkeypatch.setattr(store, "scope", lambda of, account_id, where=None: [])
    monkeypatch.setattr(api_keys, "_visible", lambda by: [])
    app.extensions["atrium.caches"].clear()  # and the statements that were made before

    def leaks() -> set[str]:
        one = f"records/posts/{theirs}"
        tried = {
            "list": len(alice.get("records/posts").json["items"]) != 1,
            "filter": alice.get("records/posts?filter=title != ''").json["total"] != 1,
            "export": len(alice.get("records/posts/export?format=jsonl").text.splitlines()) != 1,
            "aggregate": alice.get("records/posts/aggregate?count=*").text.count("2") > 0,
            "get": alice.get(one).status_code != 404,
            "keys": alice.get("api-keys").json["total"] != 1,
        }
        return {name for name, leaked in tried.items() if leaked}

    assert leaks() == set()
    assert alice.patch(f"records/posts/{theirs}", {"title": "x"}).status_code == 404
    assert alice.delete(f"records/posts/{theirs}").status_code == 404
    assert charlie.get(f"records/posts/{theirs}").json["title"] == "a secret"
    # And it is the database alone that holds them.
    monkeypatch.setattr(request_context, "_tenancy", lambda context: tenancy.ALL_ACCOUNTS)
    assert leaks() >= {"list", "filter", "export", "get", "keys"}


def test_tenancy_without_caller_shows_no_rows(app: Flask, filled: Cast) -> None:
    with app.test_request_context("/api/v1/nothing"):
        app.preprocess_request()
        assert tenancy.current() == tenancy.NO_ACCOUNT
        assert accounts_of_posts() == set()
    assert tenancy.current() == tenancy.ALL_ACCOUNTS


# --- Logins without much power --------------------------------------------------------------------


@pytest.fixture
def login(request: pytest.FixtureRequest) -> Iterator[str]:
    """A login that is no superuser, with the parameter's attribute, and a database of its own."""
    name = f"atrium_{secrets.token_hex(4)}"
    with _superuser() as cursor:
        cursor.execute(
            sql.SQL(f"CREATE ROLE {{}} LOGIN PASSWORD %s {request.param}").format(
                sql.Identifier(name)
            ),
            (PASSWORD,),
        )
        cursor.execute(sql.SQL("CREATE DATABASE {0} OWNER {0}").format(sql.Identifier(name)))
    yield name
    services.Postgres().drop_database(name)
    with _superuser() as cursor:
        for role in (name, f"{name}_account", f"{name}_all"):
            cursor.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(role)))


class _superuser:
    """A cursor of the server's own login."""

    def __enter__(self) -> Any:
        self._connection = psycopg2.connect(services.Postgres().url)
        self._connection.autocommit = True
        return self._connection.cursor()

    def __exit__(self, *problem: object) -> None:
        self._connection.close()


def address_of(login: str) -> str:
    parts = urlsplit(services.Postgres().url)
    host = parts.netloc.rpartition("@")[2]
    address = parts._replace(
        scheme="postgresql+psycopg2", netloc=f"{login}:{PASSWORD}@{host}", path=f"/{login}"
    )
    return urlunsplit(address)


def instance_of(login: str, folder: Path) -> Flask:
    """An instance whose database is that login's."""
    return make_app(settings_for("sqlite", folder, database_url=address_of(login)))


def told(app: Flask) -> str:
    lines = app.test_cli_runner().invoke(args=["doctor"]).output.splitlines()
    return next(line for line in lines if line.split()[1:2] == ["accounts"])


def does_its_work(app: Flask) -> None:
    cast = builders.make_cast(app)
    make_collection(cast.root)
    for caller in (cast.alice, cast.charlie):
        make_record(caller, title="a")
        assert caller.get("records/posts").json["total"] == 1


@pytest.mark.parametrize("login", ["CREATEROLE"], indirect=True)
def test_row_security_is_set_up_by_login_with_createrole(login: str, tmp_path: Path) -> None:
    app = instance_of(login, tmp_path)
    with app.app_context():
        roles = row_security.active_roles(db.connection())
        db.db.session.remove()
    assert roles == (f"{login}_account", f"{login}_all")
    does_its_work(app)
    with driver_of(app) as connection, closing(bare_cursor(connection)) as cursor:
        assert seen_in(cursor, "users") == seen_in(cursor, "col_posts") == set()
    said = told(app)
    assert said.startswith("ok")
    with app.app_context():
        db.db.engine.dispose()


@pytest.mark.parametrize("login", ["NOCREATEROLE"], indirect=True)
def test_row_security_without_createrole_is_doctor_warning(login: str, tmp_path: Path) -> None:
    app = instance_of(login, tmp_path)
    does_its_work(app)
    said = told(app)
    assert said.startswith("warn")
    with _superuser() as cursor:
        cursor.execute(said.partition("as a superuser: ")[2])
    make_app(app.extensions["atrium.config"])
    with app.app_context():
        db.db.engine.dispose()
        assert row_security.active_roles(db.connection())
        with tenancy.scoped_to(tenancy.NO_ACCOUNT):
            assert accounts_of_posts() == set()
        db.db.session.remove()
    assert told(app).startswith("ok")
    with app.app_context():
        db.db.engine.dispose()


@pytest.mark.parametrize("login", ["CREATEROLE"], indirect=True)
def test_row_security_roles_can_be_created_concurrently(login: str) -> None:
    engine = sa.create_engine(address_of(login))
    together, found = threading.Barrier(4), list[object]()

    def make() -> None:
        with engine.connect() as connection, connection.begin():
            together.wait()
            found.append(row_security.make_roles(connection))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.dispose()
    assert found == [(f"{login}_account", f"{login}_all")] * 4
