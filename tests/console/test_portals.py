"""Portal sessions: they open once, their pages and nothing else, and end with their admin."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from werkzeug.test import TestResponse

from app import clock
from app.auth.portals import PortalPage
from tests import builders
from tests.builders import PASSWORD, Caller, Cast
from tests.console import furnished
from tests.console.browser import COOKIE, TOKEN, Browser, alert
from tests.parallel import at_once

RETURN_URL = "https://app.example.com/settings"
PORTAL = "atrium_portal"
NEW_PASSWORD = "Correct-horse-2"
TAGS = re.compile(r"<script\b.*?</script>|<[^>]*>", re.S)
ALL = [*PortalPage]
STARTS = {
    "team": "team",
    "sso": "sso/{account}",
    "domains": "sso/{account}/domains",
    "scim": "sso/{account}/scim",
    "api_keys": "keys",
    "webhooks": "webhooks/{account}",
    "audit_log": "audit",
    "security_log": "security-log/{account}",
    "usage": "usage/{account}",
    "export": "settings/{account}/export",
}


@pytest.fixture(autouse=True)
def listed(cast: Cast) -> None:
    """Let portals of both accounts lead back to a page."""
    for admin in (cast.alice, cast.charlie):
        answer = admin.patch("account", {"allowed_redirect_uris": [RETURN_URL]})
        assert answer.status_code == 200, answer.json


def create(by: Caller, *pages: str, **body: Any) -> TestResponse:
    """Create a session by the API."""
    sent = {"pages": list(pages) or ["team"], "return_url": RETURN_URL, **body}
    return by.post("account/portal-sessions", sent)


class Portal:
    """A browser that has opened a portal session."""

    def __init__(self, app: Flask, by: Caller, *pages: str, **body: Any) -> None:
        answer = create(by, *pages, **body)
        assert answer.status_code == 201, answer.json
        self.client: FlaskClient = app.test_client()
        self.url = path_of(answer.json["url"])
        opened = self.client.get(self.url)
        assert opened.status_code == 303, opened.text
        self.start = path_of(opened.headers["Location"])
        self.cookie = opened.headers["Set-Cookie"]
        self.base = "/".join(self.start.split("/")[:3])

    @property
    def id(self) -> str:
        return self.base.rpartition("/")[2]

    def get(self, path: str) -> TestResponse:
        return self.client.get(f"{self.base}/{path}")

    def send(self, path: str, page: str | None = None, **form: object) -> TestResponse:
        """Send a form with the token of a page."""
        found = TOKEN.search(self.client.get(page or self.start).text)
        data = {"csrf_token": found[1] if found else "", **form}
        return self.client.post(f"{self.base}/{path}", data=data)

    @property
    def secret(self) -> str:
        cookie = self.client.get_cookie(PORTAL, path=self.base)
        assert cookie
        return cookie.value

    def is_open(self) -> bool:
        answer = self.client.get(self.start)
        assert answer.status_code in (200, 401)
        return answer.status_code == 200


def path_of(url: str) -> str:
    return re.sub(r"^https?://[^/]*", "", url)


def test_portal_opens_once_in_the_brand_of_the_account(app: Flask, cast: Cast) -> None:
    product = {"name": "Helpdesk", "accent_color": "#0b5fff", "accounts_may_brand": True}
    cast.root.put("product", product)
    portal = Portal(app, cast.alice, "team", "audit_log")
    for part in ("HttpOnly", "Secure", "SameSite=None", "Partitioned", f"Path={portal.base}"):
        assert part in portal.cookie
    page = portal.get("team").text
    assert "<title>Team · Helpdesk</title>" in page
    assert "Back to Helpdesk" in page
    assert f'href="{RETURN_URL}"' in page
    assert "/welcome/accent/0b5fff.css" in page
    assert cast.bob.email in page
    assert "--accent: #0b5fff" in portal.client.get("/welcome/accent/0b5fff.css").text
    (tabs,) = re.findall(r'<nav class="areas portal-tabs".*?</nav>', page, re.S)
    assert re.findall(r"<a [^>]*>([^<]+)</a>", tabs) == ["Team", "Audit log"]
    again = app.test_client().get(portal.url)
    assert again.status_code == 410
    assert PORTAL not in again.headers.get("Set-Cookie", "")
    assert portal.is_open()


def test_portal_address_is_used_up_by_one_of_many_at_once(app: Flask, cast: Cast) -> None:
    url = path_of(create(cast.alice).json["url"])
    clients = [app.test_client() for _ in range(10)]
    answers = at_once(10, lambda n: clients[n].get(url))
    assert sorted(one.status_code for one in answers) == [303, *[410] * 9]
    (winner,) = [n for n, one in enumerate(answers) if one.status_code == 303]
    for n, client in enumerate(clients):
        answer = client.get(path_of(answers[winner].headers["Location"]))
        assert answer.status_code == (200 if n == winner else 401)


def test_head_does_not_use_a_portal_address_up(app: Flask, cast: Cast) -> None:
    url = path_of(create(cast.alice).json["url"])
    assert app.test_client().head(url).status_code == 204
    assert app.test_client().get(url).status_code == 303


@pytest.mark.parametrize(
    "token", ["x", "AC0001-x", "AC0001-%C3%A9", "SY0000-" + "x" * 40, "x" * 3000]
)
def test_unknown_portal_address_is_410(app: Flask, cast: Cast, token: str) -> None:
    answer = app.test_client().get(f"/portal/open/{token}")
    assert answer.status_code == 410
    assert "Open this page again" in answer.text


def test_address_and_cookie_of_a_portal_do_not_stand_for_each_other(app: Flask, cast: Cast) -> None:
    portal = Portal(app, cast.alice)
    assert app.test_client().get(f"/portal/open/{portal.secret}").status_code == 410
    unopened = create(cast.alice).json["url"].rpartition("/")[2]
    client = app.test_client()
    client.set_cookie(PORTAL, unopened, path=portal.base)
    assert client.get(portal.start).status_code == 401
    # The cookie of one session opens no other.
    other = Portal(app, cast.alice)
    client.set_cookie(PORTAL, other.secret, path=portal.base)
    assert client.get(portal.start).status_code == 401


@pytest.mark.parametrize("name", ALL)
def test_each_page_of_a_portal_opens_alone(app: Flask, cast: Cast, name: str) -> None:
    portal = Portal(app, cast.alice, name)
    path = STARTS[name].format(account=cast.alice.account_id)
    assert portal.start == f"{portal.base}/{path}"
    assert portal.get(path).status_code == 200
    for other in set(ALL) - {name}:
        path = STARTS[other].format(account=cast.alice.account_id)
        assert portal.get(path).status_code == 404, other


def routes(app: Flask, known: dict[str, str]) -> Iterator[tuple[str, str, Any]]:
    """The method, address and rule of every route; what is not known is a record's id."""

    def value(match: re.Match[str]) -> str:
        is_number = match[1] in ("integer:", "large:")
        return known.get(match[2], "1" if is_number else known["record_id"])

    for rule in app.url_map.iter_rules():
        path = re.sub(r"<any\(['\"]?([\w-]+)[^>]*>", r"\1", rule.rule)
        path = re.sub(r"<([^:>]*:)?(\w+)>", value, path)
        for method in sorted((rule.methods or set()) - {"OPTIONS", "HEAD"}):
            yield method, path, rule


@pytest.mark.long
def test_portal_session_opens_its_pages_and_nothing_else(app: Flask, cast: Cast) -> None:
    known = furnished.furnish(app, cast)
    portal = Portal(app, cast.alice, "usage", "domains")
    known["portal_id"] = portal.id
    everywhere, nobody, keyed = app.test_client(), app.test_client(), app.test_client()
    everywhere.set_cookie(PORTAL, portal.secret)
    everywhere.set_cookie(PORTAL, portal.secret, path=portal.base)
    # As if it were a secret of another kind.
    keyed.set_cookie(COOKIE, portal.secret)
    bearer = {"Authorization": f"Bearer {portal.secret}"}
    opened = 0
    for method, path, rule in routes(app, known):
        if rule.endpoint == "static" or "/events" in path or "stream" in rule.endpoint:
            continue
        answer = everywhere.open(path, method=method)
        if "portal_id" in rule.arguments:
            page = app.view_functions[rule.endpoint].page.portal  # type: ignore[attr-defined]
            if page in ("usage", "domains"):
                assert answer.status_code in (200, 303, 400, 404, 409), (method, path)
                assert method == "POST" or "This page does not exist" not in answer.text, path
                opened += answer.status_code == 200
            else:
                assert answer.status_code in (400, 404), (method, path)
                assert method == "POST" or answer.status_code == 404, (method, path)
            continue
        plain = nobody.open(path, method=method)
        assert answer.status_code == plain.status_code, (method, path)
        assert answer.headers.get("Location") == plain.headers.get("Location"), (method, path)
        if path.startswith("/api/") and answer.status_code == 401:
            refused = nobody.open(path, method=method, headers=bearer)
            assert refused.status_code == 401, (method, path)
        if path.startswith("/console"):
            assert keyed.open(path, method=method).status_code == plain.status_code, (method, path)
    assert opened >= 4
    assert portal.is_open()


def test_forms_of_other_pages_change_nothing_in_a_portal(app: Flask, cast: Cast) -> None:
    portal = Portal(app, cast.alice, "domains")
    answer = portal.send("keys/new", name="stolen")
    assert answer.status_code == 404
    answer = portal.send(f"team/users/{cast.bob.id}/role", role="admin")
    assert answer.status_code == 404
    assert cast.alice.get("api-keys").json["total"] == 0
    assert cast.alice.get(f"account/users/{cast.bob.id}").json["role"] == "viewer"


def test_portal_of_one_account_shows_nothing_of_another(app: Flask, cast: Cast) -> None:
    portal = Portal(app, cast.alice, *ALL)
    for name in ("sso", "domains", "scim", "webhooks", "security_log", "usage", "export"):
        path = STARTS[name].format(account=cast.charlie.account_id)
        assert portal.get(path).status_code == 404, name
    assert portal.get(f"team/users/{cast.charlie.id}").status_code == 404
    assert cast.charlie.email not in portal.get("team").text


def test_portal_forms_need_their_token(app: Flask, cast: Cast) -> None:
    portal = Portal(app, cast.alice, "domains")
    path = f"sso/{cast.alice.account_id}/domains"
    refused = portal.client.post(f"{portal.base}/{path}", data={"domain": "acme.example"})
    assert refused.status_code == 400
    stolen = Portal(app, cast.charlie, "domains")
    theirs = TOKEN.search(stolen.client.get(stolen.start).text)
    assert theirs
    data = {"domain": "acme.example", "csrf_token": theirs[1]}
    assert portal.client.post(f"{portal.base}/{path}", data=data).status_code == 400
    assert portal.send(path, domain="acme.example").status_code == 303
    assert cast.alice.get("account/domains").json["total"] == 1


def test_what_is_done_in_a_portal_is_logged_as_such(app: Flask, cast: Cast) -> None:
    portal = Portal(app, cast.alice, "team", "webhooks")
    page = f"{portal.base}/team/users/{cast.bob.id}"
    done = portal.send(f"team/users/{cast.bob.id}/role", page, role="editor")
    assert done.status_code == 303
    entries = cast.alice.get("account/audit-logs").json["items"]
    assert entries[0]["column_name"] == "role_id"
    entry = entries[0]
    assert entry["extra_metadata"] == {"portal": portal.id}
    assert entry["user_id"] == cast.alice.id
    events = cast.alice.get("account/security-log").json["items"]
    found = {one["kind"]: one for one in reversed(events)}
    made = found["portal.created"]["details"]
    assert made == {"session_id": portal.id, "pages": ["team", "webhooks"]}
    signed_in = found["sign_in.succeeded"]["details"]
    assert signed_in == {"session_id": portal.id, "application": "portal", "mfa": False}
    assert found["user.changed"]["details"]["portal"] == portal.id
    assert cast.alice.get("account/security-log/verify").json["valid"] is True
    in_acme = cast.root.acting_in(cast.alice.account_id)
    assert in_acme.get("audit-logs/verify").json["valid"] is True
    sessions = cast.alice.get("auth/sessions").json["items"]
    assert portal.id in [one["id"] for one in sessions if one["kind"] == "portal"]


def test_records_that_change_in_a_portal_are_logged_as_such(app: Flask, cast: Cast) -> None:
    owner = {"name": "owner", "type": "user"}
    builders.make_collection(cast.root, schema=[owner])
    builders.make_collection(cast.root, "notes", [{**owner, "on_delete": "cascade"}])
    for collection in ("posts", "notes"):
        builders.make_record(cast.alice, collection, owner=cast.bob.id)
    since = cast.alice.get("changes").json["next"]
    portal = Portal(app, cast.alice, "team")
    page = f"{portal.base}/team/users/{cast.bob.id}"
    assert portal.send(f"team/users/{cast.bob.id}/remove", page).status_code == 303
    entries = cast.alice.get("account/audit-logs").json["items"]
    of_records = [one for one in entries if one["table_name"].startswith("col_")]
    marked = {(one["table_name"], one["operation"]) for one in of_records if one["extra_metadata"]}
    assert marked == {("col_posts", "UPDATE"), ("col_notes", "DELETE")}
    changes = cast.alice.get("changes", query_string={"since": since}).json["items"]
    assert {one["event"] for one in changes} >= {"records.update", "records.delete"}


def second_admin(app: Flask, cast: Cast) -> Caller:
    user = builders.make_user(app, cast.alice.account_id, "anna@acme.example", "admin")
    return Caller(app, user)


def third_admin(app: Flask, cast: Cast) -> Caller:
    user = builders.make_user(app, cast.alice.account_id, "otto@acme.example", "admin")
    return Caller(app, user)


Change = Callable[[Cast, Caller], TestResponse]
ENDS: dict[str, Change] = {
    "deactivated": lambda cast, anna: cast.alice.patch(
        f"account/users/{anna.id}", {"is_active": False}
    ),
    "demoted": lambda cast, anna: cast.alice.patch(f"account/users/{anna.id}", {"role": "viewer"}),
    "deleted": lambda cast, anna: cast.alice.delete(f"account/users/{anna.id}"),
    "password": lambda cast, anna: anna.post(
        "auth/change-password",
        {"current_password": PASSWORD, "new_password": NEW_PASSWORD},
    ),
    "signed out": lambda cast, anna: cast.alice.delete(f"account/users/{anna.id}/sessions"),
    "suspended": lambda cast, anna: cast.root.patch(
        f"accounts/{cast.alice.account_id}", {"is_active": False}
    ),
}


@pytest.mark.parametrize("change", ENDS.values(), ids=list(ENDS))
@pytest.mark.parametrize("is_opened", [True, False], ids=["opened", "unopened"])
def test_portal_ends_with_the_rights_of_its_admin(
    app: Flask, cast: Cast, change: Change, is_opened: bool
) -> None:
    anna = second_admin(app, cast)
    portal = Portal(app, anna, "team")
    unopened = path_of(create(anna).json["url"])
    assert portal.is_open()
    answer = change(cast, anna)
    assert answer.status_code in (200, 204), answer.json
    if is_opened:
        ended = portal.client.get(portal.start)
        assert ended.status_code == 401
        assert "This page has expired" in ended.text
        assert cast.bob.email not in ended.text
    else:
        assert app.test_client().get(unopened).status_code == 410


def test_portal_ends_at_its_expiry(app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    portal = Portal(app, cast.alice, "team", expires_in=60)
    unopened = path_of(create(cast.alice, expires_in=60).json["url"])
    now = clock.now() + timedelta(seconds=59)
    monkeypatch.setattr(clock, "now", lambda: now)
    assert portal.is_open()
    later = now + timedelta(seconds=2)
    monkeypatch.setattr(clock, "now", lambda: later)
    ended = portal.client.get(portal.start)
    assert ended.status_code == 401
    assert f'href="{RETURN_URL}"' in ended.text
    assert app.test_client().get(unopened).status_code == 410


def test_portal_for_another_admin_ends_with_whoever_opened_it(app: Flask, cast: Cast) -> None:
    anna = second_admin(app, cast)
    portal = Portal(app, anna, "team", "api_keys", user_id=third_admin(app, cast).id)
    refused = portal.send("keys/new", page=f"{portal.base}/keys/new", name="of otto")
    assert (refused.status_code, "Only you can make API keys" in refused.text) == (403, True)
    assert cast.alice.get("api-keys").json["total"] == 0
    cast.alice.patch(f"account/users/{anna.id}", {"role": "viewer"})
    assert not portal.is_open()


SIGNED_OUT = {
    **ENDS,
    "everywhere": lambda cast, anna: anna.post("auth/logout", {"all": True}),
    "deactivated and back": lambda cast, anna: (
        cast.alice.patch(f"account/users/{anna.id}", {"is_active": False}),
        cast.alice.patch(f"account/users/{anna.id}", {"is_active": True}),
    )[1],
}


@pytest.mark.parametrize("change", SIGNED_OUT.values(), ids=list(SIGNED_OUT))
def test_portal_for_another_admin_ends_as_all_sessions_of_its_opener_do(
    app: Flask, cast: Cast, change: Change
) -> None:
    anna, otto = second_admin(app, cast), third_admin(app, cast)
    portal = Portal(app, anna, "team", user_id=otto.id)
    unopened = path_of(create(anna, user_id=otto.id).json["url"])
    own = Portal(app, otto, "team")
    assert portal.is_open()
    answer = change(cast, anna)
    assert answer.status_code in (200, 204), answer.json
    assert not portal.is_open()
    assert app.test_client().get(unopened).status_code == 410
    is_suspended = change is ENDS["suspended"]
    assert own.is_open() is not is_suspended


def test_portal_of_a_superadmin_ends_as_all_sessions_of_its_opener_do(
    app: Flask, cast: Cast
) -> None:
    acting, otto = cast.root.acting_in("acme"), third_admin(app, cast)
    portal = Portal(app, acting, "team", user_id=otto.id)
    assert portal.is_open()
    assert cast.root.post("auth/logout", {"all": True}).status_code == 200
    assert not portal.is_open()


def test_portal_outlives_the_session_that_opened_it(app: Flask, cast: Cast) -> None:
    anna = second_admin(app, cast)
    sign_in = {"account": "acme", "email": anna.email, "password": PASSWORD}
    token = Caller(app).post("auth/login", sign_in).json["token"]
    signed_in = Caller(app, Authorization=f"Bearer {token}")
    portal = Portal(app, signed_in, "team", user_id=third_admin(app, cast).id)
    assert signed_in.post("auth/logout").status_code == 200
    assert signed_in.get("auth/me").status_code == 401
    assert portal.is_open()


def test_portal_for_another_admin_gives_no_secret_of_their_keys(app: Flask, cast: Cast) -> None:
    anna = second_admin(app, cast)
    key = anna.post("api-keys", {"name": "import"}).json["id"]
    portal = Portal(app, cast.alice, "api_keys", user_id=anna.id)
    refused = portal.send(f"keys/{key}/rotate", page=f"{portal.base}/keys/{key}")
    assert (refused.status_code, "Only you can make API keys" in refused.text) == (403, True)
    assert "svc_sk_" not in portal.get(f"keys/{key}/made").text
    own = Portal(app, anna, "api_keys")
    assert own.send(f"keys/{key}/rotate", page=f"{own.base}/keys/{key}").status_code == 303
    assert "svc_sk_" in own.get(f"keys/{key}/made").text


def test_portal_for_another_admin_ends_as_they_join_pii_access_before_its_opener(
    app: Flask, cast: Cast
) -> None:
    anna, otto = second_admin(app, cast), "otto@acme.example"
    other = builders.make_user(app, cast.alice.account_id, otto, "admin")
    portal = Portal(app, anna, "audit_log", user_id=other.id)
    by_root = Portal(app, cast.root.acting_in(cast.alice.account_id), "audit_log", user_id=other.id)
    own = Portal(app, Caller(app, other), "audit_log")
    by_member = Portal(app, cast.alice, "audit_log", user_id=other.id)
    listed = cast.alice.get("groups").json["items"]
    (group,) = [one["id"] for one in listed if one["name"] == "pii_access"]
    added = cast.alice.post(f"groups/{group}/members", {"user_id": other.id})
    assert added.status_code in (200, 201, 204), added.json
    assert [one.is_open() for one in (portal, by_root, own, by_member)] == [
        False,
        False,
        True,
        True,
    ]
    assert cast.alice.delete(f"groups/{group}/members/{cast.alice.id}").status_code == 204
    assert not by_member.is_open()


def test_sensitive_changes_in_a_portal_need_a_sign_in_of_15_minutes(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    portal = Portal(app, cast.alice, "api_keys", expires_in=3600)
    page = f"{portal.base}/keys/new"
    made = portal.send("keys/new", page=page, name="import", expires_in="never")
    assert made.status_code == 303
    shown = portal.client.get(made.headers["Location"])
    assert "svc_sk_" in shown.text
    now = clock.now() + timedelta(minutes=16)
    monkeypatch.setattr(clock, "now", lambda: now)
    refused = portal.send("keys/new", page=page, name="later", expires_in="never")
    assert refused.status_code == 403
    assert "sign in again" in refused.text
    assert 'type="password"' not in refused.text
    assert portal.is_open()


def test_portal_pages_may_be_framed_by_listed_origins_only(app: Flask, cast: Cast) -> None:
    portal = Portal(app, cast.alice, "team")
    policy = portal.client.get(portal.start).headers["Content-Security-Policy"]
    assert policy.endswith("frame-ancestors 'none'")
    origins = ["https://app.example.com", "https://www.example.com:8443"]
    saved = cast.alice.patch("account", {"frame_ancestors": origins})
    assert saved.json["frame_ancestors"] == origins
    for path in ("team", "keys"):
        policy = portal.get(path).headers["Content-Security-Policy"]
        assert policy.endswith(f"frame-ancestors {' '.join(origins)}"), path
    theirs = Portal(app, cast.charlie, "team")
    policy = theirs.client.get(theirs.start).headers["Content-Security-Policy"]
    assert policy.endswith("frame-ancestors 'none'")
    console = Browser(app, cast.alice).get("team").headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in console


@pytest.mark.parametrize(
    "origin",
    [
        "http://app.example.com",
        "https://app.example.com/",
        "https://*.example.com",
        "https://app.example.com; script-src *",
        "https://app.example.com 'self'",
        "'self'",
        "*",
        "https:",
        "null",
        "",
    ],
)
def test_frame_ancestors_are_exact_https_origins(cast: Cast, origin: str) -> None:
    refused = cast.alice.patch("account", {"frame_ancestors": [origin]})
    assert refused.status_code == 400
    assert [one["field"] for one in refused.json["details"]] == ["frame_ancestors"]
    assert cast.alice.get("account").json["frame_ancestors"] == []


@pytest.mark.long
def test_pages_of_a_portal_lead_nowhere_else(app: Flask, cast: Cast) -> None:
    furnished.furnish(app, cast)
    cast.root.put("product", {"name": "Helpdesk"})
    cast.alice.patch("account", {"allowed_redirect_uris": [RETURN_URL]})
    for pages in (ALL, *([one] for one in ALL)):
        portal = Portal(app, cast.alice, *pages)
        seen, waiting = set[str](), [portal.start]
        while waiting and len(seen) < 150:
            path = waiting.pop()
            if path in seen:
                continue
            seen.add(path)
            answer = portal.client.get(path)
            assert answer.status_code in (200, 303), (pages, path)
            if answer.mimetype != "text/html":
                answer.get_data()  # to its end
                continue
            page = answer.text
            check_words(page, path, pages)
            found = re.findall(r'(?:href|action|src|data-\w+)="(/[^"]*)"', page)
            for target in map(unescape, found):
                is_portal = target.startswith(f"{portal.base}/")
                allowed = (
                    "/static/",
                    "/welcome/accent/",
                    "/api/v1/product/logo",
                    "/saml/",
                    "/api/v1/",
                )
                assert is_portal or target.startswith(allowed), (path, target)
            links = re.findall(r'<a\b[^>]*? href="([^"#]*)', page)
            waiting += [
                unescape(one).partition("#")[0]
                for one in links
                if one.startswith(f"{portal.base}/") and "?" not in one
            ]
        assert len(seen) >= (25 if len(pages) > 1 else 1)


def check_words(page: str, path: str, pages: list[str]) -> None:
    text = unescape(TAGS.sub(" ", page)).replace("console.log(", "")  # of an example
    for word in ("Atrium", "console", "Console"):
        assert word not in text, (path, word, text[max(0, text.find(word) - 80) :][:200])
    if "api_keys" not in pages and "audit_log" not in pages and "security_log" not in pages:
        nav = re.findall(r"<a\b[^>]*>[^<]*API key[^<]*</a>", page)
        assert not nav, (path, nav)


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"pages": []}, ["pages"]),
        ({"pages": ["records"]}, ["pages"]),
        ({"pages": ["team", "team"]}, ["pages"]),
        ({"pages": "team"}, ["pages"]),
        ({"return_url": "https://evil.example/"}, ["return_url"]),
        ({"return_url": f"{RETURN_URL}/x"}, ["return_url"]),
        ({"return_url": "javascript:alert(1)"}, ["return_url"]),
        ({"expires_in": 59}, ["expires_in"]),
        ({"expires_in": 28801}, ["expires_in"]),
        ({"expires_in": "3600x"}, ["expires_in"]),
        ({"user_id": "nobody"}, ["user_id"]),
        ({"user_id": ""}, ["user_id"]),
        ({"user_id": "charlie"}, ["user_id"]),
        ({"user_id": "bob"}, ["user_id"]),
        ({"user_id": "root"}, ["user_id"]),
        ({"user_id": "nobody", "return_url": "https://evil.example/"}, ["return_url", "user_id"]),
        ({"more": 1}, ["more"]),
    ],
)
def test_portal_with_wrong_values_is_400(
    cast: Cast, body: dict[str, Any], fields: list[str]
) -> None:
    people = {"charlie": cast.charlie.id, "bob": cast.bob.id, "root": cast.root.id}
    if "user_id" in body:
        body = {**body, "user_id": people.get(body["user_id"], body["user_id"])}
    refused = cast.alice.post(
        "account/portal-sessions", {"pages": ["team"], "return_url": RETURN_URL, **body}
    )
    if refused.status_code == 422:
        found = {one["loc"][1] for one in refused.json["detail"]}
    else:
        assert refused.status_code == 400, refused.json
        found = {one["field"] for one in refused.json["details"]}
    assert sorted(found) == fields


def test_portal_is_for_admins_who_signed_in_recently(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert create(cast.bob).status_code == 403
    assert create(Caller(app)).status_code == 401
    key = cast.alice.post("api-keys", {"name": "x"}).json["key"]
    assert create(Caller(app, **{"X-API-Key": key})).status_code == 403
    system = create(cast.root)
    assert (system.status_code, "system account" in system.json["message"]) == (403, True)
    in_acme = cast.root.acting_in(cast.alice.account_id)
    unnamed = create(in_acme)
    assert [one["field"] for one in unnamed.json["details"]] == ["user_id"]
    # root is no member of pii_access, as alice is.
    assert create(in_acme, user_id=cast.alice.id).status_code == 403
    anna = second_admin(app, cast)
    assert create(in_acme, user_id=anna.id).status_code == 201
    assert create(anna, user_id=cast.alice.id).status_code == 403
    assert create(cast.alice, user_id=anna.id).status_code == 201
    now = clock.now() + timedelta(minutes=16)
    monkeypatch.setattr(clock, "now", lambda: now)
    refused = create(cast.alice)
    assert (refused.status_code, refused.json["error"]) == (403, "recent_sign_in_required")


def test_portal_without_database_is_503_page(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    portal = Portal(app, cast.alice, "team")

    def fail(*args: object, **options: object) -> None:
        raise OperationalError("SELECT 1", {}, OSError("gone"))

    monkeypatch.setattr(Session, "execute", fail)
    monkeypatch.setattr(Session, "scalar", fail)
    monkeypatch.setattr(Session, "scalars", fail)
    monkeypatch.setattr(Session, "get", fail)
    answer = portal.client.get(portal.start)
    assert (answer.status_code, answer.mimetype) == (503, "text/html")
    assert "Unavailable" in answer.text


def test_ended_portal_says_so_in_its_frame(app: Flask, cast: Cast) -> None:
    origin = "https://app.example.com"
    assert cast.alice.patch("account", {"frame_ancestors": [origin]}).status_code == 200
    portal = Portal(app, cast.alice, "team")
    assert cast.alice.delete(f"auth/sessions/{portal.id}").status_code == 204
    ended = portal.client.get(portal.start)
    assert (ended.status_code, "This page has expired" in ended.text) == (401, True)
    policy = ended.headers["Content-Security-Policy"]
    assert policy.endswith(f"frame-ancestors {origin}")
    stranger = app.test_client().get(portal.start)
    assert stranger.headers["Content-Security-Policy"].endswith("frame-ancestors 'none'")


def test_settings_of_portals_open_one_as_the_caller(app: Flask, cast: Cast) -> None:
    admin, path = Browser(app, cast.alice), f"settings/{cast.alice.account_id}/portal"
    assert RETURN_URL in admin.get(path).text
    assert "Saved." in admin.done(
        path, frame_ancestors="https://app.example.com\nhttps://b.example"
    )
    assert cast.alice.get("account").json["frame_ancestors"] == [
        "https://app.example.com",
        "https://b.example",
    ]
    wrong = admin.send(path, frame_ancestors="http://app.example.com")
    assert wrong.status_code == 400
    opened = admin.send(path, preview="true", pages="usage", return_url=RETURN_URL)
    assert opened.status_code == 303
    page = admin.client.get(opened.headers["Location"], follow_redirects=True)
    assert "Usage ·" in page.text
    elsewhere = admin.send(path, preview="true", pages="usage", return_url="https://evil.example")
    assert (elsewhere.status_code, alert(elsewhere) != "") == (400, True)
