"""Who opens the console: superadmins, admins, and members whose role says so, who see records."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyotp
import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db
from app.auth.mfa.models import SecondFactor
from app.auth.models import SignInSession
from app.console.shell.access import ANYBODY
from tests import builders
from tests.builders import Caller, Cast
from tests.console import furnished
from tests.console.browser import COOKIE, Browser, alert, is_out, sign_in, token

CLOSED = "This page is not for your role"
# All that a member with the console opens; everything else is administration.
OF_MEMBERS = """
    show_home show_search reauthenticate reauthentication_options create_stream_ticket check_json
    show_profile change_profile export_profile change_password end_session end_other_sessions
    show_second_factors add_app add_passkey passkey_registration_options remove_factor renew_codes
    show_codes signature_options
    show_keys show_new_key create_key show_key change_key rotate_key show_made_key revoke_key
    show_records_home show_record_collections show_records change_row save_view delete_view
    show_condition check_filter show_new_record create_record show_record change_record
    delete_record revive_record show_history restore_record export_records show_import
    import_records open_selection delete_selection restore_selection edit_selection
    show_options show_file upload_file show_trash take_back purge_record
"""


@pytest.fixture
def outsider(app: Flask, cast: Cast) -> Caller:
    """A member of acme whose role does not open the console."""
    cast.root.post("roles", {"name": "customer"})
    user = builders.make_user(app, cast.alice.account_id, "carla@acme.example", "customer")
    return Caller(app, user)


def pages(app: Flask, cast: Cast) -> Iterator[tuple[str, str, str]]:
    """The method, address and view of each page that needs a sign-in."""
    known = furnished.furnish(app, cast)
    known |= {"view_id": known["record_id"]}
    known |= {"session_id": known["record_id"], "factor_id": known["record_id"]}
    known |= {"saml_key_id": known["record_id"], "number": "1"}
    known |= {"invitation_id": known["record_id"]}
    for rule in app.url_map.iter_rules():
        name = rule.endpoint.removeprefix("console.")
        if name == rule.endpoint or "portal_id" in rule.arguments:
            continue
        if app.view_functions[rule.endpoint].page.role is ANYBODY:  # type: ignore[attr-defined]
            continue
        path = re.sub(r"<any\(['\"]?([\w-]+)[^>]*>", r"\1", rule.rule)
        path = re.sub(r"<(?:\w+:)?(\w+)>", lambda match: known[match[1]], path)
        for method in sorted((rule.methods or set()) & {"GET", "POST"}):
            yield method, path, name


def test_member_without_console_is_refused_after_the_credentials(
    app: Flask, cast: Cast, outsider: Caller
) -> None:
    cast.root.put("product", {"name": "Helpdesk", "url": "https://helpdesk.example/"})
    client = app.test_client()
    wrong = sign_in(client, outsider, password="Wrong-horse-1")
    unknown = sign_in(client, outsider, email="nobody@acme.example")
    assert wrong.status_code == unknown.status_code == 401
    assert alert(wrong) == alert(unknown)
    assert CLOSED not in wrong.text
    refused = sign_in(client, outsider)
    assert refused.status_code == 403
    assert CLOSED in refused.text
    assert 'href="https://helpdesk.example/"' in refused.text
    assert "Continue to Helpdesk" in refused.text
    assert 'href="/welcome/profile"' in refused.text
    assert "<nav" not in refused.text
    assert client.get_cookie(COOKIE) is None
    assert is_out(client)
    with app.app_context():
        query = sa.select(sa.func.count()).where(SignInSession.user_id == outsider.id)
        assert db.db.session.scalar(query) == 0


def test_member_without_console_is_asked_for_the_second_factor_first(
    app: Flask, cast: Cast, outsider: Caller
) -> None:
    cast.alice.patch("account", {"mfa": "required"})
    answer = sign_in(app.test_client(), outsider)
    assert (answer.status_code, "Set up" in answer.text) == (200, True)
    assert CLOSED not in answer.text


def test_member_without_console_sets_no_factor_up_whose_codes_they_never_see(
    app: Flask, cast: Cast, outsider: Caller
) -> None:
    cast.alice.patch("account", {"mfa": "required"})
    browser = Browser(app)
    page = sign_in(browser.client, outsider).text
    (mfa_token,) = re.findall(r'name="mfa_token" value="([^"]+)"', page)
    (secret,) = re.findall(r'<code class="breaks">(\w+)</code>', page)
    code = pyotp.TOTP(secret).at(clock.now())
    for path in ("second-factor/set-up", "second-factor/set-up/passkey"):
        refused = browser.send(path, mfa_token=mfa_token, code=code, assertion="{}")
        assert (refused.status_code, CLOSED in refused.text) == (403, True), path
    with app.app_context():
        confirmed = sa.select(SecondFactor.id).where(SecondFactor.confirmed_at.is_not(None))
        assert db.db.session.scalars(confirmed).all() == []


@pytest.mark.long
def test_member_without_console_opens_no_page(app: Flask, cast: Cast) -> None:
    browser = Browser(app, cast.bob)
    answer = browser.get("profile")
    assert answer.status_code == 200
    (viewer,) = [one for one in cast.root.get("roles").json["items"] if one["name"] == "viewer"]
    assert cast.root.patch(f"roles/{viewer['id']}", {"console": False}).json["console"] is False
    walked = 0
    for method, path, _ in pages(app, cast):
        data = {"csrf_token": token(browser.client)} if method == "POST" else None
        answer = browser.client.open(path, method=method, data=data)
        assert answer.status_code == 403, (method, path)
        assert CLOSED in answer.text, (method, path)
        assert "<nav" not in answer.text, (method, path)
        walked += 1
    assert walked > 200
    # The session is not the console's: the sign-in page is shown, and signs in somebody else.
    assert browser.get("sign-in").status_code == 200
    assert sign_in(browser.client, cast.alice).status_code == 303
    assert browser.get("").status_code == 200


@pytest.mark.long
def test_member_with_console_opens_records_and_no_administration(app: Flask, cast: Cast) -> None:
    browser, opened = Browser(app, cast.bob), set()
    for method, path, name in pages(app, cast):
        if name in ("change_password", "end_session", "end_other_sessions"):
            opened.add(name)
            continue
        data = {"csrf_token": token(browser.client)} if method == "POST" else None
        answer = browser.client.open(path, method=method, data=data)
        text = answer.data.decode(errors="replace")  # an archive is no text
        if "for admins of the account" in text or "for superadmins only" in text:
            assert answer.status_code == 403, (method, path)
            assert name not in OF_MEMBERS.split(), (method, path)
        else:
            assert answer.status_code < 500, (method, path)
            assert CLOSED not in text, (method, path)
            opened.add(name)
    assert opened == set(OF_MEMBERS.split())


def test_member_with_console_works_with_the_records_that_rules_open(app: Flask, cast: Cast) -> None:
    rules = {"list_rule": "@owns_record()", "view_rule": "@owns_record()", "create_rule": ""}
    rules |= {"update_rule": "@owns_record()", "delete_rule": None}
    builders.make_collection(cast.root, **rules)
    builders.make_collection(cast.root, "closed", list_rule=None, create_rule=None)
    hidden = builders.make_record(cast.alice, title="of alice")["id"]
    browser = Browser(app, cast.bob)
    assert "<td" in browser.get("").text
    at = f"records/{cast.alice.account_id}"
    assert "posts" in browser.get(at).text
    browser.done(f"{at}/posts/new", f_title="of bob")
    shown = browser.get(f"{at}/posts").text
    assert "of bob" in shown
    assert "of alice" not in shown
    assert f"{at}/posts/api" not in shown
    assert browser.get(f"{at}/posts/{hidden}").status_code == 404
    own = cast.bob.get("records/posts").json["items"][0]["id"]
    page = browser.get(f"{at}/posts/{own}").text
    assert "Deliveries of this record" not in page
    assert browser.send(f"{at}/posts/{own}/delete").status_code == 403
    other = browser.get(f"records/{cast.charlie.account_id}/posts")
    assert other.status_code == 404
    found = browser.get("search?search=of+bob").text
    assert "Records of posts" in found


def test_member_with_console_sees_writers_as_the_directory_shows_them(
    app: Flask, cast: Cast
) -> None:
    builders.make_collection(cast.root)
    builders.make_record(cast.alice, title="first")
    builders.change_user(app, cast.alice.id, name="Alice Acme")
    path = f"records/{cast.alice.account_id}/posts?column=title&column=created_by"
    for rule, sees in (("", True), ("@has_role(admin)", False)):
        cast.root.put("directory/settings", {"rule": rule, "fields": ["name"]})
        page = Browser(app, cast.bob).get(path).text
        assert ("Alice Acme" in page) is sees
        assert cast.alice.email not in page
        assert "Alice Acme" in Browser(app, cast.alice).get(path).text


def test_views_are_shared_among_admins_only(app: Flask, cast: Cast) -> None:
    builders.make_collection(cast.root)
    path = f"records/{cast.alice.account_id}/posts"
    admin, member = Browser(app, cast.alice), Browser(app, cast.bob)
    admin.done(f"{path}/views?sort=title", name="Of admins", is_shared="true")
    assert "Of admins" not in member.get(path).text
    assert "Mine" in member.done(f"{path}/views?sort=title", name="Mine")
    refused = member.send(f"{path}/views?sort=title", name="Theirs", is_shared="true")
    assert (refused.status_code, alert(refused)) == (403, "Only admins share views.")
    assert "is_shared" not in refused.text


def test_role_opens_the_console_by_api_console_and_manifest(app: Flask, cast: Cast) -> None:
    made = cast.root.post("roles", {"name": "agent", "console": True}).json
    assert made["console"] is True
    assert cast.root.post("roles", {"name": "customer"}).json["console"] is False
    root = Browser(app, cast.root)
    assert re.search(r'name="console"[^>]* checked', root.get(f"roles/{made['id']}").text)
    root.done(f"roles/{made['id']}", name="agent", description="Helps.")
    assert cast.root.get(f"roles/{made['id']}").json["console"] is False
    text = "version: 1\nroles:\n- {name: agent, console: true}\n"
    plan = cast.root.post("manifest/plan", {"yaml": text}).json
    assert [one["property"] for one in plan["operations"][0]["changes"]] == ["console"]
    body = {"yaml": text, "plan_hash": plan["plan_hash"]}
    assert cast.root.post("manifest/apply", body).status_code == 200
    assert cast.root.get(f"roles/{made['id']}").json["console"] is True
    exported = cast.root.get("manifest/export").json["roles"]
    assert {"name": "agent", "description": "Helps.", "console": True} in exported


def test_admins_keep_the_console(cast: Cast) -> None:
    (admin,) = [one for one in cast.root.get("roles").json["items"] if one["name"] == "admin"]
    assert admin["console"] is True
    refused = cast.root.patch(f"roles/{admin['id']}", {"console": False})
    assert refused.status_code == 409
    assert cast.root.patch(f"roles/{admin['id']}", {"console": True}).status_code == 200


def test_console_of_a_role_is_no_text(cast: Cast) -> None:
    refused = cast.root.post("roles", {"name": "agent", "console": "yes"})
    assert refused.status_code == 422
    assert "console" in refused.text
