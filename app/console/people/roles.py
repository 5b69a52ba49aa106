"""The roles of all accounts, for superadmins."""

from __future__ import annotations

from flask import render_template
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import roles
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.console.people import role_rules, role_texts
from app.console.shell import forms, idempotent_forms, lists
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.navigation import INSTANCE, MenuItem
from app.web.languages import gettext, lazy_gettext

MAX_NAMING = 50  # collections that the page of a role lists
ROLE = "/console/roles/<integer:role_id>"


@page(
    "/console/roles", role=SUPERADMIN, menu=MenuItem(INSTANCE, 3, lazy_gettext("Roles"), "shield")
)
def show_roles() -> str:
    listing = lists.from_request("console.show_roles")
    listing.with_page(roles.page(listing.skip, lists.PAGE_SIZE))
    counts = role_rules.user_counts(listing.items)
    rule_counts = role_rules.rule_counts(listing.items)
    return render_template(
        "console/roles/list.html",
        listing=listing,
        counts=counts,
        rule_counts=rule_counts,
        built_in=roles.BUILT_IN,
        description_of=role_texts.description,
    )


@page("/console/roles/new", role=SUPERADMIN)
def show_new_role(form: Form | None = None) -> Page:
    return (form or Form()).render("console/roles/form.html", role=None)


@page("/console/roles/new", "POST", role=SUPERADMIN, form_page=show_new_role)
def create_role() -> BaseResponse:
    form = forms.submitted("name", "description")
    body = form.validated(("name",), name=100, description=1000)
    role = roles.create(body["name"], body["description"] or None)
    notice = gettext("The role %(name)s is created.", name=role.name)
    return redirect_with_notice(notice, "console.show_roles")


@page(ROLE, role=SUPERADMIN)
def show_role(role_id: str, form: Form | None = None) -> Page:
    role, form = roles.get(int(role_id)), form or Form()
    shown = {"name": role.name, "description": role_texts.description(role)}
    form.values = {**shown, **form.values}
    naming = role_rules.naming(role)
    return form.render(
        "console/roles/form.html",
        role=role,
        seeded=role.name in roles.BUILT_IN,
        naming=naming[:MAX_NAMING],
        more=len(naming) - MAX_NAMING,
        users=role_rules.user_counts([role])[role.id],
    )


@page(ROLE, "POST", role=SUPERADMIN, form_page=show_role)
def change_role(role_id: str) -> BaseResponse:
    form = forms.submitted("name", "description")
    body = form.validated(("name",), name=100, description=1000)
    changes = {"name": body["name"], "description": body["description"] or None}
    if body["description"] == role_texts.description(roles.get(int(role_id))):
        del changes["description"]  # or a built-in text would stay in this page's language
    role = roles.change(int(role_id), changes)
    notice = gettext("The role %(name)s is saved.", name=role.name)
    return redirect_with_notice(notice, "console.show_roles")


@page(f"{ROLE}/delete", "POST", role=SUPERADMIN, form_page=show_role)
def delete_role(role_id: str) -> BaseResponse:
    """Delete a role without users."""
    with idempotent_forms.ignore_already_deleted(SYSTEM_ACCOUNT_ID, "roles", str(int(role_id))):
        roles.delete(int(role_id))
    return redirect_with_notice(gettext("The role is deleted."), "console.show_roles")
