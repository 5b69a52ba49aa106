"""Every link followed and every form sent, by each role: nothing breaks, nothing leaks."""

from __future__ import annotations

import gzip
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.datastructures import MultiDict
from werkzeug.test import TestResponse

from tests.builders import Cast
from tests.conftest import WHOLE
from tests.console import furnished
from tests.console.browser import HOSTILE, Browser

ROLES = ("viewer", "editor", "admin", "superadmin")
LARGEST, LARGEST_PAGE = 150 * 1024, 25 * 1024
"""What a first visit and each further one may take, as sent: compressed."""
MOST_PAGES = 500
ODD = (HOSTILE + "' OR 1=1 --", "9" * 400, "\x00\x1f\u202e🧵" + "x" * 3000)
# What ends the crawl itself.
LEFT_OUT = re.compile(r"/console/(sign-out|profile/(sessions|password)|.*/(close|suspend)$)|/docs")
INSIDES = re.compile(r"&lt;(class|function|bound|app\.|[a-z_.]+ object)")
"""How Python shows what has no text."""
ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")


@dataclass
class Sent:
    """A form, with the names of its fields and what they were shown with."""

    action: str
    method: str
    fields: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def likeness(self) -> tuple[str, ...]:
        """What it has in common with others of its kind."""
        names = tuple(re.sub(r"\d+", "#", name) for name, _, _ in self.fields)
        return (self.method, alike(self.action), *sorted(set(names)))


class Looked(HTMLParser):
    """The links and forms of a page, and scripts or styles within it."""

    def __init__(self, page: TestResponse, path: str) -> None:
        super().__init__()
        self.path, self.inline = path, list[str]()
        self.links, self.forms, self.loaded = list[str](), list[Sent](), list[str]()
        self.feed(page.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of what leads on."""
        values = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.links.append(values.get("href", ""))
        elif tag == "form":
            action = values.get("action") or self.path
            self.forms.append(Sent(action, values.get("method", "get").upper()))
        elif tag in ("input", "select", "textarea", "button") and self.forms:
            given = (values.get("name", ""), values.get("value", ""), values.get("type", tag))
            self.forms[-1].fields.append(given)
        elif tag in ("script", "link"):
            self.loaded.append(values.get("src") or values.get("href") or "")
        runs = values.get("type") != "application/json"
        if tag == "style" or (tag == "script" and runs and not values.get("src")):
            self.inline.append(tag)
        self.inline += [n for n in values if n == "style" or n.startswith("on")]


def alike(path: str) -> str:
    """A path without what tells one thing from another, and the names of its parameters."""
    parts = urlsplit(path)
    names = sorted({re.sub(r"\d+", "#", one.partition("=")[0]) for one in parts.query.split("&")})
    return re.sub(r"/\d+(?=/|$)", "/<n>", ID.sub("<id>", parts.path)) + "?" + ",".join(names)


class Crawl:
    """One role's way through the console, with some or every odd value in each form."""

    def __init__(self, client: FlaskClient, strange: str, *, whole: bool) -> None:
        self.client, self.strange, self.whole = client, strange, whole
        self.to_visit, self.seen, self.sent = deque(["/console"]), {alike("/console")}, set()
        self.weights: dict[str, int] = {}

    def run(self) -> int:
        """Visit all there is; how many pages there were."""
        pages = 0
        while self.to_visit and pages < MOST_PAGES:
            path = self.to_visit.popleft()
            answer, pages = self.client.get(path, buffered=True), pages + 1
            if answer.mimetype == "text/html":
                looked = self.check(answer, path)
                page = len(gzip.compress(answer.data))
                weight = page + sum(map(self.weight, set(looked.loaded)))
                assert (page < LARGEST_PAGE, weight < LARGEST) == (True, True), (weight, path)
                self.note(looked.links)
                for form in looked.forms:
                    self.send(form)
        return pages

    def note(self, links: list[str]) -> None:
        """Visit those that are of the console, and of a kind not seen yet."""
        for link in links:
            fits = link.startswith("/console") and not LEFT_OUT.search(link)
            if fits and alike(link) not in self.seen:
                self.seen.add(alike(link))
                self.to_visit.append(link)

    def send(self, form: Sent) -> None:
        """Send a form empty, with odd values, and as it is."""
        if LEFT_OUT.search(form.action) or form.likeness in self.sent:
            return
        self.sent.add(form.likeness)
        for data in map(MultiDict, self.filled(form)):
            if form.method == "GET":
                answer = self.client.get(form.action, query_string=data, buffered=True)
            else:
                answer = self.client.post(form.action, data=data, buffered=True)
            if answer.status_code == 303 and answer.location:
                self.note([answer.location])
            if answer.mimetype == "text/html" and answer.status_code != 303:
                self.check(answer, form.action)

    def filled(self, form: Sent) -> Iterator[list[tuple[str, str]]]:
        """What the form is sent with, in turn."""
        token = [(name, value) for name, value, _ in form.fields if name == "csrf_token"]
        rest = [one for one in form.fields if one[0] and one[0] != "csrf_token"]
        yield token
        odds = ODD[:: 1 if form.method == "POST" else 2]
        if not self.whole:  # one form after the other gets the next
            odds = (odds[len(self.sent) % len(odds)],)
        for odd in odds:
            yield token + [(name, value if kind == "hidden" else odd) for name, value, kind in rest]
        yield token + [(name, value) for name, value, _ in rest]

    def check(self, answer: TestResponse, path: str) -> Looked:
        """A page that is whole, safe, light, and of the own account only."""
        assert answer.status_code < 500, (answer.status_code, path)
        assert self.strange not in answer.text, path
        assert "<script>alert(1)" not in answer.text, path
        assert not INSIDES.search(answer.text), path
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        looked = Looked(answer, path)
        assert looked.inline == [], path
        return looked

    def weight(self, path: str) -> int:
        """How much a file takes."""
        if path not in self.weights:
            sent = self.client.get(path, buffered=True, headers={"Accept-Encoding": "gzip"})
            self.weights[path] = len(sent.data)
        return self.weights[path]


@WHOLE
@pytest.mark.parametrize("role", ROLES)
def test_console_crawl_of_every_link_and_form_per_role(
    app: Flask, cast: Cast, role: str, whole: bool
) -> None:
    furnished.furnish(app, cast)
    people = {"viewer": cast.bob, "admin": cast.alice, "superadmin": cast.root}
    caller = people.get(role) or furnished.editor(app, cast)
    # Superadmins see all accounts: nothing is strange to them.
    strange = furnished.STRANGE if role != "superadmin" else "\0"
    crawl = Crawl(Browser(app, caller).client, strange, whole=whole)
    pages = crawl.run()
    least = {"viewer": 5, "editor": 5, "admin": 35, "superadmin": 50}[role]
    assert (pages >= least, pages < MOST_PAGES) == (True, True), (pages, len(crawl.sent))
