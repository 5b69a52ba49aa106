"""What a proved domain decides: where users sign in, who joins, and who speaks for addresses."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.db import transaction
from tests.accounts.test_product import SVG, data
from tests.builders import PASSWORD, Caller, Cast, make_user
from tests.domains.proving import add, prove
from tests.mailbox import outbox, run_jobs, token_in
from tests.name_server import NameServer
from tests.sso.flows import Stage

DORA = {"sub": "g-1", "email": "dora@acme.example", "email_verified": True, "name": "Dora"}
UNKNOWN = {
    "account": None,
    "password": True,
    "passkey": True,
    "magic_link": False,
    "providers": [],
    "password_sign_in": True,
}


def discover(app: Flask, email: str) -> Any:
    answer = Caller(app).post("auth/discover", {"email": email})
    assert answer.status_code == 200, answer.json
    return answer.json


def login(app: Flask, account: str, email: str) -> Any:
    body = {"account": account, "email": email, "password": PASSWORD}
    return Caller(app).post("auth/login", body)


def settings(owner: Caller, domain: dict[str, Any], **changes: Any) -> None:
    answer = owner.patch(f"account/domains/{domain['id']}", changes)
    assert answer.status_code == 200, answer.json


def test_discover_returns_account_and_providers_of_verified_domain(
    app: Flask, cast: Cast, stage: Stage, dns: NameServer
) -> None:
    stage.oauth(cast.alice)
    add(cast.alice)
    assert discover(app, "dora@acme.example") == UNKNOWN  # not proved
    cast.alice.delete(f"account/domains/{cast.alice.get('account/domains').json['items'][0]['id']}")
    domain = prove(dns, cast.alice)
    found = discover(app, "dora@acme.example")
    google = {
        "slug": "google",
        "kind": "oauth",
        "name": "Google",
        "start_url": "http://atrium.test/oauth/google/authorize?account=acme",
        "category": "auth_providers",
        "display_name": "Google",
    }
    account = {"slug": "acme", "name": "Acme", "logo": None, "accent_color": None}
    assert found == {**UNKNOWN, "account": account, "providers": [google]}
    for spelling in (cast.alice.email, "NOBODY@ACME.EXAMPLE", " x@Acme.Example "):
        assert discover(app, spelling) == found
    settings(cast.alice, domain, sso_only=True)
    off = {"password": False, "password_sign_in": False}
    assert discover(app, "dora@acme.example") == {**found, **off}


def test_providers_of_account_are_what_its_sign_in_page_shows(
    app: Flask, cast: Cast, stage: Stage
) -> None:
    stage.oauth(cast.alice)
    stage.saml(cast.alice)
    anyone, settings = Caller(app), {"magic_link": True, "password_sign_in": False, "mfa": "off"}
    ways = anyone.get("auth/providers?account=acme").json
    assert {(one["kind"], one["slug"]) for one in ways["providers"]} == {
        ("oauth", "google"),
        ("saml", "okta"),
    }
    for one in ways["providers"]:
        started = app.test_client().get(one["start_url"].removeprefix("http://atrium.test"))
        assert started.status_code in (302, 400), one  # 400: acme has no redirect address
    assert cast.alice.patch("account", settings).status_code == 200
    ways = anyone.get("auth/providers", query_string={"account": "AA0001"}).json
    assert (ways["password"], ways["passkey"], ways["magic_link"]) == (False, False, False)
    cast.alice.patch("account", {"password_sign_in": True})
    ways = anyone.get("auth/providers?account=acme").json
    assert (ways["password"], ways["passkey"], ways["magic_link"]) == (True, False, True)
    cast.root.put("product", {"accent_color": "#123456", "accounts_may_brand": True})
    cast.alice.put("account/brand", {"name": "Acme Support", "logo": data(SVG.format(""))})
    account = anyone.get("auth/providers?account=acme").json["account"]
    assert (account["name"], account["accent_color"]) == ("Acme Support", "#123456")
    shown = anyone.get(account["logo"].removeprefix("http://atrium.test/api/v1/"))
    assert shown.mimetype == "image/svg+xml"
    for account in ("nowhere", "acme.example", ""):
        refused = anyone.get("auth/providers", query_string={"account": account})
        assert refused.status_code == 404
    cast.root.patch(f"accounts/{cast.alice.account_id}", {"is_active": False})
    assert anyone.get("auth/providers?account=acme").status_code == 404


@pytest.mark.one_database
@pytest.mark.parametrize(
    "email",
    [*("x@globex.example", "x@mail.acme.example", "x@acme.example.evil.example"), "acme", "", "@"],
)
def test_discover_with_other_domain_has_uniform_answer(
    app: Flask, cast: Cast, stage: Stage, dns: NameServer, email: str
) -> None:
    stage.oauth(cast.alice)
    prove(dns, cast.alice)
    answer = Caller(app).post("auth/discover", {"email": email})
    assert answer.json == UNKNOWN


@pytest.mark.one_database
def test_discover_requests_are_limited(
    app: Flask, cast: Cast, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.changed(monkeypatch, sign_in_starts_per_address=2, login_rate_limit="on")
    statuses = [
        Caller(app).post("auth/discover", {"email": "x@y.example"}).status_code for _ in range(3)
    ]
    assert statuses == [200, 200, 429]


@pytest.mark.one_database
def test_discover_does_not_find_suspended_account(
    app: Flask, cast: Cast, stage: Stage, dns: NameServer
) -> None:
    prove(dns, cast.alice)
    cast.root.patch(f"accounts/{cast.alice.account_id}", {"is_active": False})
    assert discover(app, "dora@acme.example") == UNKNOWN


def test_sso_only_domain_refuses_passwords(
    app: Flask, cast: Cast, stage: Stage, dns: NameServer
) -> None:
    domain = prove(dns, cast.alice)
    path = f"account/domains/{domain['id']}"
    assert cast.alice.patch(path, {"sso_only": True}).status_code == 400  # no provider
    stage.oauth(cast.alice)
    settings(cast.alice, domain, sso_only=True)
    refused = login(app, "acme", cast.bob.email)
    assert (refused.status_code, refused.json["error"]) == (401, "password_sign_in_off")
    make_user(app, cast.alice.account_id, "carol@elsewhere.example")
    assert login(app, "acme", "carol@elsewhere.example").status_code == 200
    # In other accounts and in the system account nothing changes.
    for account_id, account in ((cast.charlie.account_id, "globex"), (SYSTEM_ACCOUNT_ID, "system")):
        make_user(app, account_id, "erin@acme.example")
        assert login(app, account, "erin@acme.example").status_code == 200
    wrong = {"account": "acme", "email": cast.bob.email, "password": "wrong"}
    assert Caller(app).post("auth/login", wrong).json["error"] == "authentication_failed"
    settings(cast.alice, domain, sso_only=False)
    assert login(app, "acme", cast.bob.email).status_code == 200


def test_domain_auto_join_creates_user_at_first_sign_in(
    app: Flask, cast: Cast, stage: Stage, dns: NameServer
) -> None:
    cast.alice.patch("account", {"sso_provisioning": False})
    stage.oauth(cast.alice)
    domain = prove(dns, cast.alice)
    assert stage.sign_in().status_code in (302, 403)
    assert stage.checks(cast.alice)[:1] == ["provisioning"]
    settings(cast.alice, domain, auto_join=True, auto_join_role="editor")
    joined = stage.traded(stage.sign_in())
    assert (joined["user"]["email"], joined["user"]["role"]) == ("dora@acme.example", "editor")
    assert joined["user"]["email_verified"] is True


@pytest.mark.one_database
@pytest.mark.parametrize(
    "claims",
    [{"email_verified": False}, {"email": "dora@mail.acme.example"}, {"email": "dora@x.example"}],
)
def test_domain_auto_join_needs_verified_email_of_the_domain(
    cast: Cast, stage: Stage, dns: NameServer, claims: dict[str, Any]
) -> None:
    cast.alice.patch("account", {"sso_provisioning": False})
    stage.oauth(cast.alice)
    settings(cast.alice, prove(dns, cast.alice), auto_join=True)
    stage.provider.who = {**DORA, **claims}
    assert "code=" not in stage.sign_in().headers.get("Location", "")
    assert stage.checks(cast.alice)[:1] == ["provisioning"]


@pytest.mark.one_database
def test_domain_auto_join_needs_verified_domain(cast: Cast, stage: Stage, dns: NameServer) -> None:
    cast.alice.patch("account", {"sso_provisioning": False})
    stage.oauth(cast.alice)
    settings(cast.alice, add(cast.alice), auto_join=True)
    stage.sign_in()
    assert stage.checks(cast.alice)[:1] == ["provisioning"]


def test_domain_auto_join_never_gives_admin_role(
    app: Flask, cast: Cast, stage: Stage, dns: NameServer
) -> None:
    stage.oauth(cast.alice)
    domain = prove(dns, cast.alice)
    settings(cast.alice, domain, auto_join=True)
    with app.app_context(), transaction() as session:
        session.connection().exec_driver_sql("UPDATE account_domains SET auto_join_role = 'admin'")
    assert stage.traded(stage.sign_in())["user"]["role"] == "viewer"


def test_provider_of_other_account_cannot_sign_in_email_of_verified_domain(
    app: Flask, cast: Cast, stage: Stage, dns: NameServer
) -> None:
    prove(dns, cast.alice)
    make_user(app, cast.charlie.account_id, "erin@acme.example")
    stage.oauth(cast.charlie)
    stage.provider.who = {**DORA, "email": "erin@acme.example"}
    answer = stage.sign_in(account="globex")
    assert "code=" not in answer.headers.get("Location", "")
    assert stage.checks(cast.charlie)[:1] == ["email"]
    assert login(app, "globex", "erin@acme.example").status_code == 200
    # In the account that owns the domain its own provider does.
    stage.oauth(cast.alice)
    make_user(app, cast.alice.account_id, "erin@acme.example")
    assert stage.traded(stage.sign_in())["account"]["slug"] == "acme"


def test_provider_user_of_foreign_domain_is_unverified(
    app: Flask, cast: Cast, stage: Stage, dns: NameServer
) -> None:
    prove(dns, cast.alice)
    stage.oauth(cast.charlie)
    joined = stage.traded(stage.sign_in(account="globex"))
    assert joined["user"]["email_verified"] is False
    # The mailbox itself can verify it there.
    user_id = joined["user"]["id"]
    mails = {"email": "dora@acme.example"}
    assert cast.charlie.post("auth/send-verification", mails).status_code == 200
    run_jobs(app)
    token = {"token": token_in(outbox(app)[-1])}
    assert Caller(app).post("auth/verify-email", token).status_code == 200
    assert cast.charlie.get(f"account/users/{user_id}").json["email_verified"] is True


@pytest.mark.one_database
def test_provider_email_of_foreign_domain_links_no_user_or_invitation(
    app: Flask, cast: Cast, stage: Stage, dns: NameServer
) -> None:
    prove(dns, cast.alice)
    stage.oauth(cast.charlie)
    cast.charlie.patch("account", {"sso_provisioning": False})
    cast.charlie.post("invitations", {"email": "dora@acme.example", "role": "editor"})
    stage.sign_in(account="globex")
    assert stage.checks(cast.charlie)[:1] == ["provisioning"]
    cast.charlie.patch("account", {"sso_provisioning": True, "sso_email_domains": ["acme.example"]})
    stage.sign_in(account="globex")
    assert stage.checks(cast.charlie)[:1] == ["email"]


@pytest.mark.one_database
def test_system_provider_verifies_email_in_owning_account_only(
    app: Flask, cast: Cast, stage: Stage, dns: NameServer
) -> None:
    prove(dns, cast.alice)
    stage.oauth(cast.root)
    assert stage.traded(stage.sign_in())["user"]["email_verified"] is True
    elsewhere = stage.traded(stage.sign_in(account="globex"))
    assert elsewhere["user"]["email_verified"] is False


@pytest.mark.one_database
def test_saml_assertion_of_foreign_domain_is_refused(
    app: Flask, cast: Cast, stage: Stage, dns: NameServer
) -> None:
    prove(dns, cast.charlie, "globex.example")
    stage.saml(cast.alice)
    make_user(app, cast.alice.account_id, "erin@globex.example")
    answer = stage.assert_in(subject="erin@globex.example")
    assert "code=" not in answer.headers.get("Location", "")
    assert stage.checks(cast.alice)[:1] == ["email"]


@pytest.mark.one_database
def test_linked_identity_of_foreign_domain_still_signs_in(
    app: Flask, cast: Cast, stage: Stage, dns: NameServer
) -> None:
    stage.oauth(cast.charlie)
    first = stage.traded(stage.sign_in(account="globex"))
    prove(dns, cast.alice)
    again = stage.traded(stage.sign_in(account="globex"))
    assert again["user"]["id"] == first["user"]["id"]


@pytest.mark.one_database
def test_registration_of_new_account_with_email_of_verified_domain(
    app: Flask, cast: Cast, dns: NameServer
) -> None:
    prove(dns, cast.alice)
    body = {"account_name": "Own", "email": "dora@acme.example", "password": PASSWORD}
    made = Caller(app).post("auth/register", body)
    assert made.status_code == 201
    assert login(app, "own", "dora@acme.example").json["error"] == "email_not_verified"


def register(app: Flask, slug: str, email: str) -> Any:
    body = {"account_slug": slug, "email": email, "password": PASSWORD}
    return Caller(app).post("auth/register", body)


@pytest.mark.long
def test_registration_into_account_with_auto_join_domain(
    app: Flask, cast: Cast, stage: Stage, dns: NameServer
) -> None:
    domain = prove(dns, cast.alice)
    assert register(app, "acme", "dora@acme.example").status_code == 409  # no auto_join
    settings(cast.alice, domain, auto_join=True, auto_join_role="editor")
    for email in ("dora@globex.example", "dora@mail.acme.example"):
        assert register(app, "acme", email).status_code == 409
    assert register(app, "globex", "dora@acme.example").status_code == 409
    made = register(app, "acme", "dora@acme.example")
    assert (made.status_code, made.json["user"]["role"]) == (201, "editor")
    run_jobs(app)
    # Somebody else may have registered it: the mailbox chooses the password.
    assert login(app, "acme", "dora@acme.example").json["error"] == "authentication_failed"
    chosen = {"token": token_in(outbox(app)[-1]), "new_password": PASSWORD}
    assert Caller(app).post("auth/reset-password", chosen).status_code == 200
    assert login(app, "acme", "dora@acme.example").status_code == 200
    # A taken address has the same answer, and its owner gets a mail.
    again = register(app, "acme", "dora@acme.example")
    assert again.json["user"].keys() == made.json["user"].keys()
    assert again.json["account"] == made.json["account"]
    stage.oauth(cast.alice)
    settings(cast.alice, domain, sso_only=True)
    assert register(app, "acme", "fay@acme.example").status_code == 409


def test_sso_only_domain_refuses_magic_links(
    app: Flask, cast: Cast, stage: Stage, dns: NameServer
) -> None:
    stage.oauth(cast.alice)
    domain = prove(dns, cast.alice)
    assert cast.alice.patch("account", {"magic_link": True}).status_code == 200
    body = {"account": cast.bob.slug, "email": cast.bob.email}
    anyone = Caller(app)
    assert anyone.post("auth/magic-link", body).status_code == 200
    run_jobs(app)
    mailed = len(outbox(app))
    token = token_in(outbox(app)[-1])
    settings(cast.alice, domain, sso_only=True)
    assert anyone.post("auth/magic-link/verify", {"token": token}).status_code == 400
    assert anyone.post("auth/magic-link", body).status_code == 200
    run_jobs(app)
    assert len(outbox(app)) == mailed
