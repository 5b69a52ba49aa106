"""Everyday jobs in the console with the keyboard alone: the focus always shows, few keys do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from flask import Flask
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Visit
from tests.browser.test_editor import complete, editor
from tests.browser.test_people import FOCUSED
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_record
from tests.mailbox import run_jobs
from tests.receivers import receiving
from tests.webhooks.delivering import deliver, make_webhook
from tests.workflows.running import work

REACHED = f"target => [...({FOCUSED})(), target === document.activeElement]"
FIELDS = [
    {"name": "title", "type": "text", "required": True},
    {"name": "pages", "type": "number"},
    {"name": "lent", "type": "boolean"},
]


class Keyboard:
    """The keyboard of a visit; counts the presses that are no text."""

    def __init__(self, visit: Visit) -> None:
        self.visit, self.page = visit, visit.page
        self.presses = 0

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            self.page.keyboard.press(key)
        self.presses += len(keys)

    def type(self, text: str, delay: float = 0) -> None:
        """Type a text into what has the focus, with a delay in milliseconds between the keys."""
        self.check_focus()
        self.page.keyboard.type(text, delay=delay)

    def go(self, *keys: str) -> None:
        """Press keys that lead to another page."""
        with self.page.expect_navigation(wait_until="load"):
            self.press(*keys)

    def submit(self, key: str = "Enter") -> None:
        """Press a key that submits a form, which does not lose the focus."""
        self.go(key)
        self.check_focus()

    def check_focus(self) -> None:
        """Something has the focus, and it shows."""
        self.check_stop(*self.page.evaluate(FOCUSED))

    def check_stop(self, html: str | None, shown: bool) -> None:
        """A stop is on the page, and shows."""
        assert html is not None, self.page.url
        assert shown, html

    def skip(self) -> None:
        """Skip to the content."""
        self.press("Tab")
        expect(self.page.get_by_text("Skip to the content")).to_be_focused()
        self.press("Enter")

    def tab_to(self, target: Locator, key: str = "Tab") -> None:
        """Press Tab until the target has the focus."""
        expect(target).to_be_visible()
        for _ in range(60):
            self.press(key)
            *stop, is_reached = target.evaluate(REACHED)
            self.check_stop(*stop)
            if is_reached:
                return
        pytest.fail(f"{target} is out of reach")

    def sign_in(self, caller: Caller) -> None:
        """Sign in; what was pressed for that does not count for the job."""
        self.page.goto("/console/sign-in")
        self.type(caller.slug)
        self.press("Tab")
        self.type(caller.email)
        self.press("Tab")
        self.type(PASSWORD)
        self.submit()
        self.presses = 0


@pytest.fixture
def keyboard(visit: Visit) -> Iterator[Keyboard]:
    """A keyboard; nothing went wrong on the pages where it was used."""
    yield Keyboard(visit)
    visit.check_quiet_and_at_home()


@pytest.fixture
def books(live_cast: Cast) -> Iterator[str]:
    """A collection with three records of acme; gone again afterwards."""
    id = make_collection(live_cast.root, "books", FIELDS)["id"]
    for number, title in enumerate(("Emma", "Persuasion", "Sanditon"), 1):
        make_record(live_cast.alice, "books", title=title, pages=number * 100)
    yield id
    assert live_cast.root.delete(f"collections/{id}").status_code == 200


def open_books(keyboard: Keyboard, caller: Caller) -> None:
    """Go to the table of the books."""
    keyboard.sign_in(caller)
    keyboard.go("g", "r")
    keyboard.skip()
    keyboard.tab_to(keyboard.page.get_by_role("link", name="books", exact=True))
    keyboard.go("Enter")


def test_keyboard_sign_in(keyboard: Keyboard, live_cast: Cast) -> None:
    keyboard.sign_in(live_cast.alice)
    expect(keyboard.page.get_by_role("heading", level=1, name="Acme")).to_be_focused()


def test_keyboard_creates_collection_with_two_fields(keyboard: Keyboard, live_cast: Cast) -> None:
    page = keyboard.page
    keyboard.sign_in(live_cast.root)
    keyboard.go("g", "c")
    keyboard.go("n")
    keyboard.skip()
    keyboard.tab_to(page.locator("[name=collection_name]"))
    keyboard.type("films")
    keyboard.tab_to(page.locator("[name=name_0]"))
    keyboard.type("title")
    keyboard.tab_to(page.get_by_role("button", name="Add a field"))
    keyboard.submit()
    expect(page.locator("[name=name_1]")).to_be_focused()
    keyboard.type("year")
    keyboard.tab_to(page.locator("[name=type_1]"))
    keyboard.type("number")
    keyboard.press("Shift+Tab")
    keyboard.submit()
    keyboard.tab_to(page.get_by_role("button", name="Create collection"))
    keyboard.submit()
    expect(page.get_by_role("status")).to_contain_text("films is created.")
    made = live_cast.root.get("collections/films").json
    assert [(one["name"], one["type"]) for one in made["schema"]] == [
        ("title", "text"),
        ("year", "number"),
    ]
    assert live_cast.root.delete(f"collections/{made['id']}").status_code == 200
    assert keyboard.presses <= 32


def test_keyboard_writes_rule_with_completions(
    keyboard: Keyboard, live_cast: Cast, books: str
) -> None:
    page = keyboard.page
    keyboard.sign_in(live_cast.root)
    page.goto(f"/console/collections/{books}")
    keyboard.skip()
    keyboard.tab_to(page.get_by_role("link", name="Edit rules"))
    keyboard.go("Enter")
    keyboard.skip()
    keyboard.tab_to(page.locator("[name=view_choice]"))
    keyboard.press("End")
    expect(page.locator("[name=view_choice]")).to_have_value("expression")
    keyboard.tab_to(editor(keyboard.visit, "Expression to view by"))
    complete(keyboard.visit, "le", "lent")
    keyboard.type(" = false")
    keyboard.tab_to(page.get_by_role("button", name="Save", exact=True))
    keyboard.submit()
    expect(page.get_by_role("status")).to_have_text("The rules of books are saved.")
    assert live_cast.root.get("collections/books/rules").json["view_rule"] == "lent = false"
    assert keyboard.presses <= 32


def test_keyboard_creates_first_record(keyboard: Keyboard, live_cast: Cast) -> None:
    page = keyboard.page
    made = make_collection(live_cast.root, "empty", FIELDS)
    keyboard.sign_in(live_cast.alice)
    page.goto(f"/console/records/{live_cast.alice.account_id}/empty")
    keyboard.go("n")
    keyboard.skip()
    keyboard.tab_to(page.get_by_label("title"))
    keyboard.type("Emma")
    keyboard.press("Tab")
    keyboard.type("474")
    keyboard.submit()
    expect(page.get_by_role("heading", level=1, name="Emma")).to_be_focused()
    (record,) = live_cast.alice.get("records/empty").json["items"]
    assert (record["title"], record["pages"]) == ("Emma", 474)
    assert live_cast.root.delete(f"collections/{made['id']}").status_code == 200
    assert keyboard.presses <= 8


def test_keyboard_finds_record_by_palette(keyboard: Keyboard, live_cast: Cast, books: str) -> None:
    page = keyboard.page
    keyboard.sign_in(live_cast.alice)
    keyboard.press("Control+k")
    keyboard.type("persua")
    expect(page.get_by_role("option", name="Persuasion")).to_have_attribute("aria-selected", "true")
    keyboard.go("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Persuasion")
    keyboard.press("Control+k", "Escape")
    assert keyboard.presses <= 4


def test_keyboard_filters_sorts_and_chooses_columns(
    keyboard: Keyboard, live_cast: Cast, books: str
) -> None:
    page = keyboard.page
    rows = page.locator("main tbody tr")
    open_books(keyboard, live_cast.alice)
    keyboard.skip()
    keyboard.tab_to(page.locator("[name=field_0]"))
    keyboard.type("pages", delay=100)  # its inputs come with the first letter
    expect(page.locator("[name=value_0]")).to_have_attribute("inputmode", "decimal")
    expect(page.locator("[name=field_0]")).to_have_value("pages")
    keyboard.press("Tab")
    keyboard.type("is less")
    keyboard.press("Tab")
    keyboard.type("250")
    keyboard.submit()
    expect(page.locator("[name=value_0]")).to_be_focused()
    expect(rows).to_have_count(2)
    keyboard.tab_to(page.locator("summary", has_text="Columns"))
    keyboard.press("Enter")
    keyboard.tab_to(page.get_by_role("checkbox", name="lent"))
    keyboard.press("Space")
    keyboard.submit()
    expect(page.get_by_role("columnheader", name="lent")).to_have_count(0)
    keyboard.tab_to(page.get_by_role("link", name="pages", exact=True))
    keyboard.submit()
    expect(page.get_by_role("link", name="pages", exact=True)).to_be_focused()
    expect(rows).to_contain_text(["Emma", "Persuasion"])
    assert keyboard.presses <= 48


def test_keyboard_edits_cell(keyboard: Keyboard, live_cast: Cast, books: str) -> None:
    page = keyboard.page
    open_books(keyboard, live_cast.alice)
    keyboard.skip()
    edit = page.get_by_role("link", name="Edit Persuasion")
    keyboard.tab_to(edit)
    keyboard.submit()
    keyboard.tab_to(page.locator("[name=f_pages]"))
    keyboard.type("249")
    keyboard.submit()
    expect(page.locator("[data-toast]")).to_have_text("The record is saved.")
    expect(edit).to_be_focused()
    keyboard.submit()
    keyboard.submit("Escape")
    expect(edit).to_be_focused()
    found = live_cast.alice.get("records/books?filter=title%20=%20'Persuasion'").json["items"]
    assert [one["pages"] for one in found] == [249]
    assert keyboard.presses <= 40


def test_keyboard_closes_notice(keyboard: Keyboard, live_cast: Cast) -> None:
    page = keyboard.page
    keyboard.sign_in(live_cast.alice)
    page.goto(f"/console/settings/{live_cast.alice.account_id}/general")
    keyboard.skip()
    keyboard.tab_to(page.get_by_label("Name"))
    keyboard.submit()
    expect(page.get_by_label("Name")).to_be_focused()
    keyboard.tab_to(page.get_by_role("button", name="Close", exact=True))
    keyboard.press("Enter")
    expect(page.locator("[data-toast]")).to_have_count(0)
    keyboard.check_focus()


def test_keyboard_selects_and_deletes_two_records(
    keyboard: Keyboard, live_cast: Cast, books: str
) -> None:
    page = keyboard.page
    open_books(keyboard, live_cast.alice)
    keyboard.skip()
    for name in ("Sanditon", "Persuasion"):
        keyboard.tab_to(page.get_by_role("checkbox", name=f"Select {name}"))
        keyboard.press("Space")
    keyboard.tab_to(page.get_by_role("button", name="Delete", exact=True), "Shift+Tab")
    keyboard.submit()
    expect(page.get_by_role("heading", name="Delete 2 records?")).to_be_focused()
    keyboard.tab_to(page.get_by_role("button", name="Delete 2 records"))
    keyboard.submit()
    expect(page.get_by_role("heading", level=1, name="books")).to_be_focused()
    left = live_cast.alice.get("records/books").json["items"]
    assert [one["title"] for one in left] == ["Emma"]
    assert keyboard.presses <= 55


def test_keyboard_resends_failed_deliveries(
    keyboard: Keyboard, live_app: Flask, live_cast: Cast
) -> None:
    page = keyboard.page
    with receiving(lambda request: (500, "not now")) as receiver:
        made = make_webhook(live_cast.alice, receiver.url, collection="articles")
        for title in ("one", "two"):
            make_record(live_cast.alice, "articles", title=title)
        deliver(live_app)
        keyboard.sign_in(live_cast.alice)
        keyboard.go("g", "w")
        keyboard.skip()
        keyboard.tab_to(page.get_by_role("rowheader").get_by_role("link"))
        keyboard.go("Enter")
        keyboard.skip()
        keyboard.tab_to(page.get_by_role("button", name="Resend all 2"))
        keyboard.submit()
        expect(page.get_by_role("heading", name="Resent deliveries")).to_be_focused()
        receiver.answer = lambda request: (200, "thank you")
        run_jobs(live_app)
        deliver(live_app)
        expect(page.get_by_text("All succeeded.")).to_be_visible()
    assert live_cast.alice.delete(f"webhooks/{made['id']}").status_code == 204
    assert keyboard.presses <= 27


def test_keyboard_builds_and_runs_workflow(
    keyboard: Keyboard, live_app: Flask, live_cast: Cast
) -> None:
    page = keyboard.page
    keyboard.sign_in(live_cast.alice)
    keyboard.go("g", "f")
    keyboard.go("n")
    keyboard.skip()
    keyboard.tab_to(page.get_by_label("Name"))
    keyboard.type("Note")
    keyboard.submit()
    keyboard.tab_to(page.get_by_label("Add a step"))
    keyboard.type("Create a record")
    keyboard.press("Tab")
    keyboard.submit()
    keyboard.tab_to(page.get_by_label("Collection"))
    keyboard.type("posts")
    keyboard.tab_to(editor(keyboard.visit, "Data"))
    keyboard.press("Control+a")
    keyboard.type('{"title": "noted"}')
    keyboard.tab_to(page.get_by_role("button", name="Save steps"))
    keyboard.submit()
    keyboard.tab_to(page.get_by_role("button", name="Run now"))
    keyboard.press("Enter")
    keyboard.tab_to(page.get_by_role("button", name="Run", exact=True))
    keyboard.submit()
    work(live_app)
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_contain_text("completed", timeout=15_000)  # the page refreshes itself
    expect(heading).to_be_focused()
    titles = [one["title"] for one in live_cast.alice.get("records/posts").json["items"]]
    assert "noted" in titles
    (made,) = live_cast.alice.get("workflows").json["items"]
    assert live_cast.alice.delete(f"workflows/{made['id']}").status_code == 204
    assert keyboard.presses <= 65


def test_keyboard_invites_user(keyboard: Keyboard, live_cast: Cast) -> None:
    page, email = keyboard.page, f"erin-{secrets.token_hex(3)}@acme.example"
    keyboard.sign_in(live_cast.alice)
    keyboard.go("g", "t")
    keyboard.go("n")
    keyboard.skip()
    keyboard.tab_to(page.get_by_label("Email"))
    keyboard.type(email)
    keyboard.press("Tab")
    keyboard.type("editor")
    keyboard.tab_to(page.get_by_role("button", name="Send invitations"))
    keyboard.submit()
    expect(page.get_by_role("status")).to_contain_text(f"to {email}")
    found = live_cast.alice.get("invitations").json["items"]
    assert [one["role"] for one in found if one["email"] == email] == ["editor"]
    assert keyboard.presses <= 12


def test_keyboard_switches_account(keyboard: Keyboard, live_cast: Cast) -> None:
    page = keyboard.page
    keyboard.sign_in(live_cast.root)
    keyboard.tab_to(page.get_by_role("button", name="All accounts. Switch"), "Shift+Tab")
    keyboard.press("Enter")
    expect(page.get_by_placeholder("Find an account")).to_be_focused()
    keyboard.type("glob")
    keyboard.submit()
    keyboard.tab_to(page.get_by_role("link", name="Globex"))
    keyboard.go("Enter")
    keyboard.go("g", "r")
    expect(page.get_by_role("button", name="Account: Globex. Switch")).to_be_visible()
    assert page.url.endswith(f"/console/records/{live_cast.charlie.account_id}")
    assert keyboard.presses <= 17
