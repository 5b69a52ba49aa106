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
from app.errors import AppError
from app.web.languages import gettext, lazy_gettext

MAX_NAMING = 50  # collections that the page of a role lists
ROLE = "/console/roles/<integer:role_id>"


@page(
    "/console/roles", role=SUPERADMIN, menu=MenuItem(INSTANCE, 3, lazy_gettext("Roles"), "shield")
)
def show_roles() -> str:
    """The roles."""
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
def show_new_role() -> Page:
    """The form for a new role."""
    return Form().render("console/roles/form.html", role=None)


@page("/console/roles/new", "POST", role=SUPERADMIN)
def create_role() -> Page | BaseResponse:
    """Create a role."""
    form = forms.submitted("name", "description")
    try:
        body = form.validated(("name",), name=100, description=1000)
        role = roles.create(body["name"], body["description"] or None)
    except AppError as error:
        return form.with_error(error).render("console/roles/form.html", role=None)
    notice = gettext("The role %(name)s is created.", name=role.name)
    return redirect_with_notice(notice, "console.show_roles")


@page(ROLE, role=SUPERADMIN)
def show_role(role_id: str) -> Page:
    """One role."""
    return _role_page(role_id, Form())


@page(ROLE, "POST", role=SUPERADMIN)
def change_role(role_id: str) -> Page | BaseResponse:
    """Save a role."""
    form = forms.submitted("name", "description")
    try:
        body = form.validated(("name",), name=100, description=1000)
        changes = {"name": body["name"], "description": body["description"] or None}
        if body["description"] == role_texts.description(roles.get(int(role_id))):
            del changes["description"]  # or a built-in text would stay in this page's language
        role = roles.change(int(role_id), changes)
    except AppError as error:
        return _role_page(role_id, form.with_error(error))
    notice = gettext("The role %(name)s is saved.", name=role.name)
    return redirect_with_notice(notice, "console.show_roles")


@page(f"{ROLE}/delete", "POST", role=SUPERADMIN)
def delete_role(role_id: str) -> Page | BaseResponse:
    """Delete a role without users."""
    try:
        with idempotent_forms.ignore_already_deleted(SYSTEM_ACCOUNT_ID, "roles", str(int(role_id))):
            roles.delete(int(role_id))
    except AppError as error:
        return _role_page(role_id, Form().with_error(error))
    return redirect_with_notice(gettext("The role is deleted."), "console.show_roles")


def _role_page(role_id: str, form: Form) -> Page:
    role = roles.get(int(role_id))
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
