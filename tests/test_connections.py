"""Connections that break while nobody uses them."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import sqlalchemy as sa
from flask import Flask

from app import create_app, db
from app.accounts.models import Account
from app.db import engine as engines
from tests.builders import Caller, make_collection
from tests.project import on_linux

OF_PID = "FROM pg_stat_activity WHERE pid = :pid"

pytestmark = pytest.mark.parametrize("database", ["postgresql"])


@pytest.fixture
def apart(app: Flask) -> Iterator[sa.Connection]:
    """A connection that is not the application's, which has none open."""
    with app.app_context():
        db.db.session.remove()
        db.db.engine.dispose()
        engine = sa.create_engine(db.db.engine.url, poolclass=sa.NullPool)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection


def test_database_restart_fails_no_request(app: Flask, alice: Caller, apart: sa.Connection) -> None:
    assert alice.get("auth/me").status_code == 200
    with app.app_context():  # the only connection that waits in the pool
        mine = {"pid": db.connection().scalar(sa.text("SELECT pg_backend_pid()"))}
    assert apart.scalar(sa.text(f"SELECT count(*) {OF_PID}"), mine) == 1
    apart.execute(sa.text(f"SELECT pg_terminate_backend(pid, 5000) {OF_PID}"), mine)
    assert apart.scalar(sa.text(f"SELECT count(*) {OF_PID}"), mine) == 0
    assert alice.get("auth/me").status_code == 200
    assert alice.patch("auth/me", {"name": "Alice"}).status_code == 200


def test_idle_transaction_is_ended_by_timeout(
    app: Flask, alice: Caller, apart: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with app.app_context():
        assert db.connection().scalar(sa.text("SHOW idle_in_transaction_session_timeout")) == "1min"
    monkeypatch.setattr(engines, "IDLE_SECONDS", 1)
    frozen = create_app(app.extensions["atrium.config"])
    row = Account.slug == "acme"
    with frozen.app_context(), ExitStack() as frozen_at:
        session = frozen_at.enter_context(db.transaction())
        session.execute(sa.update(Account).where(row).values(name="Frozen"))
        assert alice.patch("account", {"name": "Awake"}).status_code == 200
        with pytest.raises(sa.exc.OperationalError):
            frozen_at.close()
        assert db.db.session.scalar(sa.select(Account.name).where(row)) == "Awake"
        db.db.session.remove()
        db.db.engine.dispose()


@on_linux  # the names of options
def test_database_connection_has_keepalive_and_user_timeout(app: Flask) -> None:
    with app.app_context(), db.db.engine.connect() as connection:
        number = connection.connection.driver_connection.fileno()
        with socket.socket(fileno=os.dup(number)) as ours:
            idle, interval, count, unanswered = (
                ours.getsockopt(socket.IPPROTO_TCP, option)
                for option in (
                    socket.TCP_KEEPIDLE,
                    socket.TCP_KEEPINTVL,
                    socket.TCP_KEEPCNT,
                    socket.TCP_USER_TIMEOUT,
                )
            )
    assert idle + interval * count <= 30
    assert 0 < unanswered <= 30_000


def test_database_notifications_do_not_discard_connection(app: Flask, apart: sa.Connection) -> None:
    with app.app_context():
        with db.db.engine.connect() as connection:
            driver = connection.connection.driver_connection
            connection.exec_driver_sql("LISTEN gossip")
            apart.exec_driver_sql("NOTIFY gossip")
        assert select.select([driver], [], [], 10)[0]
        with db.db.engine.connect() as connection:
            assert connection.connection.driver_connection is driver
            connection.exec_driver_sql("UNLISTEN gossip")


def test_database_connection_broken_when_new_is_503_once(
    app: Flask, alice: Caller, apart: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(engines, "_has_input", lambda connection: True)
        patched.setattr(engines, "_responds", lambda connection: False)
        assert alice.get("auth/me").status_code == 503
    assert alice.get("auth/me").status_code == 200


def test_read_only_database_makes_writes_503(
    app: Flask, alice: Caller, root: Caller, apart: sa.Connection
) -> None:
    make_collection(root)
    assert alice.post("records/posts", {"title": "a"}).status_code == 201
    name = apart.scalar(sa.text("SELECT quote_ident(current_database())"))
    apart.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    try:
        with app.app_context():
            db.db.engine.dispose()
        assert alice.get("records/posts").json["total"] == 1
        for path, body in (("records/posts", {"title": "b"}), ("groups", {"name": "g"})):
            assert alice.post(path, body).status_code == 503, path
    finally:
        apart.exec_driver_sql(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        with app.app_context():
            db.db.session.remove()
            db.db.engine.dispose()
    assert alice.post("records/posts", {"title": "b"}).status_code == 201
