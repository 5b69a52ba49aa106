"""The pages of the audit log, signatures and collections: in every window, by keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Visit, visiting
from tests.browser.test_console import sign_in
from tests.builders import Cast, make_collection


@pytest.fixture
def pages(live_cast: Cast) -> Iterator[dict[str, str]]:
    """Addresses by what they show; one collection demands signatures meanwhile."""
    alice, root = live_cast.alice, live_cast.root
    articles = root.get("collections/articles").json["id"]
    root.patch(f"collections/{articles}", {"options": {"require_signature": True}})
    post = alice.get("records/posts").json["items"][0]["id"]
    alice.patch(f"records/posts/{post}", {"title": "another " * 20})
    records = f"/console/records/{alice.account_id}"
    yield {
        "api": f"/console/collections/{articles}/api?account=acme&try=list",
        "collection": f"/console/collections/{articles}",
        "diagram": "/console/collections/diagram",
        "filtered": f"/console/audit?table_name=col_posts&record_id={post}",
        "signed": f"{records}/articles/new",
        "schema": f"/console/collections/{articles}/schema",
    }
    root.patch(f"collections/{articles}", {"options": {"require_signature": False}})


def test_audit_pages_fit_windows_and_are_accessible(
    visit: Visit, live_cast: Cast, pages: dict[str, str], look: Callable[[str], None]
) -> None:
    page = visit.page
    sign_in(visit, live_cast.root)
    for name, address in pages.items():
        page.goto(address)
        look(name)
    page.goto("/console/audit/chains")
    page.get_by_role("button", name="Verify all").click()
    page.get_by_text("are intact").wait_for()
    look("verified")
    visit.check_quiet_and_at_home()


@pytest.mark.parametrize("scripts", [True, False])
def test_audit_log_filter_uses_browser_time_zone(
    browser: Browser, live_server_url: str, live_cast: Cast, scripts: bool
) -> None:
    zone = {"timezone_id": "Asia/Kolkata", "java_script_enabled": scripts}
    with visiting(browser, live_server_url, **zone) as visit:
        page = visit.page
        sign_in(visit, live_cast.alice)
        page.goto("/console/audit?from_date=2026-01-31T10:00")
        shown = page.get_by_label("From")
        expect(shown).to_have_value("2026-01-31T15:30" if scripts else "2026-01-31T10:00")
        expect(page.get_by_text("From (GMT+5:30)" if scripts else "From (UTC)")).to_be_visible()
        page.get_by_label("Person").fill("alice@acme.example")
        page.get_by_role("button", name="Show", exact=True).click()
        page.wait_for_url("**/console/audit?person=*")
        assert "from_date=2026-01-31T10%3A00&" in page.url
        expect(page.get_by_role("article").first).to_contain_text("alice@acme.example")
        visit.check_quiet_and_at_home()


def test_console_list_filters_use_browser_time_zone(
    browser: Browser, live_server_url: str, live_cast: Cast
) -> None:
    account_id = live_cast.alice.account_id
    security = f"/console/security-log/{account_id}"
    deliveries = f"/console/webhooks/{account_id}/deliveries"
    addresses = ["/console/audit", security, f"{security}/readers", deliveries]
    with visiting(browser, live_server_url, timezone_id="Asia/Kolkata") as visit:
        page = visit.page
        sign_in(visit, live_cast.alice)
        page.clock.set_fixed_time(datetime(2026, 1, 31, 20, tzinfo=UTC))
        for address in addresses:
            for text in ("2026-01-31T10:00", "2026-01-31T10:00Z"):
                page.goto(f"{address}?from_date={text}")
                expect(page.get_by_role("textbox", name="From")).to_have_value("2026-01-31T15:30")
                expect(page.get_by_text("From (GMT+5:30)")).to_be_visible()
            page.get_by_role("button", name="Today").click()
            page.wait_for_url("**from_date=2026-01-31T18*")  # it is February there
            assert "from_date=2026-01-31T18%3A30" in page.url
            assert "days=" not in page.url
            # The pressed button says it: they are folded.
            expect(page.get_by_role("textbox", name="From")).to_be_hidden()
            page.locator(".fold > summary").click()
            expect(page.get_by_role("textbox", name="From")).to_have_value("2026-02-01T00:00")
            expect(page.get_by_role("button", name="Today", pressed=True)).to_be_visible()
        visit.check_quiet_and_at_home()


def test_audit_log_is_grouped_by_days_of_browser_time_zone(
    browser: Browser, live_server_url: str, live_cast: Cast
) -> None:
    with visiting(browser, live_server_url, timezone_id="Pacific/Kiritimati") as visit:
        page = visit.page
        sign_in(visit, live_cast.alice)
        page.goto("/console/audit")
        made = page.locator("article.change header time").first.get_attribute("datetime")
        moment = datetime.fromisoformat(str(made))
        there = moment + timedelta(hours=14)
        dated = f"{there:%A, %B} {there.day}, {there.year}"
        for days, name in ((0, "Today"), (1, "Yesterday"), (2, dated)):
            page.clock.set_fixed_time(moment + timedelta(days=days))
            page.goto("/console/audit")
            heading = page.get_by_role("main").get_by_role("heading", level=2).first
            expect(heading).to_have_text(name)
        visit.check_quiet_and_at_home()


def test_own_audit_log_page_fits_windows(
    visit: Visit, live_cast: Cast, look: Callable[[str], None]
) -> None:
    sign_in(visit, live_cast.alice)
    visit.page.get_by_role("link", name="Audit log").click()
    visit.page.get_by_role("heading", name="Audit log").wait_for()
    look("own-log")
    visit.check_quiet_and_at_home()


@pytest.fixture
def three_fields(live_cast: Cast) -> Iterator[str]:
    """The id of a collection with three fields."""
    fields = [{"name": name, "type": "text"} for name in ("title", "body", "note")]
    id = make_collection(live_cast.root, "movable", fields)["id"]
    yield id
    live_cast.root.delete(f"collections/{id}")


def test_schema_form_fields_move_and_errors_are_found_by_keyboard(
    visit: Visit, live_cast: Cast, three_fields: str
) -> None:
    page = visit.page
    sign_in(visit, live_cast.root)
    page.goto(f"/console/collections/{three_fields}/schema")
    first = page.locator("details.declared").first
    name = first.locator("strong").inner_text()
    first.locator("> summary").press("Enter")
    first.locator(".of-limited > summary").press("Enter")
    first.get_by_label("Default", exact=True).fill("x")
    down = page.get_by_role("button", name=f"Move {name} down")
    down.press("Enter")
    expect(page.locator("details.declared").nth(1)).to_contain_text(name)
    expect(page.get_by_role("button", name=f"Move {name} down")).to_be_focused()
    page.get_by_label("Name of the collection").fill("a b")
    page.get_by_role("button", name="Show plan").click()
    expect(page.get_by_label("Name of the collection")).to_be_focused()
    page.get_by_role("link", name="Name of the collection").press("Enter")
    expect(page.get_by_label("Name of the collection")).to_be_in_viewport()
