"""A provider of each kind for the tests of sign-in, and browsers that go through it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask import Flask

from tests.builders import Cast
from tests.sso import openid
from tests.sso.flows import Stage


@pytest.fixture(scope="session")
def openid_provider() -> Iterator[openid.Provider]:
    with openid.providing() as provider:
        yield provider


@pytest.fixture
def provider(openid_provider: openid.Provider) -> openid.Provider:
    """The OpenID provider, as new."""
    openid_provider.reset()
    return openid_provider


@pytest.fixture
def stage(app: Flask, cast: Cast, provider: openid.Provider) -> Stage:
    """acme, with a client application that may be returned to."""
    stage = Stage(app, cast, provider)
    settings = {
        "allowed_redirect_uris": [stage.client],
        "default_redirect_uri": stage.client,
        "sso_provisioning": True,  # else OAuth providers make users of named domains only
    }
    for admin in (cast.alice, cast.charlie):
        assert admin.patch("account", settings).status_code == 200
    return stage
