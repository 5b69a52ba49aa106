"""What an attacker posts to the assertion consumer: refused, told to the admins, no user made."""

from __future__ import annotations

import base64
import copy
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from lxml import etree

from app.sso.saml import certificates
from tests.parallel import at_once
from tests.sso import saml_idp
from tests.sso.flows import Stage
from tests.sso.saml_encryption import ASSERTION, PKCS1, XENC, XENC_1_1, Encrypt
from tests.sso.saml_idp import Asked, Response

EVIL = "evil@acme.example"
SAML = "{urn:oasis:names:tc:SAML:2.0:assertion}"
SAMLP = "{urn:oasis:names:tc:SAML:2.0:protocol}"
DS = "{http://www.w3.org/2000/09/xmldsig#}"

RESTRICTION = "<saml:AudienceRestriction>{}</saml:AudienceRestriction>"
UNREADABLE = (
    "zzz",
    "99999999-01-01T00:00:00Z",
    "10000-01-01T00:00:00Z",
    "2027-01-01T00:00:00+00:00",
)
UNTIMED: dict[str, tuple[dict[str, Any], str]] = {
    f"{place} at {text}": ({"times": {place: f'{name}="{text}"'}}, "time")
    for place, name in {
        "confirmed": "NotOnOrAfter",
        "begins": "NotBefore",
        "ends": "NotOnOrAfter",
        "session": "SessionNotOnOrAfter",
    }.items()
    for text in UNREADABLE
}
SPOILED: dict[str, tuple[dict[str, Any], str]] = {
    "unsigned": ({"sign": "nothing"}, "signature"),
    "only the response signed": ({"sign": "response"}, "signature"),
    "signed by somebody else": ({"key": "evil"}, "signature"),
    "SHA-1": ({"sha1": True}, "algorithm"),
    "wrong audience": ({"audience": "https://evil.example"}, "audience"),
    "another account's audience": (
        {"audience": "http://atrium.test/saml/okta?account=globex"},
        "audience",
    ),
    "wrong recipient": ({"recipient": "https://evil.example/acs"}, "recipient"),
    "recipient that begins alike": (
        {"recipient": "http://atrium.test/saml/okta/acs?account=acme2"},
        "recipient",
    ),
    "another account's recipient": (
        {"recipient": "http://atrium.test/saml/okta/acs?account=globex"},
        "recipient",
    ),
    "wrong destination": ({"destination": "https://evil.example/acs"}, "destination"),
    "another account's destination": (
        {"destination": "http://atrium.test/saml/okta/acs?account=globex"},
        "destination",
    ),
    "wrong issuer": ({"issuer": "https://evil.example"}, "issuer"),
    "expired": ({"begins": -1200, "ends": -600}, "time"),
    "not yet valid": ({"begins": 1200, "ends": 1800}, "time"),
    "answer to another request": ({"in_response_to": "_another"}, "InResponseTo"),
    "answer to no request": ({"in_response_to": None}, "InResponseTo"),
    "confirmation of another request": ({"confirmed_to": "_another"}, "InResponseTo"),
    "confirmation of no request": ({"confirmed_to": None}, "InResponseTo"),
    "confirmation that is over": ({"confirmed_for": -60}, "time"),
    "over for a minute": ({"begins": -600, "ends": -61, "confirmed_for": 300}, "time"),
    "valid in more than a minute": ({"begins": 75}, "time"),
    "a session that is over": (
        {"times": {"session": f'SessionNotOnOrAfter="{saml_idp.moment(-600)}"'}},
        "time",
    ),
    "a second audience restriction for somebody else": (
        {"conditions": RESTRICTION.format("<saml:Audience>https://evil.example</saml:Audience>")},
        "audience",
    ),
    "a second audience restriction for nobody": (
        {"conditions": RESTRICTION.format("")},
        "document",
    ),
    "failed there": ({"status": "urn:oasis:names:tc:SAML:2.0:status:Responder"}, "status"),
    "empty NameID": ({"subject": ""}, "subject"),
    "transient NameID": (
        {"format": "urn:oasis:names:tc:SAML:2.0:nameid-format:transient"},
        "subject",
    ),
    **UNTIMED,
}


@pytest.mark.long
@pytest.mark.parametrize("encrypted", [False, True])
def test_saml_response_that_is_invalid_is_sign_in_refused(stage: Stage, encrypted: bool) -> None:
    stage.saml(stage.cast.alice)
    before = stage.users()
    encrypt = Encrypt(stage.certificates()[0]) if encrypted else None
    for name, (changes, check) in SPOILED.items():
        browser = stage.browser()
        request = stage.begin_saml(browser)
        response = saml_idp.answer(request, encrypt=encrypt, **changes)
        answer = stage.post(browser, response.encoded(), request.relay_state)
        assert (answer.status_code, answer.json["error"]) == (401, "sign_in_refused"), name
        assert stage.last_refusal()[0] == check, (name, stage.last_refusal())
        assert stage.users() == before


def tree(response: Response) -> Any:
    """A valid response as elements."""
    return etree.fromstring(response.xml().encode())


def text(root: Any) -> bytes:
    return etree.tostring(root)


def forged_from(assertion: Any) -> Any:
    """A copy that says somebody else, under another id and without a signature."""
    forged = copy.deepcopy(assertion)
    forged.set("ID", "_forged")
    for signature in forged.findall(f"{DS}Signature"):
        forged.remove(signature)
    forged.find(f"{SAML}Subject/{SAML}NameID").text = EVIL
    return forged


def wrapped_before(response: Response) -> bytes:
    root = tree(response)
    assertion = root.find(f"{SAML}Assertion")
    root.insert(root.index(assertion), forged_from(assertion))
    return text(root)


def wrapped_after(response: Response) -> bytes:
    root = tree(response)
    root.append(forged_from(root.find(f"{SAML}Assertion")))
    return text(root)


def wrapped_inside(response: Response) -> bytes:
    root = tree(response)
    signed = root.find(f"{SAML}Assertion")
    forged = forged_from(signed)
    root.replace(signed, forged)
    forged.append(signed)
    return text(root)


def wrapped_in_the_signature(response: Response) -> bytes:
    root = tree(response)
    signed = root.find(f"{SAML}Assertion")
    forged = forged_from(signed)
    signature = copy.deepcopy(signed.find(f"{DS}Signature"))
    etree.SubElement(signature, f"{DS}Object").append(copy.deepcopy(signed))
    forged.insert(1, signature)
    root.replace(signed, forged)
    return text(root)


def wrapped_in_extensions(response: Response) -> bytes:
    root = tree(response)
    signed = root.find(f"{SAML}Assertion")
    forged = forged_from(signed)
    root.replace(signed, forged)
    extensions = etree.Element(f"{SAMLP}Extensions")
    extensions.append(signed)
    root.insert(1, extensions)
    return text(root)


def wrapped_under_the_same_id(response: Response) -> bytes:
    root = tree(response)
    signed = root.find(f"{SAML}Assertion")
    forged = forged_from(signed)
    forged.set("ID", signed.get("ID"))
    root.insert(root.index(signed), forged)
    return text(root)


def wrapped_response(response: Response) -> bytes:
    response.sign = "response"
    root = tree(response)
    forged = copy.deepcopy(root)
    forged.set("ID", "_forged")
    forged.find(f"{SAML}Assertion/{SAML}Subject/{SAML}NameID").text = EVIL
    forged.find(f"{DS}Signature").append(etree.fromstring(f"<x xmlns='{DS[1:-1]}'/>"))
    forged.find(f"{DS}Signature")[-1].append(root)
    return text(forged)


def commented(response: Response) -> bytes:
    response.subject = f"{EVIL}.attacker.example"
    return response.xml().replace(f"{EVIL}.attacker", f"{EVIL}<!-- -->.attacker").encode()


def cut_by_cdata(response: Response) -> bytes:
    return response.xml().replace("dora@", "<![CDATA[evil]]>@").encode()


def tampered(response: Response) -> bytes:
    return response.xml().replace("dora@", "evil@").encode()


def with_entities(response: Response) -> bytes:
    bomb = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    kind = f'<!DOCTYPE x [<!ENTITY a0 "lol">{bomb}]>'
    return (kind + response.xml().replace("dora", "&a9;")).encode()


def with_an_external_entity(response: Response) -> bytes:
    kind = '<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]>'
    return (kind + response.xml().replace("dora", "&f;")).encode()


def with_an_external_type(response: Response) -> bytes:
    return ('<!DOCTYPE x SYSTEM "http://127.0.0.1:1/x.dtd">' + response.xml()).encode()


def hidden_in_utf_16(response: Response) -> bytes:
    return ('<?xml version="1.0" encoding="UTF-16"?>' + response.xml()).encode("utf-16")


def hidden_in_utf_7(response: Response) -> bytes:
    return ('<?xml version="1.0" encoding="UTF-7"?>' + response.xml()).encode()


def with_an_instruction(response: Response) -> bytes:
    return response.xml().replace("dora", "do<?x y?>ra").encode()


def deep(response: Response) -> bytes:
    return ("<a>" * 5000 + "</a>" * 5000).encode()


def without_an_end(response: Response) -> bytes:
    return response.xml().replace(" NotOnOrAfter=", " Nothing=").encode()


def to_nowhere(response: Response) -> bytes:
    root = tree(response)
    del root.attrib["Destination"]
    return text(root)


DOCUMENTS: dict[str, Callable[[Response], bytes]] = {
    one.__name__: one
    for one in (
        *(wrapped_before, wrapped_after, wrapped_inside, wrapped_in_the_signature),
        *(wrapped_in_extensions, wrapped_under_the_same_id, wrapped_response),
        *(commented, cut_by_cdata, tampered, with_entities, with_an_external_entity),
        *(with_an_external_type, hidden_in_utf_16, hidden_in_utf_7, with_an_instruction),
        *(deep, without_an_end, to_nowhere),
    )
}


def test_saml_response_with_manipulated_xml_is_sign_in_refused(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    before = stage.users()
    browser = stage.browser()
    request = stage.begin_saml(browser)
    good = text(tree(saml_idp.answer(request, subject=stage.cast.bob.email)))
    accepted = stage.post(browser, base64.b64encode(good).decode(), request.relay_state)
    assert accepted.status_code == 302  # so it is what was done to the others
    for name, meddle in DOCUMENTS.items():
        browser = stage.browser()
        request = stage.begin_saml(browser)
        document = base64.b64encode(meddle(saml_idp.answer(request))).decode()
        began = time.process_time()
        answer = stage.post(browser, document, request.relay_state)
        assert (answer.status_code, answer.json["error"]) == (401, "sign_in_refused"), name
        assert time.process_time() - began < 2, name
        found = stage.last_refusal()[0]
        other = {"without_an_end": "time", "to_nowhere": "destination"}.get(name)
        assert found == other if other else found in ("document", "signature"), (name, found)
        assert stage.users() == before


def test_saml_response_with_manipulated_encrypted_xml_is_sign_in_refused(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    before = stage.users()
    encrypt = Encrypt(stage.certificates()[0])
    meddlers = {n: one for n, one in DOCUMENTS.items() if not n.startswith(("hidden", "deep"))}
    for name, meddle in meddlers.items():
        browser = stage.browser()
        request = stage.begin_saml(browser)
        document = encrypt(meddle(saml_idp.answer(request)).decode())
        assert "dora@" not in document, name
        posted = base64.b64encode(document.encode()).decode()
        answer = stage.post(browser, posted, request.relay_state)
        assert (answer.status_code, answer.json["error"]) == (401, "sign_in_refused"), name
        assert stage.users() == before


def encrypted_twice(stage: Stage, response: Response) -> str:
    return encrypted_doc(stage, response).replace("</samlp:Response>", "") + (
        f"{Encrypt(stage.certificates()[0]).element(b'<a/>')}</samlp:Response>"
    )


def encrypted_doc(stage: Stage, response: Response) -> str:
    return Encrypt(stage.certificates()[0])(response.xml())


def beside_a_plain_one(stage: Stage, response: Response) -> str:
    plain = response.xml()
    found = ASSERTION.search(plain)
    assert found
    return encrypted_doc(stage, response).replace(
        "</samlp:Response>", f"{found[0]}</samlp:Response>"
    )


def in_extensions(stage: Stage, response: Response) -> str:
    text = encrypted_doc(stage, response)
    return text.replace(
        "<saml:EncryptedAssertion>", "<samlp:Extensions><saml:EncryptedAssertion>"
    ).replace("</saml:EncryptedAssertion>", "</saml:EncryptedAssertion></samlp:Extensions>")


def by_reference(stage: Stage, response: Response) -> str:
    text = encrypted_doc(stage, response)
    reference = '<xenc:CipherReference URI="http://127.0.0.1:1/"/>'
    return re.sub("<xenc:CipherValue>.*?</xenc:CipherValue>", reference, text)


def no_assertion_inside(stage: Stage, response: Response) -> str:
    element = Encrypt(stage.certificates()[0]).element(b"<a/>")
    return ASSERTION.sub(lambda found: element, response.xml())


def without_content(stage: Stage, response: Response) -> str:
    empty = "<saml:EncryptedAssertion></saml:EncryptedAssertion>"
    return ASSERTION.sub(empty, response.xml())


def signed_as_encrypted_by_another(stage: Stage, response: Response) -> str:
    response.encrypt = Encrypt(stage.certificates()[0])
    response.sign = "both"
    text = response.xml()
    return text.replace("<saml:Issuer>", "<saml:Issuer> ", 1)


ENCRYPTED: dict[str, tuple[Callable[[Stage, Response], str], str]] = {
    "twice": (encrypted_twice, "one encrypted assertion"),
    "beside a plain one": (beside_a_plain_one, "one encrypted assertion"),
    "elsewhere": (in_extensions, "one encrypted assertion"),
    "by reference": (by_reference, "ciphertext"),
    "something else": (no_assertion_inside, "not an assertion"),
    "nothing": (without_content, "one encrypted assertion"),
    "changed": (signed_as_encrypted_by_another, "signature of the response"),
}
KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "for another": ({"certificate": ""}, "encrypted for another key"),
    "RSA 1.5": ({"transport": PKCS1}, f"Unsupported algorithm {PKCS1}"),
    "another cipher": ({"content": f"{XENC}tripledes-cbc"}, "Unsupported algorithm"),
    "another length": ({"content": f"{XENC_1_1}aes128-gcm"}, "encrypted for another key"),
}


def test_saml_decryption_failure_is_reported_to_admins(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    before, ours = stage.users(), stage.certificates()[0]
    other = "".join(saml_idp.pair("evil")[1].splitlines()[1:-1])
    builders = {name: (build, part) for name, (build, part) in ENCRYPTED.items()}
    for name, (values, part) in KEYS.items():
        encrypt = Encrypt(**{"certificate": ours, **values})
        encrypt.certificate = encrypt.certificate or other
        builders[name] = (partial(_encrypted_by, encrypt), part)
    for name, (build, part) in builders.items():
        browser = stage.browser()
        request = stage.begin_saml(browser)
        document = build(stage, saml_idp.answer(request))
        posted = base64.b64encode(document.encode()).decode()
        answer = stage.post(browser, posted, request.relay_state)
        assert (answer.status_code, answer.json["error"]) == (401, "sign_in_refused"), name
        check, detail = stage.last_refusal()
        assert part in detail, (name, detail)
        assert check == ("signature" if name == "changed" else "encryption"), (name, detail)
        assert stage.users() == before


def _encrypted_by(encrypt: Encrypt, stage: Stage, response: Response) -> str:
    return encrypt(response.xml())


@pytest.mark.parametrize("what", ["EncryptedID", "EncryptedAttribute"])
def test_saml_encrypted_id_or_attribute_is_sign_in_refused(stage: Stage, what: str) -> None:
    stage.saml(stage.cast.alice)
    browser = stage.browser()
    request = stage.begin_saml(browser)
    hidden = '<xenc:EncryptedData xmlns:xenc="http://www.w3.org/2001/04/xmlenc#"/>'
    response = saml_idp.answer(request, sign="nothing").xml()
    response = response.replace("<saml:NameID", f"<saml:{what}>{hidden}</saml:{what}><saml:NameID")
    posted = base64.b64encode(response.encode()).decode()
    answer = stage.post(browser, posted, request.relay_state)
    assert (answer.status_code, answer.json["error"]) == (401, "sign_in_refused")
    check, detail = stage.last_refusal()
    assert check == "encryption"
    assert what in detail


def test_saml_wrong_certificate_is_named_to_admins(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    assert stage.assert_in(key="evil").status_code == 401
    check, detail = stage.last_refusal()
    other, ours = (
        certificates.fingerprint("".join(saml_idp.pair(name)[1].splitlines()[1:-1]))
        for name in ("evil", "idp")
    )
    assert check == "signature"
    assert f"signed with {other}; expected idp ({ours}, until 20" in detail


NO_RESPONSES = {
    "empty": "",
    "blank": "   ",
    "no base64": "!!!",
    "no XML": base64.b64encode(b"hello").decode(),
    "another XML": base64.b64encode(b"<a/>").decode(),
    "an empty response": base64.b64encode(
        b'<p:Response xmlns:p="urn:oasis:names:tc:SAML:2.0:protocol"/>'
    ).decode(),
    "NUL": base64.b64encode(b"\0\0").decode(),
    "too long": base64.b64encode(b"<a>" + b"x" * 150_000 + b"</a>").decode(),
}


def test_saml_malformed_post_is_refused(stage: Stage) -> None:
    stage.saml(stage.cast.alice)
    before = stage.users()
    for name, posted in NO_RESPONSES.items():
        browser = stage.browser()
        request = stage.begin_saml(browser)
        answer = stage.post(browser, posted, request.relay_state)
        assert (answer.status_code, answer.json["error"]) == (401, "sign_in_refused"), name
        body = {"SAMLResponse": posted or "x", "relayState": "x", "provider": "okta"}
        refused = stage.anyone.post("auth/saml/acs", {**body, "account": "acme"})
        assert refused.status_code == 400, name
    large = stage.post(stage.browser(), "A" * 20_000_000, "x")
    assert (large.status_code, large.json["error"]) == (413, "payload_too_large")
    assert stage.checks(stage.cast.alice)[0] == "size"
    assert stage.browser().post("/saml/okta/acs?account=acme").status_code == 400
    assert stage.users() == before


def relayed(stage: Stage, request: Asked, **changes: Any) -> str:
    return saml_idp.answer(request, **changes).encoded()


def test_saml_relay_state_of_other_browser_is_refused(stage: Stage) -> None:
    for admin in (stage.cast.alice, stage.cast.charlie):
        for name in ("okta", "generic"):
            stage.saml(admin, name)
    before = stage.users()
    browser = stage.browser()
    request = stage.begin_saml(browser)
    response = relayed(stage, request)
    state = request.relay_state
    made_up = base64.b64encode(b"AA0001-made-up").decode()
    for answer in (
        stage.post(stage.browser(), response, state),  # of another browser
        stage.post(browser, response, state, "generic"),  # of another provider
        stage.post(browser, response, state, account="globex"),  # of another account
        stage.post(browser, response, ""),
        stage.post(browser, response, made_up),
        stage.post(browser, response, "%%%"),
    ):
        assert (answer.status_code, answer.json["error"]) == (400, "invalid_state")
    assert stage.users() == before
    assert stage.post(browser, response, state).status_code == 302
    assert stage.post(browser, response, state).status_code == 400
    assert stage.last_refusal() == ("state", "The state was used before.")


def test_saml_assertion_of_other_account_is_refused(stage: Stage) -> None:
    """Both trust the same identity provider: what is meant for one is for no other."""
    for admin in (stage.cast.alice, stage.cast.charlie):
        stage.saml(admin)
    before = stage.users()
    mine, theirs = stage.browser(), stage.browser()
    to_acme, to_globex = stage.begin_saml(mine), stage.begin_saml(theirs, account="globex")
    crossed = Response(to_acme.consumer, to_acme.issuer, to_globex.id)
    answer = stage.post(theirs, crossed.encoded(), to_globex.relay_state, account="globex")
    assert answer.status_code == 401
    assert stage.checks(stage.cast.charlie) == ["destination"]
    assert stage.users() == before


def test_saml_assertion_posted_concurrently_signs_in_once(stage: Stage) -> None:
    stage.saml(stage.cast.alice, allow_idp_initiated=True)
    audience = "http://atrium.test/saml/okta?account=acme"
    consumer = "http://atrium.test/saml/okta/acs?account=acme"
    response = Response(consumer, audience, None, subject=stage.cast.bob.email).encoded()

    def post(number: int) -> int:
        return stage.post(stage.app.test_client(), response, "").status_code

    assert sorted(at_once(6, post)) == [302, *[401] * 5]
