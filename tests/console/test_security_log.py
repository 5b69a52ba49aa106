"""The security log in the console: what admins see, filter, export, verify and send."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html import unescape

from flask import Flask

from app import clock
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_record
from tests.console.browser import Browser, beside
from tests.receivers import receiving
from tests.security.reading import CUSTOMERS
from tests.webhooks.delivering import make_webhook


def test_an_admin_sees_what_happened(app: Flask, cast: Cast) -> None:
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


def test_events_name_and_link_what_they_are_about(app: Flask, cast: Cast) -> None:
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


def test_ranges_of_days_are_chosen_by_a_button(app: Flask, cast: Cast) -> None:
    browser, at = Browser(app, cast.alice), f"security-log/{cast.alice.account_id}"
    page = browser.get(f"{at}?kind=sign_in.succeeded").text
    assert re.findall('name="days" value="([0-9]+)"', page) == ["1", "7", "30"]
    chosen = browser.get(f"{at}?kind=sign_in.succeeded&from_date=&to_date=2020-01-01&days=7").text
    start = (clock.now() - timedelta(days=6)).date()
    assert f'value="{start}T00:00"' in chosen
    assert re.findall('name="days" value="([0-9]+)" aria-pressed="true"', chosen) == ["7"]
    assert ">Signed in" in chosen
    assert "is not a date" in browser.get(f"{at}?from_date=nonsense&days=5").text


def test_an_admin_sends_the_log_to_a_receiver(app: Flask, cast: Cast) -> None:
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


def test_only_admins_of_the_account_and_superadmins_see_it(app: Flask, cast: Cast) -> None:
    at = f"security-log/{cast.alice.account_id}"
    assert Browser(app, cast.bob).get(at).status_code == 403
    assert Browser(app, cast.charlie).get(at).status_code == 404
    assert Browser(app, cast.root).get(at).status_code == 200
    assert PASSWORD not in Browser(app, cast.alice).get(at).text
