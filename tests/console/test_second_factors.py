"""Second factors at the console: what a form may say of itself (checks 55)."""

from __future__ import annotations

import json
import re
from html import unescape

from flask import Flask

from tests.auth.test_second_factors import key
from tests.builders import Caller, Cast
from tests.console.browser import Browser, is_out, sign_in
from tests.passkeys import Authenticator

__all__ = ["key"]
HIDDEN = re.compile(r'name="mfa_token" value="([^"]+)"')


def test_an_assertion_of_an_earlier_step_does_not_sign_in(
    app: Flask, cast: Cast, key: tuple[Authenticator, Caller]
) -> None:
    offered = key[1].post("auth/mfa/options").json
    seen = {"token": offered["token"], "credential": key[0].get(offered["options"])}
    thief = Browser(app)
    (mfa_token,) = HIDDEN.findall(sign_in(thief.client, cast.alice).text)
    thief.send("second-factor", mfa_token=mfa_token, assertion=json.dumps(seen))
    assert is_out(thief.client)


def test_the_passkey_of_the_step_signs_in(
    app: Flask, cast: Cast, key: tuple[Authenticator, Caller]
) -> None:
    browser = Browser(app)
    page = sign_in(browser.client, cast.alice).text
    (mfa_token,) = HIDDEN.findall(page)
    (options,) = re.findall(r'name="options" value="([^"]+)"', page)
    sent = {"token": "", "credential": key[0].get(json.loads(unescape(options)))}
    browser.send("second-factor", mfa_token=mfa_token, assertion=json.dumps(sent))
    assert not is_out(browser.client)
