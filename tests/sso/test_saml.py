"""Sign-in by SAML: whole flows over HTTP against an identity provider."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from lxml import etree

from app import db
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, Role
from app.sso import providers
from app.sso.connections import Connection
from app.sso.models import SAML, ProviderSetting
from app.sso.saml import assertions, certificates
from tests.builders import PASSWORD, Caller, make_user
from tests.console.browser import Browser
from tests.sso import saml_idp
from tests.sso.flows import HTML, Stage, query_of

COMMENT = "<!-- as the provider\nwrote it -->"


def test_saml_sign_in_of_new_user_with_metadata_only(stage: Stage) -> None:
    body = {
        "category": "saml_providers",
        "provider_name": "okta",
        "config": {
            "idp_metadata": COMMENT + saml_idp.metadata().replace("</ds:", f"{COMMENT}</ds:")
        },
    }
    made = stage.cast.alice.post("admin/configuration", body).json
    assert made["config"]["idp_entity_id"] == saml_idp.ENTITY
    assert made["config"]["idp_sso_url"] == saml_idp.SSO
    browser = stage.browser()
    request = stage.begin_saml(browser, client_state="where I was?")
    assert request.consumer == "http://atrium.test/saml/okta/acs?account=acme"
    response = saml_idp.answer(request, attributes={"displayName": ["Dora"]})
    answer = stage.post(browser, response.encoded(), request.relay_state)
    query = query_of(answer.headers["Location"])
    assert query["relay_state"] == query["client_state"] == "where I was?"
    signed_in = stage.traded(answer)
    user = signed_in["user"]
    assert (user["email"], user["name"], user["role"]) == ("dora@acme.example", "Dora", "viewer")
    assert (user["auth_provider"], signed_in["isNewUser"]) == ("okta", True)
    assert stage.traded(stage.assert_in())["user"]["id"] == user["id"]


CLAIMS = "http://schemas.xmlsoap.org/ws/2005/05/identity/claims/"
UPN = {f"{CLAIMS}name": ["dora@acme.example"]}
NAMED: dict[str, tuple[dict[str, list[str]], str | None]] = {
    "Entra ID": (
        {**UPN, "http://schemas.microsoft.com/identity/claims/displayname": ["Dora D"]},
        "Dora D",
    ),
    "Entra ID without it": (
        {**UPN, f"{CLAIMS}givenname": ["Dora"], f"{CLAIMS}surname": ["Dee"]},
        "Dora Dee",
    ),
    "nothing but an address": (UPN, "dora@acme.example"),
    "displayname": ({"displayname": ["Dora D"]}, "Dora D"),
    "cn": ({"cn": ["Dora D"], "givenName": ["D"], "sn": ["E"]}, "Dora D"),
    "the OID of cn": ({"urn:oid:2.5.4.3": ["Dora D"]}, "Dora D"),
    "two halves": ({"givenName": ["Dora"], "sn": ["Dee"]}, "Dora Dee"),
    "one half": ({"urn:oid:2.5.4.42": ["Dora"]}, "Dora"),
    "none": ({}, None),
}


def test_saml_name_is_found_in_usual_attributes(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    for number, (attributes, expected) in enumerate(NAMED.values()):
        about = {"subject": f"dora-{number}@acme.example", "attributes": attributes}
        user = stage.traded(stage.assert_in(**about))["user"]
        assert user["name"] == expected, attributes


def test_saml_metadata_and_request_carry_the_account(stage: Stage) -> None:
    stage.saml(stage.cast.alice, "generic", idp_sso_url="https://idp.example/sso?a=1&b=2")
    path = "auth/saml/metadata?account=acme&provider=generic_saml"
    metadata = stage.anyone.get(path)
    assert metadata.mimetype == "application/samlmetadata+xml"
    root = etree.fromstring(metadata.data)
    assert root.get("entityID") == "http://atrium.test/saml/generic?account=acme"
    assert root.get("validUntil") is None
    (consumer,) = root.xpath("//*[local-name()='AssertionConsumerService']/@Location")
    assert consumer == "http://atrium.test/saml/generic/acs?account=acme"
    answer = stage.browser().get("/saml/generic_saml/sso?account=acme")
    target = answer.headers["Location"]
    assert target.startswith("https://idp.example/sso?a=1&b=")
    assert saml_idp.asked(target).consumer == consumer
    other = stage.anyone.get("auth/saml/metadata?account=globex&provider=generic")
    assert other.status_code == 404


def test_saml_api_client_gets_json(stage: Stage) -> None:
    stage.saml(stage.cast.alice, "generic")
    path = "auth/saml/sso?account=acme&provider=generic_saml&relayState=mine"
    started = stage.anyone.get(path, headers={"Accept": "application/json"})
    assert (started.status_code, started.json["state"]) == (200, "mine")
    request = saml_idp.asked(started.json["url"])
    body = {
        "SAMLResponse": saml_idp.answer(request).encoded(),
        "relayState": request.relay_state,
    }
    answer = stage.anyone.post("auth/saml/acs", body)
    assert (answer.status_code, answer.json["user"]["email"]) == (200, "dora@acme.example")
    assert stage.anyone.post("auth/saml/acs", body).status_code == 400
    fetched = stage.anyone.get(path, headers={"Sec-Fetch-Mode": "cors"})
    assert fetched.json["url"].startswith(saml_idp.SSO)
    redirected = stage.browser().get("/api/v1/auth/saml/sso?account=acme&provider=generic")
    assert redirected.headers["Location"].startswith(saml_idp.SSO)


def test_saml_idp_initiated_sign_in_needs_permission(
    stage: Stage,
) -> None:
    made = stage.saml(stage.cast.alice)
    audience = "http://atrium.test/saml/okta?account=acme"
    consumer = "http://atrium.test/saml/okta/acs?account=acme"
    unasked = saml_idp.Response(consumer, audience, None)
    before = stage.users()
    refused = stage.post(stage.browser(), unasked.encoded(), "")
    assert (refused.status_code, refused.json["error"]) == (400, "invalid_state")
    assert stage.checks(stage.cast.alice) == ["unsolicited"]
    assert stage.users() == before
    path = f"admin/configuration/{made['id']}"
    stage.cast.alice.patch(path, {"config": {"allow_idp_initiated": True}})
    signed_in = stage.post(stage.browser(), unasked.encoded(), "")
    assert stage.traded(signed_in)["user"]["email"] == "dora@acme.example"
    assert stage.post(stage.browser(), unasked.encoded(), "").status_code == 401
    # An answer to a request is not one that nobody asked for.
    request = stage.begin_saml(stage.browser())
    stolen = stage.post(stage.browser(), saml_idp.answer(request).encoded(), "")
    assert stolen.status_code == 401
    assert stage.checks(stage.cast.alice)[:2] == ["InResponseTo", "replay"]


def test_saml_idp_initiated_sign_in_by_system_provider_is_refused(stage: Stage) -> None:
    """One response would be good in every account; each allows it with settings of its own."""
    shared = {"sp_entity_id": "https://sp.example", "assertion_consumer_url": "https://sp.example/"}
    named = {"category": "saml_providers", "provider_name": "okta"}
    config = saml_idp.config(**shared, allow_idp_initiated=True)
    refused = stage.cast.root.post("admin/configuration", {**named, "config": config})
    assert [one["field"] for one in refused.json["details"]] == ["config.allow_idp_initiated"]
    made = stage.saml(stage.cast.root, **shared)
    refused = stage.cast.root.patch(
        f"admin/configuration/{made['id']}", {"config": {"allow_idp_initiated": True}}
    )
    assert refused.status_code == 400
    with stage.app.app_context(), db.transaction() as session:  # as one that is older may say
        row = session.get_one(ProviderSetting, (SYSTEM_ACCOUNT_ID, made["id"]))
        row.config = {**row.config, "allow_idp_initiated": True}
    stage.cast.alice.patch("account", {"sso_provisioning": True})
    unasked = saml_idp.Response(*reversed(shared.values()), None)
    assert stage.post(stage.browser(), unasked.encoded(), "").status_code == 400
    assert stage.checks(stage.cast.alice) == ["unsolicited"]


def test_saml_missing_settings_are_reported_to_admins(stage: Stage) -> None:
    alice = stage.cast.alice
    stage.saml(alice, allow_idp_initiated=True)
    alice.patch("account", {"allowed_redirect_uris": [], "default_redirect_uri": None})
    unasked = saml_idp.Response(
        "http://atrium.test/saml/okta/acs?account=acme",
        "http://atrium.test/saml/okta?account=acme",
        None,
    ).encoded()
    refused = stage.post(stage.browser(), unasked, "")
    assert (refused.status_code, refused.json["error"]) == (401, "sign_in_refused")
    assert stage.post(stage.browser(), unasked, "", "generic").status_code == 404
    body = {"SAMLResponse": "x", "account": "acme"}
    for relay_state in ({}, {"relayState": "x"}, {"RelayState": "QUEwMDAxLXg="}):
        answer = stage.anyone.post("auth/saml/acs", {**body, **relay_state})
        assert (answer.status_code, answer.json["error"]) == (400, "invalid_state")
    assert stage.checks(alice) == ["state", "state", "state", "provider", "redirect_uri"]


def test_saml_sign_in_of_unverified_user_removes_password(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    user = make_user(stage.app, stage.cast.alice.account_id, "dora@acme.example", verified=False)
    key = Caller(stage.app, user).post("api-keys", {"name": "first"}).json["key"]
    signed_in = stage.traded(stage.assert_in())
    assert signed_in["user"]["id"] == user.id
    assert signed_in["user"]["email_verified"]
    login = {"account": "acme", "email": user.email, "password": PASSWORD}
    refused = stage.anyone.post("auth/login", login)
    assert (refused.status_code, refused.json["error"]) == (401, "authentication_failed")
    # Nor does anything else stay of whoever came first under the address.
    assert stage.anyone.get("auth/me", headers={"X-API-Key": key}).status_code == 401
    # Who had verified keeps it.
    assert stage.traded(stage.assert_in(subject=stage.cast.bob.email))["isNewUser"] is False
    login["email"] = stage.cast.bob.email
    assert stage.anyone.post("auth/login", login).status_code == 200


def test_saml_assertion_without_expiry_is_accepted(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    ever = 'NotOnOrAfter="9999-12-31T23:59:59.9999999Z"'
    browser = stage.browser()
    request = stage.begin_saml(browser)
    times = {"ends": ever, "confirmed": ever}
    response = saml_idp.answer(request, times=times).encoded()
    assert stage.traded(stage.post(browser, response, request.relay_state))["isNewUser"]


def test_saml_email_not_vouched_for_links_no_user(stage: Stage) -> None:
    stage.saml(stage.cast.alice, email_verified=False)
    refused = stage.assert_in(subject=stage.cast.bob.email)
    assert (refused.status_code, refused.json["error"]) == (403, "not_invited")
    assert stage.traded(stage.assert_in())["user"]["email_verified"] is False


def test_saml_sign_in_accepts_invitation(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = stage.cast.alice
    path = f"admin/configuration/{stage.saml(alice)['id']}"
    alice.patch("account", {"sso_provisioning": False})
    group = alice.post("groups", {"name": "books"}).json["id"]
    invited = {"email": "Dora@acme.example", "role": "editor", "groups": [group]}
    assert alice.post("invitations", invited).status_code == 201
    alice.patch(path, {"config": {"email_verified": False}})
    assert stage.assert_in().status_code == 403  # nothing proves the address
    alice.patch(path, {"config": {"email_verified": True}})
    with monkeypatch.context() as patch:
        stage.changed(patch, registration="off")
        assert stage.assert_in().status_code == 403
    user = stage.traded(stage.assert_in())["user"]
    assert (user["role"], user["groups"], user["auth_provider"]) == ("editor", ["books"], "okta")
    assert user["email_verified"]
    assert alice.get("invitations").json["items"][0]["status"] == "accepted"
    alice.patch("account", {"sso_group_roles": [{"group": "Finance", "role": "viewer"}]})
    assert roles_of(stage, ["Finance"]) == "editor"


def test_sso_email_domain_is_normalized_and_matched_exactly(stage: Stage) -> None:
    alice = stage.cast.alice
    stage.saml(alice)
    domains = {"sso_email_domains": ["CORP.example", "m\u00fcnchen.example", "corp.example"]}
    kept = alice.patch("account", domains)
    assert kept.json["sso_email_domains"] == ["corp.example", "xn--mnchen-3ya.example"]
    assert alice.patch("account", {"sso_email_domains": ["-x.example"]}).status_code == 400
    for address in ("a@m\u00fcnchen.example", "b@xn--mnchen-3ya.example", "c@Corp.Example"):
        assert stage.traded(stage.assert_in(subject=address))["isNewUser"], address
    assert stage.assert_in(subject="d@corp.example.evil.example").status_code == 403


def test_saml_sign_in_of_inactive_user_is_401(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    user = stage.traded(stage.assert_in())["user"]
    browser = stage.browser()
    request = stage.begin_saml(browser)
    answer = stage.post(browser, saml_idp.answer(request).encoded(), request.relay_state)
    code = query_of(answer.headers["Location"])["code"]
    stage.cast.alice.patch(f"account/users/{user['id']}", {"is_active": False})
    assert stage.anyone.post("auth/exchange", {"code": code}).status_code == 400
    assert stage.assert_in().status_code == 401
    assert stage.checks(stage.cast.alice) == ["user", "user"]


def test_saml_sign_in_of_other_email_domain_is_not_invited(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    stage.cast.alice.patch("account", {"sso_email_domains": ["acme.example"]})
    assert stage.assert_in(subject="eve@evil.example").status_code == 403
    assert stage.assert_in(subject="eve@acme.example.evil").status_code == 403
    assert stage.assert_in().status_code == 302
    stage.cast.alice.patch("account", {"sso_provisioning": False})
    refused = stage.assert_in(subject="fay@acme.example")
    assert (refused.status_code, refused.json["error"]) == (403, "not_invited")


def roles_of(stage: Stage, groups: list[str]) -> str:
    signed_in = stage.traded(stage.assert_in(attributes={"groups": groups}))
    return str(signed_in["user"]["role"])


def test_saml_groups_give_roles_until_role_is_set_by_hand(stage: Stage) -> None:
    alice = stage.cast.alice
    stage.saml(alice)
    assert roles_of(stage, ["Finance"]) == "viewer"
    mapping = {"sso_group_roles": [{"group": "Finance", "role": "editor"}]}
    (planned,) = alice.post("account/sso/plan", mapping).json["changes"]
    assert (planned["user"]["email"], planned["role"], planned["becomes"]) == (
        "dora@acme.example",
        "viewer",
        "editor",
    )
    assert alice.patch("account", mapping).status_code == 200
    signed_in = stage.traded(stage.assert_in(attributes={"groups": ["Finance"]}))
    assert signed_in["user"]["role"] == "editor"
    assert alice.post("account/sso/plan").json == {"changes": [], "total": 0}
    # A role that comes from a group goes with it, and the sessions under it end.
    assert roles_of(stage, []) == "viewer"
    stale = {"refresh_token": signed_in["refresh_token"]}
    assert stage.anyone.post("auth/refresh", stale).status_code == 401
    alice.patch(f"account/users/{signed_in['user']['id']}", {"role": "editor"})
    assert roles_of(stage, []) == "editor"
    alice.patch(f"account/users/{signed_in['user']['id']}", {"role": "viewer"})
    assert roles_of(stage, ["Finance"]) == "viewer"


def test_saml_group_role_ends_with_its_identity(stage: Stage) -> None:
    alice = stage.cast.alice
    stage.saml(alice, email_verified=False)
    stage.saml(alice, "azure_ad")
    alice.patch("account", {"sso_group_roles": [{"group": "Finance", "role": "editor"}]})
    for groups, role in (([], "viewer"), (["Finance"], "editor")):
        who = {"subject": f"{role}@acme.example"}
        attributes = {"groups": ["Finance"]}
        first = stage.traded(stage.assert_in(**who, attributes=attributes))["user"]
        assert (first["role"], first["email_verified"]) == ("editor", False)
        proved = stage.assert_in("azure_ad", **who, attributes={"groups": groups})
        owner = stage.traded(proved)["user"]
        assert (owner["id"], owner["role"], owner["email_verified"]) == (first["id"], role, True)
        later = stage.assert_in("azure_ad", **who, attributes={})
        assert stage.traded(later)["user"]["role"] == "viewer"


def test_saml_group_role_confirmed_by_hand_stays(stage: Stage) -> None:
    alice = stage.cast.alice
    stage.saml(alice)
    alice.patch("account", {"sso_group_roles": [{"group": "Finance", "role": "editor"}]})
    signed_in = stage.traded(stage.assert_in(attributes={"groups": ["Finance"]}))
    path = f"account/users/{signed_in['user']['id']}"
    assert alice.patch(path, {"role": "editor"}).status_code == 200
    assert roles_of(stage, []) == "editor"


def test_saml_group_role_of_emptied_mapping_is_taken_back(stage: Stage) -> None:
    alice = stage.cast.alice
    stage.saml(alice, default_role="editor")
    assert roles_of(stage, ["Readers"]) == "editor"
    alice.patch("account", {"sso_group_roles": []})  # as before: it never mapped any
    made = alice.get("admin/configuration").json["items"][0]
    alice.patch(f"admin/configuration/{made['id']}", {"config": {"default_role": None}})
    assert roles_of(stage, ["Readers"]) == "editor"
    alice.patch("account", {"sso_group_roles": [{"group": "Finance", "role": "editor"}]})
    assert roles_of(stage, ["Finance"]) == "editor"
    (planned,) = alice.post("account/sso/plan", {"sso_group_roles": []}).json["changes"]
    assert planned["becomes"] == "viewer"
    alice.patch("account", {"sso_group_roles": []})
    assert roles_of(stage, ["Finance"]) == "viewer"


def test_saml_groups_of_all_identities_count(stage: Stage) -> None:
    alice = stage.cast.alice
    stage.saml(alice)
    stage.saml(alice, "azure_ad")
    who = {"subject": "dora@acme.example"}

    def role(name: str, groups: list[str]) -> str:
        answer = stage.assert_in(name, **who, attributes={"groups": groups})
        found: str = stage.traded(answer)["user"]["role"]
        return found

    assert role("okta", []) == role("azure_ad", ["Finance"]) == "viewer"
    mapping = {"sso_group_roles": [{"group": "Finance", "role": "editor"}]}
    (planned,) = alice.post("account/sso/plan", mapping).json["changes"]
    assert planned["becomes"] == "editor"
    alice.patch("account", mapping)
    assert [role("azure_ad", ["Finance"]), role("okta", [])] == ["editor", "editor"]
    assert role("azure_ad", []) == "viewer"


def test_sso_plan_equals_outcome_of_next_sign_in(stage: Stage) -> None:
    alice, root = stage.cast.alice, stage.cast.root
    clerk = root.post("roles", {"name": "clerk"}).json["id"]
    path = f"admin/configuration/{stage.saml(alice, default_role='clerk')['id']}"
    user = stage.traded(stage.assert_in(attributes={"groups": ["Bosses"]}))["user"]
    mapping = {"sso_group_roles": [{"group": "Bosses", "role": "admin"}]}
    refused = alice.post("account/sso/plan", mapping)
    assert refused.status_code == 400
    mapping |= {"sso_allow_admin": True}
    (planned,) = alice.post("account/sso/plan", mapping).json["changes"]
    assert (planned["role"], planned["becomes"]) == ("clerk", "admin")
    alice.patch("account", mapping)
    assert roles_of(stage, ["Bosses"]) == "admin"
    # A role that is named stays. Once it was not so: then it is the usual one.
    refused = root.delete(f"roles/{clerk}")
    assert refused.status_code == 409
    (named,) = refused.json["details"]
    assert named["field"].endswith(".default_role")
    with root.app.app_context(), db.transaction() as session:
        session.execute(sa.delete(Role).where(Role.id == clerk))
    others = {"sso_group_roles": [{"group": "Others", "role": "editor"}]}
    (planned,) = alice.post("account/sso/plan", others).json["changes"]
    assert planned["becomes"] == "viewer"
    assert alice.patch(path, {"config": {"email_verified": True}}).status_code == 200
    assert alice.patch(path, {"config": {"default_role": "nobody"}}).status_code == 400
    for hindrance in (
        lambda on: alice.patch(path, {"enabled": on}),
        lambda on: alice.patch(f"account/users/{user['id']}", {"is_active": on}),
    ):
        assert hindrance(False).status_code == 200
        assert alice.post("account/sso/plan", others).json["changes"] == []
        assert hindrance(True).status_code == 200
    alice.patch("account", others)
    assert roles_of(stage, ["Bosses"]) == "viewer"


def test_saml_group_gives_admin_role_only_if_allowed(stage: Stage) -> None:
    alice = stage.cast.alice
    stage.saml(alice)
    mapping = {"sso_group_roles": [{"group": "Bosses", "role": "admin"}]}
    for body in (mapping, {**mapping, "sso_allow_admin": False}):
        refused = alice.patch("account", body)
        assert (refused.status_code, refused.json["details"][0]["code"]) == (400, "invalid_option")
    assert alice.post("account/sso/plan", mapping).status_code == 400
    assert alice.patch("account", {**mapping, "sso_allow_admin": True}).status_code == 200
    # Switched off again, the line stays and counts for nothing, and hinders nobody.
    rest = {"group": "Finance", "role": "editor"}
    mapping["sso_group_roles"].append(rest)
    off = alice.patch("account", {**mapping, "sso_allow_admin": False})
    assert (off.status_code, off.json["sso_ignored_groups"]) == (200, ["Bosses"])
    page = Browser(stage.app, alice).get(f"sso/{alice.account_id}").text
    assert "These groups currently give no role: Bosses." in page
    assert alice.post("account/sso/plan").status_code == 200
    others = {"sso_group_roles": [{"group": "Others", "role": "admin"}]}
    assert alice.patch("account", others).status_code == 400
    assert roles_of(stage, ["Bosses"]) == "viewer"
    assert roles_of(stage, ["Bosses", "Finance"]) == "editor"
    alice.patch("account", {"sso_allow_admin": True})
    assert alice.get("account").json["sso_ignored_groups"] == []
    assert roles_of(stage, ["Bosses"]) == "admin"
    # An invited or present user's role was set by hand.
    bob = stage.traded(
        stage.assert_in(subject=stage.cast.bob.email, attributes={"groups": ["Bosses"]})
    )
    assert bob["user"]["role"] == "viewer"
    assert bob["user"]["groups"] == []


def test_saml_refusal_in_browser_returns_to_client_application(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    browser = stage.browser()
    request = stage.begin_saml(browser)
    response = saml_idp.answer(request, audience="https://evil.example")
    page = stage.post(browser, response.encoded(), request.relay_state, headers=HTML)
    assert (page.status_code, query_of(page.headers["Location"])["error"]) == (302, "access_denied")
    assert "evil.example" not in page.headers["Location"]
    refusal = stage.cast.alice.get("account/sso/refusals").json["items"][0]
    assert refusal["check"] == "audience"
    assert "evil.example" in refusal["detail"]


CANCELLED = "The sign-in was cancelled at the provider. Try again."
STATUSES = {"AuthnFailed": True, "RequestDenied": True, "NoPassive": True, "Responder": False}


def test_saml_error_status_returns_to_client_application(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    for status, is_cancelled in STATUSES.items():
        browser = stage.browser()
        request = stage.begin_saml(browser, client_state="mine")
        code = f"urn:oasis:names:tc:SAML:2.0:status:{status}"
        response = saml_idp.answer(request, status=code, sign="nothing")
        page = stage.post(browser, response.encoded(), request.relay_state, headers=HTML)
        query = query_of(page.headers["Location"])
        assert (query["error"], query["state"]) == ("access_denied", "mine")
        assert (query["error_description"] == CANCELLED) is is_cancelled
        refusal = stage.last_refusal()
        assert (refusal[0], status in refusal[1]) == ("status", True)


@pytest.mark.parametrize("context", ["https://refeds.org/profile/mfa", "urn:x:Password"])
def test_saml_authn_context_sets_second_factor(context: str) -> None:
    request = saml_idp.Asked("_1", "http://here/acs", "http://here", "")
    account = Account(id="x", slug="acme")
    addresses = {"sp_entity_id": request.issuer, "assertion_consumer_url": request.consumer}
    config = saml_idp.config(idp_x509_cert=certificates.parse(saml_idp.pair("idp")[1]))
    okta = providers.get(SAML, "okta")
    connection = Connection(account, okta, {**config, **addresses}, is_own=True)
    response = saml_idp.answer(request, context=context).encoded()
    parsed = assertions.parse_response(connection, response, "_1")
    assert parsed.claimed.mfa is (context != "urn:x:Password")


def test_saml_sign_in_is_audited_with_masked_secrets(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    user = stage.traded(stage.assert_in())["user"]
    entries = stage.cast.root.get("audit-logs?limit=500").json["items"]
    made = {(e["table_name"], e["column_name"], e["new_value"]) for e in entries}
    assert ("provider_settings", "secrets", "***") in made
    assert ("identities", "subject", "***") in made
    assert ("identities", "user_id", user["id"]) in made
    assert ("users", "auth_provider", "okta") in made
    about = [e for e in entries if e["record_id"] == user["id"] or e["table_name"] == "identities"]
    assert {e["operation"] for e in about} == {"CREATE"}
    assert Caller(stage.app).get("audit-logs").status_code == 401


@pytest.mark.parametrize(
    "changes",
    [
        {"begins": 45},
        {"begins": -600, "ends": -45, "confirmed_for": -45},
        {"ends": 30, "confirmed_for": -45},
    ],
)
def test_saml_clock_skew_of_one_minute_is_accepted(stage: Stage, changes: dict[str, Any]) -> None:
    stage.saml(stage.cast.alice)
    assert stage.traded(stage.assert_in(**changes))["account"]["slug"] == "acme"


def test_saml_audience_may_be_one_of_several(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    browser = stage.browser()
    request = stage.begin_saml(browser)
    names = f"<saml:Audience>x</saml:Audience><saml:Audience>{request.issuer}</saml:Audience>"
    restriction = f"<saml:AudienceRestriction>{names}</saml:AudienceRestriction>"
    response = saml_idp.answer(request, conditions=restriction).encoded()
    assert stage.traded(stage.post(browser, response, request.relay_state))
