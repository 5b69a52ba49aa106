"""The editor of rules and JSON: it completes, marks errors, and the keyboard leads through it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Visit
from tests.browser.test_console import sign_in
from tests.browser.test_people import press
from tests.builders import Cast, make_collection

SCHEMA = [
    {"name": "status", "type": "select", "options": {"choices": ["open", 'the "last"', "it's"]}},
    {"name": "before", "type": "reference", "collection": "tickets"},
    {"name": "extra", "type": "json"},
]


@pytest.fixture
def tickets(live_cast: Cast) -> Iterator[str]:
    """A collection, gone again afterwards."""
    id = make_collection(live_cast.root, "tickets", SCHEMA)["id"]
    yield id
    assert live_cast.root.delete(f"collections/{id}").status_code == 200


def view_rule(visit: Visit, tickets: str) -> Locator:
    """The editor of the rule for viewing."""
    visit.page.goto(f"/console/collections/{tickets}/rules")
    view = visit.page.get_by_role("region", name="View", exact=True)
    view.get_by_label("Who may view").select_option("whoever an expression allows")
    return editor(visit, "Expression to view by")


def editor(visit: Visit, label: str) -> Locator:
    """The editor with a label, once it is there."""
    return visit.page.locator(".cm-content").and_(visit.page.get_by_label(label))


def complete(visit: Visit, text: str, choice: str) -> None:
    """Type a text, and take a completion by keyboard."""
    visit.page.keyboard.type(text)
    offered = visit.page.get_by_role("listbox", name="Completions").get_by_role("option")
    expect(offered.filter(has_text=choice)).to_be_visible()
    names = offered.locator(".cm-completionLabel").all_inner_texts()
    visit.page.wait_for_timeout(100)  # the editor takes no key for a list that has just appeared
    for _ in range(names.index(choice)):
        visit.page.keyboard.press("ArrowDown")
    visit.page.keyboard.press("Enter")
    expect(offered).to_have_count(0)


def test_rule_editor_completes_names_and_marks_errors(
    visit: Visit, live_cast: Cast, tickets: str, axe: str
) -> None:
    page = visit.page
    sign_in(visit, live_cast.root)
    text, field = view_rule(visit, tickets), page.locator("[name=view_rule]")
    page.locator("label[for=view_rule]").click()
    expect(text).to_be_focused()
    complete(visit, "@ow", "@owns_record")
    complete(visit, " || be", "before")
    complete(visit, ".st", "status")
    complete(visit, " = '", "it's")
    page.keyboard.type(" && when > 3")
    expect(field).to_have_value(r"@owns_record() || before.status = 'it\'s' && when > 3")
    expect(text.locator(".tok-macroName")).to_have_text("@owns_record")
    expect(text.locator(".tok-string")).to_have_text([r"'it\'s'"])
    expect(text.locator(".cm-lintRange-error")).to_have_text("when")
    expect(text).to_have_attribute("aria-invalid", "true")
    expect(text).to_have_accessible_description(re.compile("There is no field when"))
    text.locator(".cm-lintRange-error").hover()
    expect(page.get_by_role("tooltip").or_(page.locator(".cm-tooltip-lint"))).to_have_text(
        "There is no field when."
    )
    # A short list: axe-core does not know that arrow keys scroll a long one.
    page.keyboard.type(" && @has")
    expect(page.get_by_role("listbox", name="Completions")).to_be_visible()
    for scheme in ("light", "dark"):
        visit.wear(scheme, {"width": 1280, "height": 800})
        visit.check_accessible(axe)
    visit.check_quiet_and_at_home()


def test_rule_editor_can_be_left_by_keyboard_and_submits_value(
    visit: Visit, live_cast: Cast, tickets: str
) -> None:
    page = visit.page
    sign_in(visit, live_cast.root)
    text = view_rule(visit, tickets)
    text.click()
    page.keyboard.type("status = 'open'")
    page.keyboard.press("Tab")
    expect(page.locator("[name=view_which]")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(text).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("true && status = null")
    page.keyboard.press("Control+z")
    expect(page.locator("[name=view_rule]")).to_have_value("status = 'open'")
    page.locator("[name=view_rule]").fill("status = 'open' && before = null")
    expect(text).to_have_text("status = 'open' && before = null")
    press(visit, "Save")
    expect(page.get_by_role("status")).to_have_text("The rules of tickets are saved.")
    saved = live_cast.root.get("collections/tickets/rules").json["view_rule"]
    assert saved == "status = 'open' && before = null"
    visit.check_quiet_and_at_home()


def test_json_editor_marks_server_error_position(
    visit: Visit, live_cast: Cast, tickets: str
) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    live_cast.root.put("collections/tickets/rules", {"create_rule": "true", "view_rule": "true"})
    page.goto(f"/console/records/{live_cast.alice.account_id}/tickets/new")
    text = editor(visit, "extra")
    text.click()
    page.keyboard.type('{"é😀": [1,\n"two", what]}')
    expect(text.locator(".cm-lintRange-error")).to_have_text("what")
    expect(page.locator("#f_extra-verdict")).to_have_text(
        "Line 2, column 10: expected a JSON value."
    )
    expect(text.locator(".tok-number")).to_have_text("1")
    press(visit, "Create record")
    expect(text.locator(".cm-lintRange-error")).to_have_text("what")
    page.locator("[name=f_extra]").fill('{"two": [2]}')
    expect(page.locator("#f_extra-verdict")).to_have_text("Valid JSON.")
    press(visit, "Create record")
    expect(page.locator(".alert[role=status]")).to_contain_text("The record is created.")
    (record,) = live_cast.alice.get("records/tickets").json["items"]
    assert record["extra"] == {"two": [2]}
