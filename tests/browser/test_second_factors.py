"""Second factors in a real browser: an app with every key pressed, a passkey of Chromium's own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pyotp
import pytest
from playwright.sync_api import expect

from app import clock
from tests import builders
from tests.browser.conftest import WITHOUT_SCRIPTS_TOO, Visit
from tests.browser.test_people import fill, press
from tests.builders import PASSWORD, Caller, Cast

AUTHENTICATOR = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


@pytest.fixture
def user(live_cast: Cast) -> Caller:
    """A user of acme with no second factor yet."""
    app = live_cast.alice.app
    made = builders.make_user(
        app, live_cast.alice.account_id, f"{clock.now():%H%M%S%f}@acme.example"
    )
    return Caller(app, made)


def start_sign_in(visit: Visit, user: Caller, origin: str = "") -> None:
    visit.page.goto(f"{origin}/console/sign-in")
    fill(visit, account=user.slug, email=user.email, password=PASSWORD)
    press(visit, "Sign in")


def code_of(secret: str, steps: int = 0) -> str:
    """The code of now, or of so many steps later."""
    return pyotp.TOTP(secret).at(clock.now() + timedelta(seconds=30 * steps))


@WITHOUT_SCRIPTS_TOO
def test_totp_app_is_set_up_and_confirms_next_sign_in(visit: Visit, user: Caller) -> None:
    page = visit.page
    start_sign_in(visit, user)
    page.goto("/console/profile")
    press(visit, "Set up second factors")
    page.get_by_label("Name of the app").fill("Phone")
    press(visit, "Add an app")
    expect(page.get_by_role("img", name="QR code of the secret").locator("svg")).to_be_visible()
    page.get_by_text("Type the secret instead").click()
    secret = page.locator("details code").inner_text()
    fill(visit, code="000000")
    press(visit, "Confirm")
    expect(page.locator("#code-error")).to_contain_text("The code is wrong")
    fill(visit, code=code_of(secret))
    press(visit, "Confirm")
    codes = page.locator("#codes").inner_text().split()
    assert len(codes) == 10
    press(visit, "I have stored them")
    expect(page.get_by_role("rowheader", name="Phone")).to_be_visible()
    page.context.clear_cookies()
    start_sign_in(visit, user)
    expect(page.get_by_role("heading", name="Confirm your sign-in")).to_be_visible()
    fill(visit, code=codes[0])
    press(visit, "Continue")
    expect(page).to_have_url("/console")
    page.context.clear_cookies()
    start_sign_in(visit, user)
    fill(visit, code=code_of(secret, 1))
    press(visit, "Continue")
    expect(page).to_have_url("/console")


def test_second_factor_pages_are_accessible_and_fit(
    visit: Visit, user: Caller, look: Callable[[str], None]
) -> None:
    page = visit.page
    start_sign_in(visit, user)
    page.goto("/console/profile/second-factors")
    look("second factors")
    press(visit, "Add an app")
    page.get_by_text("Type the secret instead").click()
    look("new app")
    fill(visit, code=code_of(page.locator("details code").inner_text()))
    press(visit, "Confirm")
    look("recovery codes")
    page.context.clear_cookies()
    start_sign_in(visit, user)
    look("second step")


def at_authenticator(visit: Visit, user: Caller) -> str:
    """Give the browser an authenticator; returns the origin at which it works."""
    devtools = visit.page.context.new_cdp_session(visit.page)
    devtools.send("WebAuthn.enable")
    devtools.send("WebAuthn.addVirtualAuthenticator", {"options": AUTHENTICATOR})
    base_url: str = user.app.extensions["atrium.config"].base_url
    return base_url.replace("127.0.0.1", "localhost")


def add_passkey(visit: Visit, origin: str) -> None:
    """Add the first passkey of whoever is signed in."""
    visit.page.goto(f"{origin}/console/profile/second-factors")
    fill(visit, passkey_name="Laptop")
    press(visit, "Add a passkey")
    expect(visit.page.locator("#codes")).to_be_visible()
    press(visit, "I have stored them")


def test_passkey_confirms_sign_in_and_signs_in_alone(
    visit: Visit, user: Caller, look: Callable[[str], None]
) -> None:
    page, origin = visit.page, at_authenticator(visit, user)
    start_sign_in(visit, user, origin)
    add_passkey(visit, origin)
    expect(page.get_by_role("rowheader", name="Laptop")).to_be_visible()
    page.context.clear_cookies()
    start_sign_in(visit, user, origin)
    press(visit, "Use your passkey")
    expect(page).to_have_url(f"{origin}/console")
    page.context.clear_cookies()
    page.goto(f"{origin}/console/sign-in")
    press(visit, "Use a passkey")
    expect(page).to_have_url(f"{origin}/console")
    page.goto(f"{origin}/console/profile/second-factors")
    look("a passkey")
    page.get_by_text("Remove…").click()
    press(visit, "Remove Laptop")
    expect(page.get_by_role("rowheader", name="Laptop")).to_have_count(0)


def test_passkey_page_without_browser_support_says_so(visit: Visit, user: Caller) -> None:
    start_sign_in(visit, user)
    visit.page.goto("/console/profile/second-factors")
    press(visit, "Add a passkey")
    expect(visit.page.get_by_role("alert")).to_contain_text("They need HTTPS and a host name")


def test_passkey_signs_record_change(visit: Visit, live_cast: Cast) -> None:
    root, page = live_cast.root, visit.page
    name = f"signed_{clock.now():%H%M%S%f}"
    body = {"schema": [{"name": "title", "type": "text"}], "options": {"require_signature": True}}
    builders.make_collection(root, name, **body)
    app = live_cast.alice.app
    admin = builders.make_user(
        app, live_cast.alice.account_id, f"{clock.now():%H%M%S%f}@acme.example", "admin"
    )
    signer = Caller(app, admin)
    origin = at_authenticator(visit, signer)
    start_sign_in(visit, signer, origin)
    add_passkey(visit, origin)
    page.goto(f"{origin}/console/records/{signer.account_id}/{name}/new")
    fill(visit, f_title="first")
    press(visit, "Sign with a passkey")  # without a reason the browser asks for one
    expect(page.get_by_label("Reason")).to_be_focused()
    page.get_by_label("Reason").fill("Checked ✓")
    press(visit, "Sign with a passkey")
    expect(page.get_by_role("heading", name="first")).to_be_visible()
    entry = root.get(f"audit-logs?table_name=col_{name}&limit=1").json["items"][0]
    assert (entry["es_username"], entry["es_reason"]) == (signer.email, "Checked ✓")
    assert entry["extra_metadata"] == {"es_method": "passkey"}


def test_passkey_enrolment_as_first_factor_at_sign_in(visit: Visit, live_cast: Cast) -> None:
    app, page = live_cast.alice.app, visit.page
    account_id = builders.make_account(app, f"keys-{clock.now():%H%M%S%f}")
    admin = Caller(app, builders.make_user(app, account_id, "ann@keys.example", "admin"))
    assert admin.patch("account", {"mfa": "required"}).status_code == 200
    origin = at_authenticator(visit, admin)
    start_sign_in(visit, admin, origin)
    press(visit, "Use a passkey instead")
    expect(page.locator("#codes")).to_be_visible()
    press(visit, "I have stored them")
    expect(page).to_have_url(f"{origin}/console")
    page.goto(f"{origin}/console/team/second-factors")
    expect(page.get_by_role("row", name="ann@keys.example")).to_contain_text("Passkey")


def test_totp_enrolment_at_sign_in_of_account_that_requires_it(
    visit: Visit, look: Callable[[str], None], live_cast: Cast
) -> None:
    app, page = live_cast.alice.app, visit.page
    account_id = builders.make_account(app, f"strict-{clock.now():%H%M%S%f}")
    admin = Caller(app, builders.make_user(app, account_id, "ann@strict.example", "admin"))
    assert admin.patch("account", {"mfa": "required"}).status_code == 200
    start_sign_in(visit, admin)
    expect(page.get_by_role("heading", name="Set up a second factor")).to_be_visible()
    look("required factor")
    page.get_by_text("Type the secret instead").click()
    secret = page.locator("details code").inner_text()
    fill(visit, code="123")
    press(visit, "Continue")
    expect(page.locator("#code-error")).to_contain_text("The code is wrong")
    fill(visit, code=code_of(secret))
    press(visit, "Continue")
    expect(page.locator("#codes")).to_be_visible()
    press(visit, "I have stored them")
    expect(page).to_have_url("/console")
    page.goto("/console/team/second-factors")
    expect(page.get_by_role("row", name="ann@strict.example")).to_contain_text("Authenticator app")
    look("report")
