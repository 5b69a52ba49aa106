"""Webhooks, deliveries and jobs in a real browser: one journey, and what forms answer.

test_every_page.py looks at the pages themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from flask import Flask
from playwright.sync_api import expect

from tests.browser.conftest import WIDE, WITHOUT_SCRIPTS_TOO, Visit
from tests.browser.test_console import sign_in
from tests.browser.test_people import fill, press
from tests.builders import Cast, make_record
from tests.mailbox import run_jobs
from tests.receivers import Receiver, receiving
from tests.webhooks.delivering import deliver


@pytest.fixture
def receiver(live_cast: Cast) -> Iterator[Receiver]:
    """A receiver that refuses; no webhook is left behind for other tests."""
    with receiving(lambda request: (500, "not now")) as receiver:
        yield receiver
    for webhook in live_cast.alice.get("webhooks").json["items"]:
        live_cast.alice.delete(f"webhooks/{webhook['id']}")


def make_one(visit: Visit, url: str) -> None:
    """Make a webhook by the form."""
    visit.page.get_by_role("link", name="Webhooks", exact=True).first.click()
    press(visit, "New webhook")
    visit.page.get_by_label("Collection").select_option("articles")
    fill(visit, url=url, headers="X-Mine: yes")
    visit.page.get_by_label("delete").uncheck()
    press(visit, "Create webhook")


def check_in_a_common_window(visit: Visit) -> None:
    """Windows of laptops show whole rows, too."""
    for width in (1200, 1024):
        visit.wear("light", {"width": width, "height": 800})
        visit.check_nothing_scrolls_sideways()
    visit.wear("light", WIDE)


@WITHOUT_SCRIPTS_TOO
def test_webhook_creation_and_its_deliveries(
    visit: Visit, live_app: Flask, live_cast: Cast, receiver: Receiver
) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    make_one(visit, receiver.url)
    expect(page.locator("#secret")).to_have_value(re.compile("[0-9a-f]{64}"))
    press(visit, "I have copied it")
    press(visit, "Send a test")
    failed = "The test failed: The receiver responded with 500."
    expect(page.get_by_role("status").filter(has_text=failed)).to_be_visible()
    make_record(live_cast.alice, "articles", title="told")
    deliver(live_app)
    receiver.answer = lambda request: (200, "thank you")
    page.get_by_role("link", name="Deliveries").click()
    page.get_by_text("More filters").click()
    page.get_by_label("Event").select_option("records.create")
    press(visit, "Show")
    page.get_by_role("rowheader").get_by_role("link").click()
    expect(page.get_by_label("Payload")).to_contain_text('"title": "told"')
    press(visit, "Resend")
    expect(page.get_by_text("The delivery is sent again under the same id.")).to_be_visible()
    deliver(live_app)
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_contain_text("delivered")
    assert receiver.requests[-1].headers["x-mine"] == "yes"
    page.get_by_text("9 characters").click()
    expect(page.get_by_text("thank you")).to_be_visible()
    visit.check_quiet_and_at_home()


def test_webhook_form_responses_are_accessible_and_fit(
    visit: Visit,
    live_app: Flask,
    live_cast: Cast,
    receiver: Receiver,
    look: Callable[[str], None],
) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    page.get_by_role("link", name="Webhooks", exact=True).first.click()
    look("empty")
    press(visit, "New webhook")
    page.get_by_label("Collection").select_option("articles")
    fill(visit, url="ftp://nowhere", filter="title =")
    page.locator("[name=url]").evaluate("one => one.type = 'text'")
    press(visit, "Create webhook")
    look("new-refused")
    make_one(visit, f"{receiver.url}/with/a/{'long-' * 20}path")
    look("secret")
    press(visit, "I have copied it")
    press(visit, "Send a test")
    look("tested")
    make_record(live_cast.alice, "articles", title="A long title " * 30)
    deliver(live_app)
    page.get_by_role("link", name="with/a/long").click()
    page.get_by_text("Delete…").click()
    look("one")
    page.get_by_role("link", name="All deliveries").first.click()
    check_in_a_common_window(visit)
    page.get_by_role("rowheader").get_by_role("link").first.click()
    page.locator("details.sample summary").first.click()
    look("delivery")
    press(visit, "Sign out")
    sign_in(visit, live_cast.root)
    run_jobs(live_app)
    page.get_by_role("link", name="Jobs and health", exact=True).click()
    check_in_a_common_window(visit)
    page.get_by_role("link", name="Webhooks", exact=True).first.click()
    look("accounts")
    page.get_by_role("link", name="Acme").click()
    look("of-acme")
