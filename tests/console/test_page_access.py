"""What `@page` declares: every page says whom it is for."""

from __future__ import annotations

import pytest
from flask import Flask

from app.console.people.roles import show_new_role
from app.console.shell.access import ADMIN, ANYBODY
from app.console.shell.blueprint import Pages, page
from app.web.access import AccessLevel, access_of


def test_view_without_access_is_not_registered() -> None:
    def show_secrets() -> str:
        return "secrets"

    with pytest.raises(TypeError, match="show_secrets does not say who may open it"):
        Pages("secrets", __name__).get("/console/secrets")(show_secrets)


def test_form_page_of_other_role_is_not_registered() -> None:
    with pytest.raises(TypeError, match="/console/x shows a form again that is for another role"):
        page("/console/x", "POST", role=ADMIN, form_page=show_new_role)


def test_pages_are_public_only_for_anybody(app: Flask) -> None:
    pages = {name: view for name, view in app.view_functions.items() if name.startswith("console.")}
    assert pages
    for name, view in pages.items():
        is_public = view.page.role is ANYBODY  # type: ignore[attr-defined]
        level = AccessLevel.PUBLIC if is_public else AccessLevel.PAGE
        assert access_of(view).level is level, name
