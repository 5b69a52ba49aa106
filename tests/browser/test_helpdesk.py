"""The page of `examples/helpdesk`, of another origin than the service: staff and a customer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from werkzeug.middleware.shared_data import SharedDataMiddleware
from werkzeug.serving import make_server
from werkzeug.wrappers import Response

from tests import builders
from tests.conftest import make_app, settings_for
from tests.manifest.manifests import applied
from tests.project import PROJECT, free_port
from tests.serving import serving

FOLDER = PROJECT / "examples" / "helpdesk"
Open = Callable[[str], Page]


@pytest.fixture
def sign_in(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens the page as one of acme: agent@ or ann@acme.example."""
    pages = SharedDataMiddleware(Response(status=404), {"/": str(FOLDER)})
    server = make_server("127.0.0.1", 0, pages, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{server.port}"
    base_url = f"http://127.0.0.1:{free_port()}"
    app = make_app(settings_for("sqlite", tmp_path, base_url=base_url, cors_origins=(origin,)))
    cast = builders.make_cast(app)
    applied(cast.root, (FOLDER / "atrium.yaml").read_text())
    ids = {
        role: builders.make_user(app, cast.alice.account_id, f"{name}@acme.example", role).id
        for name, role in (("agent", "agent"), ("ann", "customer"))
    }
    root = cast.root.acting_in("acme")
    builders.make_record(root, "companies", name="Tyrell", members=[ids["customer"]])

    def open_page(email: str) -> Page:
        page = browser.new_page()
        page.goto(f"{origin}/index.html?api={url}/api/v1")
        page.get_by_label("Account").fill("acme")
        page.get_by_label("Email address").fill(email)
        page.get_by_label("Password").fill(builders.PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("button", name="Open a ticket")).to_be_visible()
        return page

    with serving(app) as url:
        yield open_page
    server.shutdown()


def test_customer_opens_ticket_that_agent_takes_and_answers(sign_in: Open) -> None:
    customer = sign_in("ann@acme.example")
    customer.get_by_label("Title").fill("The printer burns")
    customer.get_by_role("button", name="Open a ticket").click()
    ticket = customer.get_by_role("article")
    expect(ticket).to_contain_text("Tyrell · open · by you · assigned to nobody")

    agent = sign_in("agent@acme.example")
    taken = agent.get_by_role("article")
    taken.get_by_label("assignee of The printer burns").select_option("you")
    taken.get_by_label("status of The printer burns").select_option("pending")
    expect(taken).to_contain_text("pending")
    taken.get_by_text("Comments").click()
    for text, is_internal in (("It is old.", True), ("Help is on its way.", False)):
        taken.get_by_label("Comment", exact=True).fill(text)
        if is_internal:
            taken.get_by_label("Internal").check()
        taken.get_by_role("button", name="Comment").click()
        expect(taken.get_by_role("paragraph").filter(has_text=text)).to_be_visible()

    # The customer's page hears of it, and shows what is meant for customers.
    expect(ticket).to_contain_text("pending", timeout=10_000)
    expect(ticket.get_by_role("combobox")).to_have_count(0)
    ticket.get_by_text("Comments").click()
    expect(ticket.get_by_role("paragraph")).to_have_text(["support: Help is on its way."])
