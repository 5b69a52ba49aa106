"""The two documentation pages in a real browser, under their own Content-Security-Policy."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Response, sync_playwright

pytestmark = pytest.mark.browser

# Said in the console by the page itself, as the browser does not report each violation there.
TELL_VIOLATIONS = """addEventListener("securitypolicyviolation", event =>
  console.error("refused by policy:", event.violatedDirective, event.blockedURI))"""


@dataclass
class Visit:
    page: Page
    requested: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def note_response(self, response: Response) -> None:
        if response.status >= 400:
            self.faults.append(f"{response.status}: {response.url}")

    def note_message(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(message.text)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    with sync_playwright() as playwright:
        # Without the sandbox, as it needs privileges that a container has not.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, live_server_url: str) -> Iterator[Visit]:
    page = browser.new_page(base_url=live_server_url)
    visit = Visit(page)
    page.add_init_script(TELL_VIOLATIONS)
    page.on("request", lambda r: visit.requested.append(r.url))
    page.on("requestfailed", lambda r: visit.faults.append(f"failed: {r.url}"))
    page.on("response", visit.note_response)
    page.on("console", visit.note_message)
    page.on("pageerror", lambda error: visit.faults.append(str(error)))
    yield visit
    page.close()


def open_swagger(visit: Visit) -> None:
    visit.page.goto("/docs")
    visit.page.locator(".opblock-summary").first.wait_for()


def open_redoc(visit: Visit) -> None:
    visit.page.goto("/redoc")
    # The menu's footer comes last, and with it the logo that must not be asked for.
    visit.page.get_by_text("API docs by Redocly").wait_for()


PAGES = pytest.mark.parametrize("open_page", [open_swagger, open_redoc])


def description(visit: Visit) -> dict:
    return visit.page.request.get("/openapi.json").json()


def first_summary(visit: Visit) -> str:
    operations = next(iter(description(visit)["paths"].values()))
    return next(operations[verb] for verb in ("get", "post") if verb in operations)["summary"]


def assert_quiet_and_at_home(visit: Visit) -> None:
    visit.page.wait_for_load_state("networkidle")
    own = urlsplit(visit.page.url).netloc
    # A blob's address holds the origin that made it: ReDoc's search worker.
    asked = {urlsplit(url.removeprefix("blob:")).netloc for url in visit.requested}
    assert asked == {own}
    assert visit.faults == []


@PAGES
def test_page_shows_title_and_operations(visit, open_page):
    open_page(visit)
    assert description(visit)["info"]["title"] in visit.page.locator("h1, h2").first.inner_text()
    visit.page.get_by_text(first_summary(visit)).locator("visible=true").first.wait_for()


@PAGES
def test_page_asks_no_other_origin_and_breaks_no_policy(visit, open_page):
    open_page(visit)
    assert_quiet_and_at_home(visit)


@PAGES
def test_policy_allows_neither_inline_code_nor_eval(visit, open_page):
    open_page(visit)
    policy = visit.page.request.get(visit.page.url).headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'; script-src 'self';" in policy


def test_swagger_forms_work_within_the_policy(visit):
    open_swagger(visit)
    visit.page.locator(".opblock-summary-control").first.click()
    visit.page.locator(".btn.execute").first.wait_for()
    assert_quiet_and_at_home(visit)


def test_swagger_forgets_the_credential_with_the_page(visit):
    open_swagger(visit)
    visit.page.locator(".btn.authorize").click()
    visit.page.locator(".auth-container input").first.fill("a-secret")
    visit.page.locator(".auth-container .btn.authorize").first.click()
    visit.page.locator(".auth-container").get_by_text("Authorized").first.wait_for()
    kept = visit.page.evaluate("[{...localStorage}, {...sessionStorage}, document.cookie]")
    assert "a-secret" not in str(kept)
    assert_quiet_and_at_home(visit)


def test_redoc_search_works_within_the_policy(visit):
    open_redoc(visit)
    visit.page.get_by_placeholder("Search").fill(first_summary(visit))
    visit.page.locator("[data-role='search:results'] [role=menuitem]").first.wait_for()
    assert_quiet_and_at_home(visit)
