"""The pages of sign-in by providers: settings, tests, refusals, and the sign-in page itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask import Flask

from app.console.admin import sso_form
from app.sso import providers
from tests.builders import Caller, Cast
from tests.console.browser import COOKIE, HOSTILE, Browser, beside, is_out
from tests.console.browser import sign_in as sign_in_as
from tests.sso import openid, saml_idp
from tests.sso.flows import Stage, query_of


@pytest.fixture
def stage(app: Flask, cast: Cast) -> Iterator[Stage]:
    with openid.providing() as provider:
        for admin in (cast.alice, cast.charlie):  # its OAuth rows make users of these only
            admin.patch("account", {"sso_email_domains": ["acme.example"]})
        yield Stage(app, cast, provider)


def through(stage: Stage, browser: Browser, answer: Any) -> Any:
    """Sign in at the provider that a page leads to, and come back to the console."""
    assert answer.status_code == 302, answer.text
    target, values = stage.provider.authorize(answer.headers["Location"])
    back = browser.client.get(urlsplit(target).path, query_string=values)
    assert back.headers["Location"].startswith("/console/sso/finish?code=")
    return browser.client.get(back.headers["Location"])


def test_console_oidc_provider_set_up_test_and_sign_in(stage: Stage, admin: Browser) -> None:
    home = f"sso/{stage.cast.alice.account_id}"
    assert "No providers are set up" in admin.client.get("/console/sso", follow_redirects=True).text
    new = f"{home}/new/auth_providers/google"
    assert "http://atrium.test/oauth/google/callback" in admin.get(new).text
    refused = admin.send(new, display_name="Google", enabled="true")
    assert (refused.status_code, beside(refused, "client_id")) == (400, "This setting is required.")
    form = {"display_name": "Our Google", **stage.provider.config()}
    page = admin.done(new, **form)
    assert "Our Google is set up." in page
    assert openid.SECRET not in page
    (row,) = stage.cast.alice.get("admin/configuration").json["items"]
    one = f"{home}/{row['id']}"
    assert (row["enabled"], row["config"]["client_secret"]) == (False, "***")
    tried = admin.send(f"{one}/try")
    assert tried.text.count(">works<") == 2
    # A test signs nobody in, not even by a provider that is still off.
    before = stage.users()
    tested = through(stage, admin, admin.get(f"{one}/test"))
    assert "A new user would be created" in tested.text
    stage.provider.lies = lambda claims, header: claims.update(aud="another")  # type: ignore[func-returns-value]
    tested = through(stage, admin, admin.get(f"{one}/test"))
    assert "<strong>audience</strong>" in tested.text
    stage.provider.lies = None
    assert stage.users() == before
    del form["client_secret"]
    assert "Saved." in admin.done(one, **form, enabled="true", default_role="editor")
    stranger = Browser(stage.app)
    shown = stranger.get("sign-in?account=acme").text
    assert "Sign in with Our Google" in shown
    assert "Our Google" not in stranger.get("sign-in?account=globex").text
    start = "sso/start/auth_providers/google?account=acme"
    signed_in = through(stage, stranger, stranger.get(start))
    assert signed_in.status_code == 303
    assert "Welcome to Acme." in stranger.client.get("/console").text
    assert stage.cast.alice.get("account/users?search=dora").json["items"][0]["role"] == "editor"
    assert re.search(r'data-label="Last sign-in"><time', admin.get(home).text)
    dora = stage.cast.alice.get("account/users?search=dora").json["items"][0]["id"]
    assert "<dt>Signs in with</dt><dd>Our Google</dd>" in admin.get(f"team/users/{dora}").text
    bob = admin.get(f"team/users/{stage.cast.bob.id}").text
    assert "<dt>Signs in with</dt><dd>password</dd>" in bob
    assert "The provider is removed." in admin.done(f"{one}/remove")


def test_console_provider_sign_in_returns_to_requested_page(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    browser = Browser(stage.app)
    asked = browser.get("profile?page=2").headers["Location"]
    forms = browser.client.get(asked).text
    assert (
        forms.count('name="next" value="/console/profile?page=2"')
        == forms.count('action="/console/sign-in"')
        == 1
    )
    page = browser.client.get(f"{asked}&account=acme").text
    (start,) = re.findall(r'href="(/console/sso/start/[^"]+)"', page)
    started = browser.client.get(unescape(start))
    assert through(stage, browser, started).headers["Location"] == "/console/profile?page=2"
    for elsewhere in ("//evil.example", "https://evil.example/console", "/console/../oauth", ""):
        query = {"account": "acme", "next": elsewhere}
        path = "/console/sso/start/auth_providers/google"
        browser = Browser(stage.app)
        started = browser.client.get(path, query_string=query)
        assert through(stage, browser, started).headers["Location"] == "/console"


def test_console_sign_in_code_works_only_in_its_browser(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    attacker, victim = Browser(stage.app), Browser(stage.app)
    start = attacker.get("sso/start/auth_providers/google?account=acme")
    target, values = stage.provider.authorize(start.headers["Location"])
    back = attacker.client.get(urlsplit(target).path, query_string=values)
    code = query_of(back.headers["Location"])["code"]
    lured = victim.get(f"sso/finish?code={code}")
    assert lured.status_code == 400
    assert is_out(victim.client)
    assert stage.anyone.post("auth/exchange", {"code": code}).status_code == 400
    assert attacker.get(f"sso/finish?code={code}").status_code == 303
    assert attacker.get(f"sso/finish?code={code}").status_code == 400


def test_console_saml_provider_set_up_by_metadata_and_refusals(
    stage: Stage, admin: Browser
) -> None:
    home = f"sso/{stage.cast.alice.account_id}"
    new = f"{home}/new/saml_providers/okta"
    page = admin.get(new).text
    assert "http://atrium.test/saml/okta/acs?account=acme" in page
    form = {"display_name": "Okta", "enabled": "true", "idp_metadata": saml_idp.metadata()}
    assert saml_idp.ENTITY in admin.done(new, **form, email_verified="true")
    settings = {"allowed_redirect_uris": stage.client, "default_redirect_uri": stage.client}
    assert "Saved." in admin.done(home, sso_provisioning="usual", **settings)
    assert stage.assert_in(audience=f"https://{HOSTILE[:20]}").status_code == 401
    listed = admin.get(home).text
    assert ">audience<" in listed
    assert "<script>" not in listed
    assert stage.assert_in().status_code == 302


def test_console_provider_directory_shows_state_of_each(cast: Cast, admin: Browser) -> None:
    home = f"sso/{cast.alice.account_id}"

    def states() -> dict[str, str]:
        found = re.findall(r"<h3><a [^>]+>([^<]+)</a></h3>.*?class=\"state[^>]+>([^<]+)<", shown())
        return dict(found)

    def shown() -> str:
        return admin.get(home).text.replace("\n", " ")

    before = {"Domains": "none", "Provisioning (SCIM)": "off", "Setup links": "none"}
    assert states() == before
    cast.alice.post("account/domains", {"domain": "acme.example"})
    cast.alice.post("account/scim/tokens")
    admin.done(f"{home}/setup-links", name="IT", days="3", features=["sso"])
    cast.charlie.post("account/domains", {"domain": "globex.example"})
    after = {"Domains": "0 of 1 verified", "Provisioning (SCIM)": "on", "Setup links": "1 open"}
    assert states() == after


@pytest.mark.parametrize(
    ("settings", "is_warned"),
    [
        ({}, True),
        ({"sso_email_domains": ["acme.example"]}, False),
        ({"sso_provisioning": False}, False),  # as chosen
        ({"sso_provisioning": True}, True),
    ],
)
def test_console_provider_that_creates_no_users_has_warning(
    cast: Cast, admin: Browser, settings: dict[str, object], is_warned: bool
) -> None:
    path = f"sso/{cast.alice.account_id}"
    google = {"display_name": "Google", "client_id": "id", "client_secret": "very secret"}
    new = f"{path}/new/auth_providers/google"
    assert admin.send(new, **google, enabled="true").status_code == 303
    assert cast.alice.patch("account", settings).status_code == 200
    page = admin.get(path).text
    row = page.partition("<tbody>")[2].partition("</tbody>")[0]
    assert ("Creates no users" in row, 'href="#sso_email_domains"' in row) == (is_warned, is_warned)
    own = re.search(rf'href="/console/({path}/[0-9a-f-]{{36}})"', page)
    assert own is not None
    assert (f"{path}#sso_email_domains" in admin.get(own[1]).text) == is_warned
    assert 'id="sso_email_domains"' in page


def test_console_provider_secret_is_hidden_after_saving(cast: Cast, admin: Browser) -> None:
    path = f"sso/{cast.alice.account_id}/new/auth_providers/google"
    assert "Leave it empty to keep it" not in admin.get(path).text
    sent = {"display_name": "Google", "client_id": "id", "client_secret": "very secret"}
    page = admin.done(path, **sent)
    assert "Stored. Leave it empty to keep it." in page.partition('id="client_secret"')[2][:500]
    assert "very secret" not in page
    sign_in = admin.get(f"settings/{cast.alice.account_id}/sign-in").text
    assert ">Single sign-on</a>: no provider is on" in sign_in


def test_console_provider_default_role_exists_and_is_not_admin(cast: Cast, admin: Browser) -> None:
    home = f"sso/{cast.alice.account_id}"
    new = f"{home}/new/auth_providers/github"
    page = admin.get(new).text
    assert "<h1>Add GitHub" in page
    chosen = re.search(r'<select id="default_role".*?</select>', page, re.S)
    assert chosen
    offered = re.findall(r'<option value="([^"]*)"', chosen[0])
    assert "viewer" in offered
    assert "admin" not in offered  # nobody becomes one by single sign-on


def rows(*pairs: tuple[str, str]) -> dict[str, str]:
    """The rows of groups and roles as the form sends them."""
    sent = {"rows": str(len(pairs))}
    for n, (group, role) in enumerate(pairs):
        sent |= {f"group_{n}": group, f"role_{n}": role}
    return sent


def test_console_group_mapping_rows_are_added_moved_and_removed(cast: Cast, admin: Browser) -> None:
    home = f"sso/{cast.alice.account_id}"
    assert admin.get(home).text.count('name="group_') == 1
    more = admin.send(home, **rows(("A", "editor")), do="more")
    assert (more.status_code, more.text.count('name="group_')) == (200, 2)
    both = ("A", "editor"), ("B", "viewer")
    moved = admin.send(home, **rows(*both), do="up.1").text
    assert moved.index('value="B"') < moved.index('value="A"')
    assert not cast.alice.get("account").json["sso_group_roles"]
    admin.done(home, sso_provisioning="usual", **rows(("", ""), *both))
    saved = [{"group": group, "role": role} for group, role in both]
    assert cast.alice.get("account").json["sso_group_roles"] == saved
    shown = admin.get(home).text
    assert re.findall(r'name="group_\d+" value="([^"]*)"', shown) == ["A", "B", ""]
    assert shown.count("<option selected>") == 2
    for odd in ({"do": "up.0"}, {"do": "up.99"}, {"do": "up"}, {"rows": "9" * 400, "do": "more"}):
        assert admin.send(home, **{**rows(*both), **odd}).status_code == 200, odd
    many = admin.send(home, **rows(*[("A", "editor")] * 200), do="more").text
    assert '<datalist id="roles"><option value="' in many
    hostile = admin.send(home, **rows((HOSTILE, HOSTILE)), do="more").text
    assert "<script>alert" not in hostile


def test_console_group_mapping_is_previewed_before_saving(stage: Stage, admin: Browser) -> None:
    home = f"sso/{stage.cast.alice.account_id}"
    stage.saml(stage.cast.alice)
    stage.cast.alice.patch("account", {"default_redirect_uri": stage.client})
    assert stage.assert_in(attributes={"groups": ["A = B"]}).status_code == 302
    form = {"sso_provisioning": "yes", **rows(("A = B", "editor")), "try": "true"}
    shown = admin.send(home, **form, default_redirect_uri=stage.client)
    assert "dora@acme.example" in shown.text
    assert (
        "sso_group_roles" not in stage.cast.alice.get("account").json
        or not (stage.cast.alice.get("account").json["sso_group_roles"])
    )
    wrong = admin.send(home, sso_provisioning="yes", **rows(("", ""), ("A", ""), ("", "editor")))
    assert (wrong.status_code, beside(wrong, "role_1")) == (400, "Required.")
    assert beside(wrong, "group_2") == "Required."
    del form["try"]
    assert "Saved." in admin.done(home, **form, default_redirect_uri=stage.client)
    saved = stage.cast.alice.get("account").json
    assert saved["sso_group_roles"] == [{"group": "A = B", "role": "editor"}]
    assert saved["sso_provisioning"] is True


def test_console_group_mapping_suggests_seen_groups_and_marks_others(
    stage: Stage, admin: Browser
) -> None:
    alice, home = stage.cast.alice, f"sso/{stage.cast.alice.account_id}"
    unseen = re.compile(r'id="group_(\d+)-unseen"')
    alice.post("groups", {"name": "Made here"})
    page = admin.get(home).text
    assert "Group at the provider or directory" in page
    assert ("seen-groups" in page, unseen.findall(page)) == (False, [])
    stage.saml(alice)
    alice.patch("account", {"default_redirect_uri": stage.client})
    assert stage.assert_in(attributes={"groups": ["Staff", "x" * 101]}).status_code == 302
    secret = alice.post("account/scim/tokens").json["token"]
    group = {"schemas": ["urn:ietf:params:scim:schemas:core:2.0:Group"], "displayName": "Library"}
    directory = Caller(stage.app, Authorization=f"Bearer {secret}")
    assert directory.post("/scim/v2/Groups", group).status_code == 201
    stage.saml(stage.cast.charlie)
    pairs = (("Staff", "editor"), ("staff", "editor"), ("Made here", "editor"), ("Library", ""))
    page = admin.send(home, **rows(*pairs, ("x" * 101, "editor")), do="more").text
    options = page.partition('<datalist id="seen-groups">')[2].partition("</datalist>")[0]
    assert re.findall(r'value="([^"]*)"', options) == ["Library", "Staff"]
    assert unseen.findall(page) == ["1", "2"]
    assert "Not seen in recent sign-ins" in page


def test_console_single_sign_on_form_has_limits_of_the_api(stage: Stage, admin: Browser) -> None:
    home = f"sso/{stage.cast.alice.account_id}"
    many = rows(*((f"g{n}", "editor") for n in range(201)))
    refused = admin.send(home, sso_provisioning="yes", **many)
    assert (refused.status_code, "onger than" in beside(refused, "sso_group_roles")) == (400, True)
    for name, text in {
        "sso_email_domains": " ".join(f"d{n}.example" for n in range(51)),
        "allowed_redirect_uris": " ".join(f"https://a{n}.example/" for n in range(51)),
        "default_redirect_uri": f"https://a.example/{'a' * 2000}",
    }.items():
        refused = admin.send(home, sso_provisioning="yes", **{name: text})
        assert (refused.status_code, "onger than" in beside(refused, name)) == (400, True), name
    for name, text, message in (
        ("default_redirect_uri", "z", "Not a valid URL"),
        ("allowed_redirect_uris", "y" * 2001, "Longer than maximum length 2000."),
    ):
        refused = admin.send(home, sso_provisioning="yes", **{name: text})
        assert (refused.status_code, message in beside(refused, name)) == (400, True), name
    long_group = admin.send(home, sso_provisioning="yes", **rows(("g" * 301, "editor")))
    assert beside(long_group, "sso_group_roles") == "Length must be between 1 and 300."
    assert beside(admin.send(home, sso_provisioning="zzz"), "sso_provisioning") == (
        "Choose one of the options."
    )


def test_console_group_mapping_preview_to_admin_needs_permission(
    stage: Stage, admin: Browser
) -> None:
    home = f"sso/{stage.cast.alice.account_id}"
    form = {"sso_provisioning": "yes", **rows(("Finance", "admin")), "try": "true"}
    assert admin.send(home, **form).status_code == 400
    shown = admin.send(home, **form, sso_allow_admin="true")
    assert (shown.status_code, "role would change" in shown.text) == (200, True)


def test_console_provider_sign_in_in_single_tenant_mode_needs_no_account(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.oauth(stage.cast.alice)
    stage.changed(monkeypatch, single_tenant=True, single_tenant_account="acme")
    stranger = Browser(stage.app)
    link = re.search(r'href="(/console/sso/start/[^"]*)"', stranger.get("sign-in").text)
    assert link
    assert through(stage, stranger, stranger.client.get(link[1])).status_code == 303


def test_console_provider_pages_access_per_account(
    stage: Stage, admin: Browser, superadmin: Browser
) -> None:
    made = stage.oauth(stage.cast.charlie)
    theirs = f"sso/{stage.cast.charlie.account_id}"
    for path in (theirs, f"{theirs}/{made['id']}", f"{theirs}/{made['id']}/test"):
        assert admin.get(path).status_code == 404
    own = f"sso/{stage.cast.alice.account_id}/{made['id']}"
    assert admin.get(own).status_code == 404
    assert admin.send(f"{own}/remove").status_code == 404
    assert superadmin.get(f"{theirs}/{made['id']}").status_code == 200
    system = superadmin.client.get("/console/sso", follow_redirects=True).text
    assert "every account that has no providers of its own" in system
    viewer = Browser(stage.app, stage.cast.bob)
    assert viewer.get(f"sso/{stage.cast.alice.account_id}").status_code == 403
    assert Browser(stage.app).get("sso").status_code == 302
    assert Caller(stage.app).get("/console/sso/finish?code=x").status_code == 400


def test_console_provider_link_to_other_account_asks_before_ending_session(stage: Stage) -> None:
    """Who is signed in decides before another account's provider signs them in anew."""
    stage.oauth(stage.cast.charlie)
    alice = Browser(stage.app, stage.cast.alice)
    path = "sso/start/auth_providers/google?account=globex"
    page = alice.get(path)
    assert (page.status_code, "Leave this session?" in page.text) == (200, True)
    assert "<strong>Globex</strong> (globex) through Google ends" in page.text
    made_up = alice.get("sso/start/auth_providers/google?account=Your+bank").text
    assert "Signing in to an account through Google ends" in made_up
    assert "Your bank" not in made_up
    assert alice.get("sso/start/auth_providers/nobody?account=globex").status_code == 404
    assert alice.get("profile").status_code == 200
    assert through(stage, alice, alice.send(path)).status_code == 303
    assert "dora@acme.example" in alice.get("profile").text


def test_console_second_sign_in_ends_former_session(stage: Stage) -> None:
    alice = Browser(stage.app, stage.cast.alice)
    former = alice.client.get_cookie(COOKIE)
    assert former is not None
    assert sign_in_as(alice.client, stage.cast.alice).status_code == 303
    other = stage.app.test_client()
    other.set_cookie(COOKIE, former.value)
    assert is_out(other)
    assert not is_out(alice.client)


@pytest.mark.parametrize("path", ["auth_providers/google", "saml_providers/generic"])
def test_console_provider_form_sections_have_links_when_long(
    app: Flask, cast: Cast, path: str
) -> None:
    admin, path = Browser(app, cast.alice), f"sso/{cast.alice.account_id}/new/{path}"
    page = admin.get(path).text
    links = [*sso_form.sections(providers.get(*path.split("/")[-2:])), "provider-needs"]
    assert links[0] == "credentials"
    assert links[-2:] == ["advanced", "provider-needs"]
    assert all(f' id="{name}"' in page for name in links)
    # The form of OAuth is short: its headings are in view.
    nav = page.partition("On this page")[2].partition("</nav>")[0]
    assert re.findall(r'<a(?: data-folded)? href="#([\w-]+)">', nav) == (
        links if "saml" in path else []
    )
    folded = len(re.findall(r'<details class="mb-3">', page))
    assert folded == len({"by_hand", "addresses", "attributes", "advanced"} & {*links})
    for entry, opened in (({}, 0), ({"allowed_redirect_uris": "https://a.example/"}, 1)):
        answer = admin.send(path, display_name="", **entry).text
        assert answer.count('<details class="mb-3" open>') == opened


def test_console_saml_form_manual_fields_are_open_without_metadata(stage: Stage) -> None:
    admin, home = Browser(stage.app, stage.cast.alice), f"sso/{stage.cast.alice.account_id}"
    new = f"{home}/new/saml_providers/okta"
    form = {"display_name": "", "idp_sso_url": "https://id.example/sso"}
    opened = re.compile(r'<details class="mb-3" open><summary><h2 class="d-inline">([^<]*)')
    assert opened.findall(admin.send(new, **form).text) == ["Without metadata"]
    metadata = {"metadata_url": "https://id.example/metadata"}
    assert opened.findall(admin.send(new, **form, **metadata).text) == []


@pytest.mark.parametrize(
    ("provider", "name"),
    [
        ("okta", "At Okta: “Audience URI (SP Entity ID)”"),
        ("azure_ad", "At Microsoft Entra ID: “Identifier (Entity ID)”"),
        ("generic", ""),
    ],
)
def test_console_provider_form_uses_field_names_of_provider(
    app: Flask, cast: Cast, provider: str, name: str
) -> None:
    path = f"sso/{cast.alice.account_id}/new/saml_providers/{provider}"
    page = Browser(app, cast.alice).get(path).text
    assert "Entity ID (audience)" in page
    assert name in page
    assert ("Guide of" in page) == bool(name)


def test_console_provider_form_sections_contain_known_settings_only() -> None:
    known = {setting.name for kind in providers.PROVIDERS for setting in kind.settings}
    assert known >= {name for names in sso_form.SECTIONS.values() for name in names}
    assert {*sso_form.SECTIONS, sso_form.ADVANCED} == sso_form.SECTION_NAMES.keys()
