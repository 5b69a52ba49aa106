"""Times as what has passed since, exact in the zone of the browser; in UTC without JavaScript."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import visiting
from tests.browser.test_console import sign_in
from tests.builders import PASSWORD, Cast

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scripts", [True, False])
def test_times_are_told_in_the_zone_of_the_browser(
    browser: Browser, live_server_url: str, live_cast: Cast, scripts: bool
) -> None:
    zone = {"timezone_id": "Asia/Kolkata", "java_script_enabled": scripts}
    page = browser.new_page(base_url=live_server_url, **zone)  # type: ignore[arg-type]
    page.goto("/console/sign-in")
    for label, text in (("Account", "acme"), ("Email", live_cast.alice.email)):
        page.get_by_label(label).fill(text)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    time = page.locator("main li time").first
    time.wait_for()
    page.wait_for_load_state()  # by then the page's script has run
    shown, moment = time.inner_text(), time.get_attribute("datetime") or ""
    if scripts:
        assert re.fullmatch(r"just now|\d+ minutes? ago", shown)
        title = time.get_attribute("title") or ""
        assert "GMT+5:30" in title
        assert "UTC" in title
    else:
        assert shown.endswith("UTC")
        assert shown[14:16] == moment[14:16]
    page.close()


SINCE = [(-50, "within a minute"), (-1, "just now"), (50, "just now"), (70, "1 minute ago")]


def test_a_time_to_come_is_not_just_now(
    browser: Browser, live_server_url: str, live_cast: Cast
) -> None:
    with visiting(browser, live_server_url) as visit:
        page = visit.page
        sign_in(visit, live_cast.alice)
        shown = page.locator("main li time").first
        moment = datetime.fromisoformat(str(shown.get_attribute("datetime")))
        for seconds, text in SINCE:
            page.clock.set_fixed_time(moment + timedelta(seconds=seconds))
            page.goto("/console")
            expect(shown).to_have_text(text)
        visit.check_quiet_and_at_home()
