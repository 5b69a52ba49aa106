"""`/account/collections`: the collections that are open to the caller."""

from __future__ import annotations

import marshmallow as ma

from app import web
from app.auth.guard import principal
from app.collections import service as collections
from app.collections.schemas import SCHEMA
from app.types import JSONObject
from app.web import fields
from app.web.access import signed_in
from app.web.blueprint import Blueprint
from app.web.paging import PageArgs, page_body, page_of
from app.web.schemas import View, example

blueprint = Blueprint(
    "Own collections",
    __name__,
    url_prefix=f"{web.PREFIX}/account/collections",
    description="The collections that are open to the caller.",
)


@example(name="posts", schema=SCHEMA, fields=SCHEMA)
class OpenCollectionView(View):
    """A collection that is open to the caller, with the fields that the caller may read."""

    id = fields.Id()
    name = ma.fields.String()
    schema = ma.fields.List(ma.fields.Dict())
    fields_ = ma.fields.List(ma.fields.Dict(), attribute="fields", data_key="fields")


@blueprint.route("", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, page_of(OpenCollectionView))
@signed_in
def list_open_collections(args: JSONObject) -> JSONObject:
    """List the collections of which the rules open some operation to the caller.

    Ordered by name. Each shows the fields that the caller may read.
    """
    open_collections = collections.open_to(principal())
    return page_body(
        open_collections[args["skip"] : args["skip"] + args["limit"]], len(open_collections), args
    )
