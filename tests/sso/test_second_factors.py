"""Second factors after signing in with a provider."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.auth.test_second_factors import Phone, set_up
from tests.sso.flows import Stage, query_of


@pytest.fixture
def phone(stage: Stage) -> Phone:
    """Alice, whom the provider knows, too, with an authenticator app."""
    stage.provider.who = {**stage.provider.who, "email": stage.cast.alice.email}
    return set_up(stage.cast.alice)


def test_own_provider_sign_in_needs_no_second_factor(stage: Stage, phone: Phone) -> None:
    stage.oauth(stage.cast.alice)
    code = query_of(stage.sign_in().headers["Location"])["code"]
    assert stage.anyone.post("auth/exchange", {"code": code}).status_code == 200


def test_system_provider_sign_in_is_mfa_required(stage: Stage, phone: Phone) -> None:
    stage.oauth(stage.cast.root)
    code = query_of(stage.sign_in().headers["Location"])["code"]
    asked = stage.anyone.post("auth/exchange", {"code": code})
    assert (asked.status_code, asked.json["error"]) == (401, "mfa_required")
    assert phone.verify(asked.json["mfa_token"], phone.code(1)).status_code == 200
    assert stage.anyone.post("auth/exchange", {"code": code}).status_code == 400, "used"


def test_sign_in_fragment_has_mfa_token_instead_of_tokens(stage: Stage, phone: Phone) -> None:
    stage.oauth(stage.cast.root)
    stage.cast.alice.patch("account", {"sso_tokens_in_fragment": True})
    target = stage.sign_in(client_state="x").headers["Location"]
    found = dict(parse_qsl(urlsplit(target).fragment))
    assert (found["error"], found["state"]) == ("mfa_required", "x")
    assert not {"access_token", "refresh_token"} & set(found)
    assert phone.verify(found["mfa_token"], phone.code(1)).status_code == 200
