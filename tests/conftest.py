"""What every test starts from: servers of its own, an application per database, a cast."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import flask_migrate
import pytest
import sqlalchemy as sa
from flask import Flask

from app import create_app, db
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.collections.revisions import MIGRATIONS
from app.config import Config
from tests import builders, logs, services
from tests.builders import Caller, Cast

DATABASES = ("sqlite", "postgresql")
_started: list[services.Server] = []
_made: dict[str, tuple[Flask, Path]] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Start the servers once, before any test process: its children inherit their addresses."""
    if "PYTEST_XDIST_WORKER" in os.environ or config.option.collectonly:
        return
    for server in (services.Postgres(), services.Redis()):
        _started.append(server)
        server.start()
        os.environ[f"TEST_{server.name.upper()}_URL"] = server.url


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what was started."""
    for server in _started:
        server.stop()
    for _, folder in _made.values():
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def app(database: str) -> Iterator[Flask]:
    """The application on an empty database."""
    if database not in _made:
        folder = Path(tempfile.mkdtemp(prefix="atrium-test-"))
        _made[database] = (make_app(settings_for(database, folder)), folder)
    made, folder = _made[database]
    with made.app_context():
        _empty(folder)
    yield made
    with made.app_context():
        db.db.session.remove()


def settings_for(database: str, folder: Path, **changes: object) -> Config:
    """Settings for a new database of that kind."""
    url = f"sqlite:///{folder / 'atrium.db'}"
    if database == "postgresql":
        url = services.Postgres().create_database(f"test_{secrets.token_hex(6)}")
    environ = {
        "SERVICE_ENV": "test",
        "SERVICE_INSTANCE_DIR": str(folder),
        "SERVICE_DATABASE_URL": url,
        "SERVICE_BASE_URL": "http://atrium.test",
        "SERVICE_BASE_DOMAIN": "atrium.test",
        "SERVICE_LOGIN_RATE_LIMIT": "off",  # the tests of the limits turn it on
    }
    return replace(Config.from_env(environ), **changes)  # type: ignore[arg-type]


def make_app(settings: Config) -> Flask:
    """An application whose database is built by the real migrations."""
    made = create_app(settings)
    with made.app_context():
        flask_migrate.upgrade(directory=str(MIGRATIONS))
    return made


def _empty(folder: Path) -> None:
    seeded = {"roles": "id > 3", "accounts": f"id != '{SYSTEM_ACCOUNT_ID}'"}
    seeded["groups"] = f"account_id != '{SYSTEM_ACCOUNT_ID}'"
    keep = {"alembic_version", "account_code_counter"}
    with db.transaction(changes_schema=True) as session, logs.unguarded():
        present = sa.inspect(session.connection()).get_table_names()
        for name in (name for name in present if name.startswith("col_")):
            cascade = "" if db.db.engine.dialect.name == "sqlite" else " CASCADE"
            session.execute(sa.text(f'DROP TABLE "{name}"{cascade}'))
        for table in reversed(db.Base.metadata.sorted_tables):
            if table.name not in keep:
                where = seeded.get(table.name, "true")
                emptied = sa.delete(table).where(sa.text(where))
                session.execute(emptied, execution_options={"audited_as_one": True})
        session.execute(sa.text("UPDATE account_code_counter SET given_out = 0"))
    shutil.rmtree(folder / "outbox", ignore_errors=True)


@pytest.fixture
def anyone(app: Flask) -> Caller:
    """A client that has not signed in."""
    return Caller(app)


@pytest.fixture
def cast(app: Flask) -> Cast:
    """alice: admin of acme; bob: viewer of acme; charlie: admin of globex; root: superadmin."""
    return builders.make_cast(app)


@pytest.fixture
def alice(cast: Cast) -> Caller:
    return cast.alice


@pytest.fixture
def bob(cast: Cast) -> Caller:
    return cast.bob


@pytest.fixture
def charlie(cast: Cast) -> Caller:
    return cast.charlie


@pytest.fixture
def root(cast: Cast) -> Caller:
    return cast.root
