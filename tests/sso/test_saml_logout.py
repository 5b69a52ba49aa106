"""Single logout by SAML, begun on either side, and what must not end anybody's session."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from werkzeug.test import TestResponse

from app.auth.mfa import challenges
from tests.auth.test_second_factors import set_up_in
from tests.builders import PASSWORD, Caller
from tests.console.browser import Browser
from tests.parallel import at_once
from tests.sso import saml_idp
from tests.sso.flows import HTML, Stage, query_of
from tests.sso.saml_logout import SLO, Message, received

SLO_PATH = "/saml/okta/slo?account=acme"


@pytest.fixture
def idp(stage: Stage) -> Stage:
    """acme with an identity provider that has single logout."""
    stage.saml(stage.cast.alice, idp_slo_url=SLO)
    return stage


def sign_in(stage: Stage, **changes: Any) -> Caller:
    """A session by SAML."""
    signed_in = stage.traded(stage.assert_in(**changes))
    return Caller(stage.app, Authorization=f"Bearer {signed_in['access_token']}")


def is_active(caller: Caller) -> bool:
    return bool(caller.get("auth/me").status_code == 200)


def test_saml_logout_request_ends_named_sessions(idp: Stage) -> None:
    first, second = (sign_in(idp, session_index=index) for index in ("_1", "_2"))
    other = sign_in(idp, subject="erin@acme.example", session_index="_1")
    request = Message(session_index="_1")
    answer = idp.browser().get(request.query("theirs"))
    assert (answer.status_code, answer.headers["Cache-Control"]) == (302, "no-store")
    assert answer.headers["Location"].startswith(f"{SLO}?SAMLResponse=")
    certificates = idp.certificates("signing")
    response, relay_state = received(answer.headers["Location"], "SAMLResponse", certificates)
    assert (response.get("InResponseTo"), relay_state) == (request.id, "theirs")
    assert response.get("Destination") == SLO
    assert [is_active(one) for one in (first, second, other)] == [False, True, True]
    assert idp.browser().post(SLO_PATH, data=Message().form()).status_code == 302
    assert [is_active(one) for one in (first, second, other)] == [False, False, True]


def test_saml_logout_request_ignores_whitespace_around_name_id(idp: Stage) -> None:
    padded = "\n  dora@acme.example\n"
    for signed_in, named in ((padded, "dora@acme.example"), ("dora@acme.example", padded)):
        session = sign_in(idp, subject=signed_in)
        assert idp.browser().get(Message(named).query()).status_code == 302
        assert not is_active(session)


def test_saml_logout_request_with_maximum_date_is_accepted(idp: Stage) -> None:
    session = sign_in(idp)
    assert idp.browser().get(Message(end_date="9999-12-31T23:59:59Z").query()).status_code == 302
    assert not is_active(session)


def test_saml_logout_request_voids_unexchanged_code(idp: Stage) -> None:
    code = query_of(idp.assert_in().headers["Location"])["code"]
    assert idp.browser().get(Message().query()).status_code == 302
    assert idp.anyone.post("auth/exchange", {"code": code}).status_code == 400


def test_saml_logout_request_ends_console_session(idp: Stage) -> None:
    browser = console_session(idp)
    assert browser.client.get("/console/profile").status_code == 200
    assert idp.browser().get(Message().query()).status_code == 302
    assert browser.client.get("/console/profile").status_code == 302


def console_session(stage: Stage) -> Browser:
    browser = Browser(stage.app)
    started = browser.client.get("/console/sso/start/saml_providers/okta?account=acme")
    request = saml_idp.asked(started.headers["Location"])
    response = saml_idp.answer(request).encoded()
    finish = stage.post(browser.client, response, request.relay_state)
    assert browser.client.get(finish.headers["Location"]).status_code == 303
    return browser


@pytest.mark.parametrize("when", ["before the second factor", "after it"])
def test_saml_logout_request_ends_session_completed_by_second_factor(
    stage: Stage, when: str
) -> None:
    stage.saml(stage.cast.root, idp_slo_url=SLO)  # a provider of the system is one factor
    stage.cast.alice.patch("account", {"sso_provisioning": True})
    phone = set_up_in(first := sign_in(stage), first)
    code = query_of(stage.assert_in().headers["Location"])
    asked = stage.anyone.post("auth/exchange", {"code": code["code"]}).json
    assert asked["error"] == "mfa_required"
    if when == "after it":
        signed_in = phone.verify(asked["mfa_token"], phone.code(1)).json
        session = Caller(stage.app, Authorization=f"Bearer {signed_in['access_token']}")
        assert is_active(session)
    assert stage.browser().get(Message().query()).status_code == 302
    if when == "after it":
        assert not is_active(session)
    else:
        late = phone.verify(asked["mfa_token"], phone.code(1))
        assert (late.status_code, late.json["error"]) == (401, "invalid_mfa_token")


def test_saml_logout_request_wins_over_pending_second_factor(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.saml(stage.cast.root, idp_slo_url=SLO)
    stage.cast.alice.patch("account", {"sso_provisioning": True})
    phone = set_up_in(first := sign_in(stage), first)
    code = query_of(stage.assert_in().headers["Location"])
    issue, issued = challenges.issue, list[str]()

    def with_a_logout(*args: Any) -> str:
        assert stage.browser().get(Message().query()).status_code == 302
        issued.append(issue(*args))
        return issued[0]

    monkeypatch.setattr(challenges, "issue", with_a_logout)
    refused = stage.anyone.post("auth/exchange", {"code": code["code"]})
    assert (refused.status_code, len(issued)) == (400, 1), refused.json
    assert phone.verify(issued[0], phone.code(1)).status_code == 401


def changed(**changes: Any) -> Callable[[Stage], TestResponse]:
    return lambda stage: stage.browser().get(Message(**changes).query())


def posted(**changes: Any) -> Callable[[Stage], TestResponse]:
    return lambda stage: stage.browser().post(SLO_PATH, data=Message(**changes).form())


def of_another_account(stage: Stage) -> TestResponse:
    return stage.browser().get(Message().query().replace("account=acme", "account=globex"))


def twice(stage: Stage) -> TestResponse:
    query = Message(subject="nobody").query()
    assert stage.browser().get(query).status_code == 302
    return stage.browser().get(query)


def unsigned(stage: Stage) -> TestResponse:
    return stage.browser().get(Message().query().partition("&SigAlg")[0])


def unsigned_form(stage: Stage) -> TestResponse:
    form = {"SAMLRequest": base64.b64encode(Message().xml().encode()).decode()}
    return stage.browser().post(SLO_PATH, data=form)


def with_another_relay_state(stage: Stage) -> TestResponse:
    return stage.browser().get(Message().query("a").replace("RelayState=a", "RelayState=b"))


def with_two_requests(stage: Stage) -> TestResponse:
    mine = Message(subject="nobody").query()
    return stage.browser().get(f"{mine}&{Message().query().partition('&')[2]}")


def a_bomb(stage: Stage) -> TestResponse:
    return stage.browser().get(Message(subject="x" * 1_000_000).query())


def moved(stage: Stage) -> TestResponse:
    """A signature of something else, in a message without one."""
    signed = base64.b64decode(Message(subject="nobody").form()["SAMLRequest"]).decode()
    inner = signed.partition("?>")[2] or signed
    forged = Message().xml().replace("</samlp:LogoutRequest>", "")
    document = f"{forged}<samlp:Extensions>{inner}</samlp:Extensions></samlp:LogoutRequest>"
    form = {"SAMLRequest": base64.b64encode(document.encode()).decode()}
    return stage.browser().post(SLO_PATH, data=form)


REFUSED: dict[str, tuple[Callable[[Stage], TestResponse], str]] = {
    "by another key": (changed(key="evil"), "signature"),
    "by another key, posted": (posted(key="evil"), "signature"),
    "by SHA-1": (posted(sha1=True), "algorithm"),
    "unsigned": (unsigned, "signature"),
    "unsigned, posted": (unsigned_form, "signature"),
    "another relay state": (with_another_relay_state, "signature"),
    "two requests": (with_two_requests, "document"),
    "a bomb": (a_bomb, "document"),
    "signature elsewhere": (moved, "signature"),
    "another issuer": (changed(issuer="https://evil.example"), "issuer"),
    "another destination": (changed(destination="https://evil.example"), "destination"),
    "another account's destination": (
        changed(destination="http://atrium.test/saml/okta/slo?account=globex"),
        "destination",
    ),
    "expired": (changed(issued=-590, ends=-310), "time"),
    "old": (changed(issued=-3600, ends=3600), "time"),
    "of the future": (changed(issued=3600, ends=7200), "time"),
    "twice": (twice, "replay"),
    "nobody": (changed(subject=""), "subject"),
    "an unknown response": (changed(in_response_to="_x"), "state"),
    "an assertion": (
        lambda stage: stage.browser().post(
            SLO_PATH,
            data={
                "SAMLRequest": saml_idp.Response("a", "b", None, sign="both").encoded(),
            },
        ),
        "document",
    ),
}


@pytest.mark.long
def test_saml_logout_request_that_is_invalid_ends_no_session(idp: Stage) -> None:
    caller = sign_in(idp)
    for name, (send, check) in REFUSED.items():
        answer = send(idp)
        assert answer.status_code in (400, 401), name
        assert idp.last_refusal()[0] == check, (name, idp.last_refusal())
        assert is_active(caller), name
    idp.saml(idp.cast.charlie, idp_slo_url=SLO)
    assert of_another_account(idp).status_code == 401
    assert idp.checks(idp.cast.charlie) == ["destination"]
    for response in (
        idp.browser().get(Message().query().replace("/okta/", "/generic/")),
        idp.browser().get("/saml/google/slo?account=acme"),
    ):
        assert response.status_code == 404
    assert is_active(caller)


def test_saml_logout_request_sent_concurrently_works_once(idp: Stage) -> None:
    query = Message().query()
    answers = at_once(4, lambda n: idp.app.test_client().get(query).status_code)
    assert sorted(answers) == [302, 401, 401, 401]


def test_saml_logout_by_client_application_continues_at_provider(idp: Stage) -> None:
    caller = sign_in(idp, session_index="_7")
    bad = caller.post("auth/saml/logout", {"redirect_uri": "https://evil.example"})
    assert (bad.status_code, is_active(caller)) == (400, True)
    answer = caller.post("auth/saml/logout", {"redirect_uri": idp.client})
    assert (answer.status_code, is_active(caller)) == (200, False)
    certificates = idp.certificates("signing")
    request, relay_state = received(answer.json["logout_url"], "SAMLRequest", certificates)
    texts = request.xpath("//saml:NameID/text() | //samlp:SessionIndex/text()", namespaces=NS)
    assert texts == ["dora@acme.example", "_7"]
    assert len(relay_state) <= 80  # as the binding demands
    wrong = Message(in_response_to="_other").query(relay_state)
    assert idp.browser().get(wrong).status_code == 401
    assert idp.last_refusal()[0] == "InResponseTo"
    returned = idp.browser().get(Message(in_response_to=request.get("ID")).query(relay_state))
    assert (returned.status_code, returned.headers["Location"]) == (302, idp.client)
    again = Message(in_response_to=request.get("ID")).query(relay_state)
    assert idp.browser().get(again).status_code == 400
    # Nor is it the state of a sign-in.
    request_of_ours = saml_idp.Asked(request.get("ID"), "x", "y", relay_state)
    refused = idp.post(idp.browser(), saml_idp.answer(request_of_ours).encoded(), relay_state)
    assert refused.status_code == 400


NS = saml_idp.NAMESPACES


def test_saml_logout_failure_at_provider_returns_to_client(idp: Stage) -> None:
    answer = sign_in(idp).post("auth/saml/logout")
    request, state = received(answer.json["logout_url"], "SAMLRequest", idp.certificates("signing"))
    failed = "urn:oasis:names:tc:SAML:2.0:status:Responder"
    form = Message(in_response_to=request.get("ID"), status=failed).form(state)
    assert idp.browser().post(SLO_PATH, data=form).headers["Location"] == idp.client


def test_saml_logout_without_single_logout_ends_local_session_only(stage: Stage) -> None:
    stage.saml(stage.cast.alice)  # without single logout
    caller = sign_in(stage)
    answer = caller.post("auth/saml/logout")
    assert (answer.status_code, answer.json["logout_url"]) == (200, None)
    assert not is_active(caller)
    login = {"account": "acme", "email": stage.cast.bob.email, "password": PASSWORD}
    token = stage.anyone.post("auth/login", login).json["token"]
    bob = Caller(stage.app, Authorization=f"Bearer {token}")
    assert (bob.post("auth/saml/logout").json["logout_url"], is_active(bob)) == (None, False)
    stage.cast.root.put("product", {"name": "Helpdesk"})
    page = stage.browser().get(Message().query(), headers=HTML)
    assert (page.status_code, "You are signed out of Helpdesk." in page.text) == (200, True)


def test_saml_logout_of_console_continues_at_provider(idp: Stage) -> None:
    browser = console_session(idp)
    page = browser.send("sign-out")
    assert page.status_code == 200
    assert f'content="0; url={SLO}?SAMLRequest=' in page.text
    assert browser.client.get("/console/profile").status_code == 302
