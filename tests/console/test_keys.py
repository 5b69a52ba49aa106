"""The pages of API keys: a new key is made once and shown once."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from app import clock
from tests.builders import Caller, Cast, make_collection
from tests.console.browser import Browser, beside, once, sign_in, sign_out
from tests.parallel import at_once

SHOWN = re.compile(r'value="(svc_sk_\w+)" readonly')


def open_next(browser: Browser, answer: TestResponse) -> TestResponse:
    """The page that a form leads to."""
    assert answer.status_code == 303
    return browser.client.get(answer.headers["Location"])


def test_console_key_is_created_shown_once_and_revoked(app: Flask, cast: Cast) -> None:
    viewer = Browser(app, cast.bob)
    page = viewer.done("keys/new", name="import", expires_at="2999-12-31")
    (key,) = SHOWN.findall(page)
    assert "not shown again" in page
    assert Caller(app, **{"X-API-Key": key}).get("auth/me").json["email"] == cast.bob.email
    (row,) = cast.bob.get("api-keys").json["items"]
    assert row["expires_at"].startswith("3000-01-01")
    assert key not in viewer.get("keys").text
    assert cast.bob.email in Browser(app, cast.alice).get("keys").text
    assert "is revoked" in viewer.done(f"keys/{row['id']}/revoke")
    assert Caller(app, **{"X-API-Key": key}).get("auth/me").status_code == 401
    assert "is revoked" in viewer.done(f"keys/{row['id']}/revoke")  # pressed twice


def test_console_keys_navigation_is_current_at_both_addresses(app: Flask, cast: Cast) -> None:
    viewer, at = Browser(app, cast.bob), f"accounts/{cast.bob.account_id}/keys"
    for path in ("keys", "keys/new", at, f"{at}/new"):
        shown = "page" if path == "keys" else "true"
        assert f'href="/console/keys" aria-current="{shown}"' in viewer.get(path).text, path


def test_console_key_page_reloaded_makes_and_shows_no_key(app: Flask, cast: Cast) -> None:
    viewer = Browser(app, cast.bob)
    made = viewer.send("keys/new", name="import")
    (key,) = SHOWN.findall(open_next(viewer, made).text)
    again = open_next(viewer, open_next(viewer, made))
    assert "The key import has already been shown." in again.text
    assert key not in again.text
    assert cast.bob.get("api-keys").json["total"] == 1


def test_console_key_form_sent_twice_makes_one_key(app: Flask, cast: Cast) -> None:
    browsers = [Browser(app, cast.bob) for _ in range(2)]
    drawn = once(browsers[0].get("keys/new").text)
    sent = {"as": drawn, "name": "import"}
    answers = at_once(2, lambda n: browsers[n].send("keys/new", **sent))
    pages = [open_next(*pair) for pair in zip(browsers, answers, strict=True)]
    (row,) = cast.bob.get("api-keys").json["items"]
    assert {one.headers["Location"].split("/")[-2] for one in answers} == {row["id"]}
    assert sorted(len(SHOWN.findall(page.text)) for page in pages if page.status_code == 200) == [1]
    # Whoever goes back and sends something else makes another.
    assert SHOWN.findall(browsers[0].done("keys/new", **sent | {"name": "other"}))
    assert cast.bob.get("api-keys").json["total"] == 2


def test_console_key_secret_is_in_no_cookie_or_address(app: Flask, cast: Cast) -> None:
    viewer = Browser(app, cast.bob)
    made = viewer.send("keys/new", name="import")
    cookie = viewer.client.get_cookie("atrium_form")
    assert cookie
    payload = cookie.decoded_value
    (key,) = SHOWN.findall(open_next(viewer, made).text)
    assert key.encode() not in made.data + str(made.headers).encode()
    assert key not in payload
    # The cookie's content is signed text that everybody can read.
    with app.test_request_context(headers={"Cookie": f"atrium_form={payload}"}) as context:
        assert context.session is not None
        assert "handover" in context.session
        assert key[12:] not in str(dict(context.session))


def test_console_key_secret_is_shown_only_in_its_session(app: Flask, cast: Cast) -> None:
    browser = Browser(app, cast.bob)
    made = browser.send("keys/new", name="import")
    sign_out(browser.client)
    for caller, status in ((cast.bob, 303), (cast.charlie, 404)):
        sign_in(browser.client, caller)
        answer = browser.client.get(made.headers["Location"])
        assert answer.status_code == status
        assert not SHOWN.search(answer.text)
        sign_out(browser.client)
        made = made if status == 404 else browser_made(browser, cast.bob)


def browser_made(browser: Browser, caller: Caller) -> TestResponse:
    """Another key of the caller, made but not looked at."""
    sign_in(browser.client, caller)
    made = browser.send("keys/new", name="other")
    sign_out(browser.client)
    return made


def test_console_key_secret_is_shown_only_at_its_own_address(
    app: Flask, cast: Cast, ids: dict[str, str]
) -> None:
    admin = Browser(app, cast.alice)
    admin.send("keys/new", name="other")
    assert not SHOWN.search(admin.client.get(f"/console/keys/{ids['key']}/made").text)


def test_console_key_secret_can_be_shown_for_five_minutes(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer = Browser(app, cast.bob)
    for minutes, shown in ((4, True), (6, False)):
        made = viewer.send("keys/new", name="import")
        with monkeypatch.context() as patch:
            later = clock.now() + timedelta(minutes=minutes)
            patch.setattr(clock, "now", lambda later=later: later)
            assert bool(SHOWN.search(open_next(viewer, made).text)) is shown


@pytest.mark.parametrize("day", ["2001-01-01", "soon", "9999-12-31", "0001-01-01", "9" * 5000])
def test_console_key_with_invalid_or_past_expiry_date_is_400(
    app: Flask, cast: Cast, day: str
) -> None:
    answer = Browser(app, cast.bob).send("keys/new", name="x", expires_at=day)
    assert (answer.status_code, bool(beside(answer, "expires_at"))) == (400, True)
    assert cast.bob.get("api-keys").json["total"] == 0


@pytest.mark.parametrize(("choice", "days"), [("30", 30), ("365", 365), ("never", None)])
def test_console_key_expires_as_chosen(
    app: Flask, cast: Cast, choice: str, days: int | None
) -> None:
    viewer = Browser(app, cast.bob)
    assert "it acts as you" in viewer.get("keys/new").text
    viewer.done("keys/new", name="x", expires_in=choice, expires_at="2001-01-01")
    (row,) = cast.bob.get("api-keys").json["items"]
    if days is None:
        assert row["expires_at"] is None
    else:
        left = clock.parse(row["expires_at"]) - clock.now()
        assert timedelta(days=days - 1) < left <= timedelta(days=days)


@pytest.mark.parametrize(
    ("chosen", "read_only", "scopes", "shown"),
    [
        ({}, False, None, "Read and write"),
        ({"access": "full"}, False, None, "Read and write"),
        ({"access": "read"}, True, None, "Read only"),
        ({"scopes": ["posts:list"]}, False, {"posts": ["list"]}, "Read and write"),
        (
            {"access": "read", "scopes": ["posts:list", "posts:view", "books:view"]},
            True,
            {"posts": ["list", "view"], "books": ["view"]},
            "books: view<br>posts: list, view",
        ),
    ],
)
def test_console_key_limits_are_stored_as_chosen(
    app: Flask, cast: Cast, chosen: dict[str, Any], read_only: bool, scopes: Any, shown: str
) -> None:
    make_collection(cast.root)
    make_collection(cast.root, "books")
    viewer = Browser(app, cast.bob)
    assert 'name="scopes" value="posts:list"' in viewer.get("keys/new").text
    viewer.done("keys/new", name="x", **chosen)
    (row,) = cast.bob.get("api-keys").json["items"]
    assert (row["read_only"], row["scopes"]) == (read_only, scopes)
    assert f"<dd>{shown}</dd>" in viewer.get(f"keys/{row['id']}").text
    states = re.findall('<span class="state ">(.*?)</span>', viewer.get("keys").text)
    assert states == ["read only"] * read_only + ["limited"] * bool(scopes)


def test_console_key_form_keeps_limits_after_refusal(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    page = Browser(app, cast.bob).send("keys/new", access="read", scopes="posts:view").text
    assert '<option value="read" selected>' in page
    assert re.search('value="posts:view" aria-label="view posts" checked', page)


def test_console_key_expiry_date_is_required_when_chosen(app: Flask, cast: Cast) -> None:
    answer = Browser(app, cast.bob).send("keys/new", name="x", expires_in="date")
    assert (answer.status_code, beside(answer, "expires_at")) == (400, "Required.")


def test_console_key_list_of_viewer_shows_own_keys_only(
    app: Flask, cast: Cast, ids: dict[str, str]
) -> None:
    page = Browser(app, cast.bob).get("keys").text
    assert "No keys yet." in page
    assert ids["key"] not in page


def test_console_key_page_shows_scopes_addresses_and_owner(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    limits = {"scopes": {"collections": ["posts"]}, "ip_addresses": ["192.0.2.0/24"]}
    bare = cast.bob.post("api-keys", {"name": "bare"}).json["id"]
    limited = cast.bob.post("api-keys", {"name": "limited", **limits}).json["id"]
    admin, viewer = Browser(app, cast.alice), Browser(app, cast.bob)
    page = admin.get(f"keys/{bare}").text
    assert "<dt>Collections</dt><dd>all</dd>" in page
    assert "<dt>Allowed from</dt><dd>all addresses</dd>" in page
    assert f'<a href="/console/team/users/{cast.bob.id}">{cast.bob.email}</a>' in page
    page = viewer.get(f"keys/{limited}").text
    assert "<dt>Collections</dt><dd>posts</dd>" in page
    assert "<dt>Allowed from</dt><dd>192.0.2.0/24</dd>" in page
    assert f'<a href="/console/profile">{cast.bob.email}</a>' in page
    root = Browser(app, cast.root).get(f"accounts/{cast.bob.account_id}/keys/{bare}").text
    assert f'<a href="/console/users/{cast.bob.id}">{cast.bob.email}</a>' in root


def test_console_key_list_of_one_user_for_admins(app: Flask, cast: Cast) -> None:
    for caller in (cast.alice, cast.bob):
        assert caller.post("api-keys", {"name": f"of {caller.email}"}).status_code == 201
    admin, path = Browser(app, cast.alice), f"keys?owner={cast.bob.id}"
    member = admin.get(f"team/users/{cast.bob.id}").text
    assert f'href="/console/{path}">1 active</a>' in member
    page = admin.get(path).text
    assert f"Keys of {cast.bob.email}." in page
    assert (f"of {cast.bob.email}</a>" in page, f"of {cast.alice.email}</a>" in page) == (
        True,
        False,
    )
    root = Browser(app, cast.root)
    assert f"accounts/{cast.bob.account_id}/{path}" in root.get(f"users/{cast.bob.id}").text
    # A user of another account, no user, and a viewer, who sees their own anyway.
    for other in (cast.charlie.id, "x"):
        page = admin.get(f"keys?owner={other}").text
        assert all(f"of {caller.email}</a>" in page for caller in (cast.alice, cast.bob)), other
        assert "Keys of" not in page
    page = Browser(app, cast.bob).get(f"keys?owner={cast.alice.id}").text
    assert cast.alice.email not in page
