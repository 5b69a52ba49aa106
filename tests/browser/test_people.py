"""An admin's and a superadmin's day in a real browser: people, keys, the own profile."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable

import pytest
from flask import Flask
from playwright.sync_api import expect

from tests.browser.conftest import WITHOUT_SCRIPTS_TOO, Visit
from tests.browser.test_console import sign_in
from tests.builders import Cast
from tests.mailbox import link_in, outbox, run_jobs

KEY = re.compile(r"svc_sk_AA0001_[A-Za-z0-9]{32}")


def fill(visit: Visit, **values: str) -> None:
    """Fill in the fields with these names."""
    for name, value in values.items():
        visit.page.locator(f"[name={name}]").fill(value)


def press(visit: Visit, name: str) -> None:
    if name == "Sign out":
        visit.page.get_by_role("button", name="your menu").click()
    named = {"name": name, "exact": True}
    button, link = (visit.page.get_by_role(role, **named) for role in ("button", "link"))
    button.or_(link).first.click()


@WITHOUT_SCRIPTS_TOO
def test_console_admin_invites_creates_key_and_edits_profile(
    visit: Visit, live_app: Flask, live_cast: Cast
) -> None:
    page, new = visit.page, secrets.token_hex(3)
    email, name = f"dora-{new}@acme.example", f"import {new}"
    sign_in(visit, live_cast.alice)
    page.get_by_role("link", name="Team").click()
    press(visit, "Invite people")
    fill(visit, email=email)
    page.get_by_label("Role").select_option("editor")
    press(visit, "Send invitations")
    expect(page.get_by_role("status")).to_contain_text(f"to {email}")
    page.get_by_role("link", name="API keys").click()
    press(visit, "New key")
    fill(visit, name=name)
    press(visit, "Create key")
    expect(page.get_by_label(name)).to_have_value(KEY)
    page.reload()
    expect(page.get_by_role("status")).to_contain_text("has already been shown")
    expect(page.get_by_role("rowheader", name=name)).to_have_count(1)
    page.get_by_text("Revoke…").first.click()
    press(visit, "Revoke the key")
    expect(page.get_by_role("status")).to_contain_text(f"{name} is revoked")
    page.goto("/console/profile")
    fill(visit, name="Alice <b>Liddell</b>")
    press(visit, "Save")
    expect(page.get_by_label("Name")).to_have_value("Alice <b>Liddell</b>")
    fill(visit, name="")  # as other tests know her
    press(visit, "Save")
    press(visit, "Sign out")
    run_jobs(live_app)
    page.goto(link_in(outbox(live_app)[-1]))
    fill(visit, name="Dora", password="Correct-horse-2")
    press(visit, "Join")
    expect(page.get_by_role("status").filter(has_text="Welcome to Acme.")).to_be_visible()
    page.wait_for_url("**/welcome/profile")
    page.goto("/console")
    expect(page.get_by_text("your role is editor")).to_be_visible()
    visit.check_quiet_and_at_home()


def test_console_people_form_responses_are_accessible_and_fit(
    visit: Visit, live_cast: Cast, look: Callable[[str], None]
) -> None:
    page = visit.page

    def visit_and_look(path: str) -> None:
        page.goto(f"/console/{path}")
        look(path)

    visit_and_look("nope-without-session")
    page.goto("/welcome/reset-password?token=old")
    look("reset")
    sign_in(visit, live_cast.alice)
    visit_and_look("nope")
    page.goto(f"/console/team/users/{live_cast.bob.id}")
    page.get_by_text("Deactivate…").click()
    look("member-confirm")
    page.goto("/console/groups")
    page.get_by_role("link", name="pii_access").click()
    page.get_by_role("combobox", name="User").fill("nobody@acme.example")
    press(visit, "Add")
    expect(page.get_by_role("combobox", name="User")).to_have_attribute("aria-invalid", "true")
    look("group")
    page.goto("/console/keys/new")
    fill(visit, name="nightly")
    press(visit, "Create key")
    look("key-made")
    page.goto("/console/keys")
    page.get_by_text("Revoke…").first.click()
    look("keys-confirm")
    press(visit, "Sign out")
    sign_in(visit, live_cast.root)
    page.goto(f"/console/accounts/{live_cast.alice.account_id}")
    page.get_by_text("Suspend or close the account").click()
    page.get_by_text("Close…").click()
    fill(visit, slug="globex")
    press(visit, "Close the account")
    expect(page.locator("[name=slug]")).to_have_attribute("aria-invalid", "true")
    look("account-refused")
    visit_and_look(f"accounts/{live_cast.bob.id}")


# Where the keyboard is, and whether that shows.
FOCUSED = """() => {
  const at = document.activeElement, style = getComputedStyle(at.closest(".editor") ?? at);
  return [at === document.body ? null : at.outerHTML,
          style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2]
}"""
CAN_BE_PRESSED = "main :is(a, button, input:not([type=hidden]), select, summary)"


@pytest.mark.parametrize("path", ["team", "team/invitations", "groups", "keys/new", "profile"])
def test_console_people_controls_are_reachable_by_keyboard(
    visit: Visit, live_cast: Cast, path: str
) -> None:
    sign_in(visit, live_cast.alice)
    visit.page.goto(f"/console/{path}")
    wanted = visit.page.locator(CAN_BE_PRESSED).locator("visible=true")
    count = wanted.count()
    assert count >= 1
    reached = []
    while not reached or reached[-1]:
        visit.page.keyboard.press("Tab")
        html, shown = visit.page.evaluate(FOCUSED)
        assert shown or html is None, html
        reached.append(html)
    missing = [
        html
        for html in wanted.evaluate_all("all => all.map(one => one.outerHTML)")
        if html not in reached
    ]
    assert missing == []


@WITHOUT_SCRIPTS_TOO
def test_group_member_picker_suggests_users(visit: Visit, live_app: Flask, live_cast: Cast) -> None:
    page, name = visit.page, f"group {secrets.token_hex(3)}"
    sign_in(visit, live_cast.alice)
    page.get_by_role("link", name="Groups").click()
    press(visit, "New group")
    fill(visit, name=name)
    press(visit, "Create group")
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    page.wait_for_load_state()
    if page.get_by_role("combobox", name="User").count():
        page.get_by_role("combobox", name="User").fill("bob")
        page.get_by_role("option", name=live_cast.bob.email).click()
    else:
        fill(visit, email=live_cast.bob.email)
    press(visit, "Add")
    expect(page.get_by_role("rowheader", name=live_cast.bob.email)).to_have_count(1)
    page.wait_for_load_state()
    if page.get_by_role("combobox", name="User").count():  # an address may be typed in full
        page.get_by_role("combobox", name="User").fill(live_cast.alice.email)
        page.keyboard.press("Tab")
        press(visit, "Add")
        expect(page.get_by_role("rowheader", name=live_cast.alice.email)).to_have_count(1)
