"""Pages in German, whose words are longer: they fit, and keep nobody out."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from tests.browser.conftest import NARROW, WIDE, Visit, visiting
from tests.builders import PASSWORD, Cast


def check_page(visit: Visit, axe: str, path: str) -> None:
    """Look at a page in two windows."""
    visit.page.goto(f"/console/{path}")
    expect(visit.page.locator("html")).to_have_attribute("lang", "de")
    for scheme, size in (("light", WIDE), ("dark", NARROW)):
        visit.check_worn(f"german-{path}", scheme, size)
        visit.check_accessible(axe)
    visit.wear("light", WIDE)


def test_console_pages_in_german_fit_and_are_accessible(
    browser: Browser, live_server_url: str, live_cast: Cast, axe: str
) -> None:
    alice = live_cast.alice
    # Each with inputs: an editor, a table and a form.
    paths = [f"workflows/{alice.account_id}/workflow/new", f"records/{alice.account_id}/posts"]
    with visiting(browser, live_server_url, locale="de-AT") as visit:
        check_page(visit, axe, "sign-in")
        form = {"account": alice.slug, "email": alice.email, "password": PASSWORD}
        for name, value in form.items():
            visit.page.locator(f"[name={name}]").fill(value)
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_url("**/console")
        for path in ("profile", "team/invite", *paths):
            check_page(visit, axe, path)
        visit.check_quiet_and_at_home()
