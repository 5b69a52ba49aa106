"""Periodic handlers: each due time once, with one run for each account."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account
from app.extend import Caller, Forbidden, periodic
from app.extensions import periodic as handler_periods
from app.extensions.loading import loaded
from app.extensions.registry import LoadError
from app.jobs import JobState, worker
from tests.builders import Cast, make_account, make_collection
from tests.extensions.running import jobs_of, make_due, run_due
from tests.parallel import at_once

Calls = list[str]


def schedule(app: Flask) -> None:
    """Begin as a worker does."""
    with app.app_context():
        worker.schedule_periodic()


def nightly(function: Any, cron: str = "0 3 * * *", *, accounts: bool) -> Any:
    """An extension with one periodic handler."""

    def shop() -> None:
        periodic(cron, accounts=accounts)(function)

    return shop


def test_each_active_account_is_called_once(app: Flask, cast: Cast) -> None:
    calls: Calls = []

    def tell(caller: Caller) -> None:
        assert caller.account is not None
        calls.append(caller.account.slug)
        if caller.account.slug == "acme":
            raise ZeroDivisionError

    closed = make_account(app, "closed")
    assert cast.root.patch(f"accounts/{closed}", {"is_active": False}).status_code == 200
    with loaded(nightly(tell, accounts=True)):
        schedule(app)
        assert (run_due(app), calls) == (0, [])
        make_due(app)
        run_due(app)
        assert sorted(calls) == ["acme", "globex"]
        states = {one.account_id: one.status for one in jobs_of(app, "shop.tell")}
        assert states[cast.charlie.account_id] == JobState.DONE
        assert states[cast.alice.account_id] == JobState.PENDING
        # What is tried again is not doubled by the next due time.
        make_due(app)
        run_due(app)
        make_due(app)
        run_due(app)
    assert Counter(calls)["acme"] >= 3
    pending = [one for one in jobs_of(app, "shop.tell") if one.account_id == cast.alice.account_id]
    assert len(pending) == 1


def test_next_run_is_at_the_next_time(app: Flask, cast: Cast) -> None:
    with loaded(nightly(lambda caller: None, "30 4 * * *", accounts=False)):
        schedule(app)
        (row,) = jobs_of(app)
        assert (row.due_at.hour, row.due_at.minute) == (4, 30)
        make_due(app)
        run_due(app)
        row = jobs_of(app, "shop.<lambda>.schedule")[0]
        assert (row.due_at.hour, row.due_at.minute, row.payload) == (4, 30, {})
    with loaded(nightly(lambda caller: None, "15 5 * * *", accounts=False)):
        schedule(app)  # the next release has another time
        row = jobs_of(app, "shop.<lambda>.schedule")[0]
        assert (row.due_at.hour, row.due_at.minute) == (5, 15)


def test_workers_share_a_due_time(app: Flask, cast: Cast) -> None:
    calls: Calls = []
    with loaded(nightly(lambda caller: calls.append("x"), accounts=False)):
        at_once(3, lambda _: schedule(app))
        make_due(app)
        at_once(3, lambda _: run_due(app))
    assert calls == ["x"]


def test_system_caller_names_account_and_rights(app: Flask, cast: Cast) -> None:
    refusals: Calls = []

    def tell(caller: Caller) -> None:
        assert (caller.account, caller.user, caller.kind) == (None, None, "system")
        with pytest.raises(Forbidden):
            caller.records("posts").list()
        refusals.append("no rights")
        for slug in ("acme", "globex"):
            with caller.as_operator("nightly", account=slug) as operator:
                operator.records("posts").create({"title": slug})

    make_collection(cast.root)
    with loaded(nightly(tell, accounts=False)):
        schedule(app)
        make_due(app)
        run_due(app)
        (job,) = [one for one in jobs_of(app) if one.kind == "extensions.shop.tell"]
    assert (job.last_error, job.status, refusals) == (None, JobState.DONE, ["no rights"])
    for client, slug in ((cast.alice, "acme"), (cast.charlie, "globex")):
        assert [one["title"] for one in client.get("records/posts").json["items"]] == [slug]


def test_caller_of_an_account_stays_in_it(app: Flask, cast: Cast) -> None:
    refused: Calls = []

    def tell(caller: Caller) -> None:
        try:
            with caller.as_operator("elsewhere", account="globex") as operator:
                operator.records("posts").list()
        except Forbidden:
            refused.append(caller.account.slug if caller.account else "")

    make_collection(cast.root)
    with loaded(nightly(tell, accounts=True)):
        schedule(app)
        make_due(app)
        run_due(app)
    assert refused == ["acme"]


def test_changes_in_each_account_are_the_systems(app: Flask, cast: Cast) -> None:
    def add(caller: Caller) -> None:
        with caller.as_operator("nightly") as operator:
            operator.records("posts").create({"title": "a"})

    make_collection(cast.root)
    with loaded(nightly(add, accounts=True)):
        schedule(app)
        make_due(app)
        run_due(app)
    entry = cast.root.acting_in("acme").get("audit-logs?limit=1").json["items"][0]
    assert (entry["user_id"], entry["user_name"], entry["actor"]["id"]) == (
        "system",
        "system",
        "shop",
    )


def test_due_time_goes_on_where_a_worker_died(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        make_account(app, f"more-{n}")
    calls: Calls = []
    monkeypatch.setattr(handler_periods, "PIECE", 2)
    accounts, pieces = handler_periods._accounts, list[str]()

    def dying(last: str) -> list[str]:
        pieces.append(last)
        if len(pieces) == 3:
            raise KeyboardInterrupt
        return accounts(last)

    monkeypatch.setattr(handler_periods, "_accounts", dying)

    def tell(caller: Caller) -> None:
        assert caller.account is not None
        calls.append(caller.account.slug)

    with loaded(nightly(tell, accounts=True)):
        schedule(app)
        make_due(app)
        with pytest.raises(KeyboardInterrupt):
            run_due(app)
        make_due(app)
        run_due(app)
    with app.app_context():
        others = sa.select(Account.slug).where(Account.id != SYSTEM_ACCOUNT_ID)
        assert sorted(calls) == sorted(db.db.session.scalars(others))


@pytest.mark.parametrize("cron", ["", "0 3 * *", "61 * * * *", "0 0 30 2 *"])
def test_cron_line_is_checked_at_load(app: Flask, cron: str) -> None:
    with pytest.raises(LoadError), loaded(nightly(lambda caller: None, cron, accounts=False)):
        pass


def test_handler_is_made_due_by_hand(app: Flask, cast: Cast) -> None:
    calls: Calls = []
    with loaded(nightly(lambda caller: calls.append(caller.account.slug), accounts=True)):
        with app.app_context():
            handler_periods.make_due("shop.<lambda>")
        run_due(app)
        assert sorted(calls) == ["acme", "globex"]
        (row,) = jobs_of(app, "shop.<lambda>.schedule")
        assert (row.due_at.hour, row.status) == (3, JobState.PENDING)
