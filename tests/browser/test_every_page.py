"""Every page of the console that an address leads to: nothing sticks out, nobody is kept out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from flask import Flask
from playwright.sync_api import Browser

from app.console.shell.access import ADMIN, SUPERADMIN
from tests import builders
from tests.browser.conftest import NARROW, VISUAL_RULES, WIDE, Visit, visiting
from tests.browser.test_console import sign_in
from tests.builders import Cast
from tests.conftest import WHOLE, make_app, settings_for
from tests.console import furnished
from tests.project import free_port
from tests.serving import serving

RANKS = ("viewer", "admin", "superadmin")
LAPTOPS = ({"width": 1200, "height": 800}, {"width": 1024, "height": 800})
NO_PAGES = {"start", "export_audit_log", "export_records", "show_file", "start_sso", "finish_sso"}
NO_PAGES |= {"export_manifest", "export_readers", "export_security_events", "export_usage"}
NO_PAGES |= {"download_export", "download_certificate", "open_portal"}
NO_PAGES |= {"export_member", "export_profile"}
NO_PAGES |= {"choose_records", "show_condition", "show_options", "show_candidates"}
NO_PAGES |= {"show_account_options", "show_user_options", "show_record_options"}
# In a frame without scripts, within the editor of the text: `test_mails.py` looks at it.
NO_PAGES |= {"preview_product_mail", "preview_mail_template"}
# These lead on, or show something once: journeys look at them.
SHOWN_ONCE = {
    "show_codes",
    "show_made_key",
    "show_made_scim_token",
    "show_made_setup_link",
    "show_setup",
    "show_webhook_secret",
    "show_receiver_secret",
    "test_provider",
    "show_sign_in_link",
    "show_magic_link",
}
SIGNED_OUT = {
    "sign_in",
    "show_forgot_password",
    "show_reset_password",
    "show_invitation",
    "show_setup_link",
    "show_setup_done",
}

OF_ACME = {"show_member"}  # superadmins have their own account's, and all among the users


@dataclass
class House:
    """A furnished application, and where its pages are."""

    app: Flask
    cast: Cast
    url: str
    pages: dict[str, str]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A furnished application that is served."""
    folder = tmp_path_factory.mktemp("house")
    app = make_app(settings_for("sqlite", folder, base_url=f"http://127.0.0.1:{free_port()}"))
    cast = builders.make_cast(app)
    pages = furnished.addresses(app, furnished.furnish(app, cast))
    with serving(app) as url:
        yield House(app, cast, url, pages)


def rank(house: House, name: str) -> int:
    """The place in RANKS from which on a page is for somebody."""
    view = house.app.view_functions[f"console.{name.partition('-')[0]}"]
    role = view.page.role  # type: ignore[attr-defined]
    return {ADMIN: 1, SUPERADMIN: 2}.get(role, 0)


def pages_of(house: House, role: str) -> dict[str, str]:
    """The pages that are for a role, by name."""
    left_out = NO_PAGES | SHOWN_ONCE | SIGNED_OUT | (OF_ACME if role == "superadmin" else set())
    named = {endpoint.removeprefix("console."): path for endpoint, path in house.pages.items()}
    for view in ("shelf", "sums"):  # which group no records, and all
        named[f"show_records-{view}"] = named["show_records"].replace("/books", f"/{view}")
    named["show_record-shelf"] = named["show_record"].replace("/books", "/shelf")
    named["show_collection-view"] = named["show_view"].removesuffix("/view")
    mine = (name for name in named if rank(house, name) <= RANKS.index(role))
    return {name: named[name] for name in mine if name not in left_out}


@WHOLE
@pytest.mark.parametrize("role", ["nobody", *RANKS])
def test_console_pages_are_accessible_and_fit_for_every_role(
    browser: Browser, axe: str, house: House, role: str, whole: bool
) -> None:
    people = {"viewer": house.cast.bob, "admin": house.cast.alice, "superadmin": house.cast.root}
    with visiting(browser, house.url) as visit:
        whole = whole or visit.wants_pictures
        if role == "nobody":
            pages = {name: house.pages[f"console.{name}"] for name in SIGNED_OUT}
        else:
            sign_in(visit, people[role])
            pages = pages_of(house, role)
        # What superadmins share with admins looks the same but for its head: it only has to fit.
        shared = [name for name in pages if role == "superadmin" and rank(house, name) < 2]
        for name in () if whole else shared:
            open_page(visit, pages.pop(name))
            visit.check_worn(f"{role}-{name}", "dark", NARROW)
        for name, path in pages.items():
            open_page(visit, path)
            look(visit, axe, f"{role}-{name}", whole=whole)
        visit.check_quiet_and_at_home()


@WHOLE
def test_console_setup_pages_are_accessible_and_fit(
    browser: Browser, axe: str, house: House, whole: bool
) -> None:
    names = ("provider", "domains", "domain", "scim", "new_provider")
    with visiting(browser, house.url) as visit:
        open_page(visit, f"/console/setup/{furnished.setup_token(house.cast.alice)}")
        visit.page.get_by_role("button", name="Begin").click()
        visit.page.wait_for_url("**/console/setup")
        look(visit, axe, "holder-setup", whole=whole)
        for name in names:
            open_page(visit, house.pages[f"console.show_{name}"])
            look(visit, axe, f"holder-{name}", whole=whole)
        visit.check_quiet_and_at_home()


def open_page(visit: Visit, path: str) -> None:
    answer = visit.page.goto(path)
    assert answer is not None
    assert answer.ok, path


def look(visit: Visit, axe: str, name: str, *, whole: bool) -> None:
    """Look at the page in windows of every kind."""
    looks = [("light", WIDE), ("dark", NARROW)]
    if visit.wants_pictures:
        looks += [("light", NARROW), ("dark", WIDE), *(("light", size) for size in LAPTOPS)]
    for scheme, size in looks:
        visit.check_worn(name, scheme, size)
        visit.check_accessible(axe, () if whole or size == WIDE else VISUAL_RULES)
    for size in LAPTOPS:
        visit.page.set_viewport_size(size)
        visit.check_fits()
