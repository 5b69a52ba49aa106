"""A page of an extension in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import visiting
from tests.browser.test_every_page import look, sign_in
from tests.extensions.folders import Extended, extended
from tests.project import free_port
from tests.serving import serving


@pytest.fixture(scope="module")
def shop() -> Iterator[tuple[Extended, str]]:
    """An application with the extension shop, and its address."""
    address = {"base_url": f"http://127.0.0.1:{free_port()}"}
    with extended("sqlite", "shop", changes=address) as one, serving(one.app) as url:
        yield one, url


def test_page_of_an_extension_looks_and_works_like_the_console(
    browser: Browser, axe: str, shop: tuple[Extended, str]
) -> None:
    one, url = shop
    with visiting(browser, url) as visit:
        page = visit.page
        sign_in(visit, one.cast.alice)
        page.get_by_role("link", name="Prices").click()
        expect(page.get_by_role("heading", name="Prices")).to_be_visible()
        page.get_by_label("Article").fill("<script>alert(1)</script>")
        page.get_by_label("Amount").fill("2.5")
        page.get_by_role("button", name="Add a price").click()
        expect(page.get_by_text("Price added.")).to_be_visible()
        spacing = page.locator(".prices td").first.evaluate(
            "e => getComputedStyle(e).letterSpacing"
        )
        assert spacing == "3px"  # its own style sheet
        look(visit, axe, "extension", whole=False)
        page.get_by_role("link", name="<script>alert(1)</script>").click()
        page.get_by_role("navigation", name="Breadcrumb").get_by_role("link", name="Prices").click()
        expect(page.get_by_role("heading", name="Prices")).to_be_visible()
        visit.check_quiet_and_at_home()
