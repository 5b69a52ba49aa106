"""Webhooks, deliveries and jobs in a real browser: one journey, and every page in every look."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.browser.test_console import (
    IDS,
    LOOKS,
    NARROW,
    check_fits,
    check_nothing_scrolls_sideways,
    sign_in,
)
from tests.browser.test_people import fill, press
from tests.builders import Cast, make_record
from tests.mailbox import run_jobs
from tests.receivers import Receiver, receiving
from tests.webhooks.delivering import deliver

pytestmark = pytest.mark.browser


@pytest.fixture
def receiver(live_cast: Cast) -> Iterator[Receiver]:
    """A receiver that refuses; no webhook is left behind for other tests."""
    with receiving(lambda request: (500, "not now")) as receiver:
        yield receiver
    for webhook in live_cast.alice.get("webhooks").json["items"]:
        live_cast.alice.delete(f"webhooks/{webhook['id']}")


def make_one(visit: Visit, url: str) -> None:
    """Make a webhook by the form."""
    visit.page.get_by_role("link", name="Webhooks", exact=True).click()
    press(visit, "New webhook")
    fill(visit, url=url, collection="articles", headers="X-Mine: yes")
    visit.page.get_by_label("delete").uncheck()
    press(visit, "Make the webhook")


def test_an_admin_makes_a_webhook_and_follows_its_deliveries(
    visit: Visit, live_app: Flask, live_cast: Cast, receiver: Receiver
) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    make_one(visit, receiver.url)
    expect(page.locator("#secret")).to_have_value(re.compile("[0-9a-f]{64}"))
    press(visit, "I have copied it")
    press(visit, "Send a test")
    expect(page.get_by_role("status")).to_contain_text("It failed: The receiver answered 500.")
    make_record(live_cast.alice, "articles", title="told")
    deliver(live_app)
    receiver.answer = lambda request: (200, "thank you")
    page.get_by_role("link", name="Deliveries").click()
    page.get_by_label("Event").select_option("records.create")
    press(visit, "Show")
    page.get_by_role("rowheader").get_by_role("link").click()
    expect(page.get_by_label("Payload")).to_contain_text('"title": "told"')
    press(visit, "Send again")
    deliver(live_app)
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_contain_text("delivered")
    assert receiver.requests[-1].headers["x-mine"] == "yes"
    page.get_by_text("9 characters").click()
    expect(page.get_by_text("thank you")).to_be_visible()
    visit.check_quiet_and_at_home()


@pytest.mark.parametrize(("scheme", "size"), LOOKS[::3], ids=IDS[::3])
def test_every_page_of_webhooks_suits_everybody(
    visit: Visit,
    live_app: Flask,
    live_cast: Cast,
    receiver: Receiver,
    axe: str,
    tmp_path: Path,
    scheme: str,
    size: dict[str, int],
) -> None:
    page = visit.page
    page.set_viewport_size(size)  # type: ignore[arg-type]
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]

    def show(name: str) -> None:
        page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
        check_fits(visit)
        if size == NARROW:
            check_nothing_scrolls_sideways(visit)
        visit.check_accessible(axe)

    sign_in(visit, live_cast.alice)
    page.get_by_role("link", name="Webhooks", exact=True).click()
    show("empty")
    press(visit, "New webhook")
    fill(visit, url="ftp://nowhere", collection="articles", filter="title =")
    page.locator("[name=url]").evaluate("one => one.type = 'text'")
    press(visit, "Make the webhook")
    show("new-refused")
    make_one(visit, f"{receiver.url}/with/a/{'long-' * 20}path")
    show("secret")
    press(visit, "I have copied it")
    press(visit, "Send a test")
    show("tested")
    make_record(live_cast.alice, "articles", title="A long title " * 30)
    deliver(live_app)
    page.get_by_role("link", name="with/a/long").click()
    page.get_by_text("Delete…").click()
    show("one")
    page.get_by_role("link", name="Webhooks", exact=True).click()
    show("list")
    page.get_by_role("link", name="Deliveries", exact=True).first.click()
    show("deliveries")
    page.get_by_role("rowheader").get_by_role("link").first.click()
    page.locator("details.sample summary").first.click()
    show("delivery")
    press(visit, "Sign out")
    sign_in(visit, live_cast.root)
    run_jobs(live_app)
    page.get_by_role("link", name="Jobs").click()
    show("jobs")
    page.get_by_role("link", name="Webhooks", exact=True).click()
    show("accounts")
    page.get_by_role("link", name="Acme").click()
    show("of-acme")
