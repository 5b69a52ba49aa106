"""What the users of all accounts see of each other, for superadmins."""

from __future__ import annotations

from werkzeug.wrappers import Response as BaseResponse

from app.accounts import attributes, directory
from app.accounts.attributes import Kind, Level
from app.accounts.directory import ATTRIBUTE
from app.console.shell import forms
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.navigation import INSTANCE, MenuItem
from app.web.languages import gettext, lazy_gettext

DIRECTORY = "/console/directory"
FIELDS = {
    "name": lazy_gettext("Name"),
    "email": lazy_gettext("Email"),
    "role": lazy_gettext("Role"),
    "is_active": lazy_gettext("Active or not"),
}


@page(
    DIRECTORY,
    role=SUPERADMIN,
    menu=MenuItem(INSTANCE, 5, lazy_gettext("Directory"), "users-group"),
)
def show_directory(form: Form | None = None) -> Page:
    settings = directory.current()
    if form is None:
        form = Form({"rule": settings.rule})
        form.selected = list(settings.fields)
    schema = attributes.load(Kind.USERS)
    boxes = [{"id": name, "name": label} for name, label in FIELDS.items()]
    boxes += [
        {"id": ATTRIBUTE + name, "name": one.definition["label"] or name}
        for name, one in schema.by_name.items()
        if one.may_see(Level.MEMBERS)
    ]
    return form.render("console/directory.html", boxes=boxes, warnings=settings.warnings)


@page(DIRECTORY, "POST", role=SUPERADMIN, form_page=show_directory)
def change_directory() -> BaseResponse:
    """Save the rule and the shown fields."""
    form = forms.submitted("rule", selected="fields")
    directory.change({"rule": form["rule"] or "true", "fields": form.selected})
    return redirect_with_notice(gettext("The directory is saved."), "console.show_directory")
