"""`GET /changes`: the change feed."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import web
from app.audit.schemas import NamedActor
from app.auth.guard import optimistic, principal
from app.realtime.feed import service
from app.records.routes.records import EXAMPLE as RECORD
from app.types import JSONObject
from app.web import fields
from app.web.access import anonymous
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.schemas import Schema, View
from app.web.serialization import json_response
from app.webhooks.payload import EVENTS, TEST_EVENT

blueprint = Blueprint(
    "Changes",
    __name__,
    url_prefix=f"{web.PREFIX}/changes",
    description="Every change of the account's records, in the order of commits.",
)

NEWEST = 2**63 - 1
RESET = "records.reset"
CHANGE = {
    "change": 4711,
    "event": "records.create",
    "collection": "posts",
    "record_id": RECORD["id"],
    "record": RECORD,
    "occurred_at": "2026-11-20T12:00:00.123456Z",
    "user_id": RECORD["created_by"],
    "actor": {"kind": "user", "id": RECORD["created_by"], "name": None},
}
PAGE = {"items": [CHANGE], "next": 4711, "has_more": False, "oldest": 12}


class ChangeArgs(Schema):
    """Where to begin, and what to read."""

    since = fields.Integer(
        0,
        NEWEST,
        load_default=0,
        **doc(
            "Only changes after this one: `next` of the page before. Without it, or"
            " with 0, from the oldest change that is kept."
        ),
    )
    collections = fields.Text(
        **doc("Names separated by commas; without it, all collections that the caller may view.")
    )
    limit = fields.Integer(1, 1000, load_default=100, **doc("How many changes to return."))


class FeedItem(View):
    """A change of a record, or that a collection is to be listed again (`records.reset`)."""

    optional = (
        *("record_id", "record", "previous", "hidden", "occurred_at", "user_id"),
        *("actor", "restored"),
    )

    change = ma.fields.Integer(**doc("Its number, which ascends within an account."))
    event = ma.fields.String(
        validate=ma.validate.OneOf([*(one for one in EVENTS if one != TEST_EVENT), RESET]),
        **doc(
            "A record that comes into what the caller may view comes as"
            " `records.create`, one that leaves it as `records.delete` with `hidden`."
            " `records.reset`, with `collection` and `change` alone: the caller's rights have"
            " changed. List the collection again, and drop the rest."
        ),
    )
    collection = ma.fields.String()
    record_id = ma.fields.String()
    record = ma.fields.Dict(
        allow_none=True, **doc("The record after the change; null after a deletion.")
    )
    previous = ma.fields.Dict(**doc("The record before an update or a deletion; else absent."))
    hidden = ma.fields.Boolean(
        **doc("true if the record still exists, but the caller cannot view it.")
    )
    restored = ma.fields.Boolean(
        **doc("true where the record came back from the trash, as a `records.create`.")
    )
    occurred_at = fields.Timestamp()
    user_id = ma.fields.String(**doc("Who changed it; also `system` or `anonymous`."))
    actor = ma.fields.Nested(
        NamedActor,
        allow_none=True,
        **doc("What changed it, without names of people; null in changes that do not say."),
    )


class FeedPage(View):
    """Changes, and where to go on."""

    items = ma.fields.List(ma.fields.Nested(FeedItem))
    next = ma.fields.Integer(
        **doc(
            "`since` of the next page. It also passes changes that the caller may"
            " not view, so it grows although `items` may be empty."
        )
    )
    has_more = ma.fields.Boolean(**doc("Whether to read on at once."))
    oldest = ma.fields.Integer(**doc("The oldest change that is kept; 0 if none is."))


@blueprint.route("", methods=["GET"])
@blueprint.arguments(ChangeArgs, location="query")
@blueprint.response(200, FeedPage, example=PAGE)
@blueprint.fails(410)
@optimistic
@anonymous(operator="records")
def list_changes(args: JSONObject) -> Response:
    """List the changes of records, the oldest first.

    Shows what the caller may view now: rules, field lists and masks are those of this moment,
    judged on the record before and after the change. A reader that goes on with `next` misses no
    change and sees none twice. An update that changes no field is no change. What comes of one
    change is never split, so that a page may exceed its limit. 410 (`feed_expired`)
    means that changes after `since` are not kept any more: read the collection anew, then go on
    from the newest change. Needs a signed-in caller.
    """
    names = args["collections"].split(",") if "collections" in args else ()
    return json_response(service.page(args["since"], names, args["limit"], by=principal()))
