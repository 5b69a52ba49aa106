"""A real server with the application on SQLite, and a real browser that looks at it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask import Flask
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, sync_playwright

from app.accounts.models import User
from tests import builders, npm, services
from tests.builders import Cast
from tests.conftest import make_app, settings_for
from tests.project import free_port
from tests.serving import serving

HERE = Path(__file__).parent
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 360, "height": 740}
# The rules of axe-core whose verdict changes with the colours or the size of the window.
VISUAL_RULES = ("color-contrast", "link-in-text-block", "scrollable-region-focusable")
UNTIL_WORN = """([width, scheme]) => new Promise(done => {
  const look = () => innerWidth === width && matchMedia(`(prefers-color-scheme: ${scheme})`).matches
    ? done() : setTimeout(look);
  look();
})"""
# Diagrams have two dimensions (WCAG 1.4.10): they scroll in a region of their own.
WIDER_THAN_THEIR_PLACE = """
[...document.querySelectorAll("main :not(thead, thead *, input, select, span)")]
  .filter(one => !one.matches("[role=region]:has(> svg)"))
  .filter(one => one.clientWidth && one.scrollWidth > one.clientWidth + 1)
  .map(one => one.outerHTML)"""
# Said in the console by the page itself, as the browser does not report each violation there.
TELL_VIOLATIONS = """addEventListener("securitypolicyviolation", event =>
  console.error("refused by policy:", event.violatedDirective, event.blockedURI))"""


@dataclass
class Visit:
    """A page, what it asked for, and what went wrong on it."""

    page: Page
    requested: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _has_axe: bool = False

    def note_response(self, response: Response) -> None:
        """Remember an answer that is an error."""
        if response.status >= 400:
            self.faults.append(f"{response.status}: {response.url}")

    def note_failure(self, request: Request) -> None:
        """Remember a request without an answer, unless the page was left meanwhile."""
        if request.failure != "net::ERR_ABORTED":
            self.faults.append(f"{request.failure}: {request.url}")

    def note_message(self, message: ConsoleMessage) -> None:
        """Remember an error that the page told of."""
        if message.type == "error":
            self.faults.append(message.text)

    def wear(self, scheme: str, size: Mapping[str, int]) -> None:
        """Give the window a size, and the page, once it is whole, its light or dark colours."""
        self.page.wait_for_load_state()
        self.page.set_viewport_size(size)  # type: ignore[arg-type]
        # Without motion: colours that are still on their way have no contrast to speak of.
        still = {"color_scheme": scheme, "reduced_motion": "reduce"}
        self.page.emulate_media(**still)  # type: ignore[arg-type]
        # A window hears of its new size a moment later.
        self.page.evaluate(UNTIL_WORN, [size["width"], scheme])

    @property
    def wants_pictures(self) -> bool:
        """Whether somebody wants to look, too: TEST_PICTURES names a folder for pictures."""
        return "TEST_PICTURES" in os.environ

    def picture(self, name: str) -> None:
        """Take a picture of the whole page, where pictures are wanted."""
        if folder := os.environ.get("TEST_PICTURES"):
            path = Path(folder, f"{name.replace('/', '-')}.png")
            size = self.page.viewport_size
            assert size is not None
            height = self.page.evaluate("document.documentElement.scrollHeight")
            # In a window as high as the page, what sticks to an edge is where it belongs.
            self.page.set_viewport_size({**size, "height": max(height, size["height"])})
            self.page.screenshot(path=path, full_page=True)
            self.page.set_viewport_size(size)

    def check_fits(self) -> None:
        """Nothing sticks out at the side of the window."""
        out = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert out <= 0, self.page.url

    def check_nothing_scrolls_sideways(self) -> None:
        """No part of the page is wider than its place, either."""
        wide = self.page.evaluate(WIDER_THAN_THEIR_PLACE)
        assert wide == [], self.page.url

    def check_worn(self, name: str, scheme: str, size: Mapping[str, int]) -> None:
        """The page fits a window of that size, in those colours."""
        self.wear(scheme, size)
        self.picture(f"{name}-{scheme}-{size['width']}")
        self.check_fits()
        if size == NARROW:
            self.check_nothing_scrolls_sideways()

    def check_accessible(self, axe: str, rules: Sequence[str] = ()) -> None:
        """Nobody is kept from using the page, as far as axe-core can tell, by all or some rules."""
        if not self._has_axe:
            self._has_axe = True
            self.page.add_init_script(axe)  # the pages to come have it from their beginning
        if self.page.evaluate("typeof axe") == "undefined":
            self.page.evaluate(f"{axe};null")
        options = {"resultTypes": ["violations"], "selectors": False}
        if rules:
            options |= {"runOnly": list(rules), "preload": False}
        run = "options => axe.run(options).then(found => found.violations)"
        violations = self.page.evaluate(run, options)
        found = [(one["id"], node["html"]) for one in violations for node in one["nodes"]]
        assert found == [], self.page.url

    def check_quiet_and_at_home(self) -> None:
        """Nothing went wrong, and no other host was asked for anything."""
        self.page.wait_for_load_state("networkidle")
        own = urlsplit(self.page.url).netloc
        # A blob's address holds the origin that made it: ReDoc's search worker.
        asked = {urlsplit(url.removeprefix("blob:")).netloc for url in self.requested}
        assert asked == {own}
        assert self.faults == []


@pytest.fixture(scope="session")
def live_app(tmp_path_factory: pytest.TempPathFactory) -> Flask:
    """The application, knowing the address that it will be served at."""
    folder = tmp_path_factory.mktemp("live")
    return make_app(settings_for("sqlite", folder, base_url=f"http://127.0.0.1:{free_port()}"))


@pytest.fixture(scope="session")
def live_people(live_app: Flask) -> list[User]:
    """The users of the cast, with a collection and some records of acme."""
    people = builders.make_people(live_app)
    cast = builders.cast_of(live_app, people)
    for name in ("articles", "posts"):
        builders.make_collection(cast.root, name)
    for title in ("one", "two", "three"):
        builders.make_record(cast.alice, title=title)
    return people


@pytest.fixture
def live_cast(live_app: Flask, live_people: list[User]) -> Cast:
    """The cast, who have just signed in."""
    return builders.cast_of(live_app, live_people)


@pytest.fixture(scope="session")
def live_server_url(live_app: Flask, live_people: list[User]) -> Iterator[str]:
    """The address of a server of the application."""
    with serving(live_app) as url:
        yield url


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, which `make browser` installs."""
    with sync_playwright() as playwright:
        # Without the sandbox, as it needs privileges that a container has not, and without
        # optimizing scripts, as hardly a page stays long enough for that to pay.
        browser = playwright.chromium.launch(
            executable_path=services.chromium(), args=["--no-sandbox", "--js-flags=--no-opt"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which finds what keeps people from using a page."""
    npm.installed(HERE)
    return (HERE / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.fixture(
    params=["short", pytest.param("whole", marks=pytest.mark.slow)], ids=["", "every-look"]
)
def look(visit: Visit, axe: str, request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Checks the page as it is now: in each size and colour, or in each size of each colour by all
    rules.
    """
    whole = request.param == "whole" or visit.wants_pictures
    looks = [("light", WIDE), ("dark", NARROW)]
    if whole:
        looks += [("dark", WIDE), ("light", NARROW)]

    def in_windows(name: str) -> None:
        for turn, (scheme, size) in enumerate(looks):
            visit.check_worn(name, scheme, size)
            visit.check_accessible(axe, VISUAL_RULES if turn and not whole else ())
        visit.wear("light", WIDE)

    return in_windows


# Marks a journey that has to lead to its end without scripts, too.
WITHOUT_SCRIPTS_TOO = pytest.mark.parametrize(
    "visit", [True, False], ids=["scripts", "no-scripts"], indirect=True
)


@pytest.fixture
def visit(
    browser: Browser, live_server_url: str, request: pytest.FixtureRequest
) -> Iterator[Visit]:
    """A new page in a browser without cookies."""
    scripts = getattr(request, "param", True)
    with visiting(browser, live_server_url, java_script_enabled=scripts) as visit:
        yield visit


@contextmanager
def visiting(browser: Browser, url: str, **options: Any) -> Iterator[Visit]:
    """A visit to a server, with a page that it is about to open."""
    page = browser.new_page(base_url=url, **options)
    visit = Visit(page)
    page.add_init_script(TELL_VIOLATIONS)
    page.on("request", lambda r: visit.requested.append(r.url))
    page.on("requestfailed", visit.note_failure)
    page.on("response", visit.note_response)
    page.on("console", visit.note_message)
    page.on("pageerror", lambda error: visit.faults.append(str(error)))
    yield visit
    page.close()
