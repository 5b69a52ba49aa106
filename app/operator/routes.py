"""`GET /operator/events`: what happened in all accounts."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import web
from app.operator import service, types
from app.operator.types import EventType
from app.types import JSONObject
from app.web import fields
from app.web.access import superadmin
from app.web.blueprint import Blueprint
from app.web.examples import UUID
from app.web.fields import doc
from app.web.schemas import Schema, View, example
from app.web.serialization import json_response

OPERATOR_EVENTS = superadmin(operator="events")
"""The access of this and of the webhooks: operator keys need the scope `events`."""
LARGEST = 2**63 - 1
EVENT = {
    "id": UUID,
    "type": "user.created",
    "account_id": UUID,
    "actor": {"kind": "user", "id": UUID, "name": None},
    "data": {"user_id": UUID, "role_id": 3},
    "at": "2026-11-20T12:00:00.123456Z",
}
PAGE = {"items": [EVENT], "next": 4711, "has_more": False}

blueprint = Blueprint(
    "Events",
    __name__,
    url_prefix=f"{web.PREFIX}/operator/events",
    description="Events of all accounts, in the order of commits. For superadmins.",
)


class EventArgs(Schema):
    """Where to begin, and what to read."""

    after = fields.Integer(
        0,
        LARGEST,
        load_default=0,
        **doc("Only events after this one: `next` of the page before; 0: from the oldest kept."),
    )
    types = fields.Text(
        longest=2000,
        **doc("Types separated by commas, such as `user.*,account.created`; without it, all."),
    )
    limit = fields.Integer(1, 1000, load_default=100, **doc("How many events to return."))


class EventActor(View):
    """Who did it; `name` is null for people and their keys, of whom events tell the id alone."""

    kind = ma.fields.String()
    id = ma.fields.String(**doc("Also `system` or `anonymous`."))
    name = ma.fields.String(allow_none=True)


@example(type="user.created", data={"user_id": UUID, "role_id": 3}, actor=EVENT["actor"])
class EventView(View):
    """Something that happened in an account."""

    id = fields.Id()
    type = fields.Choice([one.value for one in EventType])
    account_id = fields.Id()
    at = fields.Timestamp()
    actor = ma.fields.Nested(EventActor)
    data = ma.fields.Dict(**doc("What it concerns, by id: no secret and no personal value."))


@example(next=4711)
class EventPage(View):
    """Events, and where to go on."""

    items = ma.fields.List(ma.fields.Nested(EventView))
    next = ma.fields.Integer(**doc("`after` of the next page."))
    has_more = ma.fields.Boolean(**doc("Whether to read on at once."))


@blueprint.route("", methods=["GET"])
@blueprint.arguments(EventArgs, location="query")
@blueprint.response(200, EventPage, example=PAGE)
@blueprint.fails(410)
@OPERATOR_EVENTS
def list_operator_events(args: JSONObject) -> Response:
    """List the events of all accounts, the oldest first.

    Each was stored by the transaction of the change that it tells of. Within an account they come
    in the order of commits, and a reader that goes on with `next` misses none. Events are kept as
    long as the operator has set: 410 (`feed_expired`) means that some after `after` are gone, or
    that the instance was restored. Read the accounts and users anew, then go on from 0.
    """
    written = types.parse(args["types"]) if "types" in args else ()
    return json_response(service.page(args["after"], written, args["limit"]))
