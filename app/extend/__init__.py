"""The public names for extensions: they follow semantic versioning (docs/extensions.md)."""

from app.errors import Conflict, Forbidden, InvalidValues, NotFound
from app.extend import fields, http, tables
from app.extensions.caller import Caller, Records
from app.extensions.decorators import (
    after_create,
    after_delete,
    after_update,
    before_create,
    before_delete,
    before_update,
    command,
    console_page,
    endpoint,
    field_type,
    on,
    periodic,
    workflow_step,
)
from app.extensions.pages import PageRequest, Redirect
from app.extensions.running import Refused
from app.extensions.settings import setting
from app.web.access import account_admin, anonymous, signed_in, superadmin
from app.web.languages import gettext
from app.web.schemas import Schema, example

__all__ = [
    "Caller",
    "Conflict",
    "Forbidden",
    "InvalidValues",
    "NotFound",
    "PageRequest",
    "Records",
    "Redirect",
    "Refused",
    "Schema",
    "account_admin",
    "after_create",
    "after_delete",
    "after_update",
    "anonymous",
    "before_create",
    "before_delete",
    "before_update",
    "command",
    "console_page",
    "endpoint",
    "example",
    "field_type",
    "fields",
    "gettext",
    "http",
    "on",
    "periodic",
    "setting",
    "signed_in",
    "superadmin",
    "tables",
    "workflow_step",
]
