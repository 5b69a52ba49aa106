"""Times as what has passed since, exact in the zone of the browser; in UTC without JavaScript."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import visiting
from tests.browser.test_console import sign_in
from tests.builders import PASSWORD, Cast, make_collection, make_record


@pytest.mark.parametrize("scripts", [True, False])
def test_times_are_shown_in_browser_time_zone(
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


HOUR, DAY = 3600, 86400
DATE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d UTC$")
# What is shown so many seconds after a moment.
SINCE = [
    (-50, "within a minute"),
    (-1, "just now"),
    (50, "just now"),
    (70, "1 minute ago"),
    (23 * HOUR, "23 hours ago"),
    (DAY + 5, "yesterday"),
    (6 * DAY + 23 * HOUR, re.compile("[67] days ago")),
    (-50 * 60, "in 50 minutes"),
    (-HOUR - 5, DATE),
    (5 - 2 * DAY, DATE),
]


def test_relative_days_follow_the_calendar_and_future_times_show_dates(
    browser: Browser, live_server_url: str, live_cast: Cast
) -> None:
    with visiting(browser, live_server_url, timezone_id="UTC") as visit:
        page = visit.page
        sign_in(visit, live_cast.alice)
        shown = page.locator("main li time").first
        moment = datetime.fromisoformat(str(shown.get_attribute("datetime")))
        day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        hours = (moment - day) / timedelta(hours=1)
        for now, text in [
            *((moment + timedelta(seconds=seconds), text) for seconds, text in SINCE),
            (day + timedelta(days=1, hours=23.99), "yesterday" if hours < 23.9 else "23 hours ago"),
            (day + timedelta(days=2, hours=max(hours - 1, 0.1)), "2 days ago"),
        ]:
            page.clock.set_fixed_time(now)
            page.goto("/console")
            expect(shown).to_have_text(text)
        visit.check_quiet_and_at_home()


@pytest.mark.parametrize("scripts", [True, False])
def test_datetime_inputs_use_browser_time_zone(
    browser: Browser, live_server_url: str, live_cast: Cast, scripts: bool
) -> None:
    fields = [{"name": "title", "type": "text"}, {"name": "at", "type": "datetime"}]
    made = make_collection(live_cast.root, "meetings", fields)["id"]
    alice, winter = live_cast.alice, "2026-01-20T12:00:00.120456Z"
    record = make_record(alice, "meetings", title="a", at=winter)["id"]
    place = f"/console/records/{alice.account_id}/meetings"

    def stored() -> object:
        return alice.get(f"records/meetings/{record}").json["at"]

    zone = {"timezone_id": "America/New_York", "java_script_enabled": scripts}
    with visiting(browser, live_server_url, **zone) as visit:
        page = visit.page
        sign_in(visit, alice)
        page.goto(f"{place}/{record}")
        at = page.get_by_label("at (America/New_York)" if scripts else "at (UTC)", exact=True)
        hour = "07" if scripts else "12"
        expect(at).to_have_value(re.compile(f"2026-01-20T{hour}:00:00.120?"))
        page.locator("[name=f_title]").fill("b")
        page.get_by_role("button", name="Save").click()
        expect(page.locator(".alert[role=status]")).to_have_text("The record is saved.")
        assert stored() == winter  # to the microsecond
        # In summer, the same zone has another offset.
        at.fill("2026-07-01T09:15")
        page.get_by_role("button", name="Save").click()
        expect(at).to_have_value(re.compile("2026-07-01T09:15(:00)?"))
        assert stored() == f"2026-07-01T{13 if scripts else 9:02}:15:00.000000Z"
        # A clock that is set back shows 01:30 twice: the second one stays the second one.
        assert (
            alice.patch(f"records/meetings/{record}", {"at": "2026-11-01T06:30:00Z"}).status_code
            == 200
        )
        page.goto(place)
        page.get_by_role("link", name="Edit b").click()
        expect(at).to_have_value(re.compile("2026-11-01T01:30" if scripts else "2026-11-01T06:30"))
        page.locator("[name=f_title]").fill("c")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.locator("[data-toast], .alert[role=status]").first).to_have_text(
            "The record is saved."
        )
        assert stored() == "2026-11-01T06:30:00.000000Z"
        at_new = f"{place}/new"
        page.goto(at_new)
        expect(at).to_have_value("")
        page.locator("[name=f_title]").fill("d")
        at.fill("2026-07-01T09:15")
        page.get_by_role("button", name="Create record").click()
        page.wait_for_url(re.compile(f"{place}/[0-9a-f-]{{36}}"))
        expect(at).to_have_value(re.compile("2026-07-01T09:15"))
        visit.check_quiet_and_at_home()
    assert live_cast.root.delete(f"collections/{made}").status_code == 200
