"""For superadmins: the roles that users of all accounts can have."""

from __future__ import annotations

from flask import render_template
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import roles
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.console.shell import forms, guard, idempotent_forms, lists
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Form, Page, told
from app.errors import AppError
from app.rest.access import public

ONE_ROLE = "/console/roles/<integer:role_id>"


@blueprint.get("/console/roles")
@public
@guard.for_superadmins
def show_roles() -> str:
    """The roles."""
    listing = lists.asked_for("console.show_roles")
    listing.holding(roles.page(listing.skip, lists.SIZE))
    return render_template("console/roles/list.html", listing=listing)


@blueprint.get("/console/roles/new")
@public
@guard.for_superadmins
def show_new_role() -> Page:
    """The form for a new role."""
    return Form().page("console/roles/form.html", role=None)


@blueprint.post("/console/roles/new")
@public
@guard.for_superadmins
def create_role() -> Page | BaseResponse:
    """Make a role."""
    form = forms.sent("name", "description")
    try:
        body = form.checked(("name",), name=100, description=1000)
        role = roles.create(body["name"], body["description"] or None)
    except AppError as error:
        return form.refused(error).page("console/roles/form.html", role=None)
    return told(f"The role {role.name} is made.", "console.show_roles")


@blueprint.get(ONE_ROLE)
@public
@guard.for_superadmins
def show_role(role_id: str) -> Page:
    """One role."""
    role = roles.get(int(role_id))
    return _role_page(role_id, Form({"name": role.name, "description": role.description or ""}))


@blueprint.post(ONE_ROLE)
@public
@guard.for_superadmins
def change_role_itself(role_id: str) -> Page | BaseResponse:
    """Rename or describe a role."""
    form = forms.sent("name", "description")
    try:
        body = form.checked(("name",), name=100, description=1000)
        wanted = {"name": body["name"], "description": body["description"] or None}
        role = roles.change(int(role_id), wanted)
    except AppError as error:
        return _role_page(role_id, form.refused(error))
    return told(f"The role {role.name} is saved.", "console.show_roles")


@blueprint.post(f"{ONE_ROLE}/delete")
@public
@guard.for_superadmins
def delete_role(role_id: str) -> Page | BaseResponse:
    """Delete a role that nobody has."""
    try:
        with idempotent_forms.deleting(SYSTEM_ACCOUNT_ID, "roles", str(int(role_id))):
            roles.delete(int(role_id))
    except AppError as error:
        return _role_page(role_id, Form().refused(error))
    return told("The role is deleted.", "console.show_roles")


def _role_page(role_id: str, form: Form) -> Page:
    role = roles.get(int(role_id))
    form.values = {"name": role.name, "description": role.description or "", **form.values}
    return form.page("console/roles/form.html", role=role, seeded=role.name in roles.BUILT_IN)
