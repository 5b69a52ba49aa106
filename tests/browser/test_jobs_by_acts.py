"""How many acts everyday jobs in the console take: clicks, and inputs that are filled in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask import Flask
from playwright.sync_api import Browser, Locator, expect

from tests import builders
from tests.browser.conftest import Visit, visiting
from tests.browser.test_console import sign_in
from tests.builders import Cast, make_collection, make_record
from tests.conftest import make_app, settings_for
from tests.mailbox import run_jobs
from tests.project import free_port
from tests.receivers import receiving
from tests.serving import serving
from tests.webhooks.delivering import deliver, make_webhook

FIELDS = [
    {"name": "title", "type": "text"},
    {"name": "status", "type": "select", "options": {"choices": ["open", "done"]}},
    {"name": "pages", "type": "number"},
]


class Acts:
    """What a person does on a page, counted."""

    def __init__(self) -> None:
        self.clicks = 0
        self.fills = 0

    @property
    def total(self) -> int:
        """Clicks and fills."""
        return self.clicks + self.fills

    def click(self, target: Locator) -> None:
        """Click on something."""
        self.clicks += 1
        target.click()

    def fill(self, target: Locator, text: str, *, enter: bool = False) -> None:
        """Type over what an input has, and press Enter if that submits it."""
        self.fills += 1
        target.fill(text)
        if enter:
            target.press("Enter")

    def choose(self, target: Locator, option: str) -> None:
        """Choose an option of a select."""
        self.fills += 1
        target.select_option(option)


@pytest.fixture
def acts() -> Acts:
    """No act yet."""
    return Acts()


@pytest.fixture
def tasks(live_cast: Cast) -> Iterator[str]:
    """The path of a collection with two records of acme; gone again afterwards."""
    id = make_collection(live_cast.root, "tasks", FIELDS)["id"]
    for title, status in (("Write", "open"), ("Read", "done")):
        make_record(live_cast.alice, "tasks", title=title, status=status, pages=1)
    yield f"/console/records/{live_cast.alice.account_id}/tasks"
    assert live_cast.root.delete(f"collections/{id}").status_code == 200


def test_cell_edit_takes_two_acts(visit: Visit, live_cast: Cast, tasks: str, acts: Acts) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    page.goto(tasks)
    acts.click(page.get_by_role("row", name="Write").locator("[data-label=pages]"))
    acts.fill(page.locator("[name=f_pages]:focus"), "7", enter=True)
    expect(page.locator("[data-toast]")).to_have_text("The record is saved.")
    found = live_cast.alice.get("records/tasks").json["items"]
    assert {one["title"]: one["pages"] for one in found} == {"Write": 7, "Read": 1}
    assert acts.total <= 2


def test_list_filter_sort_and_columns_take_six_acts(
    visit: Visit, live_cast: Cast, tasks: str, acts: Acts
) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    page.goto(tasks)
    acts.choose(page.locator("[name=field_0]"), "status")
    acts.choose(page.locator("select[name=value_0]"), "open")
    acts.click(page.locator("summary", has_text="Columns"))
    acts.click(page.locator(".columns-panel").get_by_role("checkbox", name="created_at"))
    acts.click(page.locator(".columns-panel").get_by_role("button", name="Apply"))
    acts.click(page.get_by_role("link", name="pages", exact=True))
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("pages")
    expect(page.get_by_role("columnheader", name="created_at")).to_have_count(0)
    expect(page.locator("main tbody tr")).to_contain_text(["Write"])
    assert acts.total <= 6


def test_delivery_resend_of_all_failed_takes_two_acts(
    visit: Visit, live_app: Flask, live_cast: Cast, acts: Acts
) -> None:
    """From home."""
    page = visit.page
    with receiving(lambda request: (500, "not now")) as receiver:
        made = make_webhook(live_cast.alice, receiver.url, collection="articles")
        for title in ("one", "two"):
            make_record(live_cast.alice, "articles", title=title)
        deliver(live_app)
        receiver.answer = lambda request: (200, "thank you")
        sign_in(visit, live_cast.alice)
        acts.click(page.get_by_role("region", name="Needs attention").get_by_role("link").first)
        acts.click(page.get_by_role("button", name="Resend all 2"))
        expect(page.get_by_role("heading", level=1)).to_have_text("Resent deliveries")
        run_jobs(live_app)
        deliver(live_app)
    found = live_cast.alice.get(f"webhooks/{made['id']}/deliveries").json["items"]
    assert [one["status"] for one in found] == ["delivered", "delivered"]
    assert live_cast.alice.delete(f"webhooks/{made['id']}").status_code == 204
    assert acts.total <= 2


@pytest.fixture(scope="module")
def empty_cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    """The cast of an instance without collections."""
    folder = tmp_path_factory.mktemp("empty")
    url = f"http://127.0.0.1:{free_port()}"
    return builders.make_cast(make_app(settings_for("sqlite", folder, base_url=url)))


def test_first_record_of_empty_instance_takes_six_clicks(
    browser: Browser, empty_cast: Cast, acts: Acts
) -> None:
    with (
        serving(empty_cast.root.app) as url,
        visiting(browser, url) as visit,
    ):
        page = visit.page
        sign_in(visit, empty_cast.root)
        acts.click(page.get_by_role("region", name="First steps").get_by_role("link").first)
        acts.fill(page.locator("[name=collection_name]"), "tasks")
        acts.fill(page.locator("[name=name_0]"), "title")
        acts.click(page.get_by_role("button", name="Show plan"))
        acts.click(page.get_by_role("button", name="Create collection"))
        acts.click(page.get_by_role("link", name="Enter the first record"))
        acts.fill(page.locator("[name=f_title]"), "Write")
        acts.click(page.get_by_role("button", name="Create record"))
        expect(page.get_by_role("heading", level=1)).to_have_text("Write")
        visit.check_quiet_and_at_home()
    assert acts.clicks <= 6
