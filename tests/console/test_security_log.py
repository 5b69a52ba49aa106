"""The security log in the console: what admins see, filter, export, verify and send."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import hmac
import json
import re
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask

from app import clock, db, jobs
from app.audit.security_log.models import SecurityStream
from app.console.admin import security_log
from app.console.shell import lists
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_record
from tests.console.browser import Browser, beside
from tests.receivers import receiving
from tests.security.reading import CUSTOMERS
from tests.webhooks.delivering import make_webhook


def test_console_security_log_lists_and_filters_events(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, "customers", CUSTOMERS)
    made = make_record(cast.alice, "customers", name="Zoe", email="zoe@example.org")
    cast.alice.get(f"records/customers/{made['id']}")
    body = {"account": "acme", "email": cast.bob.email}
    Caller(app).post("auth/login", {**body, "password": "Wrong-horse-1"})
    browser, at = Browser(app, cast.alice), f"security-log/{cast.alice.account_id}"
    page = browser.get(at).text
    for text in ("Sign-in failed", "Personal data read", "Signed in", cast.bob.email, "one record"):
        assert text in page
    assert "zoe@" not in page
    failed = browser.get(f"{at}?kind=sign_in.failed").text
    assert len(re.findall("<th scope=.row.>", failed)) == 1
    assert "No matches" in browser.get(f"{at}?record_id=nothing").text
    readers = browser.get(f"{at}/readers?record_id={made['id']}&target_type=col_customers").text
    assert cast.alice.email in readers
    reads, *_others = re.findall(
        r'<th scope="row" class="breaks"><a href="/console/([^"]*)"', readers
    )
    assert "Personal data read" in browser.get(unescape(reads)).text
    text = browser.get(f"{at}/export/ocsf?kind=sign_in.failed").text
    assert json.loads(text)["class_name"] == "Authentication"
    assert "complete and unchanged" in browser.done(f"{at}/verify")


def test_console_record_readers_are_linked_and_exported(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, "customers", CUSTOMERS)
    make_collection(cast.root, "posts")
    at = f"/console/security-log/{cast.alice.account_id}/readers"
    ids = [
        make_record(cast.alice, "customers", name=name, email=f"{name}@example.org")["id"]
        for name in ("zoe", "yan")
    ]
    plain = make_record(cast.alice, "posts")["id"]
    browser, records = Browser(app, cast.alice), f"records/{cast.alice.account_id}"
    link = re.compile(rf'href="{at}([^"]*)">Who read this record')
    assert not link.search(browser.get(f"{records}/posts/{plain}").text)
    (query,) = link.findall(browser.get(f"{records}/customers/{ids[0]}").text)
    page = browser.client.get(f"{at}{unescape(query)}").text
    assert "1 person in 3 rows." in page
    assert "Account exports and totals name no records" in page
    form = page.partition('/readers/csv">')[2].partition("Download CSV")[0]
    hidden = dict(re.findall('name="([^"]*)" value="([^"]*)"', form))
    assert hidden == {"target_type": "col_customers", "record_id": ids[0]}
    answer = browser.get(f"{at[9:]}/csv?{urlencode(hidden)}")
    assert answer.mimetype == "text/csv"
    rows = list(csv.DictReader(answer.text.splitlines()))
    assert {(row["user_email"], row["path"], row["fields"]) for row in rows} == {
        (cast.alice.email, path, '["email"]') for path in ("write", "console", "history")
    }
    assert all(row["records"] == "1" for row in rows)
    assert browser.get(f"{at[9:]}/csv?from_date=never").status_code == 404
    of_bob = Browser(app, cast.alice).get(f"team/users/{cast.bob.id}").text
    assert f'href="{at}?user_id={cast.bob.id}">Personal data read' in of_bob
    assert Browser(app, cast.bob).get(f"{at[9:]}/csv").status_code == 403
    other = at.replace(cast.alice.account_id, cast.charlie.account_id)
    assert browser.get(f"{other[9:]}/csv").status_code == 404


def test_console_security_events_link_their_objects(app: Flask, cast: Cast) -> None:
    group = cast.alice.post("groups", {"name": "finance"}).json["id"]
    domain = cast.alice.post("account/domains", {"domain": "acme.example"}).json["id"]
    token = cast.alice.post("account/scim/tokens").json
    make_collection(cast.root)
    gone = make_webhook(cast.alice, "https://gone.example/")["id"]
    cast.alice.delete(f"webhooks/{gone}")
    cast.alice.patch(f"users/{cast.bob.id}", {"name": "Bob"})
    browser, acme = Browser(app, cast.alice), cast.alice.account_id
    page = browser.get(f"security-log/{acme}").text
    for url, name in (
        (f"/groups/{group}", "finance"),
        (f"/sso/{acme}/domains/{domain}", "acme.example"),
        (f"/sso/{acme}/scim", f"…{token['hint']}"),
        (f"/{cast.bob.id}", cast.bob.email),
    ):
        assert re.search(f'href="[^"]*{url}">{name}</a>', page), url
    assert f">…{gone[-8:]}</span>" in page
    assert "email_verified" not in page
    assert "Email verified" in page


def test_console_security_log_shows_system_actor_and_verification(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, "customers", CUSTOMERS)
    make_record(cast.alice, "customers", name="Zoe", email="zoe@example.org")
    cast.alice.get("records/customers")
    browser, at = Browser(app, cast.alice), f"security-log/{cast.alice.account_id}"
    page = browser.get(at).text
    assert '<span class="text-secondary">System</span>' in page
    assert not re.search(r'href="[^"]*user_id=system"', page)
    assert "<div>email · 1 record</div>" in page
    assert "has not been verified yet" in page
    assert "has not been verified yet" not in browser.done(f"{at}/verify")


def test_console_security_log_groups_operator_requests_into_visit(app: Flask, cast: Cast) -> None:
    acme, operator = cast.alice.account_id, Browser(app, cast.root)
    for path in (f"security-log/{acme}", f"usage/{acme}", f"webhooks/{acme}/deliveries"):
        assert operator.get(path).status_code == 200
    cast.alice.post("groups", {"name": "finance"})
    operator.get(f"settings/{acme}/retention")
    page = Browser(app, cast.alice).get(f"security-log/{acme}").text
    (visit,) = re.findall("Operator visit.*?</tr>", page, re.DOTALL)
    assert "Security log, Usage, Deliveries" in visit
    assert "3 requests since <time" in visit
    assert visit.count("More about event") == 3
    assert "GET /console/webhooks/…/deliveries" in visit
    lone = re.findall('<th scope="row">Request by the operator</th>.*?</tr>', page, re.DOTALL)
    assert [">Retention<" in one for one in lone] == [True], "what others did ends a visit"
    rows = len(re.findall("<tr data-of-day>", page))
    assert rows < len(re.findall("More about event", page))
    shown = [int(n) for n in re.findall("More about event ([0-9]+)", page)]
    assert shown == sorted(shown, reverse=True)
    assert f"<p>{len(shown)} events." in page, "each event can be opened"


def test_console_operator_visit_ends_with_pause(app: Flask, cast: Cast) -> None:
    acme, operator = cast.alice.account_id, Browser(app, cast.root)
    operator.get(f"usage/{acme}")
    later = clock.now() + security_log.LONGEST_PAUSE + timedelta(seconds=1)
    with time_machine.travel(later, tick=True):
        Browser(app, cast.root).get(f"usage/{acme}")
        page = Browser(app, cast.alice).get(f"security-log/{acme}").text
    assert "Operator visit" not in page
    assert page.count('<th scope="row">Request by the operator<') == 2


@pytest.mark.long
@pytest.mark.parametrize("most", [security_log.MAX_EVENTS, 7])
def test_console_security_log_pages_have_equal_rows_with_long_visits(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(security_log, "MAX_EVENTS", most)
    acme, operator = cast.alice.account_id, Browser(app, cast.root)
    for n in range(30):
        cast.alice.post("groups", {"name": f"g{n}"})
        for _ in range(3 if n % 3 else 9):
            operator.get(f"usage/{acme}")
    alice, at = Browser(app, cast.alice), f"security-log/{acme}"

    def opened(path: str) -> tuple[list[int], dict[str, str]]:
        page = alice.get(path).text
        found = re.findall(r'rel="(prev|next)" href="/console/([^"]*)"', page)
        rows = len(re.findall("<tr data-of-day>", page))
        assert rows == lists.PAGE_SIZE or most == 7 or "next" not in dict(found)
        numbers = [int(n) for n in re.findall("More about event ([0-9]+)", page)]
        return numbers, {rel: unescape(url) for rel, url in found}

    downwards, path = list[list[int]](), at
    while path:
        numbers, links = opened(path)
        assert ("prev" in links) is bool(downwards)
        downwards.append(numbers)
        path = links.get("next", "")
    whole = [n for numbers in downwards for n in numbers]
    assert whole == list(range(whole[0], 0, -1)), "each event once, in their order"
    # And back: the first page is whole again.
    while "prev" in links:
        numbers, links = opened(links["prev"])
    assert numbers[0] >= downwards[0][0]
    # What is no place of the log shows its newest events.
    for nowhere in ("before=1", "before=x", "after=999999999", "before=-1"):
        numbers, links = opened(f"{at}?{nowhere}")
        assert ("prev" in links, numbers[0]) == (False, whole[0]), nowhere


@pytest.mark.long
def test_console_security_log_page_with_longest_visit_is_under_25_kib(
    app: Flask, cast: Cast
) -> None:
    acme, operator = cast.alice.account_id, Browser(app, cast.root)
    for _ in range(security_log.MAX_EVENTS):
        assert operator.get(f"webhooks/{acme}/deliveries").status_code == 200
    page = Browser(app, cast.alice).get(f"security-log/{acme}")
    assert page.text.count("More about event") == security_log.MAX_EVENTS
    assert len(gzip.compress(page.data)) < 25 * 1024


def test_console_security_log_names_superadmins_only_to_superadmins(app: Flask, cast: Cast) -> None:
    at = f"security-log/{cast.alice.account_id}"
    operator, own = Browser(app, cast.root), Browser(app, cast.alice)
    operator.get(at)
    person = '<td class="person breaks"><a href="([^"]*)">([^<]*)</a>(.*?)</td>'
    cell = f'{person}.*?<td class="address">(.*?)</td>'
    for browser, name, label in (
        (operator, cast.root.email, ">operator<"),
        (own, "Platform operator", ""),
    ):
        page = browser.get(f"{at}?kind=operator.request").text
        (url, shown, below, address), *_others = re.findall(cell, page, re.DOTALL)
        assert (shown, label in below) == (name, True)
        assert not address
        assert "IP addresses are not stored" in page
        theirs = browser.get(unescape(url).removeprefix("/console/")).text
        assert re.search(rf'<option value="{cast.root.id}" selected>{name}<', theirs)
        assert ">Signed in<" not in theirs.partition("<table")[2]
    assert cast.root.email not in own.get(at).text


def test_console_security_log_date_ranges_by_button(app: Flask, cast: Cast) -> None:
    browser, at = Browser(app, cast.alice), f"security-log/{cast.alice.account_id}"
    page = browser.get(f"{at}?kind=sign_in.succeeded").text
    assert re.findall('name="days" value="([0-9]+)"', page) == ["1", "7", "30"]
    chosen = browser.get(f"{at}?kind=sign_in.succeeded&from_date=&to_date=2020-01-01&days=7").text
    pressed = 'name="days" value="([0-9a-z]+)" aria-pressed="true"'
    assert re.findall(pressed, page) == ["all"]
    start = (clock.now() - timedelta(days=6)).date()
    assert f'value="{start}T00:00"' in chosen
    assert re.findall('name="days" value="([0-9]+)" aria-pressed="true"', chosen) == ["7"]
    assert ">Signed in" in chosen
    whole = browser.get(f"{at}?kind=sign_in.succeeded&from_date=2020-01-01&days=all").text
    assert re.findall(pressed, whole) == ["all"]
    assert "2020-01-01" not in whole
    assert "is not a date" in browser.get(f"{at}?from_date=nonsense&days=5").text


@pytest.mark.parametrize(
    ("address", "is_open"),
    [
        ("security-log/{}", False),
        ("security-log/{}?kind=sign_in.failed", False),
        ("security-log/{}?days=7", False),
        ("security-log/{}?path=list", True),
        ("security-log/{}?from_date=never", True),
        ("audit?operation=CREATE", True),
        ("audit?days=30", False),
        ("audit?to_date=2026-01-31T10:00", True),
        ("webhooks/{}/deliveries?status=failed", False),
        ("webhooks/{}/deliveries?record=none", True),
    ],
)
def test_console_security_log_rare_filters_are_folded(
    app: Flask, cast: Cast, address: str, is_open: bool
) -> None:
    page = Browser(app, cast.alice).get(address.format(cast.alice.account_id)).text
    (fold,) = re.findall('<details class="fold"([^>]*)>', page)
    assert ("open" in fold) is is_open


def test_console_security_log_receiver_is_set_up(app: Flask, cast: Cast) -> None:
    browser, at = Browser(app, cast.alice), f"security-log/{cast.alice.account_id}/receiver"
    assert beside(browser.send(at, url="nonsense"), "url")
    with receiving() as receiver:
        page = browser.done(at, url=receiver.url, is_enabled="true")
        (secret,) = re.findall(r'value="([0-9a-f]{64})"', page)
        assert secret not in browser.get(at).text
        assert re.search(r"Waiting to be sent</dt><dd>[1-9][0-9]* events<", browser.get(at).text)
        assert browser.get(f"{at}/secret").status_code == 303
        assert re.findall(r'value="([0-9a-f]{64})"', browser.done(f"{at}/rotate")) != [secret]
        assert "Saved" in browser.done(at, url=f"{receiver.url}/other", is_enabled="")
        assert cast.alice.get("account/security-log/stream").json["is_enabled"] is False
        assert "no longer sent" in browser.done(f"{at}/remove")
        assert "no longer sent" in browser.done(f"{at}/remove")


def test_console_security_log_receiver_test_sends_no_event(app: Flask, cast: Cast) -> None:
    browser, at = Browser(app, cast.alice), f"security-log/{cast.alice.account_id}/receiver"
    assert browser.send(f"{at}/test").status_code == 404
    with receiving(lambda request: (202, "<b>thanks</b>")) as receiver:
        secret = cast.alice.put("account/security-log/stream", {"url": receiver.url}).json["secret"]
        page = browser.send(f"{at}/test").text
        assert "The receiver accepted the test." in page
        assert "&lt;b&gt;thanks&lt;/b&gt;" in page
        (request,) = receiver.requests
        acme = cast.alice.account_id
        assert request.json == {"account_id": acme, "is_test": True, "entries": []}
        named = [request.headers[f"webhook-{name}"] for name in ("id", "timestamp")]
        signed = ".".join(named).encode() + b"." + request.body
        digest = hmac.new(secret.encode(), signed, hashlib.sha256).digest()
        signature = f"v1,{base64.b64encode(digest).decode()}"
        assert request.headers["webhook-signature"] == signature
        receiver.answer = lambda request: (500, "no")
        assert "The receiver responded with 500." in browser.send(f"{at}/test").text
        stream = cast.alice.get("account/security-log/stream").json
        assert (stream["sent_number"], stream["failing_since"]) == (0, None)
    assert Browser(app, cast.bob).send(f"{at}/test").status_code == 403
    assert Browser(app, cast.charlie).send(f"{at}/test").status_code == 404


@pytest.mark.parametrize(
    ("values", "has_run", "state", "reason"),
    [
        ({"is_enabled": False}, True, "disabled", "Sending is switched off."),
        ({"failing_since": clock.now()}, True, "failing", "The last attempt failed."),
        ({}, False, "waiting", "No worker runs"),
        ({}, True, "enabled", "within a minute"),
    ],
)
def test_console_security_log_receiver_shows_why_events_wait(
    app: Flask, cast: Cast, values: dict[str, Any], has_run: bool, state: str, reason: str
) -> None:
    cast.alice.put("account/security-log/stream", {"url": "http://127.0.0.1:9/"})
    with app.app_context(), db.transaction() as session:
        (stream,) = session.scalars(sa.select(SecurityStream))
        for name, value in values.items():
            setattr(stream, name, value)
        if has_run:
            due = {"due_at": clock.now() + timedelta(minutes=4), "finished_at": clock.now()}
            row = {"account_id": jobs.INSTANCE, "kind": "jobs.purge", "payload": {}}
            session.add(jobs.Job(**row, **due))
    page = Browser(app, cast.alice).get(f"security-log/{cast.alice.account_id}/receiver").text
    alerts = "".join(re.findall(r'<p class="alert[^>]*>(.*?)</p>', page))
    why = page.partition("Why they wait</dt>")[2].partition("</dd>")[0]
    assert (reason in alerts, reason in why) == (state == "waiting", state != "waiting")
    assert re.search(rf'<h2>State <span class="state [a-z]*">{state}<', page)
    assert "Sent up to event</dt><dd>none yet<" in page


def test_console_security_log_access_per_role(app: Flask, cast: Cast) -> None:
    at = f"security-log/{cast.alice.account_id}"
    assert Browser(app, cast.bob).get(at).status_code == 403
    assert Browser(app, cast.charlie).get(at).status_code == 404
    assert Browser(app, cast.root).get(at).status_code == 200
    assert PASSWORD not in Browser(app, cast.alice).get(at).text
