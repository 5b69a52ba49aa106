"""The attributes of users and accounts, for superadmins: their definitions as JSON."""

from __future__ import annotations

import marshmallow as ma
import orjson
from werkzeug.wrappers import Response as BaseResponse

from app.accounts import attributes
from app.accounts.attribute_routes import AttributesBody
from app.accounts.attributes import Attributes, Kind
from app.collections import attribute_definitions
from app.console.shell import forms
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.navigation import INSTANCE, MenuItem
from app.errors import InvalidValues, problem
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext

ATTRIBUTES = "/console/attributes"


@page(ATTRIBUTES, role=SUPERADMIN, menu=MenuItem(INSTANCE, 6, lazy_gettext("Attributes"), "pencil"))
def show_attributes(form: Form | None = None) -> Page:
    schemas = {kind.value: attributes.load(kind) for kind in Kind}
    if form is None:
        form = Form({name: _written(schema) for name, schema in schemas.items()})
    return form.render("console/attributes.html", schemas=schemas)


@page(ATTRIBUTES, "POST", role=SUPERADMIN, form_page=show_attributes)
def change_attributes() -> BaseResponse:
    """Save the definitions of users' or of accounts' attributes; others are left as they are."""
    form = forms.submitted("kind", *Kind)
    kind = Kind.ACCOUNTS if form["kind"] == Kind.ACCOUNTS else Kind.USERS
    try:
        attribute_definitions.change(kind, _read(form[kind]))
    except InvalidValues as error:
        text = "; ".join(f"{one['field']}: {one['message']}" for one in error.details)
        raise InvalidValues([problem(kind.value, "invalid_option", text)]) from error
    return redirect_with_notice(gettext("The attributes are saved."), "console.show_attributes")


def _written(schema: Attributes) -> str:
    return orjson.dumps(attribute_definitions.compact(schema), option=orjson.OPT_INDENT_2).decode()


def _read(text: str) -> JSONObject:
    try:
        loaded: JSONObject = AttributesBody().load({"fields": orjson.loads(text or "[]")})
    except orjson.JSONDecodeError:
        message = gettext("This is not valid JSON.")
        raise InvalidValues([problem("fields", "invalid_json", message)]) from None
    except ma.ValidationError as error:
        raise InvalidValues(
            [problem("fields", "invalid_json", str(error.messages)[:500])]
        ) from None
    return loaded
