"""What an attacker sends to the OAuth callback: refused, told to the admins, and no user made."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask
from flask.testing import FlaskClient
from joserfc import jws, jwt
from joserfc.jwk import OctKey
from werkzeug.test import TestResponse

from app import clock, db
from app.sso import account_linking, jobs, models
from tests.parallel import at_once
from tests.sso import openid
from tests.sso.flows import Stage, query_of

pytestmark = pytest.mark.both_databases

Claims = dict[str, Any]
Lie = Callable[[Claims, Claims], "str | None"]


def says(**changed: Any) -> Lie:
    """Other claims; None takes one out."""

    def lie(claims: Claims, header: Claims) -> None:
        for name, value in changed.items():
            claims[name] = value
            if value is None:
                del claims[name]

    return lie


def meanwhile(switch: Callable[[bool], Any]) -> Lie:
    """Nothing else, but something is switched off before it is said."""

    def lie(claims: Claims, header: Claims) -> None:
        switch(False)

    return lie


def late(claims: Claims, header: Claims) -> None:
    claims.update(iat=int(time.time()) - 900, exp=int(time.time()) - 600)


def early(claims: Claims, header: Claims) -> None:
    claims["nbf"] = int(time.time()) + 600


def unsigned(claims: Claims, header: Claims) -> str:
    parts = ({"alg": "none"}, claims)
    texts = [base64.urlsafe_b64encode(json.dumps(one).encode()).decode() for one in parts]
    return ".".join(text.rstrip("=") for text in texts) + "."


def signed_by_nobody_known(claims: Claims, header: Claims) -> None:
    header["kid"] = "two"


def signed_by_another_under_the_same_name(claims: Claims, header: Claims) -> str:
    return jwt.encode({"alg": "RS256", "kid": "one"}, claims, openid.signing_key("two"))


def signed_with_the_public_key(claims: Claims, header: Claims) -> str:
    public = openid.signing_key("one").as_pem(private=False)
    key = OctKey.import_key(base64.b64encode(public).decode())
    return jwt.encode({"alg": "HS256", "kid": "one"}, claims, key)


def half(**changed: Any) -> Lie:
    """What no library would sign: halves of characters, as JSON can write them."""

    def lie(claims: Claims, header: Claims) -> str:
        payload = json.dumps({**claims, **changed}).encode()
        protected = {"alg": "RS256", "kid": "one"}
        return jws.serialize_compact(protected, payload, openid.signing_key("one"))

    return lie


TOKENS: dict[str, tuple[Lie, str]] = {
    "alg none": (unsigned, "signature"),
    "no token": (lambda claims, header: "", "signature"),
    "no JWT": (lambda claims, header: "a.b.c", "signature"),
    "unknown key": (signed_by_nobody_known, "signature"),
    "another key": (signed_by_another_under_the_same_name, "signature"),
    "HS256 by the public key": (signed_with_the_public_key, "signature"),
    "wrong issuer": (says(iss="https://evil.example"), "issuer"),
    "no issuer": (says(iss=None), "issuer"),
    "issuer no text": (says(iss=["x"]), "issuer"),
    "another client's token": (says(aud="another-client"), "audience"),
    "another client's too": (says(aud=["another", openid.CLIENT], azp="another"), "audience"),
    "no audience": (says(aud=None), "audience"),
    "wrong nonce": (says(nonce="another"), "nonce"),
    "no nonce": (says(nonce=None), "nonce"),
    "expired": (late, "time"),
    "no expiry": (says(exp=None), "time"),
    "expiry as text": (says(exp="tomorrow"), "time"),
    "not yet": (early, "time"),
    "substituted access token": (says(at_hash="AAAAAAAAAAAAAAAAAAAAAA"), "access token"),
    "no subject": (says(sub=None), "subject"),
    "empty subject": (says(sub=""), "subject"),
    "subject no text": (says(sub=7), "subject"),
    "long subject": (says(sub="x" * 600), "subject"),
    "half a character": (half(sub="\ud800"), "claims"),
    "half an address": (half(email="a\ud800@acme.example"), "claims"),
    "half a name": (half(name="N\ud800"), "claims"),
    "half a group": (half(groups=["\ud800"]), "claims"),
}


def test_oauth_id_token_that_is_invalid_is_sign_in_refused(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    before = stage.users()
    for name, (lie, check) in TOKENS.items():
        stage.provider.lies = lie
        answer = stage.sign_in()
        assert (answer.status_code, answer.json["error"]) == (401, "sign_in_refused"), name
        assert stage.last_refusal()[0] == check, (name, stage.last_refusal())
        assert stage.users() == before


Act = Callable[[Stage, FlaskClient, str], TestResponse]


def at_another_rows_address(stage: Stage, browser: FlaskClient, address: str) -> TestResponse:
    target, values = stage.provider.authorize(address)
    return browser.get(f"{urlsplit(target).path}-", query_string=values)


def at_the_shared_address(stage: Stage, browser: FlaskClient, address: str) -> TestResponse:
    _, values = stage.provider.authorize(address)
    return browser.get("/oauth/google/callback", query_string=values)


def in_another_browser(stage: Stage, browser: FlaskClient, address: str) -> TestResponse:
    return stage.back(stage.browser(), address)


def twice(stage: Stage, browser: FlaskClient, address: str) -> TestResponse:
    stage.provider.who["email"] = stage.cast.bob.email
    (cookie,) = browser._cookies.values()
    assert stage.back(browser, address).status_code == 302
    browser.set_cookie(cookie.key, cookie.value)  # even where the browser still had it
    return stage.back(browser, address)


def of_another_provider(stage: Stage, browser: FlaskClient, address: str) -> TestResponse:
    _, values = stage.provider.authorize(address)
    return browser.get("/oauth/github/callback", query_string=values)


def of_another_account(stage: Stage, browser: FlaskClient, address: str) -> TestResponse:
    _, values = stage.provider.authorize(address)
    host = {"Host": "globex.atrium.test"}
    return browser.get("/oauth/google/callback", query_string=values, headers=host)


def too_late(stage: Stage, browser: FlaskClient, address: str) -> TestResponse:
    with time_machine.travel(clock.now().timestamp() + 601):
        return stage.back(browser, address)


STATES: dict[str, Act] = {
    "missing": lambda stage, browser, address: stage.back(browser, address, state=None),
    "empty": lambda stage, browser, address: stage.back(browser, address, state=""),
    "made up": lambda stage, browser, address: stage.back(browser, address, state="AA0001-x"),
    "long": lambda stage, browser, address: stage.back(browser, address, state="x" * 4000),
    "of another browser": in_another_browser,
    "used before": twice,
    "of another provider": of_another_provider,
    "of another account": of_another_account,
    "too old": too_late,
    "at another row's address": at_another_rows_address,
    "at the address that older rows share": at_the_shared_address,
}


def test_oauth_state_of_other_browser_is_invalid_state(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    stage.oauth(stage.cast.alice, "github", userinfo_url=f"{stage.provider.url}/user")
    before = stage.users()
    for name, act in STATES.items():
        browser = stage.browser()
        answer = act(stage, browser, stage.begin(browser))
        assert (answer.status_code, answer.json["error"]) == (400, "invalid_state"), name
        assert stage.users() == before


@pytest.mark.parametrize("victims", ["acme", "system"])
@pytest.mark.parametrize("shared", [False, True])
def test_oauth_mix_up_attack_sends_code_to_no_other_provider(
    stage: Stage, victims: str, shared: bool
) -> None:
    """The mix-up attack: globex's own provider sends a victim on to the provider of another row."""
    with openid.providing() as evil:
        owner = stage.cast.root if victims == "system" else stage.cast.alice
        honest = {"client_id": openid.CLIENT, "client_secret": openid.SECRET}
        body = {"category": "auth_providers", "provider_name": "google", "config": honest}
        if shared:  # as rows of former versions do, at the provider's usual endpoints
            made = owner.post("admin/configuration", {**body, "shared_callback": True})
            assert made.status_code == 201, made.json
        else:
            stage.oauth(owner)
        settings = {**evil.config(issuer=stage.provider.url), "client_id": "x"}
        body = {"category": "auth_providers", "provider_name": "google", "config": settings}
        assert stage.cast.charlie.post("admin/configuration", body).status_code == 201
        attacker, victim = stage.browser(), stage.browser()
        aim = (
            attacker.get("/console/sso/start/auth_providers/google?account=system").location
            if victims == "system"
            else stage.begin(attacker)
        )
        begun = stage.begin(victim, account="globex")
        # The evil provider passes the attacker's challenge and nonce on, with the victim's state.
        crafted = f"{stage.provider.url}/a?" + urlencode(
            {**query_of(str(aim)), "state": query_of(begun)["state"]}
        )
        target, values = stage.provider.authorize(crafted)
        before = stage.users()
        answer = victim.get(urlsplit(target).path, query_string=values)
        assert (answer.status_code, answer.json["error"]) == (400, "invalid_state")
        assert (evil.forms, stage.provider.forms, stage.users()) == ([], [], before)
        # A client of the API that posts it sends it to its own row's provider, with that address.
        posted = {"code": values["code"], "state": query_of(begun)["state"]}
        stage.anyone.post("auth/oauth/google/callback", posted)
        addresses = {form["redirect_uri"] for form in evil.forms}
        assert query_of(str(aim))["redirect_uri"] not in addresses


def test_oauth_callback_url_is_distinct_per_provider(stage: Stage) -> None:
    rows = [stage.oauth(by) for by in (stage.cast.alice, stage.cast.charlie, stage.cast.root)]
    assert len({row["callback_url"] for row in rows}) == 3
    address = query_of(stage.begin(stage.browser()))
    assert address["redirect_uri"] == rows[0]["callback_url"]
    stage.sign_in()
    assert stage.provider.forms[-1]["redirect_uri"] == rows[0]["callback_url"]


def test_oauth_shared_callback_needs_usual_endpoints(stage: Stage) -> None:
    honest = {"client_id": openid.CLIENT, "client_secret": openid.SECRET}
    body = {"category": "auth_providers", "provider_name": "google", "config": honest}
    row = stage.cast.alice.post("admin/configuration", {**body, "shared_callback": True}).json
    assert row["callback_url"] == "http://atrium.test/oauth/google/callback"
    own = stage.provider.config()
    refused = stage.cast.alice.patch(
        f"admin/configuration/{row['id']}", {"config": own, "shared_callback": True}
    )
    assert refused.json["details"][0]["field"] == "shared_callback"
    browser = stage.browser()
    shared = stage.begin(browser)
    # Once the endpoints are others it has an address of its own, and what was begun is over.
    moved = stage.cast.alice.patch(f"admin/configuration/{row['id']}", {"config": own}).json
    assert (moved["shared_callback"], moved["callback_url"]) != (True, row["callback_url"])
    target, values = stage.provider.authorize(shared)
    answer = browser.get(urlsplit(target).path, query_string=values)
    assert (answer.status_code, stage.provider.forms) == (404, [])


@pytest.mark.parametrize(
    "issuer",
    [
        "https://accounts.google.com",
        "https://accounts.google.com/",
        "accounts.google.com",
        "HTTPS://Accounts.Google.com",
        "https://login.microsoftonline.com/common/v2.0",
        "https://login.microsoftonline.com/72f988bf-86f1-41af-91ab-2d7cd011db47/v2.0",
        "https://github.com",
        "https://appleid.apple.com",
    ],
)
def test_oauth_provider_with_own_endpoints_cannot_claim_known_issuer(
    stage: Stage, issuer: str
) -> None:
    config = stage.provider.config(issuer=issuer)
    body = {"category": "auth_providers", "provider_name": "google", "config": config}
    refused = stage.cast.alice.post("admin/configuration", body)
    fields = [one["field"] for one in refused.json["details"]]
    assert (refused.status_code, "config.issuer" in fields) == (400, True), refused.json


def test_oauth_state_survives_attempt_from_other_browser(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    browser = stage.browser()
    address = stage.begin(browser)
    assert stage.back(stage.browser(), address).status_code == 400
    assert stage.back(browser, address).status_code == 302


def test_oauth_code_of_other_flow_is_refused(stage: Stage) -> None:
    """A stolen code in an own flow: PKCE and nonce belong to the other."""
    stage.oauth(stage.cast.alice)
    before = stage.users()
    victim, attacker = stage.browser(), stage.browser()
    _, stolen = stage.provider.authorize(stage.begin(victim))
    address = stage.begin(attacker)
    answer = stage.back(attacker, address, code=stolen["code"])
    assert answer.status_code == 401
    assert stage.last_refusal() == ("code", "The provider refused the code: invalid_grant")
    replay = stage.back(stage.browser(), address, code=stolen["code"])
    assert replay.status_code == 400
    assert stage.users() == before


def test_oauth_callback_with_error_or_other_issuer_is_401(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    for changed, check in (
        ({"error": "access_denied", "code": None}, "provider"),
        ({"code": None}, "code"),
        ({"iss": "https://evil.example"}, "issuer"),
    ):
        browser = stage.browser()
        answer = stage.back(browser, stage.begin(browser), **changed)
        assert answer.status_code == 401
        assert stage.checks(stage.cast.alice)[0] == check


def test_oauth_malformed_token_response_is_401(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    for said in ({"error": "x", "error_description": 5}, {"error": [1]}, {"access_token": 5}, {}):
        stage.provider.token_answer = said
        assert stage.sign_in().status_code == 401, said
        assert stage.last_refusal()[0] in ("code", "provider")


REDIRECTS = (
    "//client.example.com/signed-in",
    "https:client.example.com/signed-in",
    "https://client.example.com.evil.example/signed-in",
    "https://client.example.com@evil.example/signed-in",
    "https://client.example.com./signed-in",
    "https://client.example.com/signed-in/",
    "https://client.example.com/signed-in?x=1",
    "https://client.example.com/signed-in#x",
    "https://client.example.com/%73igned-in",
    "https://CLIENT.example.com/signed-in",
    "https://client.example.com:443/signed-in",
    "http://client.example.com/signed-in",
    " https://client.example.com/signed-in",
    "https://client.example.com\\@evil.example/signed-in",
    "javascript:alert(1)",
    "",
)


def test_oauth_redirect_uri_not_on_allow_list_is_400(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    stage.saml(stage.cast.alice)
    for uri in REDIRECTS:
        body = {"account": "acme", "redirect_uri": uri}
        answers = [
            stage.anyone.post("auth/oauth/google/authorize", body),
            stage.anyone.get("/oauth/google/authorize", query_string=body),
            stage.anyone.get("/saml/okta/sso", query_string=body),
        ]
        for answer in answers:
            assert answer.status_code == 400, uri
            assert answer.json["details"][0]["field"] == "redirect_uri"


def test_oauth_provider_not_configured_is_404(stage: Stage) -> None:
    made = stage.oauth(stage.cast.alice)
    for name, account in (("github", "acme"), ("google", "globex"), ("google", "nobody")):
        found = stage.browser().get(f"/oauth/{name}/authorize?account={account}")
        assert found.status_code == 404
    assert stage.browser().get("/oauth/facebook/authorize?account=acme").status_code == 404
    unnamed = stage.browser().get("/oauth/google/authorize")
    assert (unnamed.status_code, unnamed.json["details"][0]["field"]) == (400, "account")
    browser = stage.browser()
    address = stage.begin(browser)
    stage.cast.alice.patch(f"admin/configuration/{made['id']}", {"enabled": False})
    assert stage.back(browser, address).status_code == 404
    assert stage.last_refusal()[0] == "provider"  # told to the admins like any other
    hosted = stage.browser().get("/oauth/google/authorize", headers={"Host": "acme.atrium.test"})
    assert stage.browser().get(hosted.headers["Location"]).status_code == 404


def test_oauth_provider_or_account_disabled_during_flow_is_refused(stage: Stage) -> None:
    path = f"admin/configuration/{stage.oauth(stage.cast.alice)['id']}"
    alice, account = stage.cast.alice, f"accounts/{stage.cast.alice.account_id}"
    before = stage.users()
    for switch, status, check in (
        (lambda on: alice.patch("account", {"sso_provisioning": on}), 403, "provisioning"),
        (lambda on: alice.patch(path, {"enabled": on}), 404, "provider"),
        (lambda on: stage.cast.root.patch(account, {"is_active": on}), 404, "provider"),
        (lambda on: on or alice.delete(path), 404, "provider"),
    ):
        stage.provider.lies = meanwhile(switch)
        assert stage.sign_in().status_code == status
        assert switch(True)
        assert stage.checks(alice)[0] == check
        assert stage.users() == before


def test_oauth_refusals_are_rate_limited_per_address(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.oauth(stage.cast.alice)
    stage.changed(monkeypatch, login_rate_limit="on", login_tries_per_address=3)
    for _ in range(3):
        assert stage.browser().get("/oauth/google/callback?state=x").status_code == 400
    limited = stage.sign_in()
    assert (limited.status_code, limited.json["error"]) == (429, "rate_limited")


def test_oauth_concurrent_sign_ins_of_one_person_create_one_user(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    before = len(stage.users())
    browsers = [stage.browser() for _ in range(4)]
    addresses = [stage.begin(browser) for browser in browsers]
    found = at_once(4, lambda n: stage.back(browsers[n], addresses[n]).status_code)
    assert found == [302] * 4
    assert len(stage.users()) == before + 1


@pytest.mark.parametrize("proved", [True, False])
def test_oauth_sign_in_concurrent_with_user_creation_succeeds(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, proved: bool
) -> None:
    stage.oauth(stage.cast.alice)
    stage.provider.who["email_verified"] = proved
    first = stage.traded(stage.sign_in())["user"]
    known, not_yet = account_linking._identity_query, iter([True])

    def known_later(*about: Any) -> Any:
        found = known(*about)
        return found.where(sa.false()) if next(not_yet, False) else found

    monkeypatch.setattr(account_linking, "_identity_query", known_later)
    assert stage.traded(stage.sign_in())["user"]["id"] == first["id"]


def test_oauth_expired_flows_codes_and_refusals_are_purged(stage: Stage, app: Flask) -> None:
    stage.oauth(stage.cast.alice)
    stage.sign_in()
    stage.browser().get("/oauth/google/callback?state=x")
    stage.back(stage.browser(), stage.begin(stage.browser()))
    with app.app_context():
        jobs.purge({})
        assert db.db.session.query(models.Flow).count() == 2
        with time_machine.travel(clock.now().timestamp() + 31 * 86_400):
            jobs.purge({})
        for model in (models.Flow, models.Refusal, models.SeenAssertion):
            assert db.db.session.query(model).count() == 0


def test_oauth_identities_are_separate_per_account(stage: Stage) -> None:
    for admin in (stage.cast.alice, stage.cast.charlie):
        stage.oauth(admin)
    mine = stage.traded(stage.sign_in())["user"]
    theirs = stage.traded(stage.sign_in(account="globex"))["user"]
    assert mine["id"] != theirs["id"]
    assert (mine["account_code"], theirs["account_code"]) == ("AA0001", "AA0002")
    # A flow of one account, ended with the other's cookie jar and code, stays in its own.
    browser = stage.browser()
    address = stage.begin(browser, account="globex")
    _, other = stage.provider.authorize(stage.begin(browser))
    crossed = stage.back(browser, address, code=other["code"])
    assert crossed.status_code == 401
    assert query_of(address)["state"].startswith("AA0002-")
    assert urlsplit(address).path == "/authorize"
