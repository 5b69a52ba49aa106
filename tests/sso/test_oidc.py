"""Sign-in by OpenID Connect: the issuer is enough, and it speaks for nobody but itself."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jwt
import pytest
import time_machine

from app import clock
from app.outbound import address_policy
from app.sso import providers, refusals, service
from app.sso.connections import Connection, Metadata
from app.sso.oauth import sign_in
from tests.console.browser import Browser, beside
from tests.mailbox import run_jobs
from tests.manifest.manifests import applied, exported, planned, shape
from tests.sso import openid
from tests.sso.flows import HTML, Stage, query_of
from tests.sso.loopback import Answer
from tests.sso.test_oauth_attacks import Lie, says, signed_with_the_public_key, unsigned

PATH = "admin/configuration"
KEY = ("category", "provider_name", "slug")
Claims = dict[str, Any]


def new(stage: Stage, slug: str | None = None, **config: Any) -> dict[str, Any]:
    """New settings of an OpenID provider."""
    key = {"category": "auth_providers", "provider_name": "oidc"}
    named = {} if slug is None else {"slug": slug}
    return {**key, **named, "config": stage.provider.issuer_config(**config)}


def problems(answer: Any) -> list[tuple[str, str]]:
    """What is wrong with which field."""
    assert answer.status_code == 400, answer.json
    return [(one["field"], one["message"]) for one in answer.json["details"]]


def under_key(name: str) -> Lie:
    """Signed by another key."""

    def lie(claims: Claims, header: Claims) -> None:
        header["kid"] = name

    return lie


@pytest.mark.both_databases
def test_oidc_several_issuers_per_account_and_system(stage: Stage) -> None:
    alice, charlie, root = stage.cast.alice, stage.cast.charlie, stage.cast.root
    made = stage.oidc(alice, "acme-id")
    assert (made["provider_name"], made["slug"]) == ("oidc", "acme-id")
    assert made["display_name"] == "OpenID Connect"
    code = alice.get("auth/me").json["account"]["account_code"]
    assert made["callback_url"] == f"http://atrium.test/oauth/acme-id/callback/{code}"
    assert stage.oidc(alice)["slug"] == "oidc"
    assert stage.oidc(root, "shared")["is_system"] is True
    asked = query_of(stage.begin(stage.browser(), "acme-id"))
    assert (asked["scope"], asked["code_challenge_method"]) == ("openid email profile", "S256")
    assert asked["nonce"]
    first = stage.traded(stage.sign_in("acme-id"))["user"]
    assert (first["email"], first["auth_provider"]) == ("dora@acme.example", "acme-id")
    for name in ("oidc", "shared"):  # another identity of the same user: the address is proved
        assert stage.traded(stage.sign_in(name))["user"]["id"] == first["id"]
    # Slugs of one account mean nothing in another.
    assert stage.traded(stage.sign_in("shared", "globex"))["user"]["id"] != first["id"]
    for name in ("acme-id", "oidc"):
        address = f"/oauth/{name}/authorize?account=globex"
        assert stage.browser().get(address).status_code == 404
    for answer in (charlie.get(f"{PATH}/{made['id']}"), charlie.delete(f"{PATH}/{made['id']}")):
        assert answer.status_code == 404
    assert stage.oidc(charlie, "acme-id")["callback_url"] != made["callback_url"]


def test_oidc_slug_is_unique_per_account(stage: Stage) -> None:
    alice = stage.cast.alice
    stage.oidc(alice, "acme-id")
    again = alice.post(PATH, new(stage, "acme-id"))
    assert (again.status_code, again.json["field"]) == (409, "slug")
    reserved = ["google", "github", "okta", "generic", "generic_saml", "password", "scim"]
    for slug in (*reserved, "Acme", "a--b", "-a", "a-", "1a", "a/b", "ä", "a" * 41, "", "a\n"):
        found = alice.post(PATH, new(stage, slug))
        assert [field for field, _ in problems(found)] == ["slug"], slug
    google = {"category": "auth_providers", "provider_name": "google", "slug": "acme"}
    found = alice.post(PATH, {**google, "config": stage.provider.config()})
    assert [field for field, _ in problems(found)] == ["slug"]
    path = f"{PATH}/{alice.get(PATH).json['items'][0]['id']}"
    assert alice.patch(path, {"slug": "other"}).status_code == 422


def test_provider_limit_per_account_is_limit_reached(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_PROVIDERS", 2)
    stage.oidc(stage.cast.alice, "one")
    stage.oauth(stage.cast.alice)
    refused = stage.cast.alice.post(PATH, new(stage, "three"))
    assert (refused.status_code, refused.json["error"]) == (409, "limit_reached")


DOCUMENTS: dict[str, tuple[Claims, list[str]]] = {
    "another issuer": ({"issuer": "https://evil.example"}, ["Its issuer is https://evil.example"]),
    "no issuer": ({"issuer": None}, ["Its issuer is missing"]),
    "nothing": (
        {
            "issuer": 5,
            "authorization_endpoint": None,
            "token_endpoint": None,
            "jwks_uri": None,
            "userinfo_endpoint": None,
        },
        ["Its issuer is missing", "authorization_endpoint", "token_endpoint", "jwks_uri"],
    ),
    "a script": ({"authorization_endpoint": "javascript:alert(1)"}, ["authorization_endpoint"]),
    "no text": ({"userinfo_endpoint": ["https://x.example"]}, ["userinfo_endpoint"]),
    "long": ({"token_endpoint": f"https://x.example/{'a' * 3000}"}, ["token_endpoint"]),
    "someone's password": ({"jwks_uri": "https://a:b@x.example/"}, ["jwks_uri"]),
    "what we cannot do": (
        {
            "response_types_supported": ["id_token"],
            "code_challenge_methods_supported": ["plain"],
            "id_token_signing_alg_values_supported": ["HS256", "none"],
            "token_endpoint_auth_methods_supported": ["private_key_jwt"],
        },
        ["response_types", "code_challenge_methods", "id_token_signing_alg", "token_endpoint_auth"],
    ),
    "odd lists": ({"response_types_supported": "code"}, ["response_types"]),
}


def test_oidc_issuer_problems_are_reported_at_once(stage: Stage) -> None:
    alice = stage.cast.alice
    for name, (document, messages) in DOCUMENTS.items():
        stage.provider.document = document
        found = problems(alice.post(PATH, new(stage)))
        assert [field for field, _ in found] == ["config.issuer"] * len(messages), (name, found)
        for (_, message), expected in zip(found, messages, strict=True):
            assert message.startswith(expected), name
    for answer in (
        Answer(302, location=f"{stage.provider.url}/elsewhere"),
        Answer(302, json.dumps({"issuer": stage.provider.url}), "application/json"),
        Answer(200, json.dumps({"issuer": "x" * 400_000}), "application/json"),
        Answer(200, "[]", "application/json"),
        Answer(200, "<html>"),
        Answer(200, "[" * 100_000),
        Answer(500),
    ):
        stage.provider.answers[openid.DOCUMENT] = answer
        ((field, message),) = problems(alice.post(PATH, new(stage)))
        assert (field, "cannot be read" in message) == ("config.issuer", True)
    stage.provider.reset()
    both = {**new(stage, "Bad Slug", prompt="none", mfa_acr_values=5), "display_name": " "}
    stage.provider.document = {"issuer": "https://evil.example"}
    fields = {field for field, _ in problems(alice.post(PATH, both))}
    invalid = {"config.issuer", "config.prompt", "config.mfa_acr_values"}
    assert fields == {*invalid, "slug", "display_name"}
    for issuer in ("ftp://x.example", "https://x.example/?a=b", "https://x.example/#a", "x", 5):
        found = problems(alice.post(PATH, new(stage, issuer=issuer)))
        assert [field for field, _ in found] == ["config.issuer"], issuer
    assert alice.get(PATH).json["total"] == 0


def test_oidc_private_addresses_in_production_are_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = stage.cast.alice
    stage.changed(monkeypatch, webhook_allow_private=False)
    for host in ("127.0.0.1:9", "[::1]", "10.1.1.1", "[::ffff:a01:1]"):
        issuer = f"https://{host}"
        found = problems(alice.post(PATH, new(stage, issuer=issuer)))
        assert [field for field, _ in found] == ["config.issuer"]
    # A public issuer that names private addresses.
    monkeypatch.setattr(address_policy, "is_public", lambda address: address == "127.0.0.1")
    stage.provider.document = {"token_endpoint": "http://10.1.1.1/", "jwks_uri": "http://[::1]/"}
    found = problems(alice.post(PATH, new(stage)))
    assert [message.partition(":")[0] for _, message in found] == ["token_endpoint", "jwks_uri"]


def test_oidc_disabled_provider_is_not_checked(stage: Stage) -> None:
    alice = stage.cast.alice
    stage.provider.document = {"issuer": "https://evil.example"}
    row = alice.post(PATH, {**new(stage, "acme-id"), "enabled": False})
    assert row.status_code == 201
    path = f"{PATH}/{row.json['id']}"
    for change in ({"enabled": True}, {"enabled": True, "config": {"scopes": "openid"}}):
        assert [field for field, _ in problems(alice.patch(path, change))] == ["config.issuer"]
    stage.provider.reset()
    assert alice.patch(path, {"enabled": True}).status_code == 200
    # The secret goes to the issuer's address, so whoever changes it must know it.
    moved = alice.patch(path, {"config": {"issuer": f"{stage.provider.url}/other"}})
    assert ("config.client_secret", "This setting is required.") in problems(moved)
    stage.provider.document = {"issuer": "https://evil.example"}
    for unrelated in ({"priority": 3}, {"config": {"groups_claim": "roles"}}):
        assert alice.patch(path, unrelated).status_code == 200


def test_oidc_test_connection_reads_discovery_keys_and_client(stage: Stage) -> None:
    alice = stage.cast.alice
    tried = alice.post(f"{PATH}/test-connection", new(stage)).json
    assert tried["success"], tried
    assert [step["check"] for step in tried["details"]] == ["discovery", "key set", "client"]
    stage.provider.document = {"token_endpoint_auth_methods_supported": ["client_secret_basic"]}
    assert alice.post(f"{PATH}/test-connection", new(stage)).json["success"]
    wrong = alice.post(f"{PATH}/test-connection", new(stage, client_secret="x")).json
    assert [step["ok"] for step in wrong["details"]] == [True, True, False]
    stage.provider.document = {"issuer": "https://evil.example"}
    (step,) = alice.post(f"{PATH}/test-connection", new(stage)).json["details"]
    assert (step["check"], step["ok"]) == ("discovery", False)


TOKENS: dict[str, tuple[Lie, str]] = {
    "another issuer": (says(iss="https://evil.example"), "issuer"),
    "a similar issuer": (says(iss="http://127.0.0.1"), "issuer"),
    "another client": (says(aud="another"), "audience"),
    "another party": (says(aud=[openid.CLIENT, "x"], azp="x"), "audience"),
    "no nonce": (says(nonce=None), "nonce"),
    "another nonce": (says(nonce="x"), "nonce"),
    "expired": (says(exp=5), "time"),
    "alg none": (unsigned, "signature"),
    "HS256 by the public key": (signed_with_the_public_key, "signature"),
}


@pytest.mark.both_databases
def test_oidc_id_token_that_is_invalid_is_401(stage: Stage) -> None:
    stage.oidc(stage.cast.alice, "acme-id")
    before = stage.users()
    for name, (lie, check) in TOKENS.items():
        stage.provider.lies = lie
        assert stage.sign_in("acme-id").status_code == 401
        assert stage.last_refusal()[0] == check, (name, stage.last_refusal())
        assert stage.users() == before


def test_oidc_callback_issuer_is_required_when_advertised(stage: Stage) -> None:
    stage.oidc(stage.cast.alice, "acme-id")
    browser = stage.browser()
    assert stage.back(browser, stage.begin(browser, "acme-id")).status_code == 302
    for published, issuer, status in (
        (None, "https://evil.example", 401),
        (True, "https://evil.example", 401),
        (True, None, 401),
        (True, stage.provider.url, 302),
    ):
        stage.provider.document = {"authorization_response_iss_parameter_supported": published}
        stage.cast.alice.post(f"{PATH}/test-connection", new(stage))  # reads it anew
        browser = stage.browser()
        answer = stage.back(browser, stage.begin(browser, "acme-id"), iss=issuer)
        assert answer.status_code == status, (published, issuer)
        assert status == 302 or stage.last_refusal()[0] == "issuer"


def test_oidc_exchange_by_api_client_checks_issuer(stage: Stage) -> None:
    stage.provider.document = {"authorization_response_iss_parameter_supported": True}
    stage.oidc(stage.cast.alice)
    for issuer, status in ((None, 401), ("https://other.example", 401), (stage.provider.url, 200)):
        started = stage.anyone.post("auth/oauth/oidc/authorize", {"account": "acme"}).json
        _, values = stage.provider.authorize(started["authorization_url"])
        named = {} if issuer is None else {"iss": issuer}
        answer = stage.anyone.post("auth/oauth/oidc/callback", {**values, **named})
        assert answer.status_code == status, answer.json


def test_oidc_code_of_other_issuer_is_400(stage: Stage) -> None:
    stage.oidc(stage.cast.alice, "one")
    stage.oidc(stage.cast.alice, "two")
    browser = stage.browser()
    _, values = stage.provider.authorize(stage.begin(browser, "one"))
    code = stage.cast.alice.get("auth/me").json["account"]["account_code"]
    answer = browser.get(f"/oauth/two/callback/{code}", query_string=values)
    assert (answer.status_code, stage.provider.forms) == (400, [])


def test_oidc_key_set_is_refetched_at_most_once_a_minute(stage: Stage) -> None:
    stage.oidc(stage.cast.alice, "acme-id")
    provider = stage.provider
    assert stage.sign_in("acme-id").status_code == 302
    # A rollover at any moment is accepted.
    provider.keys, provider.lies = ["two"], under_key("two")
    assert stage.sign_in("acme-id").status_code == 302
    assert provider.asked.count("/keys") == 2
    # Tokens under keys that nobody knows do not make us ask for each of them.
    provider.lies = under_key("three")
    for _ in range(3):
        assert stage.sign_in("acme-id").status_code == 401
    assert provider.asked.count("/keys") == 2
    # Nor do they use up what other settings of the same provider have.
    stage.oidc(stage.cast.charlie, "globex-id")
    provider.lies = under_key("two")
    assert stage.sign_in("globex-id", "globex").status_code == 302
    provider.keys, provider.lies = ["three"], under_key("three")
    assert stage.sign_in("globex-id", "globex").status_code == 302
    assert stage.sign_in("acme-id").status_code == 401
    with time_machine.travel(clock.now().timestamp() + 61):
        assert stage.sign_in("acme-id").status_code == 302


def test_oidc_discovery_is_cached_ten_minutes(stage: Stage) -> None:
    stage.oidc(stage.cast.alice, "acme-id")
    for _ in range(2):
        assert stage.sign_in("acme-id").status_code == 302
    assert stage.provider.asked.count(openid.DOCUMENT) == 1
    with time_machine.travel(clock.now().timestamp() + 601):
        for _ in range(2):
            stage.begin(stage.browser(), "acme-id")
        assert stage.provider.asked.count(openid.DOCUMENT) == 1  # nobody waits for it
        run_jobs(stage.app)
    assert stage.provider.asked.count(openid.DOCUMENT) == 2


def test_oidc_issuer_outage_returns_to_client_application(stage: Stage) -> None:
    stage.oidc(stage.cast.alice, "acme-id")
    stage.provider.answers[openid.DOCUMENT] = Answer(503)
    with time_machine.travel(clock.now().timestamp() + 3601):  # what was read before is kept
        address = "/oauth/acme-id/authorize?account=acme&client_state=mine"
        for _ in range(2):
            answer = stage.browser().get(address, headers=HTML)
            target = answer.headers["Location"]
            assert target.startswith(f"{stage.client}?")
            assert query_of(target)["error"] == "temporarily_unavailable"
            assert query_of(target)["state"] == "mine"
        body = {"account": "acme", "redirect_uri": stage.client}
        assert stage.anyone.post("auth/oauth/acme-id/authorize", body).status_code == 401
        assert stage.provider.asked.count(openid.DOCUMENT) == 2  # a failure counts for a while
    check, detail = stage.last_refusal()
    assert (check, detail.endswith("The provider answered 503.")) == ("provider", True)


ERRORS = {
    "access_denied": "access_denied",
    "login_required": "login_required",
    "interaction_required": "interaction_required",
    "consent_required": "access_denied",
    "temporarily_unavailable": "temporarily_unavailable",
    "server_error": "server_error",
    "invalid_scope": "server_error",
    "unauthorized_client": "server_error",
    "<script>": "access_denied",
}
MESSAGES = {
    "temporarily_unavailable": refusals.UNAVAILABLE,
    "server_error": refusals.UNAVAILABLE,
    "invalid_scope": refusals.MISCONFIGURED,
    "unauthorized_client": refusals.MISCONFIGURED,
    "<script>": "Sign-in refused. Try again, or ask an administrator of the account.",
}


@pytest.mark.parametrize("slug", ["acme-id", "google"])
def test_oidc_provider_errors_return_to_client_application(stage: Stage, slug: str) -> None:
    stage.oidc(stage.cast.alice, "acme-id")
    stage.oauth(stage.cast.alice)
    for error, code in ERRORS.items():
        browser = stage.browser()
        address = stage.begin(browser, slug, client_state="mine")
        target, values = stage.provider.authorize(address)
        path = target.removeprefix("http://atrium.test")
        query = {"error": error, "error_description": "<b>", "state": values["state"]}
        answer = browser.get(path, query_string=query, headers=HTML)
        returned = query_of(answer.headers["Location"])
        assert answer.headers["Location"].startswith(f"{stage.client}?")
        message = MESSAGES.get(error, "The sign-in was cancelled at the provider. Try again.")
        state = dict.fromkeys(("state", "client_state", "relay_state"), "mine")
        assert returned == {"error": code, "error_description": message, **state}
        # Once only, and never for a state that is not of this browser.
        assert browser.get(path, query_string=query, headers=HTML).status_code == 400


def test_oidc_claims_missing_in_token_come_from_userinfo(stage: Stage) -> None:
    stage.oidc(stage.cast.alice, "acme-id", groups_claim="https://x.example/roles")
    stage.cast.alice.patch("account", {"sso_group_roles": [{"group": "Finance", "role": "editor"}]})
    who = {**stage.provider.who, "https://x.example/roles": ["Finance"]}
    stage.provider.who = {"sub": "g-1"}
    stage.provider.answers["/userinfo"] = who
    signed_in = stage.traded(stage.sign_in("acme-id"))["user"]
    assert (signed_in["name"], signed_in["role"]) == ("Dora", "editor")
    stage.provider.answers["/userinfo"] = {**who, "sub": "g-2"}
    assert stage.sign_in("acme-id").status_code == 401
    assert stage.last_refusal()[0] == "subject"
    # Whoever says everything in the token is asked nothing else.
    stage.provider.who, before = who, stage.provider.asked.count("/userinfo")
    assert stage.sign_in("acme-id").status_code == 302
    assert stage.provider.asked.count("/userinfo") == before


def test_oidc_authorization_request_has_configured_parameters(stage: Stage) -> None:
    extra = {"scopes": "email groups", "prompt": "login", "acr_values": "gold silver"}
    stage.oidc(stage.cast.alice, "acme-id", **extra)
    asked = query_of(stage.begin(stage.browser(), "acme-id"))
    assert (asked["scope"], asked["prompt"]) == ("openid email groups", "login")
    assert asked["acr_values"] == "gold silver"


def connection(**config: Any) -> Connection:
    """Settings of an issuer."""
    provider = providers.get("auth_providers", "oidc").named("x")
    known = {"issuer": "https://id.example", "client_id": "a", "client_secret": "b"}
    return Connection(None, provider, {**known, **config}, is_own=True)  # type: ignore[arg-type]


FACTORS = [
    ({}, False),
    ({"amr": ["pwd", "mfa"]}, True),
    ({"amr": "mfa"}, False),
    ({"amr": ["pwd"], "acr": "gold"}, True),
    ({"acr": "bronze"}, False),
    ({"acr": ["gold"]}, False),
]


@pytest.mark.parametrize(("claims", "mfa"), FACTORS)
def test_oidc_second_factor_is_derived_from_claims(claims: Claims, mfa: bool) -> None:
    assert sign_in._used_mfa(connection(mfa_acr_values=["gold"]), claims) is mfa


@pytest.mark.parametrize("own", [True, False])
def test_oidc_second_factor_counts_for_own_provider_only(stage: Stage, own: bool) -> None:
    stage.oidc(stage.cast.alice if own else stage.cast.root, "acme-id")
    for amr, mfa in ((["pwd"], False), (["pwd", "mfa"], own)):
        stage.provider.who["amr"] = amr
        token = stage.traded(stage.sign_in("acme-id"))["token"]
        claims = jwt.decode(token, options={"verify_signature": False})
        assert claims.get("mfa", False) is mfa


@pytest.mark.parametrize(
    ("issuer", "is_open"),
    [
        ("https://accounts.google.com", True),
        ("https://gitlab.com", True),
        ("https://login.microsoftonline.com/common/v2.0", True),
        (f"https://login.microsoftonline.com/{providers.PERSONAL_ACCOUNTS}/v2.0", True),
        ("https://login.microsoftonline.com/00000000-1111-2222-3333-444444444444/v2.0", False),
        ("https://sts.windows.net/00000000-1111-2222-3333-444444444444/", False),
        ("https://acme.okta.com", False),
        ("https://gitlab.com.acme.example", False),
    ],
)
def test_oidc_public_issuers_are_open_to_all(issuer: str, is_open: bool) -> None:
    found = connection(issuer=issuer)
    assert found.is_open_to_all is is_open
    assert (sign_in._groups(found, {"groups": ["Admins"]}) == []) is is_open
    claims = {"email_verified": True}
    of_microsoft = "microsoft" in issuer or "windows" in issuer
    assert sign_in._is_email_verified(found, claims) is not of_microsoft


def test_oidc_client_secret_basic_is_percent_encoded() -> None:
    found = connection(client_id="a:b", client_secret="c d%ü")
    header = sign_in.client_auth(replace(found, metadata=Metadata(accepts_post=False)))
    _, headers, body = header.prepare("POST", "https://x.example", {}, "code=1")
    assert headers == {"Authorization": "Basic YSUzQWI6YytkJTI1JUMzJUJD"}
    assert body == "code=1"


def test_console_oidc_issuer_set_up(stage: Stage) -> None:
    console = Browser(stage.app, stage.cast.alice)
    path = f"sso/{stage.cast.alice.account_id}"
    form = f"{path}/new/auth_providers/oidc"
    assert "OpenID Connect" in console.get(path).text
    assert 'name="slug"' in console.get(form).text
    sent = {"display_name": "Acme ID", "slug": "acme-id", "priority": "0", "enabled": "true"}
    config = {**stage.provider.issuer_config(), "mfa_acr_values": "gold\nsilver"}
    stage.provider.document = {"issuer": "https://evil.example"}
    refused = console.send(form, **sent, **config)
    assert "Its issuer is https://evil.example" in beside(refused, "issuer")
    stage.provider.reset()
    assert "Acme ID is set up" in console.done(form, **sent, **config)
    (row,) = stage.cast.alice.get(PATH).json["items"]
    assert row["config"]["mfa_acr_values"] == ["gold", "silver"]
    page = console.get(f"{path}/{row['id']}").text
    assert row["callback_url"] in page
    changed = {**sent, **config, "prompt": "login", "seen": row["updated_at"]}
    assert "Saved." in console.done(f"{path}/{row['id']}", **changed)
    assert "key set" in console.send(f"{path}/{row['id']}/try").text
    sign_in_page = stage.browser().get("/console/sign-in?account=acme").text
    assert "Sign in with Acme ID" in sign_in_page
    assert "/console/sso/start/auth_providers/acme-id" in sign_in_page
    start = "sso/start/auth_providers"
    assert "Continue to Acme ID" in console.get(f"{start}/acme-id?account=acme").text
    assert console.get(f"{start}/no-id?account=acme").status_code == 404
    with time_machine.travel(clock.now().timestamp() + 601):
        stage.provider.answers[openid.DOCUMENT] = Answer(503)
        away = Browser(stage.app, stage.cast.alice).get(f"{path}/{row['id']}/test")
        assert "The provider answered 503." in away.text


def test_manifest_oidc_providers_are_named_by_slug(stage: Stage) -> None:
    root, alice = stage.cast.root, stage.cast.alice
    row = stage.oidc(alice, "acme-id")
    stage.oidc(alice)
    stage.oauth(alice)
    listed = exported(root)["accounts"]["acme"]["providers"]
    names = [(one["provider_name"], one.get("slug")) for one in listed]
    assert names == [("oidc", "acme-id"), ("oidc", "oidc"), ("google", None)]
    text = json.dumps({"version": 1, "accounts": {"acme": {"providers": listed}}})
    assert planned(root, text)["has_changes"] is False
    assert alice.delete(f"{PATH}/{row['id']}").status_code == 204
    listed[0]["config"]["client_secret"] = openid.SECRET
    text = json.dumps({"version": 1, "accounts": {"acme": {"providers": listed}}})
    plan = planned(root, text)
    assert shape(plan) == [("create", "provider", "auth_providers oidc acme-id")]
    assert applied(root, text)["applied"]
    assert stage.sign_in("acme-id").status_code == 302
    removal = {"removed": True, **{name: listed[0][name] for name in KEY}}
    text = json.dumps({"version": 1, "accounts": {"acme": {"providers": [removal]}}})
    assert shape(planned(root, text)) == [("remove", "provider", "auth_providers oidc acme-id")]
    listed[0] |= {"slug": "other", "config": {**stage.provider.issuer_config(), "issuer": "x"}}
    text = json.dumps({"version": 1, "accounts": {"acme": {"providers": listed}}})
    (found,) = planned(root, text)["problems"]
    assert found["field"] == "accounts.acme.providers.oidc.config.issuer"


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"name": "Dora D.", "given_name": "Dora", "family_name": "Doe"}, "Dora D."),
        ({"given_name": "Dora", "family_name": "Doe"}, "Dora Doe"),
        ({"given_name": " Dora "}, "Dora"),
        ({"family_name": "Doe", "name": ""}, "Doe"),
        ({"given_name": "Dora", "family_name": 5, "name": None}, "Dora"),
        ({"given_name": ["Dora"], "family_name": ""}, None),
        ({}, None),
    ],
)
def test_oidc_name_is_composed_of_its_parts(stage: Stage, claims: Claims, name: str | None) -> None:
    stage.oidc(stage.cast.alice, "acme-id")
    who = {"sub": "g-1", "email": "dora@acme.example", "email_verified": True}
    stage.provider.who = {**who, **claims}
    assert stage.traded(stage.sign_in("acme-id"))["user"]["name"] == name


@pytest.mark.parametrize("position", [0, 499, 500, 900])
def test_oidc_and_saml_mapped_group_counts_at_any_position(stage: Stage, position: int) -> None:
    stage.oidc(stage.cast.alice, "acme-id")
    stage.saml(stage.cast.alice)
    mapping = {"sso_group_roles": [{"group": "Finance", "role": "editor"}]}
    assert stage.cast.alice.patch("account", mapping).status_code == 200
    groups = [f"group {n}" for n in range(900)]
    groups.insert(position, "Finance")
    stage.provider.who["groups"] = groups
    assert stage.traded(stage.sign_in("acme-id"))["user"]["role"] == "editor"
    answer = stage.assert_in(subject="erin@acme.example", attributes={"groups": groups})
    assert stage.traded(answer)["user"]["role"] == "editor"


def test_oidc_claims_fill_attributes_that_name_them(stage: Stage) -> None:
    fields = [
        {"name": "department", "type": "text", "sso": "https://acme.example/dept"},
        {"name": "level", "type": "number", "sso": "level"},
        {"name": "teams", "type": "multi_select", "sso": "teams", "options": {"choices": ["a"]}},
        {"name": "phone", "type": "text"},
    ]
    assert stage.cast.root.put("attributes/users", {"fields": fields}).status_code == 200
    stage.oidc(stage.cast.alice)
    stage.provider.who |= {"phone": "1", "https://acme.example/dept": "Sales", "level": "7"}

    def values() -> Any:
        body = stage.traded(stage.sign_in("oidc"))
        user = stage.cast.alice.get(f"account/users/{body['user']['id']}").json
        return user["attributes"]

    assert values() == {"department": "Sales", "level": 7}
    stage.provider.who |= {"https://acme.example/dept": ["Care"], "level": "x", "teams": "a"}
    assert values() == {"department": "Care", "level": 7, "teams": ["a"]}
    stage.provider.who |= {"https://acme.example/dept": None, "level": True, "teams": ["b"]}
    assert values() == {"level": 7, "teams": ["a"]}
