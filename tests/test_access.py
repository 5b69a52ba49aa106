"""Every route declares its access, which the guard enforces and the API description states."""

from __future__ import annotations

import pytest
from flask import Flask

from app.web.access import ViewAccess, account_admin


def test_every_route_declares_its_access(app: Flask) -> None:
    undeclared = {
        rule.rule
        for rule in app.url_map.iter_rules()
        if not isinstance(vars(app.view_functions[rule.endpoint]).get("access"), ViewAccess)
    }
    assert not undeclared


def test_a_recent_sign_in_excludes_api_keys() -> None:
    with pytest.raises(ValueError, match="api_keys=False"):
        account_admin(recent_sign_in=True)
