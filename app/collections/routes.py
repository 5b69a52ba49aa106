"""`/collections`: definitions and their rules (spec 4.3)."""

from __future__ import annotations

from collections.abc import Sequence

from app import rest
from app.accounts.schemas import PAGE
from app.collections import removal, updates
from app.collections import service as collections
from app.collections.models import Collection
from app.collections.rule_schemas import EXAMPLE_RULES, RULES, Rules
from app.collections.schemas import (
    COLLECTION,
    SCHEMA,
    ChangedCollection,
    CollectionArgs,
    CollectionPage,
    CollectionView,
    DeletedCollection,
    DeletionArgs,
    Names,
    NewCollection,
    Plan,
    PlannedCollection,
    ReplacedCollection,
)
from app.rest.access import superadmin
from app.rest.blueprint import Blueprint
from app.rest.paging import page_body
from app.types import JSONObject

blueprint = Blueprint(
    "Collections",
    __name__,
    url_prefix=f"{rest.PREFIX}/collections",
    description="The collections that all accounts share; superadmins define them.",
)


def _views(rows: Sequence[Collection]) -> list[JSONObject]:
    counts = collections.record_counts(rows)
    return [
        {
            "id": row.id,
            "name": row.name,
            "table_name": row.table_name,
            "schema": row.schema,
            "fields": row.schema,
            "field_count": len(row.schema),
            "record_count": counts[row.id],
            "options": {"require_signature": False, **row.options},
            "created_at": row.created_at,
            "updated_at": row.updated_at,
        }
        for row in rows
    ]


@blueprint.route("", methods=["GET"])
@blueprint.arguments(CollectionArgs, location="query")
@blueprint.response(200, CollectionPage, example=page_body([COLLECTION], 1, PAGE))
@superadmin
def list_collections(args: JSONObject) -> JSONObject:
    """List collections."""
    rows, total = collections.page(**args)
    return page_body(_views(rows), total, args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(NewCollection, example={"name": "posts", "schema": SCHEMA, **RULES})
@blueprint.response(201, CollectionView, example=COLLECTION)
@blueprint.fails(400, 409)
@superadmin
def create_collection(body: JSONObject) -> JSONObject:
    """Create a collection.

    Makes its table in the same transaction. Without rules every operation is closed to all but
    superadmins: null closes, `true` opens to whoever has signed in to the account, `""` opens to
    everyone, and anything else is an expression of the rule language. The field types `select`,
    `multi_select`, `phone` and `file` are refused for now.

    A reference says what becomes of it when its target is deleted: `restrict` (the default) keeps
    the target (409), `cascade` deletes the referring record too, and so on from there, `set_null`
    empties the reference, which then cannot be required.
    """
    name, specs = body.pop("name"), body.pop("schema")
    return _views([collections.create(name, specs, body)])[0]


@blueprint.route("/names", methods=["GET"])
@blueprint.response(200, Names, example={"names": ["posts"], "total": 1})
@superadmin
def list_collection_names() -> JSONObject:
    """List the names of all collections."""
    names = collections.names()
    return {"names": names, "total": len(names)}


@blueprint.route("/<collection_id>", methods=["GET"])
@blueprint.response(200, CollectionView, example=COLLECTION)
@superadmin
def get_collection(collection_id: str) -> JSONObject:
    """Get a collection by its id or name."""
    return _views([collections.find(collection_id)])[0]


@blueprint.route("/<uuid:collection_id>", methods=["PUT"])
@blueprint.arguments(ReplacedCollection, example={"schema": SCHEMA})
@blueprint.response(200, CollectionView, example=COLLECTION)
@blueprint.fails(400, 409)
@superadmin
def update_collection(body: JSONObject, collection_id: str) -> JSONObject:
    """Update a collection's schema, and rules if they are sent.

    The schema lists every present field and new ones; a property that is left out takes its usual
    value. Fields are never removed, and keep their type and the collection they refer to; a
    collection keeps its name. Constraints and indexes of the database follow.

    Present records: one without a value for a field that becomes required takes the field's
    default, and without a default it is a 400 `required` with the count. Values that clash where
    `unique` is switched on are a 409 with the count of such values. Options that get narrower
    (lengths, bounds, pattern, choices) act on what is written from then on: what is stored stays
    as it is. Filling records is no change of theirs: `updated_at` stays, and no event is sent.
    """
    return _updated(collection_id, body, partial=False)


@blueprint.route("/<uuid:collection_id>", methods=["PATCH"])
@blueprint.arguments(
    ChangedCollection, example={"schema": [{"name": "title", "options": {"max_length": 300}}]}
)
@blueprint.response(200, CollectionView, example=COLLECTION)
@blueprint.fails(400, 409)
@superadmin
def patch_collection(body: JSONObject, collection_id: str) -> JSONObject:
    """Change some fields or rules of a collection.

    As PUT, but fields and properties that are left out stay as they are. `options` are one
    property: they are replaced as a whole.
    """
    return _updated(collection_id, body, partial=True)


def _updated(collection_id: str, body: JSONObject, *, partial: bool) -> JSONObject:
    specs, name = body.pop("schema", None), body.pop("name", None)
    row = updates.update(collection_id, specs, body, name=name, partial=partial)
    return _views([row])[0]


@blueprint.route("/<uuid:collection_id>/plan", methods=["POST"])
@blueprint.arguments(
    PlannedCollection,
    example={"schema": [*SCHEMA, {"name": "code", "type": "text", "unique": True}]},
)
@blueprint.response(
    200,
    Plan,
    example={
        "operations": [{"operation": "add_field", "field": "code", "property": None}],
        "sql": [
            'ALTER TABLE col_posts ADD COLUMN "code" TEXT',
            'CREATE UNIQUE INDEX "uq_col_posts$code" ON col_posts (account_id, "code")',
        ],
        "problems": [],
    },
)
@blueprint.fails(400, 409)
@superadmin
def plan_collection(body: JSONObject, collection_id: str) -> JSONObject:
    """Plan an update without doing it.

    Tells the operations, the SQL as the update would run it, and, with counts, what of the present
    records would break it. A schema that no records could follow is a 400, as at the update.
    """
    return updates.plan(collection_id, body["schema"])


@blueprint.route("/<uuid:collection_id>", methods=["DELETE"])
@blueprint.arguments(DeletionArgs, location="query")
@blueprint.response(
    200,
    DeletedCollection,
    example={
        "message": "The collection and its records are deleted.",
        "collection_id": COLLECTION["id"],
        "collection_name": "posts",
        "table_name": "col_posts",
        "records_deleted": 12,
        "migration_revision": "019a9f00000070008000000000000001",
    },
)
@blueprint.fails(400, 409)
@superadmin
def delete_collection(args: JSONObject, collection_id: str) -> JSONObject:
    """Delete a collection with the records of all accounts.

    While another refers to it, it is a 409. Collections that refer to each other in a circle can
    only go together: `with` names the others.
    """
    named = args.get("along", "").split(",")
    return removal.delete(collection_id, [one.strip() for one in named if one.strip()])


@blueprint.route("/<collection_name>/rules", methods=["GET"])
@blueprint.response(200, Rules, example=EXAMPLE_RULES)
@superadmin
def get_rules(collection_name: str) -> JSONObject:
    """Get the rules of a collection, flat and as the permission structure."""
    return collections.rules_of(collections.find(collection_name))


@blueprint.route("/<collection_name>/rules", methods=["PUT"])
@blueprint.arguments(Rules, example=RULES)
@blueprint.response(200, Rules, example=EXAMPLE_RULES)
@blueprint.fails(400)
@superadmin
def update_rules(body: JSONObject, collection_name: str) -> JSONObject:
    """Change rules and field lists.

    They act on the next request of every process. Where `list_rule` and `read.rule` are both
    given, the flat form counts. What GET answers can be changed and sent back.
    """
    return collections.rules_of(collections.change_rules(collection_name, body))
