"""Connections that break while nobody uses them."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from tests.builders import Caller

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


def test_a_database_that_was_restarted_fails_no_request(
    app: Flask, alice: Caller, apart: sa.Connection
) -> None:
    assert alice.get("auth/me").status_code == 200
    with app.app_context():  # the only connection that waits in the pool
        mine = {"pid": db.connection().scalar(sa.text("SELECT pg_backend_pid()"))}
    assert apart.scalar(sa.text(f"SELECT count(*) {OF_PID}"), mine) == 1
    apart.execute(sa.text(f"SELECT pg_terminate_backend(pid, 5000) {OF_PID}"), mine)
    assert apart.scalar(sa.text(f"SELECT count(*) {OF_PID}"), mine) == 0
    assert alice.get("auth/me").status_code == 200
    assert alice.patch("auth/me", {"name": "Alice"}).status_code == 200


def test_what_a_server_says_by_the_way_costs_no_connection(
    app: Flask, apart: sa.Connection
) -> None:
    with app.app_context():
        with db.db.engine.connect() as connection:
            driver = connection.connection.driver_connection
            connection.exec_driver_sql("LISTEN gossip")
            apart.exec_driver_sql("NOTIFY gossip")
        assert select.select([driver], [], [], 10)[0]
        with db.db.engine.connect() as connection:
            assert connection.connection.driver_connection is driver
            connection.exec_driver_sql("UNLISTEN gossip")
