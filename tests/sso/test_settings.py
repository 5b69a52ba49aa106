"""Provider settings: who may, what is checked, what is never shown."""

from __future__ import annotations

import time
from typing import Any

import pytest
from flask import Flask
from jsonschema import Draft202012Validator

from app import db
from app.jobs import worker
from app.sso.models import ProviderSetting
from app.sso.providers import PROVIDERS
from tests.builders import Caller
from tests.console.browser import Browser
from tests.sso import openid, saml_idp
from tests.sso.flows import Stage

PATH = "admin/configuration"


def body(category: str, name: str, **config: Any) -> dict[str, Any]:
    """New settings."""
    return {"category": f"{category}_providers", "provider_name": name, "config": config}


def fields(answer: Any) -> dict[str, str]:
    """What is wrong with which field."""
    assert answer.status_code == 400, answer.json
    return {one["field"]: one["code"] for one in answer.json["details"]}


def test_provider_secrets_are_encrypted_and_never_shown(stage: Stage, app: Flask) -> None:
    alice = stage.cast.alice
    made = stage.oauth(alice)
    one = f"{PATH}/{made['id']}"
    assert made["config"]["client_secret"] == "***"
    assert (made["is_system"], made["enabled"], made["priority"]) == (False, True, 0)
    shown = [alice.get(path) for path in (PATH, one, f"{one}/values")]
    shown.append(alice.patch(one, {"config": {"client_secret": "***", "scopes": "openid email"}}))
    shown.append(alice.patch(f"{one}/values", {"client_id": openid.CLIENT}))
    assert all(openid.SECRET not in answer.text for answer in shown)
    with app.app_context():
        row = db.db.session.get_one(ProviderSetting, (alice.account_id, made["id"]))
        assert openid.SECRET not in str((row.config, row.secrets))
        assert row.config["scopes"] == ["openid", "email"]
    assert stage.sign_in().status_code == 302
    assert stage.provider.forms[-1]["client_secret"] == openid.SECRET
    # Who sends the secret elsewhere must know it.
    moved = {"token_url": "http://127.0.0.1:9/token"}
    assert fields(alice.patch(f"{one}/values", moved)) == {"config.client_secret": "required"}
    tried = {**body("auth", "google", **stage.provider.config()), "config": moved}
    assert (
        fields(alice.post(f"{PATH}/test-connection", tried))["config.client_secret"] == "required"
    )
    # Nobody moves what was nowhere, and stays there.
    usual = {"client_id": openid.CLIENT, "client_secret": openid.SECRET}
    other = stage.cast.charlie.post(PATH, body("auth", "google", **usual)).json
    for nowhere in ("", None):
        same = {"config": {"token_url": nowhere}}
        assert stage.cast.charlie.patch(f"{PATH}/{other['id']}", same).status_code == 200
    entries = stage.cast.root.get("audit-logs?table_name=provider_settings&limit=500")
    assert openid.SECRET not in entries.text


def test_provider_is_unique_per_account_and_system(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    again = body("auth", "google", **stage.provider.config())
    refused = stage.cast.alice.post(PATH, again)
    assert (refused.status_code, refused.json["field"]) == (409, "provider_name")
    named = {**again, "account_id": stage.cast.alice.account_id}
    assert stage.cast.root.post(PATH, named).status_code == 409
    assert stage.cast.root.post(PATH, again).json["is_system"] is True
    other = {**again, "account_id": stage.cast.charlie.account_id}
    assert stage.cast.alice.post(PATH, other).status_code == 403
    assert stage.cast.bob.post(PATH, again).status_code == 403
    acting = stage.cast.root.acting_in("globex")
    assert acting.post(PATH, again).json["account_id"] == stage.cast.charlie.account_id
    listed = stage.cast.root.get(f"{PATH}?account_id=globex&category=auth_providers").json
    assert [one["account_id"] for one in listed["items"]] == [stage.cast.charlie.account_id]
    assert stage.cast.alice.get(f"{PATH}?account_id=globex").status_code == 403
    one = f"{PATH}/{listed['items'][0]['id']}"
    assert acting.get(one).status_code == 200
    assert acting.patch(one, {"priority": 7}).json["priority"] == 7
    for stranger in (stage.cast.alice, stage.cast.root.acting_in("acme")):
        assert stranger.get(one).status_code == stranger.delete(one).status_code == 404
    assert acting.delete(one).status_code == 204


def test_provider_changes_by_api_key_are_403(stage: Stage) -> None:
    made = stage.oauth(stage.cast.alice)
    key = stage.cast.alice.post("api-keys", {"name": "k"}).json["key"]
    program = Caller(stage.app, **{"X-API-Key": key})
    one = f"{PATH}/{made['id']}"
    github = body("auth", "github", **stage.provider.config())
    for answer in (
        program.post(PATH, github),
        program.patch(one, {"enabled": False}),
        program.delete(one),
        program.post(f"{PATH}/test-connection", github),
        program.patch("account", {"name": "Acme", "sso_allow_admin": True}),
        program.put("account", {"sso_group_roles": [{"group": "Staff", "role": "editor"}]}),
    ):
        assert answer.status_code == 403
    assert program.get(one).status_code == 200
    assert program.patch("account", {"name": "Acme"}).status_code == 200


def test_provider_settings_visible_to_superadmin_api_key(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    stage.oauth(stage.cast.root)
    key = stage.cast.root.post("api-keys", {"name": "k"}).json["key"]
    program = Caller(stage.app, **{"X-API-Key": key})
    for query in ("", "?account_id=system"):
        assert program.get(f"{PATH}{query}").json["total"] == 1
    for account in ("acme", stage.cast.alice.account_id, "nobody"):
        assert program.get(f"{PATH}?account_id={account}").status_code == 403
    assert stage.cast.root.get(f"{PATH}?account_id=acme").json["total"] == 1


WRONG: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "nothing": (
        body("auth", "google"),
        {"config.client_id": "required", "config.client_secret": "required"},
    ),
    "unknown": (
        body("auth", "google", client_id="x", client_secret="y", evil=1),
        {"config.evil": "unknown_field"},
    ),
    "the mask of a secret that nobody has sent": (
        body("auth", "google", client_id="x", client_secret="***"),
        {"config.client_secret": "invalid_option"},
    ),
    "everything at once": (
        body(
            "auth",
            "google",
            client_id=7,
            client_secret="y",
            token_url="ftp://x",
            jwks_url="https://u:p@x.example/",
            default_role="admin",
            scopes={"a": 1},
            allowed_redirect_uris=["//evil"],
        ),
        {
            "config.client_id": "invalid_type",
            "config.token_url": "invalid_url",
            "config.jwks_url": "invalid_url",
            "config.default_role": "invalid_option",
            "config.scopes": "invalid_type",
            "config.allowed_redirect_uris": "invalid_url",
        },
    ),
    "no such role": (
        body("auth", "google", client_id="x", client_secret="y", default_role="nobody"),
        {"config.default_role": "invalid_reference"},
    ),
    "a key of another kind": (
        body("auth", "apple", client_id="x", team_id="T", key_id="K", private_key="no key"),
        {"config.private_key": "pattern_mismatch"},
    ),
    "a provider of the other category": (
        body("auth", "okta"),
        {"provider_name": "invalid_option"},
    ),
    "no certificate": (
        body("saml", "okta", idp_entity_id="e", idp_sso_url="https://x.example", idp_x509_cert="x"),
        {"config.idp_x509_cert": "pattern_mismatch"},
    ),
    "no metadata": (
        body("saml", "okta", idp_metadata="<a/>"),
        {
            "config.idp_metadata": "pattern_mismatch",
            "config.idp_entity_id": "required",
            "config.idp_sso_url": "required",
            "config.idp_x509_cert": "required",
        },
    ),
}


def test_provider_setting_problems_are_reported_at_once(stage: Stage) -> None:
    for name, (wrong, expected) in WRONG.items():
        assert fields(stage.cast.alice.post(PATH, wrong)) == expected, name
    # Bombs, and what no XML parser should see.
    for bomb in (
        "<!DOCTYPE x [<!ENTITY a 'b'>]><a>&a;</a>",
        "<a",
        "<!<!-- x -->DOCTYPE x><a/>",
        "<<!-- x -->?x ?><a/>",
        f"<!-- x -- x -->{saml_idp.metadata()}",
        f"<!--{saml_idp.metadata()}",
        "<?xml version='1.0' encoding='UTF-16'?><a/>",
        saml_idp.metadata().replace("https://idp.example/sso", "javascript:alert(1)"),
        "<a>" * 10_000,
    ):
        found = fields(stage.cast.alice.post(PATH, body("saml", "okta", idp_metadata=bomb)))
        assert found["config.idp_metadata"] == "pattern_mismatch"
    assert stage.cast.alice.get(PATH).json["total"] == 0
    assert stage.cast.alice.post(PATH, {"category": "x"}).status_code == 422


@pytest.mark.parametrize("name", [" ", "\u200b", "Goo\ngle", "\u202e\t"])
def test_provider_display_name_with_unreadable_text_is_name_invalid(
    stage: Stage, name: str
) -> None:
    alice, made = stage.cast.alice, stage.oauth(stage.cast.alice)
    new = body("saml", "okta") | {"display_name": name}
    assert fields(alice.post(PATH, new))["display_name"] == "name_invalid"
    for also in ({}, {"config": {"client_id": 7}}):
        found = fields(alice.patch(f"{PATH}/{made['id']}", {"display_name": name, **also}))
        assert found.pop("display_name") == "name_invalid"
        assert len(found) == len(also)
    assert alice.get(f"{PATH}/{made['id']}").json["display_name"] == "Google"


def test_provider_settings_of_account_by_id_for_superadmin(stage: Stage) -> None:
    root = stage.cast.root
    config = stage.provider.config()
    made = root.post(PATH, {**body("auth", "google", **config), "account_id": "acme"}).json
    one = f"{PATH}/{made['id']}"
    assert root.get(one).json["account_id"] == stage.cast.alice.account_id
    assert root.get(f"{one}/values").json["client_secret"] == "***"
    changed = root.patch(one, {"display_name": "Ours"}).json
    assert (changed["display_name"], changed["is_system"]) == ("Ours", False)
    assert root.patch(f"{one}/values", {"default_role": "editor"}).status_code == 200
    # Another account that is named is another account, and all of them are none.
    assert root.acting_in("acme").get(one).status_code == 200
    assert root.acting_in("globex").get(one).status_code == 404
    assert root.acting_in("*").patch(one, {"priority": 1}).status_code == 400
    # Nobody else finds a row so, nor does a superadmin's key, nor the page of another account.
    secret = root.post("api-keys", {"name": "key"}).json["key"]
    key = Caller(stage.app, Authorization=f"Bearer {secret}")
    for stranger in (stage.cast.charlie, key):
        assert stranger.get(one).status_code == 404
    assert stage.cast.charlie.delete(one).status_code == 404
    page = f"sso/{root.account_id}/{made['id']}"
    assert Browser(stage.app, root).get(page).status_code == 404
    assert root.delete(one).status_code == 204
    assert stage.cast.alice.get(one).status_code == 404


def test_provider_that_is_disabled_may_be_incomplete(stage: Stage) -> None:
    alice = stage.cast.alice
    for category, name in (("auth", "google"), ("auth", "apple"), ("saml", "okta")):
        draft = {**body(category, name), "enabled": False}
        made = alice.post(PATH, draft).json
        one = f"{PATH}/{made['id']}"
        # What is said must still be right, and nobody signs in by it.
        assert fields(alice.patch(f"{one}/values", {"nothing": 1})) == {
            "config.nothing": "unknown_field"
        }
        start = f"/{'saml/okta/sso' if category == 'saml' else f'oauth/{name}/authorize'}"
        assert stage.browser().get(f"{start}?account=acme").status_code == 404
        assert alice.post(f"{PATH}/test-connection", body(category, name)).status_code == 400
        page = Browser(stage.app, alice).get(f"sso/{alice.account_id}/{made['id']}/test")
        assert page.status_code == 404
        missing = fields(alice.patch(one, {"enabled": True}))
        assert set(missing.values()) == {"required"}
        assert fields(alice.patch(one, {"enabled": True, "config": {}})) == missing
    alice.patch(f"{one}/values", saml_idp.config())
    assert alice.patch(one, {"enabled": True}).status_code == 200
    assert stage.traded(stage.assert_in())["isNewUser"] is True
    assert fields(alice.patch(f"{one}/values", {"idp_x509_cert": None})) == {
        "config.idp_x509_cert": "required"
    }


def test_saml_metadata_is_available_before_provider_is_complete(stage: Stage) -> None:
    alice, path = stage.cast.alice, "auth/saml/metadata?account=acme&provider=okta"
    assert stage.anyone.get(path).status_code == 404
    console = Browser(stage.app, alice)
    new = f"sso/{alice.account_id}/new/saml_providers/okta"
    assert "Okta is set up." in console.done(new, display_name="Okta")
    metadata = stage.anyone.get(path)
    assert (metadata.status_code, metadata.mimetype) == (200, "application/samlmetadata+xml")
    for told in ("http://atrium.test/saml/okta?account=acme", "/saml/okta/acs?account=acme"):
        assert told in metadata.text
    (row,) = alice.get(PATH).json["items"]
    alice.patch(f"{PATH}/{row['id']}", {"config": saml_idp.config(), "enabled": True})
    assert stage.anyone.get(path).data == metadata.data
    # The system's row has it for every account.
    system = {**body("saml", "generic"), "enabled": False}
    assert stage.cast.root.post(PATH, system).status_code == 201
    theirs = stage.anyone.get("auth/saml/metadata?account=globex&provider=generic")
    assert "http://atrium.test/saml/generic?account=globex" in theirs.text
    assert stage.anyone.get("auth/saml/metadata?account=nobody&provider=okta").status_code == 404


BEGIN = "-----BEGIN CERTIFICATE-----"
ENDLESS: dict[str, tuple[Any, str]] = {
    "one that begins again and again": (BEGIN * 1800, "pattern_mismatch"),
    "ten of them": ([BEGIN * 1814] * 10, "too_long"),
    "base64 between": ((BEGIN + "A" * 100) * 390, "pattern_mismatch"),
    "too long": (BEGIN * 2000, "too_long"),
    "too many": ([saml_idp.pair("idp")[1]] * 11, "too_long"),
    "too many in one": (saml_idp.pair("idp")[1] * 11, "pattern_mismatch"),
    "long without a frame": (["A" * 60_000], "too_long"),
}


def test_provider_certificates_of_endless_size_are_refused_quickly(stage: Stage) -> None:
    alice = stage.cast.alice
    console = Browser(stage.app, alice)
    form = f"sso/{alice.account_id}/new/saml_providers/okta"
    for name, (given, code) in ENDLESS.items():
        wrong = body("saml", "okta", **saml_idp.config(idp_x509_cert=given))
        text = given if isinstance(given, str) else "\n".join(given)
        began = time.process_time()
        for path in (PATH, f"{PATH}/test-connection"):
            assert fields(alice.post(path, wrong)) == {"config.idp_x509_cert": code}, name
        page = console.send(form, display_name="Okta", **saml_idp.config(idp_x509_cert=text))
        assert page.status_code == 400, name
        assert time.process_time() - began < 1, name
    # What an admin has to know stands in the message.
    wrong = body("saml", "okta", **saml_idp.config(idp_x509_cert=["A"] * 11))
    (told,) = alice.post(PATH, wrong).json["details"]
    assert told["message"] == "At most 10 certificates of 50,000 characters in total."


def test_provider_metadata_demanding_signed_requests_forbids_unsigned(stage: Stage) -> None:
    alice = stage.cast.alice
    for demand, refused in (("true", True), ("1", True), ("false", False)):
        demanding = saml_idp.metadata().replace(
            "<md:IDPSSODescriptor", f'<md:IDPSSODescriptor WantAuthnRequestsSigned="{demand}"'
        )
        unsigned = body("saml", "okta", idp_metadata=demanding, sign_requests=False)
        answer = alice.post(f"{PATH}/test-connection", unsigned)
        assert answer.status_code == (400 if refused else 200)
        if refused:
            assert fields(answer) == {"config.sign_requests": "invalid_option"}
            assert "WantAuthnRequestsSigned" in answer.json["details"][0]["message"]
    assert alice.post(PATH, body("saml", "okta", idp_metadata=demanding)).status_code == 201


@pytest.mark.parametrize("until", ["2020-01-01T00:00:00Z", "soon"])
def test_provider_metadata_that_expired_is_pattern_mismatch(stage: Stage, until: str) -> None:
    expired = saml_idp.metadata().replace("entityID", f'validUntil="{until}" entityID')
    answer = stage.cast.alice.post(PATH, body("saml", "okta", idp_metadata=expired))
    assert fields(answer)["config.idp_metadata"] == "pattern_mismatch"


def test_provider_name_id_format_outside_list_is_invalid_option(stage: Stage) -> None:
    wrong = body("saml", "okta", **saml_idp.config(name_id_format="transient"))
    answer = stage.cast.alice.post(PATH, wrong)
    assert fields(answer) == {"config.name_id_format": "invalid_option"}


def test_provider_schemas_are_published(stage: Stage) -> None:
    alice = stage.cast.alice
    listed = alice.get(f"{PATH}/providers").json
    assert listed["total"] == len(PROVIDERS) == 8
    for one in listed["items"]:
        schema = alice.get(f"{PATH}/schema/{one['category']}/{one['provider_name']}").json
        Draft202012Validator.check_schema(schema)
        assert schema["additionalProperties"] is False
    google = alice.get(f"{PATH}/schema/auth_providers/google").json
    assert google["properties"]["client_secret"]["writeOnly"]
    Draft202012Validator(google).validate(stage.provider.config())
    saml = alice.get(f"{PATH}/schema/saml_providers/generic_saml").json
    Draft202012Validator(saml).validate(saml_idp.config())
    assert not Draft202012Validator(saml).is_valid({"idp_entity_id": "x"})
    assert alice.get(f"{PATH}/schema/saml_providers/google").status_code == 404
    assert stage.cast.bob.get(f"{PATH}/schema/auth_providers/google").status_code == 403


def test_provider_test_connection_reports_each_step(stage: Stage) -> None:
    path, alice = f"{PATH}/test-connection", stage.cast.alice
    good = body("auth", "google", **stage.provider.config())
    answer = alice.post(path, good)
    assert answer.json["success"], answer.json
    assert [step["check"] for step in answer.json["details"]] == ["key set", "client"]
    for changed in (
        {"client_id": "another"},
        {"jwks_url": f"{stage.provider.url}/nothing"},
        {"token_url": "http://127.0.0.1:9/"},
    ):
        bad = {**good, "config": {**good["config"], **changed}}
        found = alice.post(path, bad)
        assert (found.status_code, found.json["success"]) == (200, False), changed
    for keys in (5, {}, "x", [5], [{"kty": "RSA"}], None):
        stage.provider.answers["/keys/odd"] = {"keys": keys}
        config = {**good["config"], "jwks_url": f"{stage.provider.url}/keys/odd"}
        found = alice.post(path, {**good, "config": config})
        assert (found.status_code, found.json["success"]) == (200, False), keys
    saml = body("saml", "okta", **saml_idp.config(idp_sso_url=f"{stage.provider.url}/user"))
    assert alice.post(path, saml).json["success"]


def test_provider_private_addresses_in_production_are_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.changed(monkeypatch, webhook_allow_private=False)
    for address in ("http://127.0.0.1:9/", "https://[::1]/", "https://10.1.1.1/"):
        config = stage.provider.config(token_url=address)
        answer = stage.cast.alice.post(PATH, body("auth", "google", **config))
        assert {"config.token_url", "config.jwks_url"} <= set(fields(answer))


def test_provider_settings_are_deleted_with_account(stage: Stage, app: Flask) -> None:
    stage.oauth(stage.cast.charlie)
    stage.traded(stage.sign_in(account="globex"))
    assert stage.cast.root.delete(f"accounts/{stage.cast.charlie.account_id}").status_code == 204
    with app.app_context():
        assert db.db.session.query(ProviderSetting).count() == 0
        worker.run_due()


def test_provider_settings_by_paths_of_published_client(stage: Stage) -> None:
    alice, charlie, root = stage.cast.alice, stage.cast.charlie, stage.cast.root
    own = stage.oauth(alice)
    usual = {"client_id": openid.CLIENT, "client_secret": openid.SECRET}
    system = root.post(PATH, body("auth", "github", **usual)).json
    assert (own["status"], own["is_builtin"], own["is_default"]) == ("created", True, False)
    assert root.get(f"{PATH}/stats").json == {
        "system_configs": {"total": 1, "by_category": {"auth_providers": 1, "saml_providers": 0}},
        "account_configs": {"total": 1, "by_category": {"auth_providers": 1, "saml_providers": 0}},
    }
    for query, by, listed in (
        ("recent", root, [system["id"], own["id"]]),
        ("recent?limit=1", root, [system["id"]]),
        ("system", root, [system["id"]]),
        ("system?category=saml_providers", root, []),
        (f"account?account_id={alice.account_id}", root, [own["id"]]),
        ("account", alice, [own["id"]]),
        ("account?account_id=acme&category=auth_providers", alice, [own["id"]]),
        ("account?category=saml_providers", alice, []),
        ("account", charlie, []),
    ):
        answer = by.get(f"{PATH}/{query}")
        assert [one["id"] for one in answer.json] == listed, query
        assert openid.SECRET not in answer.text
    for query in ("stats", "recent", "system", f"account?account_id={alice.account_id}"):
        assert charlie.get(f"{PATH}/{query}").status_code == 403
    kinds = alice.get(f"{PATH}/providers?category=saml_providers").json["items"]
    assert {one["category"] for one in kinds} == {"saml_providers"}
    # The id is enough for superadmins.
    changed = root.patch(f"{PATH}/{own['id']}", {"enabled": False}).json
    assert (changed["status"], changed["enabled"]) == ("updated", False)
