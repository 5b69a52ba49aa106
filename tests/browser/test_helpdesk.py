"""The page of `examples/helpdesk`, of another origin than the service: staff and a customer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from flask import Flask
from playwright.sync_api import Browser, Page, expect
from werkzeug.middleware.shared_data import SharedDataMiddleware
from werkzeug.serving import make_server
from werkzeug.wrappers import Response

from tests import builders
from tests.conftest import make_app, settings_for
from tests.mailbox import link_in, outbox, run_jobs
from tests.manifest.manifests import applied
from tests.project import PROJECT, free_port
from tests.serving import serving
from tests.workflows.running import work

FOLDER = PROJECT / "examples" / "helpdesk"


@dataclass
class Desk:
    """The page at its own origin, and the service that it asks."""

    app: Flask
    browser: Browser
    address: str

    def visit(self, address: str = "") -> Page:
        page = self.browser.new_page()
        page.goto(address or self.address)
        return page

    def sign_in(self, email: str, account: str = "acme", *, page: Page | None = None) -> Page:
        page = page or self.visit()
        page.get_by_label("Email address").fill(email)
        page.get_by_role("button", name="Next").click()
        page.get_by_label("Account").fill(account)
        page.get_by_label("Password").fill(builders.PASSWORD)
        page.get_by_role("button", name="Sign in", exact=True).click()
        return page

    def mailed(self) -> str:
        """The page of the last mail's link, which asks this service."""
        run_jobs(self.app)
        page, _, fragment = link_in(outbox(self.app)[-1]).partition("#")
        assert page == self.address.partition("?")[0]
        return f"{self.address}#{fragment}"


@pytest.fixture
def desk(browser: Browser, tmp_path: Path) -> Iterator[Desk]:
    """The helpdesk, with an agent, ann the customer, and her company."""
    pages = SharedDataMiddleware(Response(status=404), {"/": str(FOLDER)})
    server = make_server("127.0.0.1", 0, pages, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{server.port}"
    base_url = f"http://127.0.0.1:{free_port()}"
    app = make_app(settings_for("sqlite", tmp_path, base_url=base_url, cors_origins=(origin,)))
    cast = builders.make_cast(app)
    manifest = (FOLDER / "atrium.yaml").read_text()
    applied(cast.root, manifest.replace("http://127.0.0.1:8080/", f"{origin}/index.html"))
    ids = {
        role: builders.make_user(app, cast.alice.account_id, f"{name}@acme.example", role).id
        for name, role in (("agent", "agent"), ("ann", "customer"))
    }
    root = cast.root.acting_in("acme")
    builders.make_record(root, "companies", name="Tyrell", members=[ids["customer"]])
    with serving(app) as url:
        yield Desk(app, browser, f"{origin}/index.html?api={url}/api/v1")
    server.shutdown()


def test_company_signs_up_and_invites_an_agent_on_the_products_page(desk: Desk) -> None:
    admin = desk.visit()
    admin.get_by_role("button", name="Open an account").click()
    for label, text in (
        ("Company", "Wallace Corp"),
        ("Your name", "Wanda"),
        ("Email address", "wanda@wallace.example"),
        ("Password", builders.PASSWORD),
    ):
        admin.locator("#entrance").get_by_label(label).fill(text)
    admin.get_by_role("button", name="Open an account").click()
    expect(admin.get_by_text("Look into your mailbox")).to_be_visible()

    admin = desk.visit(desk.mailed())
    admin.get_by_role("button", name="Confirm").click()
    expect(admin.get_by_text("Your address is confirmed.")).to_be_visible()
    admin.get_by_role("button", name="Sign in").click()
    desk.sign_in("wanda@wallace.example", "wallace-corp", page=admin)
    admin.get_by_label("Email address").fill("otto@wallace.example")
    admin.get_by_label("Role").select_option("agent")
    admin.get_by_role("button", name="Invite").click()
    expect(admin.get_by_role("status")).to_have_text(
        "A mail to otto@wallace.example is on its way."
    )

    admin.get_by_role("button", name="Manage the account").click()
    expect(admin.get_by_role("heading", name="Team")).to_be_visible()
    expect(admin.get_by_role("link", name="Invitations 1")).to_be_visible()
    admin.get_by_role("link", name="Back to Helpdesk").click()
    expect(admin.get_by_role("button", name="Next")).to_be_visible()

    agent = desk.visit(desk.mailed())
    work(desk.app)  # of the account template: it opens the first ticket
    expect(agent.get_by_role("heading", name="Join Wallace Corp")).to_be_visible()
    agent.get_by_label("Your name").fill("Otto")
    agent.get_by_label("Password").fill(builders.PASSWORD)
    agent.get_by_role("button", name="Join").click()
    expect(agent.get_by_role("button", name="Open a ticket")).to_be_visible()
    expect(agent.get_by_text("Welcome, Wallace Corp")).to_be_visible()
    expect(agent.get_by_label("status of Welcome, Wallace Corp")).to_have_value("open")
    expect(agent.locator(".facts").first).to_contain_text("Wallace Corp · new · by")


def test_forgotten_password_is_set_anew_on_the_products_page(desk: Desk) -> None:
    page = desk.visit()
    page.get_by_label("Email address").fill("ann@acme.example")
    page.get_by_role("button", name="Next").click()
    page.get_by_label("Account").fill("acme")
    page.get_by_role("button", name="Forgot your password?").click()
    expect(page.get_by_text("Look into your mailbox")).to_be_visible()
    address = desk.mailed()
    first, second = desk.visit(address), desk.visit(address)
    for page in (first, second):
        page.get_by_label("New password").fill("Another-horse-2")
        page.get_by_role("button", name="Save").click()
    expect(first.get_by_text("Sign in with your new password.")).to_be_visible()
    expect(second.get_by_role("alert")).to_contain_text("link")


def test_customer_opens_ticket_that_agent_takes_and_answers(desk: Desk) -> None:
    customer = desk.sign_in("ann@acme.example")
    customer.get_by_label("Title").fill("The printer burns")
    customer.get_by_role("button", name="Open a ticket").click()
    ticket = customer.get_by_role("article")
    expect(ticket).to_contain_text("Tyrell · open · by you · assigned to nobody")

    agent = desk.sign_in("agent@acme.example")
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
