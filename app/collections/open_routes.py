"""`/account/collections`: the collections that are open to the caller."""

from __future__ import annotations

import marshmallow as ma

from app import web
from app.accounts.schemas import PAGE
from app.auth.guard import principal
from app.collections import service as collections
from app.collections.schemas import COLLECTION
from app.types import JSONObject
from app.web import fields
from app.web.access import signed_in
from app.web.blueprint import Blueprint
from app.web.paging import Page, PageArgs, items_field, page_body
from app.web.schemas import Schema

blueprint = Blueprint(
    "Own collections",
    __name__,
    url_prefix=f"{web.PREFIX}/account/collections",
    description="The collections that are open to the caller.",
)

OPEN_COLLECTION = {key: COLLECTION[key] for key in ("id", "name", "schema", "fields")}


class OpenCollectionView(Schema):
    """A collection that is open to the caller, with the fields that the caller may read."""

    id = fields.Id(required=True)
    name = ma.fields.String(required=True)
    schema = ma.fields.List(ma.fields.Dict(), required=True)
    fields_ = ma.fields.List(ma.fields.Dict(), attribute="fields", data_key="fields", required=True)


class OpenCollectionPage(Page):
    """A page of collections that are open to the caller."""

    items = items_field(OpenCollectionView)


@blueprint.route("", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, OpenCollectionPage, example=page_body([OPEN_COLLECTION], 1, PAGE))
@signed_in
def list_open_collections(args: JSONObject) -> JSONObject:
    """List the collections of which the rules open some operation to the caller.

    Ordered by name. Each shows the fields that the caller may read.
    """
    open_collections = collections.open_to(principal())
    return page_body(
        open_collections[args["skip"] : args["skip"] + args["limit"]], len(open_collections), args
    )
