"""The templates of new accounts, their versions, and who is behind, for superadmins."""

from __future__ import annotations

from flask import render_template

from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.navigation import INSTANCE, MenuItem
from app.manifest import templates
from app.web.languages import lazy_gettext

TEMPLATES = "/console/account-templates"


@page(
    TEMPLATES,
    role=SUPERADMIN,
    menu=MenuItem(INSTANCE, 8, lazy_gettext("Account templates"), "files"),
)
def show_account_templates() -> str:
    return render_template(
        "console/account_templates.html",
        templates=templates.versions(),
        behind=templates.behind(100),
    )
