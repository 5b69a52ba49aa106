"""The log of version 0.2.0 becomes rows of whole changes, and gives the same entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flask_migrate
import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory
from flask import Flask

from app import db
from app.audit import append, erase, sealing
from app.audit.chain import verify
from app.audit.entries import CHANGES, LOG, iter_entries
from app.audit.log import AUDIT
from app.collections.revisions import MIGRATIONS
from app.context import tenancy
from tests.audit.former import append_as_before, copy_as_before, write_version_1
from tests.builders import make_cast, make_collection, make_record
from tests.conftest import make_app, settings_for

pytestmark = pytest.mark.not_on_citus(
    "it locks rows of all accounts itself, or goes back to former migrations"
)

DIRECTORY = str(MIGRATIONS)
ACCOUNT = "019a9f00-0000-7000-8000-000000000001"
NASTY = 'quotes " and \\ and\ttabs\nand 🎈'


def run(statement: str, **values: Any) -> Any:
    """Run a statement as the owner of the tables."""
    with tenancy.as_owner(), db.transaction() as session:
        return session.execute(sa.text(statement), values)


@pytest.fixture
def former(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[dict[str, Any]]]:
    """The entries of a database that was taken back to version 0.2.0."""
    write_version_1(monkeypatch)
    app = make_app(settings_for(database, tmp_path))
    cast = make_cast(app)
    make_collection(cast.root, schema=[{"name": n, "type": "text"} for n in ("title", "body")])
    made = [make_record(cast.alice, title=f"{n}", body=NASTY) for n in range(3)]
    cast.alice.patch(f"records/posts/{made[0]['id']}", {"title": "changed"})
    cast.alice.delete(f"records/posts/{made[1]['id']}")
    with app.app_context():
        sealing.settle(None)
        erase.erase_values(cast.alice.account_id, "col_posts", made[2]["id"])
        erase.erase_actor(cast.alice.account_id, cast.bob.id, cast.bob.email)
        before = list(iter_entries())
        db.db.session.remove()
        flask_migrate.downgrade(directory=DIRECTORY, revision="0029")
        yield before
        db.db.session.remove()
        db.db.engine.dispose()


@pytest.mark.long
def test_audit_log_conversion_keeps_entries(former: list[dict[str, Any]]) -> None:
    assert run("SELECT count(*) FROM audit_log").scalar() == len(former)
    flask_migrate.upgrade(directory=DIRECTORY)
    assert list(iter_entries()) == former
    assert verify.verify_all(AUDIT)["valid"]


@pytest.mark.long
# The checksum of a last entry is found wrong by the next one.
@pytest.mark.parametrize(("column", "later"), [("new_value", 0), ("checksum", 1), ("salt", 0)])
def test_audit_log_conversion_stops_at_broken_chain_unless_forced(
    former: list[dict[str, Any]],
    database: str,
    column: str,
    later: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It stays as it is, so that it can be looked into; converted, it is still broken."""
    entry = next(one for one in former if one["new_value"] == NASTY)
    for trigger in ("update", "delete"):
        on = " ON audit_log" if database == "postgresql" else ""
        run(f"DROP TRIGGER audit_log_{trigger}{on}")
    update = f"UPDATE audit_log SET {column} = :value WHERE id = :id"  # noqa: S608 - a constant
    run(update, value="00" * 16, id=entry["id"])
    with pytest.raises(SystemExit):
        flask_migrate.upgrade(directory=DIRECTORY)
    assert f"broken at entry {entry['id'] + later}" in caplog.text
    db.db.session.remove()
    assert run("SELECT count(*) FROM audit_log").scalar() == len(former)
    flask_migrate.upgrade(directory=DIRECTORY, x_arg="broken_chains=convert")
    report = verify.verify_all(AUDIT, entry["account_id"])
    assert (report["valid"], report["checked"] < len(former)) == (False, True)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_audit_log_conversion_includes_concurrent_writes(
    former: list[dict[str, Any]],
) -> None:
    """Erasures of changes that are converted already included."""
    entry = next(one for one in former if one["new_value"] == NASTY)
    with db.db.engine.connect() as connection, tenancy.as_owner():
        revision("0030")._convert_beside(connection)
    run(
        "UPDATE audit_log SET old_value = NULL, new_value = NULL, salt = NULL WHERE id = :id",
        id=entry["id"],
    )
    append_as_before(entry["account_id"], [("salt", "***", None)], "audit_log", str(entry["id"]))
    append_as_before(entry["account_id"], [("id", None, "later")])
    flask_migrate.upgrade(directory=DIRECTORY)
    report = verify.verify_all(AUDIT, entry["account_id"])
    assert (report["valid"], report["values_erased"]) == (True, 4)
    assert verify.verify_all(AUDIT)["checked"] == len(former) + 2


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("write", [append_as_before, copy_as_before])
def test_audit_log_conversion_accepts_writes_of_previous_version(
    app: Flask, write: Callable[..., None]
) -> None:
    """A new version starts beside the one that it replaces."""
    with app.app_context():
        append_now()
        sealing.settle(ACCOUNT)
        write(ACCOUNT, [("id", None, "1"), ("title", None, NASTY), ("note", "x", None)])
        append_now()
        report = verify.verify_all(AUDIT, ACCOUNT)
        assert (report["valid"], report["checked"]) == (True, 5)
        listed = sa.select(LOG.c.old_value, LOG.c.new_value).where(LOG.c.account_id == ACCOUNT)
        values = db.connection().execute(listed.order_by(LOG.c.id)).all()
        assert values[1:4] == [(None, "1"), (None, NASTY), ("x", None)]
        changes = sa.select(sa.func.count()).where(CHANGES.c.account_id == ACCOUNT)
        assert db.connection().scalar(changes) == 5


def revision(number: str) -> Any:
    """The module of a revision."""
    return ScriptDirectory(DIRECTORY).get_revision(number).module


def append_now() -> None:
    """Append a change as this version does."""
    with db.transaction():
        target = (append.CREATE, "col_posts", "1")
        append.record(append.Change(ACCOUNT, target, [("id", None, "1")]))
