"""Tables that follow what happens: by a stream or by asking again, without a reload."""

from __future__ import annotations

import pytest
from flask import Flask
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Visit
from tests.browser.test_console import sign_in
from tests.builders import Cast, make_record
from tests.receivers import receiving
from tests.webhooks.delivering import deliver, make_webhook
from tests.workflows.running import create, make_workflow, start, work

pytestmark = pytest.mark.browser


@pytest.fixture
def rows(visit: Visit) -> Locator:
    """The rows of the table."""
    return visit.page.locator("main tbody tr")


def test_a_delivery_is_followed_until_it_is_delivered(
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


def test_an_instance_is_followed_step_by_step(
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
