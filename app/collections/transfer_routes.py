"""`/collections/export` and `/collections/import`: transfer of definitions."""

from __future__ import annotations

import marshmallow as ma

from app import clock, web
from app.auth.guard import principal
from app.collections import transfer
from app.collections.rule_schemas import RULES, RulesOfNew
from app.collections.schemas import (
    ALL_INDEXES,
    INDEXES,
    OPTIONS,
    PLAN_HASH,
    SCHEMA,
    CollectionOptions,
    WithSchema,
    field_order_field,
    indexes_field,
    remove_fields_field,
)
from app.types import JSONObject
from app.web import fields
from app.web.access import superadmin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.schemas import Schema, View

blueprint = Blueprint(
    "Collection transfer",
    __name__,
    url_prefix=f"{web.PREFIX}/collections",
    description="Transfer of collection definitions between instances, without records.",
)

MAX_COLLECTIONS = 500  # a transaction holds a lock for each table and index
EXPORT = {
    "version": transfer.VERSION,
    "exported_at": "2026-11-20T12:00:00.123456Z",
    "exported_by": "root@system.example",
    "collections": [
        {"name": "posts", "schema": SCHEMA, "rules": RULES, "options": OPTIONS, "indexes": INDEXES}
    ],
    "fragments": {},
}


class ExportArgs(Schema):
    collection_ids = fields.Text(
        longest=40_000, **doc("Comma-separated ids or names; absent means all collections.")
    )


class ExportedCollection(WithSchema):
    """A collection's definition."""

    name = fields.Text(longest=200, required=True)
    rename_from = fields.Text(
        longest=200, **doc("The present name of a collection that `update` renames.")
    )
    remove_fields = remove_fields_field()
    field_order = field_order_field()
    plan_hash = fields.Text(longest=100, metadata=PLAN_HASH)
    rules = ma.fields.Nested(RulesOfNew, load_default=dict)
    options = ma.fields.Nested(CollectionOptions)
    indexes = indexes_field(ALL_INDEXES)


class Definitions(Schema):
    version = fields.Text(longest=20)
    exported_at = fields.Text(longest=100)
    exported_by = fields.Text(longest=320, allow_none=True)
    collections = ma.fields.List(
        ma.fields.Nested(ExportedCollection),
        required=True,
        validate=ma.validate.Length(max=MAX_COLLECTIONS),
    )
    fragments = ma.fields.Dict(
        keys=fields.Text(longest=63),
        values=fields.Text(longest=2000),
        load_default=dict,
        **doc("Fragments that rules use, by name: those that are missing are created."),
    )


class DefinitionsView(View):
    """Definitions of collections, in the format of an import."""

    version = ma.fields.String()
    exported_at = fields.Timestamp()
    exported_by = ma.fields.String(allow_none=True)
    collections = ma.fields.List(ma.fields.Dict())
    fragments = ma.fields.Dict(
        keys=ma.fields.String(),
        values=ma.fields.String(),
        **doc("The fragments that their rules use, by name."),
    )


class ImportBody(Schema):
    """What to import, and how to treat existing collections."""

    data = ma.fields.Nested(Definitions, required=True)
    strategy = ma.fields.String(
        load_default="error",
        validate=ma.validate.OneOf(transfer.STRATEGIES),
        **doc("If collections exist: error refuses, skip keeps, update changes them."),
    )


class ImportedCollection(View):
    name = ma.fields.String()
    status = fields.Choice(transfer.OUTCOMES)
    message = ma.fields.String()


class ImportReport(View):
    success = ma.fields.Boolean()
    imported_count = ma.fields.Integer()
    skipped_count = ma.fields.Integer()
    updated_count = ma.fields.Integer()
    failed_count = ma.fields.Integer()
    collections = ma.fields.List(ma.fields.Nested(ImportedCollection))
    migrations_created = ma.fields.List(ma.fields.String())


@blueprint.route("/export", methods=["GET"])
@blueprint.arguments(ExportArgs, location="query")
@blueprint.response(200, DefinitionsView, example=EXPORT)
@superadmin(operator="definitions")
def export_collections(args: JSONObject) -> JSONObject:
    """Export the definitions of collections.

    Ordered by name. With rules, the fragments that these use, and field lists, without records; can
    be imported elsewhere.
    """
    ids = args.get("collection_ids")
    references = (
        [reference.strip() for reference in ids.split(",") if reference.strip()] if ids else None
    )
    exported = transfer.exported(references)
    return {
        "version": transfer.VERSION,
        "exported_at": clock.now(),
        "exported_by": principal().email,
        "collections": exported,
        "fragments": transfer.used_fragments(exported),
    }


@blueprint.route("/import", methods=["POST"])
@blueprint.arguments(ImportBody, example={"data": EXPORT, "strategy": "update"})
@blueprint.response(
    200,
    ImportReport,
    example={
        "success": True,
        "imported_count": 1,
        "skipped_count": 0,
        "updated_count": 0,
        "failed_count": 0,
        "collections": [{"name": "posts", "status": "imported", "message": "Created."}],
        "migrations_created": ["019a9f00000070008000000000000001"],
    },
)
@blueprint.fails(409)
@superadmin(operator="definitions")
def import_collections(body: JSONObject) -> JSONObject:
    """Import definitions of collections, all or nothing.

    Collections may refer to each other in any order, in cycles and to themselves. For existing
    collections, `error` (the default) returns 409, `skip` keeps them, and `update` changes them as
    PUT does: fields can be added and changed, but not omitted; given rules replace the present
    ones. `rename_from` names what to rename; where a collection has the new name already, it does
    nothing. `remove_fields` needs the `plan_hash` of the same change, which the plan of that
    collection answers. Problems are named `<collection>.<field>`. `fragments` that are missing are
    created; one that has another text here is a 409 that names it.
    """
    data = body["data"]
    return transfer.imported(data["collections"], body["strategy"], data["fragments"])
