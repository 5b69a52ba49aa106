"""A transaction's parts, and what is left of one whose connection was lost."""

from collections.abc import Callable
from contextlib import closing
from functools import partial

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.context import tenancy
from app.db import engine
from tests.builders import Cast

NAME = sa.text("SELECT name FROM accounts WHERE id = :id")


def rename(account_id: str, name: str) -> None:
    """By the driver, without the session."""
    with db.driver() as driver, closing(driver.cursor()) as cursor:
        cursor.execute(f"UPDATE accounts SET name = '{name}' WHERE id = '{account_id}'")  # noqa: S608


def name_of(account_id: str) -> str:
    return db.connection().scalar(NAME, {"id": account_id})


def test_savepoint_failure_rolls_back_its_writes(app: Flask, cast: Cast) -> None:
    mine = cast.alice.account_id

    def fail() -> None:
        with db.savepoint():
            rename(mine, "within")
            raise LookupError

    with app.app_context(), tenancy.in_account(mine):
        with db.transaction():
            rename(mine, "before")
            with pytest.raises(LookupError):
                fail()
        assert name_of(mine) == "before"


def rename_by_session(account_id: str, name: str) -> None:
    found = db.connection()
    found.execute(
        sa.text("UPDATE accounts SET name = :n WHERE id = :i"), {"n": name, "i": account_id}
    )


@pytest.mark.parametrize("with_session", [True, False])
@pytest.mark.parametrize("rename", [rename, rename_by_session])
def test_deferred_write_runs_before_next_statement(
    app: Flask, cast: Cast, rename: Callable[[str, str], None], with_session: bool
) -> None:
    mine, seen = cast.alice.account_id, list[str]()

    def look() -> None:
        seen.append(name_of(mine))

    with app.app_context(), tenancy.in_account(mine):
        with db.transaction():
            db.defer(partial(rename, mine, "first"))
            db.defer(partial(rename, mine, "second"))
            if with_session:
                look()
            else:
                rename(mine, "third")
            db.defer(look)
        with db.transaction():
            db.defer(partial(rename, mine, "last"))
        look()
    assert seen == [*(["second", "second"] if with_session else ["third"]), "last"]


@pytest.mark.parametrize("rename", [rename, rename_by_session])
def test_deferred_write_before_failed_savepoint_stays(
    app: Flask, cast: Cast, rename: Callable[[str, str], None]
) -> None:
    mine = cast.alice.account_id

    def fail() -> None:
        with db.savepoint():
            raise LookupError

    with app.app_context(), tenancy.in_account(mine):
        with db.transaction():
            db.defer(partial(rename, mine, "before"))
            with pytest.raises(LookupError):
                fail()
        assert name_of(mine) == "before"


def test_deferred_write_runs_in_its_own_tenancy_context(app: Flask, cast: Cast) -> None:
    mine, seen = cast.alice.account_id, list[str]()
    with app.app_context(), tenancy.in_account(mine), db.transaction():
        db.defer(lambda: seen.append(tenancy.current()))
        with tenancy.as_owner():
            name_of(mine)
    assert seen == [mine]


def test_deferred_write_failure_prevents_commit(app: Flask, cast: Cast) -> None:
    mine = cast.alice.account_id
    before = cast.alice.get("auth/me").json["account"]["name"]

    def fail() -> None:
        raise LookupError

    def go_on_after_an_error() -> None:
        with db.transaction():
            db.defer(fail)
            db.defer(partial(rename, mine, "never"))
            with pytest.raises(LookupError):
                name_of(mine)
            rename(mine, "without it")

    with app.app_context(), tenancy.in_account(mine):
        with pytest.raises(LookupError):
            go_on_after_an_error()
        assert name_of(mine) == before


@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize("with_session", [True, False])
def test_lost_connection_leaves_nothing_behind_and_hides_no_error(
    app: Flask, cast: Cast, with_session: bool
) -> None:
    mine = cast.alice.account_id

    def lose_it() -> None:
        with db.transaction():
            rename(mine, "lost")
            if with_session:
                db.connection().execute(sa.text("SELECT 1"))
            with db.driver() as driver:
                number = driver.info.backend_pid
            with engine.current_engine().connect() as other, tenancy.as_owner():
                other.execute(sa.text("SELECT pg_terminate_backend(:it)"), {"it": number})
            raise LookupError

    with app.app_context(), tenancy.in_account(mine):
        with pytest.raises(LookupError):
            lose_it()
        assert engine.current_engine().pool.checkedout() == 0
        with db.transaction():
            rename(mine, "kept")
        assert name_of(mine) == "kept"
