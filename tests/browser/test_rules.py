"""A superadmin edits rules in a real browser: told of mistakes, shown the effect, and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Visit
from tests.browser.test_console import sign_in
from tests.browser.test_people import CAN_BE_PRESSED, FOCUSED, fill, press
from tests.builders import Cast, make_collection, make_record

WRONG, MENDED = "@owns_record() || stat = 'open'", "@owns_record() || status = 'open'"
SCHEMA = [
    {"name": "status", "type": "text", "required": True},
    {"name": "email", "type": "email", "pii": True, "mask_type": "email"},
    {"name": "before", "type": "reference", "collection": "tickets"},
    {"name": "loud", "type": "computed", "return_type": "text", "expression": "upper(status)"},
]

OF_THE_KEYBOARD = """all => all.filter(one => one.type !== "radio" || one.checked)
  .map(one => one.outerHTML)"""


@pytest.fixture
def tickets(live_cast: Cast) -> Iterator[dict[str, str]]:
    """A collection with a record of alice and one of bob; gone again afterwards."""
    made = make_collection(live_cast.root, "tickets", SCHEMA)
    ids = {"id": made["id"]}
    for name, status in (("alice", "closed"), ("bob", "open")):
        ids[name] = make_record(getattr(live_cast, name), "tickets", status=status)["id"]
    yield ids
    assert live_cast.root.delete(f"collections/{made['id']}").status_code == 200


def operation(visit: Visit, name: str) -> Locator:
    """The part of the editor for one operation."""
    return visit.page.get_by_role("region", name=name, exact=True)


def choose(visit: Visit, name: str, text: str, option: str) -> None:
    """Choose what a search finds."""
    combobox = visit.page.get_by_role("combobox", name=name)
    combobox.press_sequentially(text)
    left = "one => one.getBoundingClientRect().left"
    assert visit.page.get_by_role("listbox").evaluate(left) == combobox.evaluate(left)
    visit.page.get_by_role("option").filter(has_text=option).click()
    expect(visit.page.get_by_role("listbox")).to_have_count(0)


def test_rule_editor_reports_mistake_previews_and_explains(
    visit: Visit, live_cast: Cast, tickets: dict[str, str]
) -> None:
    page = visit.page
    sign_in(visit, live_cast.root)
    page.get_by_role("link", name="Collections", exact=True).click()
    page.get_by_role("link", name="tickets").click()
    page.get_by_role("link", name="Edit rules").click()
    view = operation(visit, "View")
    text, verdict = view.get_by_role("textbox"), page.locator("#view_rule-verdict")
    expect(text).to_be_hidden()
    view.get_by_label("Who may view").select_option("whoever an expression allows")
    text.press_sequentially(WRONG)
    expect(verdict).to_contain_text("There is no field stat.")
    expect(verdict.locator("mark")).to_have_text("stat")
    expect(text).to_have_attribute("aria-invalid", "true")
    expect(verdict).to_have_attribute("aria-live", "polite")
    text.press("ControlOrMeta+a")
    text.press("Delete")  # Chromium would copy the style of what it replaces, which the CSP refuses
    page.keyboard.insert_text(MENDED)
    expect(verdict).to_have_text("Valid rule.")
    expect(text).to_have_attribute("aria-invalid", "false")
    press(visit, "Preview")
    lost = page.get_by_role("region", name="Records gained and lost")
    viewers = lost.get_by_role("row").filter(has=page.get_by_role("rowheader", name="viewer"))
    expect(viewers).to_contain_text("view")
    viewers.locator("summary").click()
    expect(viewers.get_by_text(tickets["alice"])).to_be_visible()
    expect(page.locator("[name=view_rule]")).to_have_value(MENDED)
    press(visit, "Save these rules")
    expect(page.get_by_role("status")).to_have_text("The rules of tickets are saved.")
    assert live_cast.bob.get(f"records/tickets/{tickets['alice']}").status_code == 404
    page.get_by_role("link", name="Explain").click()
    choose(visit, "Account", "acm", "Acme (")
    choose(visit, "User", "bob", live_cast.bob.email)
    page.get_by_role("combobox", name="Record").fill(tickets["alice"])
    press(visit, "Explain")
    expect(page.get_by_role("heading", name="not allowed")).to_be_visible()
    expect(page.locator("main mark")).to_have_text(MENDED)
    expect(page.get_by_role("combobox", name="Account")).to_have_value(re.compile("^Acme"))
    page.get_by_role("combobox", name="Record").fill(tickets["bob"])
    press(visit, "Explain")
    expect(page.locator("main mark")).to_have_text("@owns_record()")
    visit.check_quiet_and_at_home()


def test_rule_editor_works_without_scripts(
    visit: Visit, live_cast: Cast, tickets: dict[str, str]
) -> None:
    context = visit.page.context.browser.new_context(  # type: ignore[union-attr]
        java_script_enabled=False, base_url=live_cast.root.app.extensions["atrium.config"].base_url
    )
    without = Visit(context.new_page())
    sign_in(without, live_cast.root)
    without.page.goto(f"/console/collections/{tickets['id']}/rules")
    operation(without, "List").get_by_label("Who may list").select_option("expression")
    fill(without, list_rule=WRONG)
    press(without, "Preview")
    expect(without.page.locator("#list_rule-error")).to_have_text("There is no field stat.")
    fill(without, list_rule=MENDED)
    press(without, "Preview")
    press(without, "Save these rules")
    expect(without.page.get_by_role("status")).to_contain_text("are saved")
    context.close()
    saved = live_cast.root.get("collections/tickets/rules").json
    assert (saved["list_rule"], saved["view_rule"]) == (MENDED, "true")


def test_rule_editor_after_session_end_shows_no_verdict(
    visit: Visit, live_cast: Cast, tickets: dict[str, str]
) -> None:
    sign_in(visit, live_cast.root)
    visit.page.goto(f"/console/collections/{tickets['id']}/rules")
    view = operation(visit, "View")
    view.get_by_label("Who may view").select_option("whoever an expression allows")
    visit.page.context.clear_cookies()
    view.get_by_role("textbox").fill(WRONG)
    expect(visit.page.locator("#view_rule-verdict")).to_contain_text("Validation is unavailable")


def test_rule_form_responses_are_accessible_and_fit(
    visit: Visit, live_cast: Cast, tickets: dict[str, str], look: Callable[[str], None]
) -> None:
    page = visit.page
    sign_in(visit, live_cast.root)
    one = f"/console/collections/{tickets['id']}"
    page.goto(f"{one}/rules")
    for summary in page.locator("main summary").all():
        summary.click()
    operation(visit, "View").get_by_label("Fields to show").select_option("only some")
    for name in ("View", "Update"):
        who = operation(visit, name).get_by_label(f"Who may {name.lower()}")
        who.select_option("whoever an expression allows")
    fill(visit, view_rule=MENDED, update_rule=f"{MENDED} && nope = 1")
    expect(page.locator("#update_rule-verdict mark")).to_have_text("nope")
    look("typed")
    press(visit, "Preview")
    look("refused")
    fill(visit, update_rule=MENDED)
    press(visit, "Preview")
    page.locator(".sample summary").first.click()
    look("preview")
    press(visit, "Save these rules")
    look("one-changed")
    page.goto(f"{one}/explain?record_id={tickets['alice']}")
    page.get_by_role("combobox", name="Account").fill("acme")
    page.get_by_role("combobox", name="User").fill("nobody@acme.example")
    press(visit, "Explain")
    look("explain-refused")
    page.get_by_role("combobox", name="User").fill(live_cast.bob.email)
    press(visit, "Explain")
    page.get_by_text("SQL query").click()
    look("explained")


@pytest.mark.parametrize("path", ["", "/rules", "/explain"])
def test_rule_page_controls_are_reachable_by_keyboard(
    visit: Visit, live_cast: Cast, tickets: dict[str, str], path: str
) -> None:
    sign_in(visit, live_cast.root)
    visit.page.goto(f"/console/collections/{tickets['id']}{path}")
    # Of radio buttons, the keyboard goes to the chosen one; the arrows lead to the others.
    wanted = visit.page.locator(CAN_BE_PRESSED).locator("visible=true")
    reached: list[str | None] = []
    while not reached or reached[-1]:
        visit.page.keyboard.press("Tab")
        html, shown = visit.page.evaluate(FOCUSED)
        assert shown or html is None, html
        reached.append(html)
    expected = wanted.evaluate_all(OF_THE_KEYBOARD)
    assert expected != []
    assert [html for html in expected if html not in reached] == []


def test_rule_field_list_starts_with_all_fields(
    visit: Visit, live_cast: Cast, tickets: dict[str, str]
) -> None:
    sign_in(visit, live_cast.root)
    visit.page.goto(f"/console/collections/{tickets['id']}/rules")
    part = operation(visit, "List")
    boxes, chosen = part.get_by_role("checkbox"), part.locator(":checked:is([type=checkbox])")
    expect(boxes).to_have_count(0)
    part.get_by_label("Fields to show").select_option("only some")
    expect(boxes).to_have_count(len(SCHEMA))
    expect(chosen).to_have_count(len(SCHEMA))
    part.get_by_role("button", name="None").click()
    expect(chosen).to_have_count(0)
    part.get_by_label("status").check()
    expect(chosen).to_have_count(1)
    part.get_by_role("button", name="All").click()
    expect(chosen).to_have_count(len(SCHEMA))
    visit.check_quiet_and_at_home()
