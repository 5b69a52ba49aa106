"""`/account/users/{user_id}/left`: what somebody leaves behind (ADR 55)."""

from __future__ import annotations

import marshmallow as ma

from app.accounts import users
from app.accounts.own_account_routes import blueprint
from app.auth.guard import principal
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin
from app.web.fields import doc
from app.web.schemas import View
from app.webhooks import handover
from app.webhooks.handover import LeftKind

EXAMPLE = {
    "kind": LeftKind.WEBHOOK,
    "id": "019a9f00-0000-7000-8000-000000000001",
    "name": "hooks.example.com: orders",
    "changed_at": "2026-11-20T12:00:00.123456Z",
    "paused_at": "2026-11-21T12:00:00.123456Z",
    "of_service": False,
}


class LeftView(View):
    """Something that a user made or changed."""

    kind = fields.Choice(LeftKind)
    id = fields.Id(allow_none=True, **doc("null of a redirect address."))
    name = ma.fields.String()
    changed_at = fields.Timestamp()
    paused_at = fields.Timestamp(
        allow_none=True, **doc("Since when it sends nothing, until an admin takes it over.")
    )
    of_service = ma.fields.Boolean(
        **doc("Whether it belongs to a service user, and so goes on without the user.")
    )


class LeftList(View):
    """What a user made or changed."""

    items = ma.fields.List(ma.fields.Nested(LeftView))


@blueprint.route("/users/<uuid:user_id>/left", methods=["GET"])
@blueprint.response(200, LeftList, example={"items": [EXAMPLE]})
@account_admin
def list_left(user_id: str) -> JSONObject:
    """List what a user of your account made and could still use after leaving.

    By kind, the newest first; also of a deleted user who left something. Webhooks and the security
    log's receiver are paused when their maker is no admin any more: take them over or delete them.
    SCIM tokens work on until you revoke them. Setup links end with their maker's rights. Provider
    settings and redirect addresses are those that the audit log says the user changed or added; so
    is what belongs to service users, which goes on: look at each, revoke or rotate.
    """
    account_id = principal().require_account_id()
    found = handover.of_user(account_id, user_id.lower())
    if not found:
        users.get(account_id, user_id)  # raises NotFound
    return {"items": found}
