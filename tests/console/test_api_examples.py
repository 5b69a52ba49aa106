"""The API tab of a collection: its examples run as they are, and requests are tried out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

import pytest
from flask import Flask

from tests import builders
from tests.builders import Caller, Cast, make_collection, make_record, make_user
from tests.conftest import make_app, settings_for
from tests.console.browser import HOSTILE, Browser
from tests.project import free_port
from tests.serving import serving

NASTY = """it's "50%" $HOME `x` \\ {y} é"""
FIELDS = [
    {"name": "title", "type": "text", "required": True, "options": {"min_length": 20}},
    {"name": "kind", "type": "select", "required": True, "options": {"choices": [NASTY, "b"]}},
    {"name": "tags", "type": "multi_select", "options": {"choices": [NASTY, HOSTILE]}},
    {"name": "price", "type": "number", "options": {"min": 2.5, "max": 3, "integer": True}},
    {"name": "done", "type": "boolean"},
    {"name": "due", "type": "date"},
    {"name": "at", "type": "datetime"},
    {"name": "mail", "type": "email"},
    {"name": "site", "type": "url"},
    {"name": "more", "type": "json"},
    {"name": "code", "type": "text", "options": {"pattern": "^[A-Z]{3}$"}},
    {"name": "post", "type": "reference", "collection": "posts", "required": True},
    {"name": "loud", "type": "computed", "return_type": "text", "expression": "upper(title)"},
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Flask, Cast]]:
    """A served application with a collection of every kind of field."""
    folder = tmp_path_factory.mktemp("examples")
    app = make_app(settings_for("sqlite", folder, base_url=f"http://127.0.0.1:{free_port()}"))
    cast = builders.make_cast(app)
    make_collection(cast.root)
    make_record(cast.alice, title="target")
    make_collection(cast.root, "orders", FIELDS)
    with serving(app):
        yield app, cast


def test_api_examples_language_is_remembered(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    browser, path = Browser(app, cast.alice), f"records/{cast.alice.account_id}/posts/api"
    for query, expected in (("", "curl"), ("?language=python", "Python"), ("", "Python")):
        page = browser.get(f"{path}{query}").text
        assert set(re.findall('data-language="([^"]*)"', page)) == {expected}
        assert f'aria-current="page">{expected}</a>' in page
    assert set(re.findall('data-language="([^"]*)"', browser.get(f"{path}?language=x").text)) == {
        "Python"
    }


def test_api_examples_filters_work_for_the_collection(served: tuple[Flask, Cast]) -> None:
    app, cast = served
    page = Browser(app, cast.alice).get(f"records/{cast.alice.account_id}/orders/api").text
    shown = re.findall(r"<li><code>(.*?)</code></li>", page)
    assert len(shown) >= 8
    for condition in map(unescape, shown):
        answer = cast.alice.get("records/orders", query_string={"filter": condition})
        assert answer.status_code == 200, (condition, answer.text)


def test_api_examples_requests_run_with_rights_of_caller(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, list_rule="@owns_record()", view_rule="@owns_record()")
    mine = make_record(cast.alice, title="mine")["id"]
    hidden = make_record(cast.bob, title="bob's")["id"]
    foreign = make_record(cast.charlie, title="strange")["id"]
    browser, path = Browser(app, cast.alice), f"records/{cast.alice.account_id}/posts/api"

    def tried(query: str) -> str:
        answer = browser.get(f"{path}?{query}")
        assert answer.status_code == 200, query
        (shown,) = re.findall(r'<div id="response".*?</div>', answer.text, re.DOTALL)
        return unescape(re.sub(r"<[^>]+>", " ", shown))

    listed = tried("try=list&sort=title")
    assert "200" in listed
    assert "mine" in listed
    assert "bob's" not in listed
    assert "strange" not in listed
    assert '"total": 0' in tried("try=list&filter=title = 'other'")
    assert "filter_invalid" in tried("try=list&filter=nothing = 1")
    assert "mine" in tried(f"try=get&id={mine}")
    for id in (hidden, foreign, "x", "", "9" * 400):
        answer = tried(f"try=get&id={id}")
        assert "404" in answer or "400" in answer
        assert "bob's" not in answer
        assert "strange" not in answer


def test_api_examples_of_closed_collection_show_no_data(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, **dict.fromkeys(builders.OPEN, None))
    make_record(cast.root.acting_in("acme"), title="secret")
    page = Browser(app, cast.alice).get(f"records/{cast.alice.account_id}/posts/api?try=list").text
    assert "rule_denied" in page
    assert "secret" not in page


def test_api_examples_tab_is_for_admins(app: Flask, cast: Cast) -> None:
    id = make_collection(cast.root)["id"]
    editor = Caller(app, make_user(app, cast.alice.account_id, "ed@acme.example", "editor"))
    own = f"records/{cast.alice.account_id}/posts/api"
    assert Browser(app, editor).get(own).status_code == 403
    assert Browser(app, cast.charlie).get(own).status_code == 404
    assert Browser(app, cast.alice).get(f"collections/{id}/api").status_code == 403
    unknown = Browser(app, cast.root).get(f"collections/{id}/api?account=nowhere")
    assert (unknown.status_code, "no active account" in unknown.text) == (400, True)
