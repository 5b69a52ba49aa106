"""Sign-in by OAuth: whole flows over HTTP against a real OpenID provider."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import jwt
import pytest
import sqlalchemy as sa
import time_machine
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app import clock
from app.accounts import service as accounts
from app.accounts.models import User
from app.auth import sessions
from app.auth.models import SignInSession
from app.db import db, transaction
from app.sso import jobs
from app.sso.models import Flow
from tests.builders import PASSWORD, Caller
from tests.mailbox import outbox, run_jobs, token_in
from tests.sso import saml_idp
from tests.sso.flows import HTML, Stage, query_of
from tests.sso.openid import signing_key

CHROME = (
    "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8,"
    "application/signed-exchange;v=b3;q=0.7"
)


def test_oauth_sign_in_of_new_user_creates_viewer(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    browser = stage.browser()
    begun = stage.begin(browser, client_state="where I was?")
    asked = query_of(begun)
    assert (asked["code_challenge_method"], asked["response_type"]) == ("S256", "code")
    assert asked["redirect_uri"].startswith("http://atrium.test/oauth/google/callback/AA")
    answer = stage.back(browser, begun, scope="openid", authuser="0")
    target = answer.headers["Location"]
    assert target.startswith(f"{stage.client}?")
    query = query_of(target)
    assert query["state"] == query["client_state"] == "where I was?"
    assert set(query) == {"code", "state", "client_state", "relay_state"}
    signed_in = stage.traded(answer)
    user = signed_in["user"]
    assert (user["email"], user["name"]) == ("dora@acme.example", "Dora")
    assert (user["role"], user["auth_provider"], user["groups"]) == ("viewer", "google", [])
    assert user["email_verified"]
    assert (signed_in["isNewUser"], signed_in["isNewAccount"]) == (True, False)
    me = Caller(stage.app, Authorization=f"Bearer {signed_in['token']}").get("auth/me")
    assert me.json["account"]["slug"] == "acme"
    again = stage.anyone.post("auth/exchange", {"code": query["code"]})
    assert (again.status_code, again.json["error"]) == (400, "invalid_state")
    assert stage.traded(stage.sign_in())["isNewUser"] is False
    late = stage.sign_in().headers["Location"]
    with time_machine.travel(clock.now().timestamp() + 61):
        again = stage.anyone.post("auth/exchange", {"code": query_of(late)["code"]})
        assert (again.status_code, stage.last_refusal()[0]) == (400, "code")


def test_oauth_authorize_by_api_returns_client_state(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    body = {"account": "acme", "redirect_uri": stage.client, "state": "mine"}
    started = stage.anyone.post("auth/oauth/google/authorize", body).json
    assert started["authorization_url"] == started["url"]
    assert (started["state"], started["provider"]) == ("mine", "google")
    travels = query_of(started["url"])["state"]
    assert travels != "mine"
    target, values = stage.provider.authorize(started["url"])
    # The browser has no cookie of a request that the application made.
    returned = stage.browser().get(urlsplit(target).path, query_string=values)
    came = query_of(returned.headers["Location"])
    assert came["state"] == "mine"
    for wrong in ({"code": came["code"]}, {"code": came["code"], "state": "another"}):
        assert stage.anyone.post("auth/exchange", wrong).status_code == 400
    callback = "auth/oauth/google/callback"
    end = {"code": came["code"], "state": "mine", "redirect_uri": stage.client}
    for name, value in (("state", "another"), ("redirect_uri", "https://evil.example/")):
        assert stage.anyone.post(callback, {**end, name: value}).status_code == 400
    assert stage.anyone.post("auth/oauth/github/callback", end).status_code == 400
    signed_in = stage.anyone.post(callback, end)
    assert (signed_in.status_code, signed_in.json["user"]["email"]) == (200, "dora@acme.example")
    assert stage.anyone.post(callback, end).status_code == 400
    # Without any browser, the provider's own code does as well.
    started = stage.anyone.post("auth/oauth/google/authorize", body).json
    _, values = stage.provider.authorize(started["url"])
    signed_in = stage.anyone.post(callback, {**values, "redirect_uri": stage.client})
    assert (signed_in.status_code, signed_in.json["isNewUser"]) == (200, False)


def test_oauth_tokens_in_fragment_when_account_asks(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    stage.cast.alice.patch("account", {"sso_tokens_in_fragment": True})
    target = stage.sign_in(client_state="x").headers["Location"]
    parts = urlsplit(target)
    assert not parts.query
    found = dict(parse_qsl(parts.fragment))
    assert found["state"] == "x"
    me = Caller(stage.app, Authorization=f"Bearer {found['access_token']}").get("auth/me")
    assert me.json["email"] == "dora@acme.example"
    # A browser that did not begin the sign-in gets a code at most.
    body = {"account": "acme", "redirect_uri": stage.client, "state": "mine"}
    started = stage.anyone.post("auth/oauth/google/authorize", body).json
    elsewhere = stage.back(stage.browser(), started["url"]).headers["Location"]
    assert set(query_of(elsewhere)) >= {"code"}
    assert not urlsplit(elsewhere).fragment


def test_oauth_unproved_identity_ends_when_owner_signs_in(stage: Stage) -> None:
    tenant = "00000000-1111-2222-3333-444444444444"
    stage.oauth(stage.cast.alice, "microsoft", tenant_id=tenant)
    stage.oauth(stage.cast.alice)
    owner = stage.provider.who
    stage.provider.who = {**owner, "sub": "m-1", "tid": tenant, "xms_edov": False}
    first = stage.traded(stage.sign_in("microsoft"))
    assert not first["user"]["email_verified"]
    stage.provider.who = owner
    second = stage.traded(stage.sign_in())
    assert second["user"]["id"] == first["user"]["id"]
    for signed_in, status in ((first, 401), (second, 201)):  # all of it within a second
        holder = Caller(stage.app, Authorization=f"Bearer {signed_in['token']}")
        assert holder.post("api-keys", {"name": "x"}).status_code == status
    stage.provider.who = {**owner, "sub": "m-1", "tid": tenant, "xms_edov": False}
    assert stage.sign_in("microsoft").status_code == 403


UNPROVED = {
    "tid": "00000000-1111-2222-3333-444444444444",
    "xms_edov": False,
    "groups": ["Finance"],
}


def mailed(stage: Stage, path: str, email: str) -> str:
    """The token of the mail that is asked for at a path."""
    stage.anyone.post(path, {"account": "acme", "email": email})
    run_jobs(stage.app)
    return token_in(outbox(stage.app)[-1])


def by_link(stage: Stage, user: dict[str, Any], holder: Caller) -> None:
    token = mailed(stage, "auth/resend-verification", user["email"])
    assert stage.anyone.post("auth/verify-email", {"token": token}).status_code == 200


def by_reset(stage: Stage, user: dict[str, Any], holder: Caller) -> None:
    token = mailed(stage, "auth/forgot-password", user["email"])
    body = {"token": token, "new_password": PASSWORD}
    assert stage.anyone.post("auth/reset-password", body).status_code == 200


def with_own_token(stage: Stage, user: dict[str, Any], holder: Caller) -> None:
    token = mailed(stage, "auth/resend-verification", user["email"])
    assert holder.post("auth/verify-email", {"token": token}).status_code == 200


def asked_to_move(stage: Stage, holder: Caller, email: str) -> str:
    """The token that is mailed to an address which a user wants to have."""
    assert holder.patch("auth/me", {"email": email}).status_code == 200
    run_jobs(stage.app)
    return token_in(outbox(stage.app)[-1])


def by_moving(stage: Stage, user: dict[str, Any], holder: Caller) -> None:
    token = asked_to_move(stage, holder, f"moved-{user['email']}")
    assert stage.anyone.post("auth/verify-email", {"token": token}).status_code == 200


def moving_with_own_token(stage: Stage, user: dict[str, Any], holder: Caller) -> None:
    token = asked_to_move(stage, holder, f"moved-{user['email']}")
    assert holder.post("auth/verify-email", {"token": token}).status_code == 200


def vouched_for(stage: Stage, user: dict[str, Any], holder: Caller) -> None:
    assert stage.cast.root.post(f"users/{user['id']}/verify").status_code == 200


@pytest.mark.long
def test_oauth_unproved_identity_ends_when_email_is_proved_by_mail(stage: Stage) -> None:
    stage.oauth(stage.cast.alice, "microsoft", tenant_id=UNPROVED["tid"])
    mapping = {"sso_group_roles": [{"group": "Finance", "role": "editor"}]}
    assert stage.cast.alice.patch("account", mapping).status_code == 200
    lost, kept = (by_link, by_reset, by_moving), (with_own_token, vouched_for)
    for prove in (*lost, *kept, moving_with_own_token):
        stays = prove not in lost
        name = prove.__name__
        stage.provider.who = {"sub": name, "email": f"{name}@acme.example", **UNPROVED}
        first = stage.traded(stage.sign_in("microsoft"))
        holder = Caller(stage.app, Authorization=f"Bearer {first['token']}")
        key = holder.post("api-keys", {"name": "first"}).json["key"]
        code = query_of(stage.sign_in("microsoft").headers["Location"])["code"]
        waiting = asked_to_move(stage, holder, f"evil-{name}@acme.example")
        prove(stage, first["user"], holder)
        shown = stage.cast.alice.get(f"account/users/{first['user']['id']}").json
        again = stage.sign_in("microsoft")
        assert (shown["email_verified"], shown["role"]) == (True, "editor" if stays else "viewer")
        found = (
            again.status_code == 302 and stage.traded(again)["user"]["id"] == first["user"]["id"],
            stage.anyone.post("auth/exchange", {"code": code}).status_code == 200,
            holder.get("auth/me").status_code == 200,
            stage.anyone.get("auth/me", headers={"X-API-Key": key}).status_code == 200,
            stage.anyone.post("auth/refresh", {"refresh_token": first["refresh_token"]}).status_code
            == 200,
        )
        assert found == (stays,) * 5, name
        followed = stage.anyone.post("auth/verify-email", {"token": waiting})
        assert (followed.status_code == 200) == (prove in kept), name


@pytest.mark.parametrize("place", ["api", "console"])
def test_oauth_exchange_concurrent_with_email_proof_is_401(
    stage: Stage, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.oauth(stage.cast.alice, "microsoft", tenant_id=UNPROVED["tid"])
    stage.provider.who = {"sub": "first", "email": "first@acme.example", **UNPROVED}
    user, begin = stage.traded(stage.sign_in("microsoft"))["user"], sessions._insert

    def prove() -> None:
        with stage.app.app_context(), transaction() as session:
            accounts.verify_email(session.get_one(User, (user["account_id"], user["id"])))

    def begin_late(*about: Any, **more: Any) -> None:
        with ThreadPoolExecutor(1) as meanwhile:
            meanwhile.submit(prove).result()
        begin(*about, **more)

    monkeypatch.setattr(sessions, "_insert", begin_late)
    if place == "api":
        code = query_of(stage.sign_in("microsoft").headers["Location"])["code"]
        assert stage.anyone.post("auth/exchange", {"code": code}).status_code == 401
    else:
        browser = stage.browser()
        start = browser.get("/console/sso/start/auth_providers/microsoft?account=acme")
        finish = stage.back(browser, start.headers["Location"]).headers["Location"]
        assert browser.get(finish).status_code == 401
    with stage.app.app_context():
        alive = sa.select(SignInSession.id).where(SignInSession.revoked_at.is_(None))
        assert db.session.scalars(alive.where(SignInSession.user_id == user["id"])).all() == []


def test_oauth_host_name_and_account_header_that_disagree_are_400(stage: Stage) -> None:
    for admin in (stage.cast.alice, stage.cast.charlie):
        stage.oauth(admin)
        stage.saml(admin)
    browser = stage.browser()
    for named, status in (("acme", 302), ("globex", 400)):
        at = {"Host": "acme.atrium.test", "X-Account-ID": named}
        for path in ("/oauth/google/authorize", "/saml/okta/sso?account=acme"):
            assert browser.get(path, headers=at).status_code == status, path
        begun = browser.get("/saml/okta/sso", headers={"Host": at["Host"]})
        begun = browser.get(begun.headers["Location"])
        name, _, cookie = begun.headers["Set-Cookie"].partition(";")[0].partition("=")
        browser.set_cookie(name, cookie, domain=at["Host"])  # as if it went to all hosts
        request = saml_idp.asked(begun.headers["Location"])
        response = saml_idp.answer(request).encoded()
        posted = stage.post(browser, response, request.relay_state, headers=at)
        assert posted.status_code == status
        body = {"SAMLResponse": response, "relayState": request.relay_state}
        client = stage.anyone.post("auth/saml/acs", body, headers=at)
        assert client.json["error"] == ("bad_request" if status == 400 else "invalid_state")


def test_oauth_code_is_redeemed_in_its_account_only(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    code = query_of(stage.sign_in().headers["Location"])["code"]
    login = {"email": stage.cast.bob.email, "password": PASSWORD}
    disagreeing = {"Host": "acme.atrium.test", "X-Account-ID": "globex"}
    for headers, status in (
        (disagreeing, 400),
        ({"X-Account-ID": "globex"}, 400),
        ({"Host": "globex.atrium.test"}, 400),
        ({"Host": "acme.atrium.test", "X-Account-ID": stage.cast.alice.account_id}, 200),
    ):
        found = stage.anyone.post("auth/exchange", {"code": code}, headers=headers)
        assert found.status_code == status, headers
    for path in ("login", "forgot-password", "resend-verification"):
        body = login if path == "login" else {"email": login["email"]}
        refused = stage.anyone.post(
            f"auth/{path}", {"account": "acme", **body}, headers=disagreeing
        )
        assert refused.status_code == 400, path
    named = stage.anyone.post("auth/login", login, headers={"X-Account-ID": "acme"})
    assert named.status_code == 200


def test_oauth_system_provider_signs_in_members_but_creates_no_users(stage: Stage) -> None:
    for admin in (stage.cast.alice, stage.cast.charlie):
        admin.patch("account", {"sso_provisioning": None})
    stage.oauth(stage.cast.root)
    answer = stage.sign_in()
    assert (answer.status_code, answer.json["error"]) == (403, "not_invited")
    stage.provider.who["email"] = stage.cast.bob.email
    assert stage.traded(stage.sign_in())["user"]["id"] == stage.cast.bob.id
    # The identity stays bob's whatever address it has later, and is nobody's in globex.
    stage.provider.who["email"] = "moved@acme.example"
    assert stage.traded(stage.sign_in())["user"]["id"] == stage.cast.bob.id
    assert stage.sign_in(account="globex").status_code == 403
    stage.cast.alice.patch("account", {"sso_provisioning": True})
    stage.provider.who |= {"sub": "g-2", "email": "eve@acme.example"}
    assert stage.traded(stage.sign_in())["isNewUser"] is True


def test_oauth_system_provider_never_creates_superadmins(stage: Stage) -> None:
    stage.oauth(stage.cast.root)
    root = stage.cast.root.acting_in("system")
    settings = {
        "sso_provisioning": True,
        "allowed_redirect_uris": [stage.client],
        "default_redirect_uri": stage.client,
    }
    assert root.patch("account", settings).status_code == 200
    before = stage.users()
    answer = stage.sign_in(account="system")
    assert (answer.status_code, answer.json["error"]) == (403, "not_invited")
    assert stage.users() == before
    stage.provider.who["email"] = stage.cast.root.email
    assert stage.traded(stage.sign_in(account="system"))["user"]["id"] == stage.cast.root.id


def test_oauth_github_email_is_verified_by_email_list(stage: Stage) -> None:
    addresses = {"userinfo_url": f"{stage.provider.url}/user"}
    stage.oauth(stage.cast.alice, "github", **addresses)
    stage.provider.who = {"id": 7, "login": "dora", "email": stage.cast.bob.email, "name": "D"}
    stage.provider.emails = [{"email": stage.cast.bob.email, "verified": False, "primary": True}]
    assert stage.sign_in("github").status_code == 403
    proved = {"email": "dora@acme.example", "verified": True, "primary": False}
    stage.provider.emails.append(proved)
    assert stage.traded(stage.sign_in("github"))["user"]["email"] == "dora@acme.example"


UNREAD_KEYS: tuple[Any, ...] = (
    {"kty": "EC", "crv": "P-999", "x": "AA", "y": "AA", "kid": "new"},
    {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"},
    {"kty": "RSA", "kid": "half"},
    {"kty": "RSA", "n": "!!", "e": "AQAB"},
    {"kty": "RSA", "n": 5, "e": 5},
    {"kty": "AKP", "alg": "ML-DSA-44", "pub": "AA"},
    {"kty": ["RSA"]},
    5,
)


def test_oauth_key_set_with_unreadable_key_is_accepted(stage: Stage) -> None:
    good = signing_key("one").as_dict(private=False)
    stage.provider.answers["/keys/odd"] = {"keys": [*UNREAD_KEYS, good]}
    stage.oauth(stage.cast.alice, jwks_url=f"{stage.provider.url}/keys/odd")
    assert stage.traded(stage.sign_in())["user"]["email"] == "dora@acme.example"


def test_oauth_email_verified_claim_applies_to_email_of_same_document(stage: Stage) -> None:
    stage.oauth(stage.cast.alice, userinfo_url=f"{stage.provider.url}/user")
    ours, bobs = "dora@acme.example", stage.cast.bob.email
    in_token: dict[str, Any] = {}

    def lie(claims: dict[str, Any], header: dict[str, Any]) -> None:
        for name in ("email", "email_verified"):
            claims.pop(name)
        claims.update(in_token)

    stage.provider.lies = lie
    for email, proved, in_token in (
        (ours, True, {"email": bobs}),
        (bobs, False, {"email_verified": True}),
        (ours, True, {"email": ours}),
    ):
        stage.provider.who |= {"sub": email, "email": email, "email_verified": proved}
        answer = stage.sign_in()
        if in_token.get("email") == ours:
            assert stage.traded(answer)["user"]["email_verified"]
        else:
            assert (answer.status_code, answer.json["error"]) == (403, "not_invited")


@pytest.mark.parametrize("own", [True, False])
def test_oauth_github_callback_issuer_is_checked(stage: Stage, own: bool) -> None:
    usual = "https://github.com"
    issuer, other = (stage.provider.url, usual) if own else (usual, stage.provider.url)
    stage.cast.alice.patch("account", {"sso_email_domains": ["acme.example"]})
    addresses = {"userinfo_url": f"{stage.provider.url}/user", "issuer": issuer if own else None}
    stage.oauth(stage.cast.alice, "github", **addresses)
    stage.provider.who = {"id": 7, "login": "dora"}
    stage.provider.emails = [{"email": "dora@acme.example", "verified": True, "primary": True}]
    for answers_as, status in (
        (f"{issuer}/login/oauth", 302),
        (issuer, 302),
        (f"{issuer}/login", 401),
        (f"{other}/login/oauth", 401),
    ):
        browser = stage.browser()
        answer = stage.back(browser, stage.begin(browser, "github"), iss=answers_as)
        assert answer.status_code == status, answers_as


@pytest.mark.parametrize("proved", [True, False])
def test_oauth_microsoft_email_is_verified_by_one_claim_only(stage: Stage, proved: bool) -> None:
    tenant = "00000000-1111-2222-3333-444444444444"
    stage.oauth(stage.cast.alice, "microsoft", tenant_id=tenant)
    stage.provider.who = {"sub": "m-1", "email": stage.cast.bob.email, "email_verified": True}
    stage.provider.who |= {"tid": tenant, "xms_edov": proved}
    answer = stage.sign_in("microsoft")
    if proved:
        assert stage.traded(answer)["user"]["id"] == stage.cast.bob.id
    else:
        assert (answer.status_code, answer.json["error"]) == (403, "not_invited")


TENANT, FOREIGN = "00000000-1111-2222-3333-444444444444", "99999999-1111-2222-3333-444444444444"
PERSONAL = "9188040d-6c67-4c5b-b112-36a304b66dad"
OPEN_TENANTS = (None, "common", "Organizations", "consumers", PERSONAL)


@pytest.mark.parametrize("tenant", OPEN_TENANTS)
def test_oauth_microsoft_open_tenant_creates_no_users_and_gives_no_roles(
    stage: Stage, tenant: str | None
) -> None:
    stage.oauth(stage.cast.alice, "microsoft", tenant_id=tenant)
    mapping = {"sso_group_roles": [{"group": "IT-Admins", "role": "admin"}]}
    stage.cast.alice.patch("account", {"sso_allow_admin": True, **mapping})
    mallory = {"sub": "m-9", "tid": tenant or FOREIGN, "groups": ["IT-Admins"], "name": "Mallory"}
    stage.provider.who = {**mallory, "email": "mallory@anything.example"}
    for settings in ({"sso_provisioning": None}, {"sso_provisioning": True}):
        stage.cast.alice.patch("account", settings)
        answer = stage.sign_in("microsoft")
        assert (answer.status_code, answer.json["error"]) == (403, "not_invited")
        assert stage.last_refusal()[0] == "tenant"
    # Whom the account knows signs in, and stays what a person made of them.
    stage.provider.who |= {"email": stage.cast.bob.email, "xms_edov": True}
    for _ in range(2):  # by the address, then by the identity
        user = stage.traded(stage.sign_in("microsoft"))["user"]
        assert (user["id"], user["role"]) == (stage.cast.bob.id, "viewer")
    assert stage.cast.alice.post("account/sso/plan").json["changes"] == []


def test_oauth_microsoft_named_tenant_creates_users_and_gives_roles(stage: Stage) -> None:
    stage.oauth(stage.cast.alice, "microsoft", tenant_id=TENANT.upper())
    mapping = {"sso_group_roles": [{"group": "Finance", "role": "editor"}]}
    stage.cast.alice.patch("account", {"sso_provisioning": None, **mapping})
    claims = {"sub": "m-1", "email": "dora@acme.example", "groups": ["Finance"]}
    stage.provider.who = {**claims, "tid": FOREIGN}
    assert stage.sign_in("microsoft").status_code == 403
    stage.provider.who = {**claims, "tid": TENANT}
    assert stage.traded(stage.sign_in("microsoft"))["user"]["role"] == "editor"
    # The role goes with the directory's name.
    row = stage.cast.alice.get("admin/configuration").json["items"][0]
    stage.cast.alice.patch(f"admin/configuration/{row['id']}/values", {"tenant_id": None})
    (planned,) = stage.cast.alice.post("account/sso/plan").json["changes"]
    assert (planned["groups"], planned["becomes"]) == ([], "viewer")
    assert stage.traded(stage.sign_in("microsoft"))["user"]["role"] == "viewer"


def test_oauth_public_provider_creates_users_of_named_domains_only(stage: Stage) -> None:
    alice, domains = stage.cast.alice, {"sso_email_domains": ["acme.example"]}
    stage.oauth(alice)
    hub = {"userinfo_url": f"{stage.provider.url}/user", "issuer": None}
    stage.oauth(alice, "github", **hub)
    stage.provider.emails = [{"email": "dora@acme.example", "verified": True, "primary": True}]
    stage.provider.who["id"] = 7
    for name, settings, joins in (
        ("google", {"sso_provisioning": None}, False),
        ("github", {"sso_provisioning": True}, False),  # anybody's, as its issuer is the usual one
        ("github", {"sso_provisioning": True, **domains}, True),
        ("google", {"sso_provisioning": None, **domains}, True),
        ("google", {"sso_provisioning": True, "sso_email_domains": []}, True),  # their own server
    ):
        stage.provider.who |= {"sub": f"g-{name}-{joins}"}
        stage.forget(*(("dora@acme.example",) if joins else ()))
        assert alice.patch("account", settings).status_code == 200
        answer = stage.sign_in(name)
        assert answer.status_code == (302 if joins else 403), (name, settings)
        if not joins:
            assert "must name the email domains of new users" in stage.last_refusal()[1]


def test_oauth_apple_signed_client_secret_and_form_post(stage: Stage) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    config = stage.provider.config(team_id="TEAM", key_id="KEY", private_key=pem)
    del config["client_secret"]
    body = {"category": "auth_providers", "provider_name": "apple", "config": config}
    made = stage.cast.alice.post("admin/configuration", body)
    assert (made.status_code, made.json["config"]["private_key"]) == (201, "***")
    stage.provider.who = {"sub": "a-1", "email": "dora@acme.example", "email_verified": "true"}
    browser = stage.browser()
    address = stage.begin(browser, "apple")
    assert query_of(address)["response_mode"] == "form_post"
    name = {"name": {"firstName": "Dora", "lastName": "Doe"}, "email": "bob@acme.example"}
    target, form = stage.provider.authorize(address)
    posted = browser.post(urlsplit(target).path, data={**form, "user": json.dumps(name)})
    user = stage.traded(posted)["user"]
    assert (user["name"], user["email"]) == ("Dora Doe", "dora@acme.example")
    secret = stage.provider.forms[0]["client_secret"]
    shown = jwt.decode(secret, key.public_key(), algorithms=["ES256"], audience=stage.provider.url)
    assert (shown["iss"], jwt.get_unverified_header(secret)["kid"]) == ("TEAM", "KEY")


def test_oauth_flow_cookie_is_samesite_none_only_for_form_post(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.oauth(stage.cast.alice)
    stage.saml(stage.cast.alice)
    stage.changed(monkeypatch, base_url="https://atrium.test")
    for path, mode in (("oauth/google/authorize", "Lax"), ("saml/okta/sso", "None")):
        cookie = stage.browser().get(f"/{path}?account=acme").headers["Set-Cookie"]
        assert cookie.startswith("__Host-atrium_sso_")
        assert f"SameSite={mode}" in cookie
        assert {"Secure", "HttpOnly", "Path=/"} <= set(cookie.split("; "))


def test_oauth_refusal_in_browser_reveals_no_detail(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    stage.provider.lies = lambda claims, header: claims.update(aud="another")  # type: ignore[func-returns-value]
    browser = stage.browser()
    target, values = stage.provider.authorize(stage.begin(browser))
    page = browser.get(urlsplit(target).path, query_string=values, headers=HTML)
    told = query_of(page.headers["Location"])
    assert (page.status_code, told["error"]) == (302, "access_denied")
    assert page.headers["Location"].startswith(f"{stage.client}?")
    assert "audience" not in page.headers["Location"]
    for accepted, kind in ((CHROME, "text/html"), ("*/*", "application/json")):
        other = browser.get("/oauth/google/callback?state=x", headers={"Accept": accepted})
        assert (other.status_code, other.mimetype) == (400, kind)
    assert "Sign-in refused" in told["error_description"]
    (refusal,) = stage.cast.alice.get("account/sso/refusals").json["items"]
    assert (refusal["check"], refusal["provider_name"]) == ("audience", "google")
    assert stage.cast.charlie.get("account/sso/refusals").json["items"] == []
    assert stage.cast.bob.get("account/sso/refusals").status_code == 403


def test_oauth_cancel_at_provider_returns_to_client_application(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    browser = stage.browser()
    target, values = stage.provider.authorize(
        stage.begin(browser, client_state="where I was", redirect_uri=stage.client)
    )
    said = {"state": values["state"], "error": "access_denied"}
    back = browser.get(urlsplit(target).path, query_string=said, headers=HTML)
    query = query_of(back.headers["Location"])
    assert (back.status_code, query.pop("error")) == (302, "access_denied")
    assert "cancelled" in query.pop("error_description")
    assert query == dict.fromkeys(("state", "client_state", "relay_state"), "where I was")


def test_oauth_relay_state_is_returned_unchanged(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    answer = stage.sign_in(relay_state="?a=1&b=2")
    assert query_of(answer.headers["Location"])["relay_state"] == "?a=1&b=2"


def test_oauth_starts_are_limited_per_address(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.oauth(stage.cast.alice)
    stage.changed(monkeypatch, login_rate_limit="on", sign_in_starts_per_address=3)
    path = "/oauth/google/authorize?account=acme"
    assert [stage.browser().get(path).status_code for _ in range(5)] == [302] * 3 + [429] * 2


def test_oauth_flows_left_open_are_purged_after_one_hour(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    stage.begin(stage.browser())
    with stage.app.app_context(), time_machine.travel(clock.now() + timedelta(minutes=59)):
        jobs.purge({})
        assert db.session.scalar(sa.select(sa.func.count()).select_from(Flow)) == 0


def test_saml_flow_cookie_on_loopback_without_tls_is_secure(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Browsers send a Secure cookie to loopback without TLS, also with another site's form."""
    stage.saml(stage.cast.alice)
    stage.changed(monkeypatch, base_url="http://127.0.0.1:8000")
    cookie = stage.browser().get("/saml/okta/sso?account=acme").headers["Set-Cookie"]
    assert {"SameSite=None", "Secure"} <= set(cookie.split("; "))


def test_saml_unknown_relay_state_without_account_is_invalid_state(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    form = {"SAMLResponse": "eA==", "RelayState": "eA=="}
    answer = stage.browser().post("/saml/okta/acs", data=form)
    assert (answer.status_code, answer.json["error"]) == (400, "invalid_state")
