"""Tables that follow what happens: by a stream or by asking again, without a reload."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest
from flask import Flask
from playwright.sync_api import Locator, Request, expect

from app.auth import sessions
from app.realtime import connections
from app.web import sockets
from tests.browser.conftest import Visit
from tests.browser.test_console import sign_in
from tests.builders import OPEN, Cast, make_collection, make_record
from tests.receivers import receiving
from tests.webhooks.delivering import deliver, make_webhook
from tests.workflows.running import create, make_workflow, start, work

SOON = 2000  # milliseconds
FIELDS = [{"name": "title", "type": "text"}, {"name": "pages", "type": "number"}]
SET_HIDDEN = """hidden => {
  Object.defineProperty(document, "hidden", {get: () => hidden, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture
def shelf(live_cast: Cast) -> Iterator[str]:
    """The path of a collection of acme with one record; gone again afterwards."""
    made = make_collection(live_cast.root, "shelf", FIELDS)
    make_record(live_cast.alice, "shelf", title="First", pages=1)
    yield f"/console/records/{live_cast.alice.account_id}/shelf"
    assert live_cast.root.delete(f"collections/{made['id']}").status_code == 200


@pytest.fixture
def rows(visit: Visit) -> Locator:
    """The rows of the table."""
    return visit.page.locator("main tbody tr")


def state(visit: Visit) -> Locator:
    """Whether the page follows."""
    return visit.page.locator("#live .state")


def switch(visit: Visit) -> Locator:
    """What pauses the page."""
    return visit.page.get_by_role("switch", name="Live")


def wait_for_stream(visit: Visit, path: str) -> None:
    """Open a page that follows a stream."""
    with visit.page.expect_response(lambda response: "/realtime/subscribe" in response.url):
        visit.page.goto(path)
    expect(state(visit)).to_have_text("live")


def test_live_table_shows_created_changed_and_deleted_records(
    visit: Visit, live_cast: Cast, shelf: str, rows: Locator
) -> None:
    page, alice = visit.page, live_cast.alice
    sign_in(visit, alice)
    wait_for_stream(visit, shelf)
    page.evaluate("window.isSamePage = true")
    page.locator("summary", has_text="Columns").click()
    page.get_by_role("checkbox", name="pages").uncheck()
    page.get_by_role("rowheader").get_by_role("link").focus()
    page.evaluate("document.querySelector('main tbody time').textContent = 'a minute ago'")
    second = make_record(alice, "shelf", title="Second")["id"]
    added = rows.filter(has_text="Second")
    expect(added).to_have_attribute("data-changed", "", timeout=SOON)
    expect(page.locator("#live [aria-live]")).to_have_text("1 row changed.")
    expect(rows.filter(has_text="First")).not_to_have_attribute("data-changed", "")
    expect(page.get_by_text("2 records, sorted")).to_be_visible()
    expect(added.locator("time")).to_have_attribute("title", re.compile("UTC"))  # is localized
    assert alice.patch(f"records/shelf/{second}", {"title": "Changed"}).status_code == 200
    expect(rows.filter(has_text="Changed")).to_be_visible(timeout=SOON)
    assert alice.delete(f"records/shelf/{second}").status_code == 204
    expect(rows).to_have_count(1, timeout=SOON)
    expect(page.get_by_role("checkbox", name="pages")).not_to_be_checked()
    expect(page.get_by_role("rowheader").get_by_role("link")).to_be_focused()
    assert page.evaluate("window.isSamePage")
    assert visit.faults == []


def test_live_table_is_accessible_and_respects_reduced_motion(
    visit: Visit, live_cast: Cast, shelf: str, look: Callable[[str], None]
) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    wait_for_stream(visit, shelf)
    page.evaluate("document.querySelector('main tbody tr').dataset.changed = ''")
    look("live")
    switch(visit).uncheck()
    look("paused")
    page.emulate_media(reduced_motion="reduce")
    animation = "getComputedStyle(document.querySelector('[data-changed] > *')).animationName"
    assert page.evaluate(animation) == "none"
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(animation) == "changed"


def test_live_table_pause_is_remembered(
    visit: Visit, live_cast: Cast, shelf: str, rows: Locator
) -> None:
    sign_in(visit, live_cast.alice)
    wait_for_stream(visit, shelf)
    switch(visit).uncheck()
    expect(state(visit)).to_have_text("paused")
    make_record(live_cast.alice, "shelf", title="Second")
    visit.page.wait_for_timeout(SOON / 2)
    expect(rows).to_have_count(1)
    visit.page.reload()
    expect(state(visit)).to_have_text("paused")
    expect(rows).to_have_count(2)
    make_record(live_cast.alice, "shelf", title="Third")
    switch(visit).check()
    expect(rows).to_have_count(3, timeout=SOON)
    expect(state(visit)).to_have_text("live")
    # The switch of another tab.
    visit.page.evaluate("localStorage.clear(); localStorage.setItem('console.live', 'paused')")
    visit.page.evaluate("dispatchEvent(new StorageEvent('storage'))")
    expect(switch(visit)).not_to_be_checked()
    expect(state(visit)).to_have_text("paused")


@pytest.mark.parametrize("visit", [False], ids=["no-scripts"], indirect=True)
def test_live_updates_switch_is_hidden_without_scripts(
    visit: Visit, live_cast: Cast, shelf: str, rows: Locator
) -> None:
    sign_in(visit, live_cast.alice)
    visit.page.goto(shelf)
    expect(rows).to_have_count(1)
    expect(visit.page.get_by_text("Live updates")).to_be_hidden()


def test_live_table_in_hidden_tab_is_idle_and_catches_up(
    visit: Visit, live_cast: Cast, shelf: str, rows: Locator
) -> None:
    sign_in(visit, live_cast.alice)
    wait_for_stream(visit, shelf)
    visit.page.evaluate(SET_HIDDEN, True)
    visit.requested.clear()
    make_record(live_cast.alice, "shelf", title="Second")
    visit.page.wait_for_timeout(SOON / 2)
    assert visit.requested == []
    visit.page.evaluate(SET_HIDDEN, False)
    expect(rows).to_have_count(2, timeout=SOON)


def test_live_table_burst_of_changes_makes_few_sequential_requests(
    visit: Visit, live_cast: Cast, shelf: str, rows: Locator
) -> None:
    under_way, most, fetches = set[Request](), 0, 0

    def begin(request: Request) -> None:
        nonlocal most, fetches
        if request.resource_type == "fetch":
            under_way.add(request)
            most, fetches = max(most, len(under_way)), fetches + 1

    sign_in(visit, live_cast.alice)
    visit.page.on("request", begin)
    visit.page.on("requestfinished", lambda request: under_way.discard(request))
    wait_for_stream(visit, shelf)
    began = time.monotonic()
    for number in range(12):
        make_record(live_cast.alice, "shelf", title=f"Number {number}")
        visit.page.wait_for_timeout(100)
    expect(rows).to_have_count(13, timeout=SOON)
    seconds = time.monotonic() - began
    assert most == 1
    assert 2 <= fetches - 1 <= seconds + 1  # without the ticket


def test_live_table_reports_session_ended_elsewhere(
    visit: Visit, live_app: Flask, live_cast: Cast, shelf: str, rows: Locator
) -> None:
    sign_in(visit, live_cast.alice)
    wait_for_stream(visit, shelf)
    with live_app.app_context():
        sessions.end_all(live_cast.alice.account_id, live_cast.alice.id)
    expect(state(visit)).to_contain_text("Signed out", timeout=10_000)
    expect(visit.page.locator("#live [aria-live]")).to_contain_text("Signed out")
    expect(switch(visit)).to_be_disabled()
    visit.requested.clear()
    visit.page.wait_for_timeout(SOON)
    assert visit.requested == []


def test_live_table_reopens_broken_stream(
    visit: Visit, live_cast: Cast, shelf: str, rows: Locator
) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    wait_for_stream(visit, shelf)
    page.route("**/stream-tickets", lambda route: route.abort())
    sockets.current_loop().call_soon_threadsafe(
        lambda: [one.cut_off() for one in connections.registry.all()]
    )
    expect(state(visit)).to_have_text("reconnecting")
    page.unroute("**/stream-tickets")
    make_record(live_cast.alice, "shelf", title="Second")
    with page.expect_response(lambda response: "/realtime/subscribe" in response.url) as reopened:
        expect(rows).to_have_count(2)
    assert reopened.value.status == 200
    expect(state(visit)).to_have_text("live")
    make_record(live_cast.alice, "shelf", title="Third")
    expect(rows).to_have_count(3, timeout=SOON)


def test_live_table_polls_records_visible_only_in_lists(
    visit: Visit, live_cast: Cast, shelf: str, rows: Locator
) -> None:
    rules = {**OPEN, "view_rule": None}
    assert live_cast.root.put("collections/shelf/rules", rules).status_code == 200
    sign_in(visit, live_cast.alice)
    visit.page.clock.install()
    visit.page.goto(shelf)
    make_record(live_cast.alice, "shelf", title="Second")
    visit.page.clock.fast_forward("31")
    expect(rows).to_have_count(2)
    assert not any("realtime" in url for url in visit.requested)


def test_delivery_page_follows_until_delivered(
    visit: Visit, live_app: Flask, live_cast: Cast, rows: Locator
) -> None:
    page, alice = visit.page, live_cast.alice
    with receiving(lambda request: (200, "thanks")) as receiver:
        webhook = make_webhook(alice, receiver.url, collection="articles")["id"]
        make_record(alice, "articles", title="told")
        sign_in(visit, alice)
        page.clock.install()
        page.goto(f"/console/webhooks/{alice.account_id}/deliveries?webhook={webhook}")
        deliver(live_app)
        expect(rows).to_contain_text("pending")
        page.clock.fast_forward("05")
        expect(rows).to_contain_text("delivered")
        visit.requested.clear()
        page.clock.run_for("25")
        assert visit.requested == []  # finished: the next look is after 30 seconds
        alice.delete(f"webhooks/{webhook}")


def test_instance_page_follows_every_step(
    visit: Visit, live_app: Flask, live_cast: Cast, rows: Locator
) -> None:
    page, alice = visit.page, live_cast.alice
    flow = make_workflow(alice, [create("one")])
    instance = start(alice, flow)
    sign_in(visit, alice)
    page.clock.install()
    page.goto(f"/console/workflows/{alice.account_id}/instances/{instance}")
    expect(page.get_by_text("No step has run yet.")).to_be_visible()
    page.get_by_text("Cancel…").click()
    work(live_app)
    page.clock.fast_forward("05")
    expect(page.get_by_role("heading", level=1)).to_contain_text("completed")
    expect(rows).to_have_count(1)
    expect(page.get_by_text("Cancel…")).to_have_count(0)
    alice.delete(f"workflows/{flow['id']}")
