"""The search: across what the caller may see, nothing of others, and never over whole tables."""

from __future__ import annotations

import html
import json
import re

import pytest
from flask import Flask

from app import db
from app.console.records import search
from app.webhooks.models import Webhook
from app.workflows.models import Workflow
from tests import builders
from tests.builders import Cast
from tests.console.browser import HOSTILE, Browser

pytestmark = pytest.mark.both_databases
HIT = re.compile(r'<li><a href="([^"]*)">([^<]*)</a>')


def found(browser: Browser, text: str, **asked: str) -> list[str]:
    """The names of what is found; every one leads to a page."""
    answer = browser.client.get("/console/search", query_string={"search": text, **asked})
    assert answer.status_code == 200
    hits = HIT.findall(answer.text.partition("<main")[2])
    for target in {target for target, _ in hits}:
        assert browser.client.get(html.unescape(target)).status_code == 200, target
    return [name for _, name in hits]


@pytest.fixture
def things(app: Flask, cast: Cast) -> None:
    """Of every kind something called "needle", in acme and in globex."""
    builders.make_collection(cast.root, "needles")
    builders.make_collection(cast.root, "closed_needles", list_rule=None)
    for caller in (cast.alice, cast.charlie):
        builders.make_record(caller, "needles", title=f"a Needle of {caller.slug}, 100%")
        builders.make_record(caller, "closed_needles", title=f"closed needle of {caller.slug}")
        caller.post("api-keys", {"name": f"needle key of {caller.slug}"})
        caller.post("groups", {"name": f"needle group of {caller.slug}"})
        email = f"needle@{caller.slug}.example"
        builders.make_user(app, caller.account_id, email)
        with app.app_context(), db.transaction() as session:
            mine = {"account_id": caller.account_id}
            hook = {"collection": "posts", "events": ["create"], "secret": "x"}
            session.add(Webhook(url=f"https://{caller.slug}.example/needle", **mine, **hook))
            started = {"trigger_type": "manual", "trigger": {"type": "manual"}}
            flow = {**started, "steps": [], "owner_id": caller.id}
            name = f"needle flow of {caller.slug}"
            session.add(Workflow(name=name, owner_home=caller.account_id, **mine, **flow))


@pytest.mark.long
@pytest.mark.usefixtures("things")
def test_console_search_finds_only_visible_objects(
    app: Flask, cast: Cast, admin: Browser, superadmin: Browser
) -> None:
    of_acme = {
        *("needles", "needle@acme.example", "https://acme.example/needle"),
        *("needle flow of acme", "needle key of acme", "a Needle of acme, 100%"),
        "needle group of acme",
    }
    assert set(found(admin, "needle")) == of_acme
    # A member finds the records that the rules open, and nothing of the administration.
    assert found(Browser(app, cast.bob), "needle") == ["a Needle of acme, 100%"]
    everything = found(superadmin, "needle")
    assert {"needle@globex.example", "needle flow of acme", "closed_needles"} <= set(everything)
    assert "a Needle of acme, 100%" not in everything
    in_globex = found(superadmin, "needle", account="globex")
    assert {"closed needle of globex", "needle key of globex"} <= set(in_globex)
    assert not any("acme" in name for name in in_globex)
    assert found(superadmin, "GLOB")[0] == "Globex"


@pytest.mark.usefixtures("things")
def test_console_search_of_superadmin_includes_records_of_chosen_account(
    cast: Cast, superadmin: Browser
) -> None:
    superadmin.get(f"accounts/{cast.alice.account_id}/dashboard")
    page = superadmin.get("search").text
    assert 'name="account" type="text" value="AA0001"' in page
    assert f'href="/console/records/{cast.alice.account_id}/needles"' in page
    everywhere = set(found(superadmin, "needle"))
    assert {"a Needle of acme, 100%", "needle@globex.example"} <= everywhere
    assert "a Needle of globex, 100%" not in everywhere


@pytest.mark.usefixtures("things")
def test_console_search_text_is_literal(cast: Cast, admin: Browser, superadmin: Browser) -> None:
    assert found(admin, "100%") == ["a Needle of acme, 100%"]
    record = builders.make_record(cast.alice, "needles", title="by its id")
    assert found(admin, record["id"]) == ["by its id"]
    for odd in ("%", "_e_dle", "'", "\\", "x' || true || '", "🧵" * 90, HOSTILE):
        names = found(admin, odd)
        assert not any("globex" in name or "closed" in name for name in names), odd
        assert "<script>alert" not in admin.client.get("/console/search?search=" + odd[:20]).text
    assert "No active account" in superadmin.get("search?search=x&account=nope").text


@pytest.mark.usefixtures("things")
def test_console_search_names_collections_not_searched(
    cast: Cast, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders.make_collection(cast.root, "others")
    builders.make_record(cast.alice, "others", title="one more needle")
    monkeypatch.setattr(search, "MAX_COLLECTIONS", 1)
    assert "a Needle of acme, 100%" in found(admin, "needle")
    assert found(admin, "one more") == ["others"]
    (way,) = HIT.findall(admin.get("search?search=one+more").text.partition("<main")[2])
    assert "one more needle" in admin.client.get(html.unescape(way[0])).text


@pytest.mark.usefixtures("things")
def test_console_search_covers_newest_records(
    cast: Cast, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_SCANNED", 2)
    monkeypatch.setattr(search, "MIN_SCANNED", 2)
    for title in ("hay", "hay", "hay"):
        builders.make_record(cast.alice, "needles", title=title)
    page = admin.get("search?search=a+Needle").text
    assert "No match among the newest 2." in page
    (rest,) = re.findall(r'<a href="([^"]*)">Search all', page)
    assert "a Needle of acme" in admin.client.get(html.unescape(rest)).text


def test_words_find_old_records_of_searchable_collections(
    cast: Cast, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    title = {"name": "title", "type": "text", "options": {"search": True}}
    builders.make_collection(cast.root, "papers", [title])
    for text in ("Grüße vom Meer", "other", "the sea"):
        builders.make_record(cast.alice, "papers", title=text)
    monkeypatch.setattr(search, "MAX_SCANNED", 1)
    monkeypatch.setattr(search, "MIN_SCANNED", 1)
    assert found(admin, "grusse") == ["Grüße vom Meer"]
    papers = f"/console/records/{cast.alice.account_id}/papers"
    page = admin.client.get(papers, query_string={"search": "GRUSSE mee"}).text
    assert 'value="GRUSSE mee"' in page
    assert ("Grüße vom Meer" in page, "the sea" in page) == (True, False)
    assert "1 record, best matches first" in page
    assert "<mark>Grüße</mark> vom <mark>Meer</mark>" in page
    sorted_page = admin.client.get(papers, query_string={"search": "sea", "sort": "title"}).text
    assert "1 record, sorted by title" in sorted_page
    assert "No matches." in admin.client.get(papers, query_string={"search": "nothing"}).text
    assert "at least one word" in admin.client.get(papers, query_string={"search": "-"}).text
    file = admin.client.get(f"{papers}/export/jsonl?search=sea").text
    assert [json.loads(line)["title"] for line in file.splitlines()] == ["the sea"]
