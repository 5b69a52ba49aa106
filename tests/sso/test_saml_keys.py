"""The key pair of an account: signed requests, encrypted assertions, rollover, isolation."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from cryptography import x509
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from onelogin.saml2.utils import OneLogin_Saml2_Utils
from onelogin.saml2.xml_utils import OneLogin_Saml2_XML

from app import db
from app.sso.models import SamlKey
from app.sso.saml import certificates, redirect_binding
from tests.parallel import at_once
from tests.sso import saml_idp
from tests.sso.flows import Stage
from tests.sso.saml_encryption import CBC_MODE, GCM, OAEP, OAEP_SHA1, Encrypt

PATH = "account/sso/keys"


def keys(stage: Stage) -> list[dict[str, Any]]:
    answer = stage.cast.alice.get(PATH)
    assert answer.status_code == 200, answer.json
    items: list[dict[str, Any]] = answer.json["items"]
    return items


def signed_request(stage: Stage) -> str:
    """The query of a request, as the identity provider gets it."""
    answer = stage.browser().get("/saml/okta/sso?account=acme")
    return str(answer.headers["Location"].partition("?")[2])


def test_saml_requests_are_signed_by_active_key(stage: Stage) -> None:
    row = stage.saml(stage.cast.alice)
    query = signed_request(stage)
    (certificate,) = stage.certificates("signing")
    message = redirect_binding.read(query, redirect_binding.REQUEST, [certificate])
    root = OneLogin_Saml2_XML.to_etree(message.xml)
    (policy,) = root.xpath("//samlp:NameIDPolicy", namespaces=saml_idp.NAMESPACES)
    assert policy.get("Format").endswith(":2.0:nameid-format:persistent")
    assert policy.get("AllowCreate") == "true"
    unsigned = {"config": {"sign_requests": False, "name_id_format": "emailAddress"}}
    stage.cast.alice.patch(f"admin/configuration/{row['id']}", unsigned)
    assert "Signature" not in signed_request(stage)
    metadata = stage.metadata()
    (descriptor,) = metadata.xpath("//md:SPSSODescriptor", namespaces=saml_idp.NAMESPACES)
    assert descriptor.get("AuthnRequestsSigned") == "false"
    formats = metadata.xpath("//md:NameIDFormat/text()", namespaces=saml_idp.NAMESPACES)
    assert [one.rpartition(":")[2] for one in formats] == ["emailAddress", "persistent"]


def test_saml_metadata_is_valid_by_schema(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    found = OneLogin_Saml2_XML.validate_xml(stage.metadata(), "saml-schema-metadata-2.0.xsd")
    assert not isinstance(found, str), found


WAYS = itertools.product((GCM, CBC_MODE), (OAEP_SHA1, OAEP), (False, True), ("assertion", "both"))


@pytest.mark.long
def test_saml_encrypted_assertion_is_decrypted(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    (certificate,) = stage.certificates()
    for content, transport, sha256, sign in WAYS:
        encrypt = Encrypt(certificate, content, transport, sha256, beside=sha256)
        answer = stage.assert_in(encrypt=encrypt, sign=sign)
        assert answer.status_code == 302, (content, transport, stage.last_refusal())
        assert stage.traded(answer)["user"]["email"] == "dora@acme.example"


def test_saml_key_rollover_keeps_sign_in_working(stage: Stage) -> None:
    alice = stage.cast.alice
    stage.saml(alice)
    (old,) = stage.certificates()
    made = alice.post(PATH)
    assert (made.status_code, made.json["is_active"]) == (201, False)
    new = made.json["certificate"]
    assert stage.certificates() == stage.certificates("signing") == [old, new]
    assert alice.post(PATH).status_code == 409

    def works(certificate: str) -> bool:
        return stage.assert_in(encrypt=Encrypt(certificate)).status_code == 302

    def signs(certificate: str) -> bool:
        try:
            redirect_binding.read(signed_request(stage), redirect_binding.REQUEST, [certificate])
        except redirect_binding.SignInRefused:
            return False
        return True

    assert (works(old), works(new), signs(old), signs(new)) == (True, True, True, False)
    assert alice.post(f"{PATH}/{made.json['id']}/activate").json["is_active"] is True
    assert (works(old), works(new), signs(old), signs(new)) == (True, True, False, True)
    first = next(one for one in keys(stage) if not one["is_active"])
    assert alice.delete(f"{PATH}/{made.json['id']}").status_code == 409
    assert alice.delete(f"{PATH}/{first['id']}").status_code == 204
    assert (works(old), works(new)) == (False, True)
    assert stage.certificates() == [new]


def test_saml_concurrent_first_sign_ins_create_one_key(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    answers = at_once(4, lambda n: stage.app.test_client().get("/saml/okta/sso?account=acme"))
    assert {answer.status_code for answer in answers} == {302}
    assert len(keys(stage)) == 1


def test_saml_private_key_is_never_shown(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    stage.metadata()
    (key,) = keys(stage)
    assert set(key) == {
        *("id", "is_active", "certificate", "fingerprint", "expires_at", "created_at")
    }
    assert key["fingerprint"] == certificates.fingerprint(key["certificate"])
    entries = stage.cast.root.get("audit-logs?limit=500").json["items"]
    values = {e["column_name"]: e["new_value"] for e in entries if e["table_name"] == "saml_keys"}
    assert values["private_key"] == "***"
    with stage.app.app_context():
        stored = db.db.session.query(SamlKey).one()
        assert "PRIVATE" not in stored.private_key
    parsed = x509.load_pem_x509_certificate(
        OneLogin_Saml2_Utils.format_cert(key["certificate"]).encode()
    )
    public = parsed.public_key()
    assert isinstance(public, RSAPublicKey)
    assert public.key_size == 3072


def test_saml_keys_access_per_account_and_role(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    stage.metadata()
    (key,) = keys(stage)
    assert stage.cast.bob.get(PATH).status_code == 403
    assert stage.cast.charlie.get(PATH).json["items"] == []
    for answer in (
        stage.cast.charlie.delete(f"{PATH}/{key['id']}"),
        stage.cast.charlie.post(f"{PATH}/{key['id']}/activate"),
    ):
        assert answer.status_code == 404


def test_saml_unreadable_key_is_replaced(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.saml(stage.cast.alice)
    (old,) = stage.certificates()
    stage.changed(monkeypatch, encryption_key=(Fernet.generate_key().decode(),))
    refused = stage.browser().get("/saml/okta/sso?account=acme")
    assert (refused.status_code, "cannot be read" in refused.json["message"]) == (404, True)
    (key,) = keys(stage)
    assert stage.cast.alice.delete(f"{PATH}/{key['id']}").status_code == 204
    assert stage.certificates() != [old]
