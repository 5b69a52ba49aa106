"""A page of another origin follows changes with the browser's own EventSource and WebSocket."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest
from flask import Flask
from playwright.sync_api import Browser, Page
from werkzeug.serving import make_server
from werkzeug.wrappers import Response

from app.accounts.models import User
from app.realtime import connections
from tests.builders import Cast, cast_of, make_collection, make_record
from tests.project import PROJECT
from tests.realtime.clients import cut, until

# Native: opens an EventSource as it is, and notes what it hears.
LISTEN = """query => {
  window.seen = [];
  window.events = new EventSource(`${API}/subscribe?collections=notes&${query}`);
  events.onmessage = ({data}) => seen.push(JSON.parse(data).data.title);
  return new Promise(done => { events.onopen = done; }).then(() => null);
}"""


@pytest.fixture(scope="module")
def origin(live_app: Flask, live_people: list[User]) -> Iterator[str]:
    """The origin of an app that acme allows to read answers; it is an empty page."""
    server = make_server("localhost", 0, Response("<!doctype html>", mimetype="text/html"))
    thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    thread.start()
    origin = f"http://localhost:{server.server_port}"
    cast = cast_of(live_app, live_people)
    assert cast.alice.patch("account", {"cors_origins": [origin]}).status_code == 200
    notes = make_collection(cast.root, "notes")
    yield origin
    cast = cast_of(live_app, live_people)
    assert cast.root.delete(f"collections/{notes['id']}").status_code == 200
    assert cast.alice.patch("account", {"cors_origins": []}).status_code == 200
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def page(browser: Browser, origin: str, live_server_url: str, live_cast: Cast) -> Iterator[Page]:
    """A page of that app with the code of docs/realtime.md, in Bob's hands."""
    page = browser.new_page()
    open_page(page, origin, live_server_url, live_cast)
    yield page
    page.close()


def open_page(page: Page, origin: str, url: str, cast: Cast) -> None:
    """Open the page, for the server at a URL."""
    page.goto(origin)
    guide = (PROJECT / "docs" / "realtime.md").read_text()
    code = "".join(re.findall(r"^```js\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE))
    token = cast.bob.headers["Authorization"].split()[1]
    page.add_script_tag(content=code.replace("https://atrium.example", url))
    page.add_script_tag(content=f"const token = '{token}', getToken = async () => token;")


def write(cast: Cast, *titles: str) -> None:
    """Create records."""
    for title in titles:
        make_record(cast.alice, "notes", title=title)


def wait_seen(page: Page, *titles: str) -> None:
    """Wait for what the page hears: these records, each once and in this order."""
    page.wait_for_function("count => seen.length >= count", arg=len(titles), timeout=10_000)
    assert page.evaluate("seen") == list(titles)


def test_realtime_guide_page_resumes_with_new_ticket(page: Page, live_cast: Cast) -> None:
    page.evaluate("""() => {
      window.seen = [];
      window.resets = 0;
      const onChange = ({data}) => seen.push(data.title);
      window.stop = follow("notes", onChange, () => { resets += 1; });
    }""")
    until(connections.registry.all)
    cut()  # before it has heard of any change
    write(live_cast, "one", "two")
    wait_seen(page, "one", "two")
    cut()
    write(live_cast, "three", "four")
    wait_seen(page, "one", "two", "three", "four")
    page.evaluate("stop()")
    until(lambda: not connections.registry.all())
    assert page.evaluate("resets") == 0


def test_realtime_ticket_reuse_ends_eventsource_reconnects(page: Page, live_cast: Cast) -> None:
    page.evaluate(LISTEN, "ticket=" + page.evaluate("getTicket()"))
    write(live_cast, "heard")
    wait_seen(page, "heard")
    with page.expect_response(lambda response: "/subscribe" in response.url) as refused:
        cut()
    assert refused.value.status == 401
    page.wait_for_function("events.readyState === EventSource.CLOSED")


def test_eventsource_with_token_resumes_by_itself(page: Page, live_cast: Cast) -> None:
    page.evaluate(LISTEN, "token=" + page.evaluate("token"))
    cut()  # before it has heard of any change
    write(live_cast, "one")
    wait_seen(page, "one")
    cut()
    write(live_cast, "two", "three")
    wait_seen(page, "one", "two", "three")
    page.evaluate("events.close()")
    until(lambda: not connections.registry.all())


def test_browser_websocket_receives_changes(page: Page, live_cast: Cast) -> None:
    page.evaluate("""() => {
      window.seen = [];
      openSocket("notes", ({type, data}) => seen.push(data ? data.title : type))
        .then(socket => { window.socket = socket; });
    }""")
    wait_seen(page, "subscribed")
    write(live_cast, "one")
    wait_seen(page, "subscribed", "one")
    page.evaluate("socket.close()")
    until(lambda: not connections.registry.all())


def test_realtime_page_of_disallowed_origin_reads_nothing(
    page: Page, origin: str, live_server_url: str, live_cast: Cast
) -> None:
    open_page(page, origin.replace("localhost", "127.0.0.1"), live_server_url, live_cast)
    assert page.evaluate("getTicket().catch(error => error.name)") == "TypeError"
    ends = """new Promise(done => {
      const events = new EventSource(`${API}/subscribe?token=${token}`);
      events.onopen = () => done("open");
      events.onerror = () => done("error");
    })"""
    assert page.evaluate(ends) == "error"
