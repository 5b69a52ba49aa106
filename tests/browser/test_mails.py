"""The pages of texts of mails: a preview beside the form, which stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from flask import Flask
from playwright.sync_api import expect

from tests.browser.conftest import WITHOUT_SCRIPTS_TOO, Visit
from tests.browser.test_console import sign_in
from tests.browser.test_people import fill, press
from tests.builders import Cast

LINK = "{{ link }}"


def test_pages_of_mails_fit_and_are_accessible(
    visit: Visit,
    look: Callable[[str], None],
    live_app: Flask,
    live_cast: Cast,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = live_app.extensions["atrium.config"]
    changed = replace(settings, mail_spf=("include:spf.service.example",))
    monkeypatch.setitem(live_app.extensions, "atrium.config", changed)
    live_cast.root.put("product", {"accounts_may_brand": True})
    sign_in(visit, live_cast.alice)
    path = f"/console/settings/{live_cast.alice.account_id}/mails"
    for name, at in (("mails", path), ("mail-text", f"{path}/invitation/en")):
        visit.page.goto(at)
        look(name)
    visit.check_quiet_and_at_home()


@WITHOUT_SCRIPTS_TOO
def test_text_of_a_mail_is_previewed_beside_its_form(visit: Visit, live_cast: Cast) -> None:
    page = visit.page
    live_cast.alice.delete("account/mail-templates/magic_link/en")
    live_cast.root.put("product", {"accounts_may_brand": True})
    sign_in(visit, live_cast.alice)
    page.goto(f"/console/settings/{live_cast.alice.account_id}/mails/magic_link/en")
    shown = page.frame_locator("iframe[name=preview]").locator("body")
    expect(shown).to_contain_text("Follow this link to sign in")
    fill(visit, text=f"Welcome to {{{{ account.name }}}}:\n\n{LINK}")
    press(visit, "Preview")
    expect(shown).to_contain_text("Welcome to Acme")
    fill(visit, text=f"See www.evil.example {LINK}")
    press(visit, "Preview")
    expect(shown).to_contain_text("Mail programs would make a link")
    fill(visit, text=f"Come in:\n\n{LINK}")
    press(visit, "Save")
    expect(page.locator("body")).to_contain_text("The text is saved.")
    expect(shown).to_contain_text("Come in")
    press(visit, "Mail it to me")
    expect(page.locator("body")).to_contain_text("An example is on its way")
    visit.check_quiet_and_at_home()
