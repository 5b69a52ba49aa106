"""The attributes of users and accounts, and what users see of each other, for superadmins."""

from __future__ import annotations

from collections.abc import Sequence

import marshmallow as ma
import orjson
from flask import request
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import attributes, directory
from app.accounts.attribute_routes import AttributesBody
from app.accounts.attributes import Attributes, Kind, Level
from app.accounts.directory import ATTRIBUTE
from app.collections import attribute_definitions
from app.collections.attribute_definitions import Change
from app.console.collections import plan_texts
from app.console.shell import forms
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.navigation import INSTANCE, MenuItem
from app.errors import InvalidValues, problem
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext

ATTRIBUTES = "/console/attributes"
DIRECTORY = "/console/directory"
FIELDS = {
    "name": lazy_gettext("Name"),
    "email": lazy_gettext("Email"),
    "role": lazy_gettext("Role"),
    "is_active": lazy_gettext("Active or not"),
}


@page(ATTRIBUTES, role=SUPERADMIN, menu=MenuItem(INSTANCE, 6, lazy_gettext("Attributes"), "pencil"))
def show_attributes(form: Form | None = None, plan: Change | None = None) -> Page:
    stored = Form()
    for kind in Kind:
        schema = attributes.load(kind)
        stored.values |= {kind: _written(schema), f"known_{kind}": " ".join(schema.by_name)}
    form, effect = (form or Form()).over(stored), plan.effect if plan else []
    changes = list(plan_texts.changes(plan.operations, plan.definitions)) if plan else []
    return form.render("console/attributes.html", plan=plan, changes=changes, effect=effect)


@page(ATTRIBUTES, "POST", role=SUPERADMIN, form_page=show_attributes)
def change_attributes() -> Page | BaseResponse:
    """Show the plan of a change of users' or of accounts' attributes, or apply it.

    What the page listed and the text does not is removed; others are left as they are.
    """
    kind = Kind.ACCOUNTS if request.form.get("kind") == Kind.ACCOUNTS else Kind.USERS
    form = forms.submitted("kind", kind, f"known_{kind}", "planned")
    try:
        body = _read(form[kind], form[f"known_{kind}"].split())
        plan = attribute_definitions.plan(kind, body)
        if plan.problems:
            raise InvalidValues(plan.problems)
    except InvalidValues as error:
        text = "; ".join(f"{one['field']}: {one['message']}" for one in error.details)
        raise InvalidValues([problem(kind.value, "invalid_option", text)]) from error
    if plan.plan_hash != form["planned"]:
        form.values["planned"] = plan.plan_hash
        return show_attributes(form, plan)
    attribute_definitions.change(kind, body, plan_hash=plan.plan_hash)
    return redirect_with_notice(gettext("The attributes are saved."), "console.show_attributes")


def _written(schema: Attributes) -> str:
    return orjson.dumps(attribute_definitions.compact(schema), option=orjson.OPT_INDENT_2).decode()


def _read(text: str, known: Sequence[str]) -> JSONObject:
    try:
        loaded: JSONObject = AttributesBody().load({"fields": orjson.loads(text or "[]")})
    except orjson.JSONDecodeError:
        message = gettext("This is not valid JSON.")
        raise InvalidValues([problem("fields", "invalid_json", message)]) from None
    except ma.ValidationError as error:
        raise InvalidValues(
            [problem("fields", "invalid_json", str(error.messages)[:500])]
        ) from None
    listed = {name for one in loaded["fields"] for name in (one["name"], one.get("rename_from"))}
    return loaded | {"remove_fields": [name for name in known if name not in listed]}


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
