"""Portals in a real browser: alone, and in a frame of a page that the account allows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from flask import Flask
from playwright.sync_api import Browser, FrameLocator, Page, expect
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from app.auth.portals import PortalPage
from tests import builders
from tests.browser.conftest import NARROW, WIDE, visiting
from tests.browser.test_every_page import look
from tests.builders import Cast
from tests.conftest import WHOLE, make_app, settings_for
from tests.console import furnished
from tests.project import free_port
from tests.serving import serving

FRAME = '<!doctype html><h1>Product</h1><iframe src="{}" width="1000" height="700"></iframe>'


@dataclass
class House:
    """A furnished application, and pages of two other sites."""

    app: Flask
    cast: Cast
    url: str
    allowed: str
    other: str

    def portal(self, *pages: str) -> str:
        """The address of a new portal of alice."""
        body = {"pages": list(pages), "return_url": f"{self.allowed}/back"}
        answer = self.cast.alice.post("account/portal-sessions", body)
        assert answer.status_code == 201, answer.json
        return str(answer.json["url"])


@Request.application
def product(request: Request) -> Response:
    """A page of the product, with a frame if the query names one."""
    framed = request.args.get("frame")
    return Response(FRAME.format(framed) if framed else "<h1>Back</h1>", mimetype="text/html")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """The application at 127.0.0.1, and the product at localhost: another site."""
    folder = tmp_path_factory.mktemp("portals")
    servers = [make_server("localhost", 0, product, threaded=True) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    allowed, other = (f"http://localhost:{server.port}" for server in servers)
    app = make_app(settings_for("sqlite", folder, base_url=f"http://127.0.0.1:{free_port()}"))
    cast = builders.make_cast(app)
    furnished.furnish(app, cast)
    cast.root.put("product", {"name": "Helpdesk", "accent_color": "#7c3aed"})
    cast.alice.put("account/brand", {"name": None})
    settings = {"frame_ancestors": [allowed], "allowed_redirect_uris": [f"{allowed}/back"]}
    assert cast.alice.patch("account", settings).status_code == 200
    with serving(app) as url:
        yield House(app, cast, url, allowed, other)
    for server in servers:
        server.shutdown()


def framed(page: Page, origin: str, address: str) -> FrameLocator:
    """Open a page of the product that frames an address."""
    page.goto(f"{origin}/?frame={address}")
    return page.frame_locator("iframe")


def test_portal_works_in_a_frame_of_an_allowed_origin(browser: Browser, house: House) -> None:
    page = browser.new_page()
    frame = framed(page, house.allowed, house.portal("team", "usage"))
    expect(frame.get_by_role("heading", name="Team")).to_be_visible()
    frame.get_by_role("link", name="Invite people").first.click()
    frame.get_by_label("Email addresses").fill("framed@acme.example")
    frame.get_by_role("button", name="Send invitations").click()
    expect(frame.get_by_text("We have sent an invitation to framed@acme.example.")).to_be_visible()
    frame.get_by_role("navigation", name="Administration").get_by_role("link", name="Usage").click()
    expect(frame.get_by_role("heading", name="Usage")).to_be_visible()
    frame.get_by_role("link", name="Back to Helpdesk").click()
    page.wait_for_url(f"{house.allowed}/back")
    page.close()


def test_portal_is_refused_in_a_frame_of_another_origin(browser: Browser, house: House) -> None:
    address = house.portal("team")
    page = browser.new_page()
    messages = list[str]()
    page.on("console", lambda message: messages.append(message.text))
    frame = framed(page, house.other, address)
    page.wait_for_load_state("networkidle")
    expect(frame.get_by_role("heading", name="Team")).to_have_count(0)
    assert any("frame-ancestors" in text for text in messages), messages
    page.close()


def test_pages_of_the_console_are_refused_in_every_frame(browser: Browser, house: House) -> None:
    page = browser.new_page()
    frame = framed(page, house.allowed, f"{house.url}/console/sign-in")
    page.wait_for_load_state("networkidle")
    expect(frame.get_by_role("button", name="Sign in")).to_have_count(0)
    page.close()


def test_cookie_of_a_framed_portal_is_of_that_site_only(browser: Browser, house: House) -> None:
    context = browser.new_context()
    page = context.new_page()
    frame = framed(page, house.allowed, house.portal("team"))
    expect(frame.get_by_role("heading", name="Team")).to_be_visible()
    inside = page.frames[1].url
    alone = context.new_page()
    answer = alone.goto(inside)
    assert answer is not None
    assert answer.status == 401
    expect(alone.get_by_text("This page has expired")).to_be_visible()
    context.close()


@WHOLE
def test_portal_pages_are_accessible_and_fit(
    browser: Browser, axe: str, house: House, whole: bool
) -> None:
    with visiting(browser, house.url) as visit:
        visit.page.goto(house.portal(*PortalPage))
        tabs = visit.page.get_by_role("navigation", name="Administration").get_by_role("link")
        addresses = [one.get_attribute("href") or "" for one in tabs.all()]
        assert len(addresses) == len(PortalPage)
        for name, address in zip(PortalPage, addresses, strict=True):
            answer = visit.page.goto(address)
            assert answer is not None
            assert answer.ok, address
            look(visit, axe, f"portal-{name}", whole=whole)
        visit.check_quiet_and_at_home()


def test_ended_portal_page_is_accessible_and_leads_back(
    browser: Browser, axe: str, house: House
) -> None:
    address = house.portal("team")
    with visiting(browser, house.url) as visit:
        visit.page.goto(address)
        visit.page.goto(address)
        expect(visit.page.get_by_role("heading", name="Open this page again")).to_be_visible()
        visit.faults.clear()  # the refusal was meant
        for scheme, size in (("light", WIDE), ("dark", NARROW)):
            visit.check_worn("portal-ended", scheme, size)
            visit.check_accessible(axe)


def test_portal_works_without_scripts_and_by_keyboard(browser: Browser, house: House) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(house.portal("team", "domains"))
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_in_viewport()
    tabs = page.get_by_role("navigation", name="Administration")
    tabs.get_by_role("link", name="Domains").focus()
    page.keyboard.press("Enter")
    page.get_by_role("textbox", name="Domain").fill("keyboard.example")
    page.keyboard.press("Enter")
    expect(page.get_by_text("keyboard.example is added")).to_be_visible()
    context.close()
