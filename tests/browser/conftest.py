"""A real server with the application on SQLite, and a real browser that looks at it."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from flask import Flask
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, sync_playwright
from werkzeug.serving import make_server

from tests import builders, services
from tests.builders import Cast
from tests.conftest import make_app, settings_for
from tests.processes import free_port

HERE = Path(__file__).parent
# Said in the console by the page itself, as the browser does not report each violation there.
TELL_VIOLATIONS = """addEventListener("securitypolicyviolation", event =>
  console.error("refused by policy:", event.violatedDirective, event.blockedURI))"""


@dataclass
class Visit:
    """A page, what it asked for, and what went wrong on it."""

    page: Page
    requested: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

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

    def check_accessible(self, axe: str) -> None:
        """Nobody is kept from using the page, as far as axe-core can tell."""
        self.page.evaluate(f"{axe};null")
        violations = self.page.evaluate("axe.run().then(found => found.violations)")
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
def live_cast(live_app: Flask) -> Cast:
    """The cast, with a collection and some records of acme."""
    cast = builders.make_cast(live_app)
    for name in ("articles", "posts"):
        builders.make_collection(cast.root, name)
    for title in ("one", "two", "three"):
        builders.make_record(cast.alice, title=title)
    return cast


@pytest.fixture(scope="session")
def live_server_url(live_app: Flask, live_cast: Cast) -> Iterator[str]:
    """The address of a server of the application."""
    url: str = live_app.extensions["atrium.config"].base_url
    server = make_server("127.0.0.1", urlsplit(url).port or 0, live_app, threaded=True)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    yield url
    server.shutdown()
    serving.join()
    server.server_close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, which `make test` installs."""
    with sync_playwright() as playwright:
        # Without the sandbox, as it needs privileges that a container has not.
        browser = playwright.chromium.launch(
            executable_path=services.chromium(), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which finds what keeps people from using a page."""
    source = HERE / "node_modules" / "axe-core" / "axe.min.js"
    if not source.exists():
        if not shutil.which("npm"):
            reason = "npm is missing: the accessibility of the pages is NOT tested"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(f"{reason}; `python -m tests.services install` installs it")
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=HERE, check=True)
    return source.read_text()


@pytest.fixture
def visit(browser: Browser, live_server_url: str) -> Iterator[Visit]:
    """A new page in a browser without cookies."""
    page = browser.new_page(base_url=live_server_url)
    visit = Visit(page)
    page.add_init_script(TELL_VIOLATIONS)
    page.on("request", lambda r: visit.requested.append(r.url))
    page.on("requestfailed", visit.note_failure)
    page.on("response", visit.note_response)
    page.on("console", visit.note_message)
    page.on("pageerror", lambda error: visit.faults.append(str(error)))
    yield visit
    page.close()
