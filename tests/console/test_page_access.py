"""What `@page` declares: every page says whom it is for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from app.console.admin.domains import show_domains
from app.console.people.groups import show_new_group
from app.console.people.roles import show_new_role
from app.console.shell.access import ADMIN, ANYBODY
from app.console.shell.blueprint import Pages, page
from app.sso import setup_links
from app.web.access import AccessLevel, access_of
from tests.console.browser import Browser


def test_view_without_access_is_not_registered() -> None:
    def show_secrets() -> str:
        return "secrets"

    with pytest.raises(TypeError, match="show_secrets does not say who may open it"):
        Pages("secrets", __name__).get("/console/secrets")(show_secrets)


@pytest.mark.parametrize(
    ("form_page", "setup"),
    [
        (show_new_role, None),
        (show_new_group, setup_links.DOMAINS),
        (show_domains, setup_links.SCIM),
    ],
    ids=["role", "no setup link", "other setup link"],
)
def test_form_page_that_not_all_callers_may_open_is_not_registered(
    form_page: Callable[..., Any], setup: str | None
) -> None:
    assert form_page.page.role is ADMIN or setup is None
    with pytest.raises(TypeError, match="/console/x shows a form again that not all"):
        page("/console/x", "POST", role=ADMIN, setup=setup, form_page=form_page)


def test_pages_are_public_only_for_anybody(app: Flask) -> None:
    pages = {name: view for name, view in app.view_functions.items() if name.startswith("console.")}
    assert pages
    for name, view in pages.items():
        is_public = view.page.role is ANYBODY  # type: ignore[attr-defined]
        level = AccessLevel.PUBLIC if is_public else AccessLevel.PAGE
        assert access_of(view).level is level, name


def test_icons_of_the_menu_exist(app: Flask, superadmin: Browser) -> None:
    icons = (Path(app.static_folder or "") / "console" / "icons.svg").read_text()
    used = set(re.findall(r"icons\.svg[^#\"]*#([\w-]+)", superadmin.get("").text))
    assert len(used) > 20
    assert {name for name in used if f'id="{name}"' not in icons} == set()
