"""The dashboard of an account: counted by day, what fails, what was changed; nobody else's."""

from __future__ import annotations

import html
import re
import time
from datetime import date, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db
from app.console.shell import charts
from app.ids import first_id, new_id
from app.records import service as records
from app.webhooks.models import ATTEMPTS, DELIVERIES, Webhook
from app.workflows.models import INSTANCES
from tests import builders
from tests.builders import OPEN, Caller, Cast
from tests.console import furnished
from tests.console.browser import Browser
from tests.webhooks.delivering import make_webhook

CLOSED = {"list_rule": None}
LONGEST_TEST = 20  # seconds


@pytest.fixture
def today() -> date:
    """The day, which does not end before the test does."""
    now = clock.now()
    midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    if (left := (midnight - now).total_seconds()) < LONGEST_TEST:
        time.sleep(left)
    return clock.now().date()


def deliver(account_id: str, webhook_id: str, status: str, days_ago: int) -> None:
    """A delivery of some days ago, which is over."""
    row = {"account_id": account_id, "webhook_id": webhook_id, "event": "records.create"}
    made = {
        "created_at": clock.now() - timedelta(days=days_ago),
        "id": _id(days_ago),
        "status": status,
    }
    values = {**row, **made, "payload": "{}", "size": 2, "attempt_number": 1}
    db.connection().execute(DELIVERIES.insert().values(values))


def _id(days_ago: int) -> str:
    return first_id(clock.now() - timedelta(days=days_ago)) + new_id()[13:]


def chart_of(page: str, name: str) -> str:
    """What the table beside a chart tells, without its markup."""
    (table,) = re.findall(rf'id="{name}-title".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", table).split())


def recent_changes(page: str) -> list[str]:
    """The recent changes without their markup and times, newest first."""
    section = page.partition("Recent changes</h2>")[2].partition("</section>")[0]
    items = re.findall(r"<li>(.*?)</li>", section, re.DOTALL)
    texts = (" ".join(re.sub(r"<[^>]*>", " ", one).split()) for one in items)
    return [text.partition(" , ")[0].partition(", ")[0] for text in texts]


def test_dashboard_charts_count_by_day(today: date, app: Flask, cast: Cast, admin: Browser) -> None:
    builders.make_collection(cast.root)
    for title in ("one", "two"):
        builders.make_record(cast.alice, title=title)
    builders.make_record(cast.charlie, title="theirs")
    acme = cast.alice.account_id
    with app.app_context(), db.transaction():
        for status, days_ago in (("delivered", 0), ("failed", 3), ("delivered", 3), ("failed", 40)):
            deliver(acme, new_id(), status, days_ago)
    page = admin.get("").text
    assert chart_of(page, "records") == f"{today} 2"
    assert chart_of(page, "deliveries") == f"{today} 1 0 {today - timedelta(days=3)} 1 1"
    assert chart_of(page, "sign-ins") == f"{today} 0 1"
    assert page.count("<rect") == 1 + 3 + 1
    assert "Count all" not in page


def test_dashboard_counts_above_limit_on_demand(
    app: Flask, cast: Cast, admin: Browser, monkeypatch: object
) -> None:
    builders.make_collection(cast.root)
    for title in ("one", "two", "three"):
        builders.make_record(cast.alice, title=title)
    monkeypatch.setattr(charts, "MAX_RECORDS", 2)  # type: ignore[attr-defined]
    page = admin.get("").text
    assert (chart_of(page, "records")[10:], "at least 2<" in page) == (" 2", True)
    assert 'href="?count=all"' in page
    page = admin.get("?count=all").text
    assert (chart_of(page, "records")[10:], "at least" in page) == (" 3", False)


def test_dashboard_failures_link_to_their_pages(
    app: Flask, cast: Cast, admin: Browser, superadmin: Browser
) -> None:
    acme = cast.alice.account_id
    assert "Needs attention" not in admin.get("").text
    with app.app_context(), db.transaction() as session:
        for slug, account_id in (("acme", acme), ("globex", cast.charlie.account_id)):
            hook = {"collection": "posts", "events": ["create"], "secret": "x"}
            url = f"https://{slug}.example/in"
            session.add(Webhook(account_id=account_id, url=url, failing_since=clock.now(), **hook))
            run = {"workflow_id": new_id(), "kind": "workflow", "version": 1, "position": "{}"}
            state = {"trigger_type": "manual", "status": "failed", "context": "{}"}
            db.connection().execute(
                INSTANCES.insert().values(account_id=account_id, **run, **state)
            )
    own, of_acme = admin.get("").text, superadmin.get(f"accounts/{acme}/dashboard").text
    for page in (own, of_acme):
        assert "https://acme.example/in" in page
        assert "globex" not in page
        assert page.count(f"/console/workflows/{acme}/instances/") == 1
    assert "Account: Acme. Switch" in of_acme
    assert "Switch" not in own
    for path in ("", "accounts", "audit", "jobs", "health", "collections"):
        page = superadmin.get(path).text
        assert "All accounts. Switch" in page, path
        assert "Account: Acme" not in page, path


def test_dashboard_changes_follow_record_rules(app: Flask, cast: Cast, admin: Browser) -> None:
    builders.make_collection(cast.root)
    builders.make_collection(cast.root, "secrets", **CLOSED)
    builders.make_collection(cast.root, "drafts", list_rule="title = 'x'")
    record = builders.make_record(cast.alice, title="one")
    for name in ("secrets", "drafts"):
        builders.make_record(cast.alice, name, title="hidden")
    builders.make_record(cast.charlie, title="theirs")
    admin.done("groups/new", name="finance")
    page = admin.get("").text
    assert f"Record of posts created: one by {cast.alice.email}" in recent_changes(page)
    assert f"Group created: finance by {cast.alice.email}" in recent_changes(page)
    assert not any("secrets" in one or "drafts" in one for one in recent_changes(page))
    assert f'/posts/{record["id"]}">one</a>' in page
    assert cast.charlie.email not in page
    assert "Not counted: <b>drafts, secrets</b>." in page
    assert "Ask them for access" in page


def test_dashboard_changes_show_only_names_visible_to_reader(
    app: Flask, cast: Cast, admin: Browser
) -> None:
    ann = builders.make_user(app, cast.alice.account_id, "ann@acme.example", "admin")
    reader = Browser(app, Caller(app, ann))
    personal = {"name": "contact", "type": "email", "pii": True}
    builders.make_collection(cast.root, "people", [personal, {"name": "pages", "type": "number"}])
    builders.make_collection(cast.root)
    builders.make_record(cast.alice, "people", contact="secret@acme.example")
    first, second = (builders.make_record(cast.alice, title=name)["id"] for name in ("a", " b  c "))
    cast.alice.delete(f"records/posts/{first}")
    for title in ("b", " d  e "):
        cast.alice.patch(f"records/posts/{second}", {"title": title})
    by, page = f"by {cast.alice.email}", admin.get("").text
    assert recent_changes(page)[3] == f"Record of people created: secret@acme.example {by}"
    page = reader.get("").text
    assert recent_changes(page)[:4] == [
        f"Record of posts changed 2 times: d e {by}",
        f"Record of posts deleted {by}",
        f"Record of posts created 2 times {by}",
        f"Record of people created {by}",
    ]
    assert f'/posts/{second}">d e</a>' in page
    assert "secret@" not in page


def test_dashboard_of_other_account_requires_superadmin(
    app: Flask, cast: Cast, admin: Browser, superadmin: Browser
) -> None:
    path = f"accounts/{cast.charlie.account_id}/dashboard"
    assert admin.get(path).status_code == 403
    assert superadmin.get(f"accounts/{new_id()}/dashboard").status_code == 404
    builders.make_collection(cast.root, "orders", create_rule=None)
    builders.make_collection(cast.root, "secrets", **dict.fromkeys(OPEN))
    viewer = Browser(app, cast.bob).get("").text
    assert "list, view, update, delete" in viewer
    assert "/api/v1/records/orders" in viewer
    assert "secrets" not in viewer
    assert "<figure" not in viewer
    assert "are managed by the admins of" in viewer


@pytest.mark.long
def test_dashboard_of_superadmin_shows_all_accounts(
    app: Flask, cast: Cast, superadmin: Browser
) -> None:
    assert "Needs attention" not in superadmin.get("").text
    furnished.furnish(app, cast)
    page = superadmin.get("").text
    shown = page.partition("Needs attention")[2]
    assert re.search(r">failing<.*127\.0\.0\.1:9/.*of Acme, first failed", shown)
    assert re.search(r">failed<.*Welcome whoever is new</a> of Acme", shown)
    assert re.search(r">failing</span><div>Webhook <a", shown)
    assert re.search(r">not scheduled</span><div>No backups are scheduled. <a [^>]*#backups", shown)
    at = cast.alice.account_id
    assert re.search(rf"Acme: <a [^>]*/{at}/deliveries.*?/{at}/instances\?status=failed", shown)
    assert re.search(rf"No delivery was completed.*?/{at}/deliveries\?status=retrying", shown)
    assert f"/console/accounts/{cast.charlie.account_id}/dashboard" in shown
    made = int(re.findall(r'class="key created">(\d+) created', page)[0])
    assert made >= 10
    assert "at least" not in page


def test_dashboard_groups_equal_changes_and_failures(
    app: Flask, cast: Cast, admin: Browser
) -> None:
    builders.make_collection(cast.root)
    for _ in range(12):
        builders.make_record(cast.alice, title="x")
    builders.make_record(cast.bob, title="y")
    with app.app_context(), db.transaction():
        run = {"workflow_id": new_id(), "kind": "workflow", "version": 1, "position": "{}"}
        state = {"trigger_type": "manual", "status": "failed", "context": "{}"}
        state["error_message"] = "Bob is too old."
        for _ in range(5):
            values = {"account_id": cast.alice.account_id, **run, **state}
            db.connection().execute(INSTANCES.insert().values(values))
    page = " ".join(re.sub(r"<[^>]*>", " ", admin.get("").text).split())
    assert "Record of posts created 12 times by alice@acme.example," in page
    assert "Record of posts created: y by bob@acme.example," in page
    assert page.count("a deleted workflow") == 1
    assert "a deleted workflow , 5 times, last" in page
    assert "Bob is too old." in page
    with app.app_context(), db.transaction():
        db.connection().execute(INSTANCES.update().values(holds_pii=True))
    ann = builders.make_user(app, cast.alice.account_id, "ann@acme.example", "admin")
    page = Browser(app, Caller(app, ann)).get("").text
    assert "Withheld: may have personal data." in page
    assert "Bob is too old." not in page


def test_dashboard_webhook_links_count_failed_and_retrying_deliveries(
    app: Flask, cast: Cast, admin: Browser, superadmin: Browser
) -> None:
    builders.make_collection(cast.root)
    id = make_webhook(cast.alice, "http://127.0.0.1:9/in")["id"]
    with app.app_context(), db.transaction() as session:
        session.execute(sa.update(Webhook).values(failing_since=clock.now()))
        for status in ("failed", "failed", "retrying", "delivered"):
            deliver(cast.alice.account_id, id, status, 0)
        later = clock.now() + timedelta(hours=1)
        waits = DELIVERIES.c.status == "retrying"
        session.execute(sa.update(DELIVERIES).where(waits).values(due_at=later, last_claim=1))
        waiting = session.scalar(sa.select(DELIVERIES.c.id).where(waits))
        answer = {"status_code": 503, "duration_ms": 1, "attempted_at": clock.now()}
        attempt = {"delivery_id": waiting, "claim": 1, "attempt_number": 1, **answer}
        session.execute(
            ATTEMPTS.insert().values(account_id=cast.alice.account_id, id=new_id(), **attempt)
        )
    at = f"webhooks/{cast.alice.account_id}"
    for browser, path in ((admin, ""), (superadmin, ""), (admin, at)):
        page = browser.get(path).text
        text = " ".join(re.sub(r"<[^>]*>", "", page).split())
        assert "2 failed · 1 retrying" in text
        assert ("The receiver responded with 503." in text) is (path == "")
        for status, number in (("failed", 2), ("retrying", 1)):
            link = f'href="(/console/{at}/deliveries[^"]*status={status}[^"]*)">{number} {status}'
            (url,) = re.findall(link, page)
            assert f"{number} deliver" in admin.client.get(html.unescape(url)).text


def test_dashboard_first_steps_of_empty_instance(
    app: Flask, cast: Cast, superadmin: Browser, admin: Browser
) -> None:
    def steps(browser: Browser) -> str:
        page = " ".join(re.sub(r"<[^>]*>", " ", browser.get("").text).split())
        return page.partition("First steps ")[2][:6]

    assert (steps(superadmin), steps(admin)) == ("1 of 4", "1 of 3")
    builders.make_collection(cast.root)
    assert steps(superadmin) == "3 of 4"
    builders.make_record(cast.alice, title="x")
    assert steps(superadmin) == ""
    cast.alice.post("api-keys", {"name": "program"})
    make_webhook(cast.alice, "http://127.0.0.1:9/")
    assert steps(admin) == ""


def test_sample_data_is_loaded_once(cast: Cast, superadmin: Browser) -> None:
    assert "Load sample data" in superadmin.get("").text
    shown = superadmin.done("sample")
    assert "Sample company" in shown
    assert "tasks" in shown
    assert "Load sample data" not in superadmin.get("").text
    assert "There are collections already." in superadmin.done("sample")
    (tasks,) = re.findall(r'href="/console/(records/[^"]*/tasks)"', shown)
    assert superadmin.get(tasks).text.count("<tr data-key=") == 10


def test_sample_data_is_loaded_completely_or_not_at_all(
    cast: Cast, superadmin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, made = records.create, list[str]()

    def fail_in_the_middle(name: str, *args: Any, **options: Any) -> Any:
        made.append(name)
        if made.count("tasks") == 3:
            raise RuntimeError
        return create(name, *args, **options)

    monkeypatch.setattr(records, "create", fail_in_the_middle)
    assert superadmin.send("sample").status_code == 500
    assert cast.root.get("collections").json["total"] == 0
    assert "Sample company" not in superadmin.get("accounts").text
    monkeypatch.undo()
    assert "Sample company" in superadmin.done("sample")
