"""What goes wrong under /console is told by a page of the console; the API tells it in JSON."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy.exc import OperationalError
from werkzeug.test import TestResponse

from app import crypto
from app.auth import tokens
from app.console import home
from tests import builders
from tests.builders import Caller, Cast
from tests.console import furnished
from tests.console.browser import Browser, alert, sign_in, token
from tests.console.furnished import PROVIDER

NONE = "019a9f00-0000-7000-8000-00000000dead"
GIVEN = {"X-Correlation-ID": "quote-me.1"}


def check_page(answer: TestResponse, status: int) -> None:
    """A page of the console, with the id by which the logs are found."""
    assert (answer.status_code, answer.mimetype) == (status, "text/html")
    assert "Reference: <code>quote-me.1</code>" in answer.text
    assert answer.headers["X-Correlation-ID"] == "quote-me.1"
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "no-store"
    assert alert(answer)


def test_console_unknown_path_is_404_page(app: Flask, cast: Cast) -> None:
    for caller in (None, cast.bob):
        client = Browser(app, caller).client
        for path in ("/console/nope", "/console/team/nope", "/console/<b>", "/console/keys/x/y"):
            answer = client.get(path, headers=GIVEN)
            check_page(answer, 404)
            # Who is signed in finds the way on.
            assert ("/console/profile" in answer.text) is (caller is not None)
    for path in ("/nope", "/api/v1/nope", "/consolenope"):
        answer = Browser(app, cast.bob).client.get(path)
        assert (answer.status_code, answer.mimetype) == (404, "application/json")


def test_console_unknown_method_is_405_page(app: Flask, cast: Cast) -> None:
    client = Browser(app, cast.bob).client
    for method, path in (("PUT", "/console"), ("GET", "/console/sign-out"), ("PATCH", "/console/")):
        answer = client.open(path, method=method, headers=GIVEN)
        check_page(answer, 405)
        assert method not in answer.headers["Allow"].split(", ")


def fail(*args: object, **options: object) -> None:
    """Break as nobody expected."""
    raise RuntimeError("alice@acme.example broke it")


def test_console_unexpected_error_is_500_page_without_details(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Browser(app, cast.bob).client
    monkeypatch.setattr(home, "context", fail)
    answer = client.get("/console", headers=GIVEN)
    check_page(answer, 500)
    assert "broke it" not in answer.text
    assert cast.bob.email in answer.text
    monkeypatch.setattr(tokens, "console_principal", fail)
    check_page(client.get("/console", headers=GIVEN), 500)
    check_page(client.get("/console/nope", headers=GIVEN), 500)


def test_console_database_outage_is_503_page(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: object, **options: object) -> None:
        raise OperationalError("SELECT", {}, Exception("gone"))

    client = Browser(app, cast.bob).client
    monkeypatch.setattr(tokens, "console_principal", away)
    answer = client.get("/console", headers=GIVEN)
    check_page(answer, 503)
    assert answer.headers["Retry-After"] == "1"
    check_page(client.get("/console/nope", headers=GIVEN), 404)


def test_console_body_over_limit_is_413_page(app: Flask, cast: Cast) -> None:
    client = Browser(app, cast.bob).client
    limit = app.config["MAX_CONTENT_LENGTH"]
    answer = client.post("/console/profile", data={"name": "x" * (limit + 1)}, headers=GIVEN)
    check_page(answer, 413)


def test_console_refusal_is_html_page(app: Flask, cast: Cast) -> None:
    client = Browser(app, cast.bob).client
    check_page(client.get("/console/accounts", headers=GIVEN), 403)
    check_page(client.get("/console/keys/1/made", headers=GIVEN), 404)
    check_page(client.post("/console/profile", headers=GIVEN), 400)


def test_console_error_page_replaces_malformed_correlation_id(app: Flask) -> None:
    odd = {"X-Correlation-ID": "<script>alert(1)</script>"}
    page = app.test_client().get("/console/nope", headers=odd).text
    assert "<script>" not in page
    assert re.search(r"Reference: <code>[0-9a-f-]{36}</code>", page)


def test_console_expired_session_leads_to_sign_in_and_back(
    app: Flask, cast: Cast, admin: Browser
) -> None:
    builders.change_user(app, cast.alice.id, is_active=False)
    answer = admin.get("groups?search=fin&page=2")
    assert answer.status_code == 302
    form = admin.client.get(answer.headers["Location"]).text
    builders.change_user(app, cast.alice.id, is_active=True)
    (target,) = re.findall(r'name="next" value="([^"]*)"', form)
    back = sign_in(admin.client, cast.alice, next=target.replace("&amp;", "&"))
    assert back.headers["Location"] == "/console/groups?search=fin&page=2"


def test_console_button_after_session_end_leads_back_to_its_page(
    app: Flask, cast: Cast, admin: Browser, ids: dict[str, str]
) -> None:
    form = {"csrf_token": token(admin.client)}
    builders.change_user(app, cast.alice.id, is_active=False)
    headers = {"Referer": "http://localhost/console/keys?x=1"}
    path = f"/console/keys/{ids['key']}/revoke"
    answer = admin.client.post(path, data=form, headers=headers)
    assert answer.location == "/console/sign-in?next=/console/keys?x%3D1"
    headers["Referer"] = "http://evil.example/console/groups/new"
    answer = admin.client.post(path, data=form, headers=headers)
    assert answer.location == "/console/sign-in"


def test_console_form_input_survives_session_end(app: Flask, cast: Cast, admin: Browser) -> None:
    form = {"csrf_token": token(admin.client), "name": 'fin "ance"', "description": "x" * 900}
    builders.change_user(app, cast.alice.id, is_active=False)
    answer = admin.client.post("/console/groups/new", data=form)
    builders.change_user(app, cast.alice.id, is_active=True)
    assert (answer.status_code, "Your entries are kept" in answer.text) == (401, True)
    hidden = dict(re.findall(r'type="hidden" name="(next|unsent)" value="([^"]*)"', answer.text))
    refused = sign_in(admin.client, cast.alice, **hidden, password="Wrong-horse-1")
    assert hidden["unsent"] in refused.text
    again = sign_in(admin.client, cast.alice, **hidden)
    assert (again.status_code, again.location) == (307, "/console/groups/new")
    sent = {"csrf_token": token(admin.client), **hidden}
    page = admin.client.post(again.location, data=sent)
    assert (page.status_code, "Nothing is saved yet" in page.text) == (400, True)
    assert 'value="fin &#34;ance&#34;"' in page.text
    assert "x" * 900 in page.text
    assert cast.alice.get("groups?search=fin").json["total"] == 0
    answer = admin.client.post(again.location, data={**form, "description": "short"})
    assert answer.status_code == 303
    assert cast.alice.get("groups?search=fin").json["total"] == 1


def test_console_kept_form_is_sent_only_to_its_own_path(
    app: Flask, cast: Cast, admin: Browser
) -> None:
    form = {"csrf_token": token(admin.client), "name": "x", "current_password": "secret"}
    builders.change_user(app, cast.alice.id, is_active=False)
    page = admin.client.post("/console/keys/new", data=form).text
    builders.change_user(app, cast.alice.id, is_active=True)
    (text,) = re.findall(r'name="unsent" value="([^"]*)"', page)
    with app.app_context():
        assert "secret" not in crypto.decrypt(text)
    sign_in(admin.client, cast.alice)
    for unsent in (text, "odd"):
        answer = admin.send("groups/new", name=f"y{len(unsent)}", unsent=unsent)
        assert answer.status_code == 303


def ended(app: Flask, caller: Caller, client: FlaskClient, path: str, form: Any) -> str:
    """Send a form when its session has ended; the page that keeps it."""
    builders.change_user(app, caller.id, is_active=False)
    answer = client.post(f"/console/{path}", data=form)
    builders.change_user(app, caller.id, is_active=True)
    assert (answer.status_code, "Your entries are kept" in answer.text) == (401, True)
    return answer.text


def test_console_kept_forms_with_files_and_nested_forms(
    app: Flask, cast: Cast, admin: Browser, ids: dict[str, str]
) -> None:
    builders.make_collection(cast.root)
    upload = {"file": (io.BytesIO(b"title\nx\n"), "posts.csv"), "do": "import"}
    shelf = f"records/{cast.alice.account_id}/posts/import"
    for path, form, told in (
        (f"groups/{ids['group']}/members", {"email": "bob@acme.example"}, "bob@acme.example"),
        (shelf, upload, "Choose a file whose name ends"),
    ):
        page = ended(
            app, cast.alice, admin.client, path, {"csrf_token": token(admin.client), **form}
        )
        assert ("choose it again afterwards" in page) == ("file" in form)
        (text,) = set(re.findall(r'name="unsent" value="([^"]*)"', page))
        again = sign_in(admin.client, cast.alice, unsent=text)
        assert (again.status_code, again.location) == (307, f"/console/{path}")
        shown = admin.send(path, unsent=text).text
        assert told in shown
    assert cast.alice.get("records/posts").json["total"] == 0


def test_console_kept_form_waits_for_sign_in_in_other_tab(
    app: Flask, cast: Cast, admin: Browser
) -> None:
    cast.alice.post("admin/configuration", PROVIDER)
    form = {"csrf_token": token(admin.client), "name": "kept"}
    page = ended(app, cast.alice, admin.client, "groups/new", form)
    assert page.count('target="_blank"') == 1
    (text,) = set(re.findall(r'name="unsent" value="([^"]*)"', page))
    waiting = {"unsent": text, "signed_in": "true"}
    early = Browser(app).send("sign-in", **waiting)
    assert (early.status_code, "not signed in yet" in early.text) == (401, True)
    sign_in(admin.client, cast.alice)
    answer = admin.send("sign-in", **waiting)
    assert (answer.status_code, answer.location) == (307, "/console/groups/new")
    assert 'value="kept"' in admin.send("groups/new", unsent=text).text


def test_console_second_deletion_redirects_with_notice(app: Flask, cast: Cast) -> None:
    known = furnished.furnish(app, cast)
    known["role_id"] = cast.root.post("roles", {"name": "extra"}).json["id"]
    late = builders.make_user(app, cast.alice.account_id, "late@acme.example")
    hook = cast.alice.get("hooks").json["items"][0]["id"]
    admin, superadmin = Browser(app, cast.alice), Browser(app, cast.root)
    foreign, home = Browser(app, cast.charlie), "{account_id}"
    for browser, path, other in (
        (admin, f"webhooks/{home}/{{webhook_id}}/delete", f"webhooks/{home}/{NONE}/delete"),
        (admin, f"workflows/{home}/workflow/{{workflow_id}}/delete", None),
        (admin, f"workflows/{home}/hook/{hook}/delete", None),
        (admin, "groups/{group_id}/delete", f"groups/{NONE}/delete"),
        (admin, f"sso/{home}/{{setting_id}}/remove", f"sso/{home}/{NONE}/remove"),
        (admin, f"team/users/{late.id}/remove", f"team/users/{NONE}/remove"),
        (superadmin, "roles/{role_id}/delete", "roles/999999/delete"),
        (superadmin, "users/{user_id}/remove", f"users/{NONE}/remove"),
    ):
        for _ in range(2):
            answer = browser.send(path.format(**known))
            assert answer.status_code == 303, path
        assert "is deleted" in browser.client.get(answer.location).text or "remove" in path, path
        if other:
            assert browser.send(other.format(**known)).status_code == 404, other
        assert foreign.send(path.format(**known)).status_code in (403, 404), path
