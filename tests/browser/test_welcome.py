"""The hosted pages in a real browser: in every look, by keyboard, without scripts."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests import builders
from tests.auth import test_opened_links as made
from tests.auth.test_second_factors import set_up
from tests.browser.conftest import NARROW, WIDE, WITHOUT_SCRIPTS_TOO, Visit, visiting
from tests.browser.test_every_page import LAPTOPS
from tests.browser.test_keyboard import Keyboard
from tests.browser.test_people import fill
from tests.builders import PASSWORD, Caller, Cast
from tests.conftest import make_app, settings_for
from tests.project import free_port
from tests.serving import serving

NEW = "Better-horse-2"
LOGO = (
    "data:image/svg+xml;base64,PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciIHZpZXdCb3g9IjAgMCAx"
    "NTAgMzIiPjxjaXJjbGUgY3g9IjE2IiBjeT0iMTYiIHI9IjEyIiBmaWxsPSIjMGQ5NDg4Ii8+PHBhdGggZD0iTTEwIDE2aDEyTTE2"
    "IDEwdjEyIiBzdHJva2U9IiNmZmYiIHN0cm9rZS13aWR0aD0iMyIvPjx0ZXh0IHg9IjM2IiB5PSIyMyIgZm9udC1mYW1pbHk9InNh"
    "bnMtc2VyaWYiIGZvbnQtd2VpZ2h0PSI3MDAiIGZvbnQtc2l6ZT0iMjAiIGZpbGw9IiMwZDk0ODgiPkhlbHBkZXNrPC90ZXh0Pjwv"
    "c3ZnPg=="
)
PRODUCT = {
    "name": "Helpdesk",
    "logo": LOGO,
    "accent_color": "#0d9488",
    "support_email": "help@helpdesk.example",
    "privacy_url": "https://www.helpdesk.example/privacy",
    "terms_url": "https://www.helpdesk.example/terms",
}
PROVIDER = {
    "category": "auth_providers",
    "provider_name": "google",
    "display_name": "Acme ID",
    "config": {"client_id": "one", "client_secret": "very secret"},
}
WORDS = re.compile(r"atrium|console|konsole|api[- ]?(key|schlüssel)", re.IGNORECASE)
SIZES = (WIDE, NARROW, *LAPTOPS)


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    """The cast of a product with a face of its own."""
    folder = tmp_path_factory.mktemp("product")
    app = make_app(settings_for("sqlite", folder, base_url=f"http://localhost:{free_port()}"))
    cast = builders.make_cast(app)
    assert cast.root.put("product", PRODUCT).status_code == 200
    assert cast.alice.patch("account", {"magic_link": True}).status_code == 200
    assert cast.alice.post("admin/configuration", PROVIDER).status_code == 201
    return cast


@pytest.fixture(scope="module")
def url(cast: Cast) -> Iterator[str]:
    """The address of its server."""
    with serving(cast.root.app) as url:
        yield url


@pytest.fixture
def visit(browser: Browser, url: str, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """A new page in a browser without cookies."""
    with visiting(browser, url, java_script_enabled=getattr(request, "param", True)) as visit:
        yield visit


def member(cast: Cast) -> Caller:
    """A new user of acme."""
    email = f"{secrets.token_hex(4)}@acme.example"
    user = builders.make_user(cast.root.app, cast.alice.account_id, email)
    return Caller(cast.root.app, user)


def path_in(link: str) -> str:
    """The path of a mailed link, whatever host it names."""
    return re.sub(r"^https?://[^/]+", "", link)


def link_to(cast: Cast, address: str, part: str) -> str:
    """The path of the newest link to an address with this part."""
    return path_in(made.newest(cast.root.app, address, part))


def reset_link(cast: Cast, user: Caller) -> str:
    Caller(cast.root.app).post("auth/forgot-password", {"account": "acme", "email": user.email})
    return link_to(cast, user.email, "reset-password")


def invitation_link(cast: Cast) -> str:
    email = f"{secrets.token_hex(4)}@acme.example"
    assert cast.alice.post("invitations", {"email": email}).status_code == 201
    return link_to(cast, email, "/invitation")


def verification_link(cast: Cast) -> str:
    email = f"{secrets.token_hex(4)}@acme.example"
    builders.make_user(cast.root.app, cast.alice.account_id, email, verified=False)
    cast.alice.post("auth/send-verification", {"email": email})
    return link_to(cast, email, "verify-email")


def magic_link(cast: Cast) -> str:
    user = member(cast)
    Caller(cast.root.app).post("auth/magic-link", {"account": "acme", "email": user.email})
    return link_to(cast, user.email, "magic-link")


def undo_link(cast: Cast) -> str:
    user = member(cast)
    new = f"new-{user.email}"
    user.patch("auth/me", {"email": new})
    token = link_to(cast, new, "verify-email").partition("token=")[2]
    assert Caller(cast.root.app).post("auth/verify-email", {"token": token}).status_code == 200
    return link_to(cast, user.email, "undo-email-change")


PAGES: dict[str, Callable[[Cast], str]] = {
    "sign-in": lambda cast: "/welcome/sign-in?account=acme",
    "sign-in-anywhere": lambda cast: "/welcome/sign-in",
    "accounts": lambda cast: "/welcome/accounts",
    "forgot-password": lambda cast: "/welcome/forgot-password?account=acme",
    "resend-verification": lambda cast: "/welcome/resend-verification",
    "reset": lambda cast: reset_link(cast, member(cast)),
    "invitation": invitation_link,
    "verification": verification_link,
    "magic-link": magic_link,
    "undo": undo_link,
}
GONE = ("invitation", "reset-password", "verify-email", "magic-link", "keep-email")


def look(visit: Visit, axe: str, name: str) -> None:
    """Look at the page in four sizes and both themes, and read it."""
    for scheme in ("light", "dark"):
        for size in SIZES:
            visit.wear(scheme, size)
            if size in (WIDE, NARROW):
                visit.picture(f"welcome-{name}-{scheme}-{size['width']}")
            visit.check_fits()
            visit.check_accessible(axe)
    visit.check_nothing_scrolls_sideways()
    text = visit.page.locator("html").inner_text() + visit.page.title()
    assert not WORDS.search(text), text
    for selector, attribute in (("a[href]", "href"), ("form[action]", "action"), ("img", "src")):
        for one in visit.page.locator(selector).all():
            assert not WORDS.search(one.get_attribute(attribute) or ""), name
    visit.wear("light", WIDE)


@pytest.mark.parametrize("name", PAGES)
def test_hosted_page_is_accessible_and_fits_in_every_look(
    visit: Visit, axe: str, cast: Cast, name: str
) -> None:
    answer = visit.page.goto(PAGES[name](cast))
    assert answer is not None
    assert answer.ok, name
    look(visit, axe, name)
    visit.check_quiet_and_at_home()


def test_pages_of_invalid_links_are_accessible_and_fit(visit: Visit, axe: str) -> None:
    for name in GONE:
        answer = visit.page.goto(f"/welcome/{name}?token=AA0001-x")
        assert answer is not None
        assert answer.status in (400, 404)
        look(visit, axe, f"gone-{name}")


@pytest.mark.parametrize("language", ["en", "de"])
def test_signed_in_pages_are_accessible_and_fit(
    visit: Visit, axe: str, cast: Cast, language: str
) -> None:
    page, user = visit.page, member(cast)
    page.goto("/welcome/sign-in?account=acme")
    page.locator(f'footer button[value="{language}"]').click()
    page.wait_for_load_state()
    fill(visit, email=user.email)
    page.locator("#sign-in [type=submit]").click()
    expect(page.locator("[name=password]")).to_be_visible()
    look(visit, axe, f"ways-{language}")
    fill(visit, password="wrong")
    page.locator("#sign-in > [type=submit]").click()
    expect(page.get_by_role("alert")).to_be_visible()
    look(visit, axe, f"wrong-password-{language}")
    fill(visit, password=PASSWORD)
    page.locator("#sign-in > [type=submit]").click()
    page.wait_for_url("**/welcome/profile")
    look(visit, axe, f"profile-{language}")
    page.goto("/welcome/profile/second-factors")
    look(visit, axe, f"second-factors-{language}")
    fill(visit, name="Phone")
    page.locator("form:has([name=name]) [type=submit]").click()
    expect(page.locator(".qr")).to_be_visible()
    look(visit, axe, f"new-app-{language}")
    page.goto("/welcome/accounts")
    look(visit, axe, f"accounts-{language}")


def test_second_factor_page_is_accessible_and_fits(visit: Visit, axe: str, cast: Cast) -> None:
    user = member(cast)
    set_up(user)
    visit.page.goto("/welcome/sign-in?account=acme")
    fill(visit, email=user.email)
    visit.page.get_by_role("button", name="Continue", exact=True).click()
    fill(visit, password=PASSWORD)
    visit.page.get_by_role("button", name="Sign in", exact=True).click()
    expect(visit.page.get_by_role("heading", name="Confirm your sign-in")).to_be_visible()
    look(visit, axe, "second-factor")


@WITHOUT_SCRIPTS_TOO
def test_end_user_joins_signs_in_and_out_with_and_without_scripts(visit: Visit, cast: Cast) -> None:
    page = visit.page
    path = invitation_link(cast)
    page.goto(path)
    fill(visit, name="Gus", password=NEW)
    page.get_by_role("button", name="Join", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Welcome to Acme.")).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value("Gus")
    email = page.get_by_label("Email").input_value()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    fill(visit, email=email)
    page.get_by_role("button", name="Continue", exact=True).click()
    if page.locator("[name=account]:not([type=hidden])").count():
        fill(visit, account="acme")
        page.get_by_role("button", name="Continue", exact=True).click()
    fill(visit, password=NEW)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url("**/welcome/profile")
    page.goto(path)
    expect(page.get_by_role("alert")).to_contain_text("accepted already")


@pytest.fixture
def keyboard(visit: Visit) -> Keyboard:
    """A keyboard at the hosted pages."""
    return Keyboard(visit)


def test_invitation_is_accepted_by_keyboard_alone(keyboard: Keyboard, cast: Cast) -> None:
    page = keyboard.page
    page.goto(invitation_link(cast))
    keyboard.tab_to(page.get_by_label("Your name"))
    keyboard.type("Gus")
    keyboard.press("Tab")
    keyboard.type(NEW)
    keyboard.go("Enter")
    page.wait_for_url("**/welcome/profile")


def test_password_is_reset_by_keyboard_alone(keyboard: Keyboard, cast: Cast) -> None:
    page, user = keyboard.page, member(cast)
    page.goto(reset_link(cast, user))
    keyboard.tab_to(page.get_by_label("New password"))
    keyboard.type("short")
    keyboard.submit()
    keyboard.tab_to(page.get_by_label("New password"))
    keyboard.type(NEW)
    keyboard.go("Enter")
    keyboard.type(user.email)
    keyboard.submit()
    keyboard.type(NEW)
    keyboard.go("Enter")
    page.wait_for_url("**/welcome/profile")


def test_second_factor_signs_in_by_keyboard_alone(keyboard: Keyboard, cast: Cast) -> None:
    page, user = keyboard.page, member(cast)
    phone = set_up(user)
    page.goto("/welcome/sign-in?account=acme")
    keyboard.type(user.email)
    keyboard.submit()
    keyboard.type(PASSWORD)
    keyboard.submit()
    keyboard.type(phone.code(1))
    keyboard.go("Enter")
    page.wait_for_url("**/welcome/profile")


def test_passkey_signs_in_at_the_hosted_page(visit: Visit, cast: Cast) -> None:
    page, user = visit.page, member(cast)
    page.goto("/welcome/sign-in?account=acme")
    devtools = page.context.new_cdp_session(page)
    devtools.send("WebAuthn.enable")
    options = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }
    devtools.send("WebAuthn.addVirtualAuthenticator", {"options": options})
    fill(visit, email=user.email)
    page.get_by_role("button", name="Continue", exact=True).click()
    fill(visit, password=PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url("**/welcome/profile")
    page.goto("/welcome/profile/second-factors")
    page.get_by_role("button", name="Add a passkey").click()
    page.get_by_role("link", name="I have stored them").click()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("button", name="Use a passkey").click()
    page.wait_for_url("**/welcome/profile")
