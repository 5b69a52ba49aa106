"""Fixtures of domains: a name server that the application asks, and providers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from flask import Flask

from tests import name_server
from tests.builders import Cast
from tests.name_server import NameServer
from tests.sso import openid
from tests.sso.flows import Stage


@pytest.fixture
def dns(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    with name_server.serving() as server:
        settings = replace(app.extensions["atrium.config"], dns_servers=(server.address,))
        monkeypatch.setitem(app.extensions, "atrium.config", settings)
        yield server


@pytest.fixture
def stage(app: Flask, cast: Cast) -> Iterator[Stage]:
    with openid.providing() as provider:
        stage = Stage(app, cast, provider)
        settings = {
            "allowed_redirect_uris": [stage.client],
            "default_redirect_uri": stage.client,
            "sso_provisioning": True,
        }
        for admin in (cast.alice, cast.charlie):
            assert admin.patch("account", settings).status_code == 200
        yield stage
