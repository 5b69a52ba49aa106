"""Second factors at the console: what a form may say of itself."""

from __future__ import annotations

import json
import re
from html import unescape

import pyotp
from flask import Flask

from app import clock
from tests.auth.test_second_factors import key
from tests.builders import Caller, Cast, make_collection
from tests.console.browser import Browser, is_out, sign_in
from tests.passkeys import Authenticator

__all__ = ["key"]
HIDDEN = re.compile(r'name="mfa_token" value="([^"]+)"')
SECRET = re.compile(r'<code class="breaks">(\w+)</code>')
FACTOR = re.compile(r'name="factor" value="([^"]+)"')


def test_console_second_factor_with_assertion_of_earlier_step_is_refused(
    app: Flask, cast: Cast, key: tuple[Authenticator, Caller]
) -> None:
    offered = key[1].post("auth/mfa/options").json
    seen = {"token": offered["token"], "credential": key[0].get(offered["options"])}
    thief = Browser(app)
    (mfa_token,) = HIDDEN.findall(sign_in(thief.client, cast.alice).text)
    thief.send("second-factor", mfa_token=mfa_token, assertion=json.dumps(seen))
    assert is_out(thief.client)


def test_console_second_factor_with_passkey_signs_in(
    app: Flask, cast: Cast, key: tuple[Authenticator, Caller]
) -> None:
    browser = Browser(app)
    page = sign_in(browser.client, cast.alice).text
    (mfa_token,) = HIDDEN.findall(page)
    (options,) = re.findall(r'name="options" value="([^"]+)"', page)
    sent = {"token": "", "credential": key[0].get(json.loads(unescape(options)))}
    browser.send("second-factor", mfa_token=mfa_token, assertion=json.dumps(sent))
    assert not is_out(browser.client)


def test_console_signature_with_lone_surrogate_is_400(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, "docs", options={"require_signature": True})
    sent = {"token": "\ud800", "credential": {"id": "\ud800"}}
    form = {"f_title": "a", "do": "save", "es_reason": "Because.", "assertion": json.dumps(sent)}
    refused = Browser(app, cast.alice).send(f"records/{cast.alice.account_id}/docs/new", **form)
    assert refused.status_code in (400, 401), refused.text


def test_console_totp_secret_is_shown_only_in_its_session(app: Flask, cast: Cast) -> None:
    path = "profile/second-factors/app"
    owner, thief = (Browser(app, cast.alice) for _ in range(2))
    page = owner.send(path, name="Phone").text
    (secret,), (factor,) = SECRET.findall(page), FACTOR.findall(page)
    again = owner.send(path, code="000000", confirm="true", factor=factor)
    assert SECRET.findall(again.text) == [secret], "a mistyped code needs no new scan"
    assert secret not in thief.send(path, code="000000", confirm="true").text
    mine = SECRET.findall(thief.send(path, name="Phone").text)
    again = owner.send(path, code="000000", confirm="true", factor=factor)
    assert SECRET.findall(again.text) not in ([secret], mine), "nobody scans the thief's secret"


def test_console_enrolment_after_another_leads_to_the_sign_in_form(app: Flask, cast: Cast) -> None:
    cast.alice.patch("account", {"mfa": "required"})
    late, quick = Browser(app), Browser(app)
    (late_token,) = HIDDEN.findall(sign_in(late.client, cast.bob).text)
    page = sign_in(quick.client, cast.bob).text
    (token,), (secret,) = HIDDEN.findall(page), SECRET.findall(page)
    code = pyotp.TOTP(secret).at(clock.now())
    assert quick.send("second-factor/set-up", mfa_token=token, code=code).status_code == 200
    for path in ("second-factor/set-up", "second-factor/set-up/passkey"):
        refused = late.send(path, mfa_token=late_token, code="000000", assertion="{}")
        assert refused.status_code == 401, path
        assert 'name="password"' in refused.text, path


def test_console_enrolment_secret_is_shown_only_to_its_sign_in(app: Flask, cast: Cast) -> None:
    cast.alice.patch("account", {"mfa": "required"})
    owner, thief = Browser(app), Browser(app)
    (mfa_token,) = HIDDEN.findall(sign_in(thief.client, cast.bob).text)
    (secret,) = SECRET.findall(sign_in(owner.client, cast.bob).text)
    page = thief.send("second-factor/set-up", mfa_token=mfa_token, code="000000").text
    assert secret not in page
