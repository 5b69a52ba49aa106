"""The public names for extensions: they follow semantic versioning (docs/extensions.md)."""

from app.errors import Conflict, Forbidden, InvalidValues, NotFound
from app.extend import fields
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
from app.extensions.running import Refused
from app.web.access import account_admin, anonymous, signed_in, superadmin
from app.web.schemas import Schema

__all__ = [
    "Caller",
    "Conflict",
    "Forbidden",
    "InvalidValues",
    "NotFound",
    "Records",
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
    "field_type",
    "fields",
    "on",
    "periodic",
    "signed_in",
    "superadmin",
    "workflow_step",
]
