"""Sending again: what did not arrive, by filter and by selection, and nothing twice."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db
from app.context import tenancy
from app.ids import new_id
from app.webhooks import delivery, queue, resend
from app.webhooks.models import DELIVERIES
from tests.builders import Caller, Cast, make_collection, make_record
from tests.console.browser import Browser
from tests.mailbox import run_jobs
from tests.receivers import Receiver, receiving
from tests.sql import statements
from tests.webhooks.delivering import attempts, deliver, deliveries, make_webhook

ALL = {"since": "2020-01-01"}


@dataclass
class Story:
    """A webhook whose receiver can be broken and mended."""

    app: Flask
    alice: Caller
    receiver: Receiver
    webhook: dict[str, Any]
    status: list[int] = field(default_factory=lambda: [500])

    @property
    def path(self) -> str:
        """The deliveries in the API."""
        return f"webhooks/{self.webhook['id']}/deliveries"

    @property
    def home(self) -> str:
        """The deliveries in the console."""
        return f"webhooks/{self.alice.account_id}/deliveries"

    def fail(self, number: int) -> list[str]:
        """New deliveries that wait for a retry; returns their ids."""
        before = {row.id for row in deliveries(self.app)}
        for n in range(number):
            make_record(self.alice, title=str(n))
        deliver(self.app)
        return [row.id for row in deliveries(self.app) if row.id not in before]

    def resend(self, **selection: Any) -> int:
        """Send again by the API; returns how many."""
        answer = self.alice.post(f"{self.path}/redeliver", selection or ALL)
        assert answer.status_code == 202, answer.json
        run_jobs(self.app)
        count: int = answer.json["count"]
        return count

    def sent(self) -> list[str]:
        """The ids of all requests so far."""
        return [one.delivery for one in self.receiver.requests]

    def set(self, id: str, **values: Any) -> None:
        """Change a stored delivery."""
        with self.app.app_context(), db.transaction() as session:
            session.execute(sa.update(DELIVERIES).where(DELIVERIES.c.id == id).values(**values))


@pytest.fixture
def story(app: Flask, cast: Cast) -> Any:
    make_collection(cast.root)
    status = [500]
    with receiving(lambda request: (status[0], "echo")) as receiver:
        made = make_webhook(cast.alice, receiver.url)
        yield Story(app, cast.alice, receiver, made, status)


FAILED = {"status": "failed", "due_at": None}
DELIVERED = {"status": "delivered", "due_at": None}


@pytest.mark.both_databases
def test_delivery_resend_of_retrying_one_keeps_its_id(story: Story) -> None:
    waiting = story.fail(3)
    story.set(waiting[2], **FAILED)
    story.status[0] = 200
    assert story.resend() == 3
    deliver(story.app)
    first, second, failed, *others = deliveries(story.app)
    assert [row.status for row in (first, second)] == ["delivered"] * 2
    assert [(row.replay_of, row.status) for row in others] == [(failed.id, "delivered")]
    assert sorted(story.sent()[3:]) == sorted([*waiting[:2], others[0].id])
    assert story.resend() == 0


@pytest.mark.both_databases
def test_delivery_resend_to_failing_receiver_tries_once(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resend, "BATCH_SIZE", 2)
    story.fail(5)
    assert story.resend() == 5
    deliver(story.app)
    assert [row.attempt_number for row in deliveries(story.app)] == [2] * 5
    assert len(story.receiver.requests) == 10


@pytest.mark.both_databases
def test_delivery_resend_skips_those_being_sent(story: Story) -> None:
    (id,) = story.fail(1)
    story.set(id, due_at=clock.now())
    with story.app.app_context():
        (work,) = queue.claim(story.alice.account_id, [id], 60)
    leased = deliveries(story.app)[0].due_at
    assert story.resend() == 0
    assert story.resend(ids=[id]) == 0
    assert story.alice.post(f"{story.path}/{id}/redeliver").status_code == 409
    with story.app.app_context():
        result = delivery.Result(work, new_id(), clock.now(), 1, status_code=204)
        queue.record(story.alice.account_id, [result])
    (row,) = deliveries(story.app)
    assert (row.status, leased is not None, row.claim) == ("delivered", True, work.claim)


@pytest.mark.parametrize("way", ["api", "console"])
@pytest.mark.both_databases
def test_delivery_resend_of_selection_skips_pending(story: Story, cast: Cast, way: str) -> None:
    delivered, failed, waiting, pending = story.fail(4)
    story.set(delivered, **DELIVERED)
    story.set(failed, **FAILED)
    story.set(pending, status="pending", due_at=None)
    foreign_webhook = make_webhook(cast.charlie, story.receiver.url)
    make_record(cast.charlie, title="theirs")
    (theirs,) = (row.id for row in deliveries(story.app) if row.webhook_id == foreign_webhook["id"])
    story.set(theirs, **FAILED)
    ids = [delivered, failed, waiting, pending, theirs, new_id()]
    if way == "api":
        assert story.resend(ids=ids) == 3
    else:
        page = Browser(story.app, cast.alice).done(f"{story.home}/resend", delivery=ids)
        assert "Sending 3 deliveries again. 3 skipped" in page
    story.status[0] = 200
    deliver(story.app)
    copies = {row.replay_of: row.status for row in deliveries(story.app) if row.replay_of}
    assert copies == {delivered: "delivered", failed: "delivered"}
    assert story.sent().count(waiting) == 2
    assert theirs not in story.sent()


def test_delivery_resend_of_original_and_copy_sends_one(story: Story) -> None:
    (first,) = story.fail(1)
    story.set(first, **FAILED)
    assert story.resend(ids=[first]) == 1
    assert story.resend(ids=[first]) == 0
    copy = deliveries(story.app)[1].id
    story.set(copy, **FAILED)
    assert story.resend(ids=[first, copy]) == 1
    assert len(deliveries(story.app)) == 3


FORMS: dict[str, Callable[[Story, str], tuple[str, dict[str, Any]]]] = {
    "selection": lambda story, id: (f"{story.home}/resend", {"delivery": [id]}),
    "all": lambda story, id: (f"{story.home}/resend-undelivered", {}),
    "one": lambda story, id: (f"{story.home[:45]}/{story.webhook['id']}/deliveries/{id}", {}),
}


@pytest.mark.parametrize("state", ["failed", "retrying"])
@pytest.mark.parametrize("form", FORMS)
def test_console_delivery_resend_form_sent_twice_sends_once(
    story: Story, cast: Cast, form: str, state: str
) -> None:
    (id,) = story.fail(1)
    if state == "failed":
        story.set(id, **FAILED)
    admin, (path, values) = Browser(story.app, cast.alice), FORMS[form](story, id)
    page = admin.get(path if form == "one" else story.home).text
    drawn = re.findall(r'name="as" value="([^"]+)"', page)[0]
    path = f"{path}/redeliver" if form == "one" else path
    for _ in range(2):
        assert admin.send(path, **values, **{"as": drawn}).status_code == 303
        run_jobs(story.app)
        deliver(story.app)
        if state == "failed":
            story.set(deliveries(story.app)[-1].id, **FAILED)
    assert len(story.receiver.requests) == 2


@pytest.mark.parametrize(
    ("selection", "number"),
    [
        ({"event": "records.create"}, 2),
        ({"event": "records.delete"}, 0),
        ({"status": "failed"}, 1),
        ({"status": "retrying"}, 1),
        ({"until": "2020-01-02"}, 0),
        ({"record_id": "RECORD"}, 1),
        ({"record_id": "nobody"}, 0),
    ],
)
def test_delivery_resend_by_filter(story: Story, selection: dict[str, str], number: int) -> None:
    failed, _ = story.fail(2)
    story.set(failed, **FAILED)
    record = deliveries(story.app)[0].record_id
    selection = {name: value.replace("RECORD", record) for name, value in selection.items()}
    assert story.resend(**ALL, **selection) == number
    story.status[0] = 200
    deliver(story.app)
    assert len(story.receiver.requests) == 2 + number


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ids": []},
        {"ids": ["x"] * 101},
        {"ids": ["x"], "event": "records.create"},
        {**ALL, "status": "pending"},
        {**ALL, "until": "soon"},
        {**ALL, "record_id": 1},
    ],
)
def test_delivery_resend_with_invalid_selection_is_422(story: Story, body: dict[str, Any]) -> None:
    assert story.alice.post(f"{story.path}/redeliver", body).status_code == 422


def test_delivery_resend_pending_requests_are_limited(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resend, "MAX_JOBS", 2)
    story.fail(1)
    made = [story.alice.post(f"{story.path}/redeliver", ALL).status_code for _ in range(3)]
    assert made == [202, 202, 409]
    run_jobs(story.app)
    story.status[0] = 200
    deliver(story.app)
    assert story.resend() == 0


def test_console_webhook_page_counts_and_resends_undelivered(story: Story, cast: Cast) -> None:
    failed, *_ = story.fail(3)
    story.set(failed, **FAILED)
    admin = Browser(story.app, cast.alice)
    one = f"{story.home.removesuffix('/deliveries')}/{story.webhook['id']}"
    for page in (one, story.home, f"{story.home}?webhook={story.webhook['id']}"):
        shown = admin.get(page).text
        assert "1 failed, 2 waiting for a retry" in shown, page
        assert "Resend all 3" in shown, page
    make_record(story.alice, title="pending")
    assert "1 failed, 2 waiting for a retry, 1 pending; next attempt" in admin.get(one).text
    for query, number in {"status=failed": 1, "status=retrying": 2, "status=delivered": 0}.items():
        shown = admin.get(f"{story.home}?{query}").text
        button = f"Resend all {number}" if number > 1 else "Resend"
        assert (f">{button}</button>" in shown) is bool(number), query
    progress = admin.send(f"{story.home}/resend-undelivered").headers["Location"]
    assert "0 of 3 finished" in admin.client.get(progress).text
    run_jobs(story.app)
    story.status[0] = 200
    deliver(story.app)
    assert "3 of 3 finished" in admin.client.get(progress).text
    assert "Everything has arrived" in admin.get(one).text


def test_delivery_resend_counts_as_attempt(story: Story) -> None:
    story.fail(1)
    for number in range(2, 8):
        story.resend()
        deliver(story.app)
        assert len(attempts(story.app)) == number
    states = [(row.status, row.attempt_number) for row in deliveries(story.app)]
    assert states == [("failed", 6), ("retrying", 1)]


@pytest.mark.both_databases
def test_delivery_undelivered_count_uses_its_index(story: Story, database: str) -> None:
    (failed,) = story.fail(1)
    story.set(failed, **FAILED)
    (row,) = deliveries(story.app)
    arrived = [{**row._mapping, "id": new_id(), "status": "delivered"} for _ in range(3000)]
    with story.app.app_context(), db.transaction() as session:
        session.execute(sa.insert(DELIVERIES), arrived)
        session.execute(sa.text("ANALYZE"))
    with statements(story.app) as seen:
        assert story.resend(**ALL, status="failed") == 1
    counting = next(one for one in seen if "count(" in one and "'failed'" in one)
    with story.app.app_context(), tenancy.in_account(story.alice.account_id):
        explain = "EXPLAIN QUERY PLAN" if database == "sqlite" else "EXPLAIN"
        rows = db.connection().exec_driver_sql(f"{explain} {counting}", counting.parameters)
        plan = "\n".join(str(row[-1]) for row in rows)
    assert "ix_webhook_deliveries_undelivered" in plan, plan
