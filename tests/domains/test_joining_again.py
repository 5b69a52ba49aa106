"""Deleted users do not come back by themselves, and strangers fill no list of users."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from tests.builders import PASSWORD, Caller, Cast, make_user
from tests.domains.test_sign_in import DORA, login, prove, register, settings
from tests.mailbox import outbox, run_jobs, token_in
from tests.name_server import NameServer
from tests.sso.flows import Stage

GONE = "dora@acme.example"


@pytest.fixture
def joining(cast: Cast, dns: NameServer, stage: Stage) -> dict[str, Any]:
    """A domain by which users join acme, though it provisions none."""
    assert cast.alice.patch("account", {"sso_provisioning": False}).status_code == 200
    domain = prove(dns, cast.alice)
    settings(cast.alice, domain, auto_join=True, auto_join_role="editor")
    return domain


def signs_in(stage: Stage, name: str = "google") -> bool:
    """Whether a sign-in of Dora is let in."""
    return "code=" in stage.sign_in(name).headers.get("Location", "")


def delete(cast: Cast, email: str) -> None:
    """Delete a user of acme as its admin."""
    for user in cast.alice.get("account/users?limit=100").json["items"]:
        if user["email"] == email:
            assert cast.alice.delete(f"account/users/{user['id']}").status_code == 204


def github(stage: Stage, by: Caller) -> None:
    """GitHub with its list of proved addresses, which stays with former employees."""
    stage.oauth(by, "github", userinfo_url=f"{stage.provider.url}/user")
    stage.provider.who = {"id": 7, "name": "Dora"}
    stage.provider.emails = [{"email": GONE, "verified": True, "primary": True}]


@pytest.mark.usefixtures("joining")
def test_public_provider_sign_in_of_new_user_needs_invitation(cast: Cast, stage: Stage) -> None:
    github(stage, cast.root)
    assert not signs_in(stage, "github")
    (refusal, *_) = cast.alice.get("account/sso/refusals").json["items"]
    assert refusal["detail"].endswith("not that the user still belongs to the domain.")
    assert cast.alice.post("invitations", {"email": GONE, "role": "viewer"}).status_code == 201
    assert signs_in(stage, "github")


@pytest.mark.parametrize(
    ("hosted_domain", "joins"),
    [
        ("acme.example", True),
        ("ACME.example", True),
        (None, False),
        ("other.example", False),
        ("globex.example", False),
        ("acme.example.evil.example", False),
        (["acme.example"], False),
        ("", False),
        ("@", False),
    ],
)
@pytest.mark.usefixtures("joining")
def test_google_system_provider_joins_members_of_hosted_domain_only(
    cast: Cast, stage: Stage, hosted_domain: object, joins: bool
) -> None:
    stage.oauth(cast.root)
    stage.provider.who = {**DORA, "hd": hosted_domain}
    assert signs_in(stage) is joins


@pytest.mark.usefixtures("joining")
def test_deleted_user_sign_in_is_refused_until_invited(cast: Cast, stage: Stage) -> None:
    stage.oauth(cast.alice)
    assert signs_in(stage)
    delete(cast, GONE)
    for address in (GONE, "DORA@Acme.example"):
        stage.provider.who = {**DORA, "email": address}
        assert not signs_in(stage)
    assert stage.checks(cast.alice)[:2] == ["deleted", "deleted"]
    # Whatever lets new users in; other people and other accounts are not concerned.
    provisioning = {"sso_provisioning": True, "sso_email_domains": ["acme.example"]}
    assert cast.alice.patch("account", provisioning).status_code == 200
    assert not signs_in(stage)
    stage.provider.who = {**DORA, "sub": "g-2", "email": "erin@acme.example"}
    assert signs_in(stage)
    stage.provider.who = DORA
    invited = cast.alice.post("invitations", {"email": GONE, "role": "viewer"})
    assert invited.status_code == 201
    assert stage.traded(stage.sign_in())["user"]["role"] == "viewer"
    # From then on the address is like any other.
    assert signs_in(stage)


@pytest.mark.usefixtures("joining")
def test_deleted_user_sign_in_works_after_admin_creates_user(
    app: Flask, cast: Cast, stage: Stage
) -> None:
    stage.oauth(cast.alice)
    assert signs_in(stage)
    delete(cast, GONE)
    made = cast.alice.post("account/users", {"email": GONE, "role": "viewer"})
    assert made.status_code == 201, made.text
    assert signs_in(stage)


@pytest.mark.usefixtures("joining")
def test_scim_deleted_user_sign_in_works_after_scim_creation(cast: Cast, stage: Stage) -> None:
    stage.oauth(cast.alice)
    token = cast.alice.post("account/scim/tokens").json["token"]
    directory = Caller(stage.app)
    headers = {"Authorization": f"Bearer {token}"}
    person = {"schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"], "userName": GONE}

    def scim(method: str, path: str = "", body: Any = None) -> Any:
        client = directory.app.test_client()
        return client.open(f"/scim/v2/Users{path}", method=method, json=body, headers=headers)

    made = scim("POST", body=person)
    assert made.status_code == 201, made.text
    assert signs_in(stage)
    assert scim("DELETE", f"/{made.json['id']}").status_code == 204
    assert not signs_in(stage)
    assert scim("POST", body=person).status_code == 201
    assert signs_in(stage)


@pytest.mark.usefixtures("joining")
def test_deleted_unverified_user_does_not_block_owner_of_address(
    app: Flask, cast: Cast, stage: Stage
) -> None:
    stage.oauth(cast.alice)
    make_user(app, cast.alice.account_id, GONE, verified=False)
    delete(cast, GONE)
    assert signs_in(stage)


@pytest.mark.usefixtures("joining")
def test_domain_registration_stores_no_user_before_confirmation(app: Flask, cast: Cast) -> None:
    before = cast.alice.get("account/users?limit=100").json["total"]
    for name in ("ceo", "cfo", "dora"):
        assert register(app, "acme", f"{name}@acme.example").status_code == 201
    run_jobs(app)
    assert cast.alice.get("account/users?limit=100").json["total"] == before
    tokens = [token_in(mail) for mail in outbox(app)[-3:]]
    page = app.test_client().get(f"/welcome/reset-password?token={tokens[2]}")
    assert (page.status_code, GONE in page.text, "Acme" in page.text) == (200, True, True)
    anyone = Caller(app)
    weak = anyone.post("auth/reset-password", {"token": tokens[2], "new_password": "x"})
    assert weak.json["details"][0]["field"] == "new_password"
    chosen = {"token": tokens[2], "new_password": PASSWORD}
    assert anyone.post("auth/reset-password", chosen).status_code == 200
    again = anyone.post("auth/reset-password", chosen)
    assert (again.status_code, again.json["error"]) == (400, "invalid_token")
    signed_in = login(app, "acme", GONE)
    assert signed_in.status_code == 200
    assert signed_in.json["user"]["email_verified"] is True
    assert signed_in.json["user"]["role"] == "editor"
    assert cast.alice.get("account/users?limit=100").json["total"] == before + 1
    # Once deleted, neither an old link nor a new registration leads back.
    delete(cast, GONE)
    assert anyone.post("auth/reset-password", chosen).status_code == 400
    mailed = len(outbox(app))
    assert register(app, "acme", GONE).status_code == 201
    run_jobs(app)
    assert len(outbox(app)) == mailed


def test_domain_registration_link_ends_with_auto_join(
    app: Flask, cast: Cast, joining: dict[str, Any]
) -> None:
    register(app, "acme", GONE)
    run_jobs(app)
    token = token_in(outbox(app)[-1])
    settings(cast.alice, joining, auto_join=False)
    anyone = Caller(app)
    for forged in (token, token[:-2], f"{token}x", "", "AA0001-x"):
        chosen = {"token": forged, "new_password": PASSWORD}
        assert anyone.post("auth/reset-password", chosen).status_code in (400, 422)
    settings(cast.alice, joining, auto_join=True)
    chosen = {"token": token, "new_password": PASSWORD}
    assert anyone.post("auth/reset-password", chosen).status_code == 200
