"""The migrations build what the models say, from wherever an instance stands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flask_migrate
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from flask import Flask

from app import create_app, db
from app.collections import revisions
from app.collections.revisions import MIGRATIONS
from app.context import tenancy
from app.ops import cli
from tests import builders, sql
from tests.audit.chains import verified
from tests.conftest import settings_for

DIRECTORY = str(MIGRATIONS)
ENTRY = """
INSERT INTO audit_log (account_id, id, operation, table_name, record_id, column_name, user_id,
  occurred_at, values_digest, actor_digest, entry_digest, previous_hash, checksum)
VALUES (:account, :id, 'UPDATE', 'col_posts', :record, :column, 'u', :now, '', '', '', '', '')
"""
NOW = "2026-11-20T12:00:00.123456Z"


@pytest.fixture
def empty(database: str, tmp_path: Path) -> Iterator[Flask]:
    """An application whose database no migration has touched."""
    app = create_app(settings_for(database, tmp_path))
    cli.bind_migrate(app)
    with app.app_context():
        yield app
        db.db.session.remove()
        db.db.engine.dispose()


def differences() -> list[Any]:
    """What Alembic would change to make the database what the models say."""
    with db.db.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        found: list[Any] = compare_metadata(context, db.Base.metadata)
        return found


def run(statement: str, **values: Any) -> Any:
    with tenancy.as_owner(), db.transaction() as session:
        result: Any = session.execute(sa.text(statement), values)
        return result.all() if result.returns_rows else None


@pytest.mark.long
def test_migrations_build_schema_of_models(empty: Flask) -> None:
    flask_migrate.upgrade(directory=DIRECTORY)
    assert differences() == []
    flask_migrate.check(directory=DIRECTORY)
    # The comparison would see a difference.
    run("ALTER TABLE users ADD COLUMN nickname TEXT")
    run("DROP INDEX ix_users_id")
    assert sorted(change[0] for change in differences()) == ["add_index", "remove_column"]


def test_migration_head_equals_newest_file() -> None:
    scripts = ScriptDirectory(DIRECTORY)
    assert scripts.get_current_head() == revisions.core_head()
    assert {one.revision for one in scripts.walk_revisions()} == revisions.CORE


@pytest.mark.long
def test_migrations_downgrade_and_upgrade_again(empty: Flask) -> None:
    for _ in range(2):
        flask_migrate.upgrade(directory=DIRECTORY)
        flask_migrate.downgrade(directory=DIRECTORY, revision="base")
        assert set(sa.inspect(db.db.engine).get_table_names()) <= {"alembic_version"}
    flask_migrate.upgrade(directory=DIRECTORY)
    assert differences() == []


def test_migrations_change_shards_and_what_nodes_share_together(empty: Flask) -> None:
    with sql.statements(empty) as sent:
        flask_migrate.upgrade(directory=DIRECTORY, revision="0001")
    made = next(place for place, one in enumerate(sent) if "CREATE TABLE" in one)
    has_modes = "SET LOCAL citus.multi_shard_modify_mode = 'sequential'" in sent[:made]
    assert has_modes is (db.db.engine.dialect.name == "postgresql")


ACCOUNT = (
    "INSERT INTO accounts (id, account_code, slug, name, is_active, settings, version, closed_at,"
    " created_at, updated_at)"
    " VALUES (:id, :id, :id, :id, true, :settings, 1, :closed, :now, :now)"
)


def test_migration_fills_origins_from_account_settings(empty: Flask) -> None:
    flask_migrate.upgrade(directory=DIRECTORY, revision="0001")
    listed = '{"cors_origins": ["https://a.example", "https://b.example", "https://a.example"]}'
    for id, settings, closed in (("x", listed, None), ("y", "{}", None), ("z", listed, NOW)):
        run(ACCOUNT, id=id, settings=settings, closed=closed, now=NOW)
    flask_migrate.upgrade(directory=DIRECTORY)
    found = run("SELECT account_id, origin FROM account_origins ORDER BY origin")
    assert [tuple(row) for row in found] == [("x", "https://a.example"), ("x", "https://b.example")]


@pytest.mark.long
def test_migration_keeps_invitations_when_role_changes(empty: Flask) -> None:
    flask_migrate.upgrade(directory=DIRECTORY, revision="0001")
    run(ACCOUNT, id="x", settings="{}", closed=None, now=NOW)
    run(
        "INSERT INTO invitations (account_id, id, email, email_key, role_id, groups, state,"
        " token_hash, expires_at, created_at, updated_at)"
        " VALUES ('x', 'i', 'a', 'a', 2, '[]', 'accepted', 'h', :now, :now, :now)",
        now=NOW,
    )
    flask_migrate.upgrade(directory=DIRECTORY)
    assert run("SELECT role_id FROM invitations")[0][0] == 2
    run("UPDATE invitations SET role_id = NULL")
    flask_migrate.downgrade(directory=DIRECTORY, revision="0001")
    assert run("SELECT * FROM invitations") == []


def test_migration_adds_name_keys_to_roles_and_groups(empty: Flask) -> None:
    flask_migrate.upgrade(directory=DIRECTORY, revision="0002")
    run(ACCOUNT, id="x", settings="{}", closed=None, now=NOW)
    for number, name in enumerate(("Auditor", "auditor", "Straße"), 10):
        values = {"id": number, "name": name, "now": NOW}
        run(
            "INSERT INTO roles (id, name, created_at, updated_at) VALUES (:id, :name, :now, :now)",
            **values,
        )
        run(
            "INSERT INTO groups (account_id, id, name, created_at, updated_at)"
            " VALUES ('x', :id, :name, :now, :now)",
            **{**values, "id": str(number)},
        )
    flask_migrate.upgrade(directory=DIRECTORY)
    for statement in (
        "SELECT name, name_key FROM roles WHERE id > 3 ORDER BY id",
        "SELECT name, name_key FROM groups WHERE account_id = 'x' ORDER BY id",
    ):
        found = run(statement)
        keys = ["auditor", "auditor (11)", "strasse"]
        assert [tuple(row) for row in found] == list(
            zip(("Auditor", "auditor", "Straße"), keys, strict=True)
        )
    seeded = run("SELECT name_key FROM roles WHERE id <= 3 ORDER BY id")
    assert [row[0] for row in seeded] == ["admin", "editor", "viewer"]


def test_migration_groups_audit_entries_into_changes(empty: Flask) -> None:
    flask_migrate.upgrade(directory=DIRECTORY, revision="0011")
    told = [("x", "r1", "id"), ("x", "r1", "title"), ("y", "r1", "id"), ("x", "r2", "id")]
    told += [("x", "r1", "title")]
    for id, (account, record, column) in enumerate(told, 1):
        run(ENTRY, account=account, id=id, record=record, column=column, now=NOW)
    flask_migrate.upgrade(directory=DIRECTORY, revision="0029")
    changes = "SELECT account_id, record_id, first_id, last_id, entries FROM audit_changes"
    assert run(f"{changes} ORDER BY account_id, first_id") == [
        ("x", "r1", 1, 2, 2),
        ("x", "r2", 4, 4, 1),
        ("x", "r1", 5, 5, 1),
        ("y", "r1", 3, 3, 1),
    ]


@pytest.mark.long
def test_migration_compares_user_emails_by_mailbox(empty: Flask) -> None:
    flask_migrate.upgrade(directory=DIRECTORY, revision="0008")
    run(ACCOUNT, id="x", settings="{}", closed=None, now=NOW)
    old = {"1": "n@b\u00fccher.example", "2": "n@xn--bcher-kva.example", "3": "\ufb01@a.example"}
    for id, email in old.items():
        run(
            "INSERT INTO users (account_id, id, email, email_key, role_id, is_active,"
            " email_verified, auth_provider, version, created_at, updated_at)"
            " VALUES ('x', :id, :email, :key, 3, true, true, 'password', 1, :now, :now)",
            id=id,
            email=email,
            key=email.casefold(),
            now=NOW,
        )
    flask_migrate.upgrade(directory=DIRECTORY)
    found = [row[0] for row in run("SELECT email_key FROM users ORDER BY id")]
    assert found == [old["1"], old["2"], old["3"]]


CRONS = {
    "0 4 ? * L5": "0 4 * * 5L",
    "0 4 1 * l0,5#2": "0 4 1 * 0L,5#2",
    "0 4 L * ?": "0 4 L * *",
    "0 4 15W * mon": "0 4 15W * mon",
    "": "",
}


@pytest.mark.long
def test_migration_rewrites_equivalent_cron_expressions(empty: Flask) -> None:
    flask_migrate.upgrade(directory=DIRECTORY, revision="0028")
    run(ACCOUNT, id="x", settings="{}", closed=None, now=NOW)
    for number, text in enumerate(CRONS):
        trigger = json.dumps({"type": "schedule", "cron": text} if text else {"type": "manual"})
        run(
            "INSERT INTO workflows (account_id, id, kind, name, trigger_type, trigger, steps,"
            " enabled, version, owner_id, owner_home, created_at, updated_at) VALUES ('x', :id,"
            " 'workflow', 'w', 'schedule', :trigger, '[]', true, 1, 'u', 'x', :now, :now)",
            id=str(number),
            trigger=trigger,
            now=NOW,
        )
        run(
            "INSERT INTO workflow_schedules (account_id, workflow_id, cron, next_at)"
            " VALUES ('x', :id, :cron, :now)",
            id=str(number),
            cron=text,
            now=NOW,
        )
    flask_migrate.upgrade(directory=DIRECTORY)
    planned = run("SELECT cron FROM workflow_schedules ORDER BY workflow_id")
    assert [row[0] for row in planned] == list(CRONS.values())
    triggers = sa.text("SELECT trigger FROM workflows ORDER BY id").columns(trigger=sa.JSON)
    with tenancy.as_owner(), db.transaction() as session:
        stored = session.scalars(triggers).all()
    assert [trigger.get("cron", "") for trigger in stored] == list(CRONS.values())
    flask_migrate.downgrade(directory=DIRECTORY, revision="0028")
    planned = run("SELECT cron FROM workflow_schedules ORDER BY workflow_id")
    assert planned[0][0] == "0 4 * * L5"


def test_migration_downgrade_deletes_read_only_keys(empty: Flask) -> None:
    flask_migrate.upgrade(directory=DIRECTORY)
    cast = builders.make_cast(empty)
    for read_only in (True, False):
        answer = cast.alice.post("api-keys", {"name": str(read_only), "read_only": read_only})
        assert answer.status_code == 201
    assert verified(cast.root)["valid"]  # a downgrade is refused while changes are not sealed
    flask_migrate.downgrade(directory=DIRECTORY, revision="0055")
    assert run("SELECT name FROM api_keys") == [("False",)]
