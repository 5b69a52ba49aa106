"""`/collections`: definitions and their rules; `/account/collections` and `/migrations`.

Those that are open to the caller, and the revisions of the schema.
"""

from __future__ import annotations

from collections.abc import Sequence

import marshmallow as ma

from app import web
from app.auth.guard import principal
from app.collections import definitions, removal, revisions, trials, updates, view_service
from app.collections import service as collections
from app.collections.changes import Proposal
from app.collections.models import Collection
from app.collections.rule_schemas import RULES, ChangedRules, CollectionRules
from app.collections.schemas import (
    INDEXES,
    SCHEMA,
    VIEW,
    ChangedCollection,
    CollectionArgs,
    CollectionNames,
    CollectionPage,
    CollectionPlan,
    CollectionView,
    DeletedCollection,
    DeletionArgs,
    NewCollection,
    PlannedCollection,
    ReplacedCollection,
)
from app.types import JSONObject
from app.web import fields
from app.web.access import signed_in, superadmin
from app.web.blueprint import Blueprint
from app.web.paging import PageArgs, page_body, page_of
from app.web.schemas import View, example

CREATE_INDEX = (
    'CREATE INDEX "ix_col_posts$title$-views" ON col_posts'
    ' (account_id, "title", "views" DESC NULLS LAST, id)'
)

blueprint = Blueprint(
    "Collections",
    __name__,
    url_prefix=f"{web.PREFIX}/collections",
    description="The collections that all accounts share; superadmins define them.",
)
open_blueprint = Blueprint(
    "Own collections",
    __name__,
    url_prefix=f"{web.PREFIX}/account/collections",
    description="The collections that are open to the caller.",
)
revision_blueprint = Blueprint(
    "Migrations",
    __name__,
    url_prefix=f"{web.PREFIX}/migrations",
    description="Which revisions of the schema there are, and which are applied.",
)


REVISION = {
    "revision": "0001",
    "description": "create core tables",
    "is_applied": True,
    "is_head": True,
    "is_dynamic": False,
    "down_revision": None,
    "branch_labels": [],
    "created_at": "2026-11-20T12:00:00.000000Z",
}


def _views(rows: Sequence[Collection]) -> list[JSONObject]:
    counts = collections.record_counts(rows)
    return [
        {
            "id": row.id,
            "name": row.name,
            **({"type": VIEW, "view": row.view} if row.view else {}),
            "table_name": row.table_name,
            "schema": row.schema,
            "fields": row.schema,
            "field_count": len(row.schema),
            "fields_count": len(row.schema),
            "record_count": counts[row.id],
            "records_count": counts[row.id],
            "has_public_access": definitions.from_row(row).is_public,
            "options": {"require_signature": False, **row.options},
            "indexes": row.indexes,
            **({"indexing": row.indexing} if row.indexing else {}),
            "created_at": row.created_at,
            "updated_at": row.updated_at,
        }
        for row in rows
    ]


@blueprint.route("", methods=["GET"])
@blueprint.arguments(CollectionArgs, location="query")
@blueprint.response(200, CollectionPage)
@superadmin(operator="definitions")
def list_collections(args: JSONObject) -> JSONObject:
    """List collections.

    All other callers use `GET /open-collections`. Ordered by name by default.
    """
    rows, total = collections.page(**args)
    return page_body(_views(rows), total, args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(
    NewCollection, example={"name": "posts", "schema": SCHEMA, "indexes": INDEXES, **RULES}
)
@blueprint.response(201, CollectionView)
@blueprint.fails(409)
@superadmin(operator="definitions")
def create_collection(body: JSONObject) -> JSONObject:
    """Create a collection.

    Without rules, only superadmins may use it: null closes an operation, `true` opens it to
    signed-in users of the account, `""` opens it to everyone, and anything else is an expression of
    the rule language.

    `select` and `multi_select` take `options.choices`, 1 to 500 distinct texts.

    `on_delete` of a reference applies when its target is deleted: `restrict` (the default) refuses
    (409), `cascade` deletes the referring record too, recursively, and `set_null` clears the
    reference, which must not be required. For a field of type `user`, which has the id of a user of
    the account, `set_null` is the default.

    With `multiple: true` a reference or user field is a list of distinct ids, of at most
    `options.max_items` (100, at most 1,000); `set_null` takes an entry out. In rules and filters, a
    name through it means any of the entries.

    `indexes` are within each account. Text in an index of several texts has a limit: together they
    have at most 2,000 bytes, each an equal share.

    With `type: view` it shows what a caller may list of the collection `from`, then under its own
    `list_rule` and `view_rule`. `fields` are names of its fields, dotted ones follow references:
    `customer.name` is the column `customer_name`. With `group_by` or `aggregates` a row stands for
    the records that have these and the `fields` in common: `count()` is the column `count`,
    `sum(amount)` the column `sum_amount`. Its records are only read.
    """
    name = body.pop("name")
    if body.pop("type", None) == VIEW:
        return _answer(view_service.create(name, body))
    view_service.refuse_parts(body)
    return _answer(collections.create(name, body.pop("schema"), body))


@blueprint.route("/names", methods=["GET"])
@blueprint.response(200, CollectionNames, example={"names": ["posts"], "total": 1})
@superadmin(operator="definitions")
def list_collection_names() -> JSONObject:
    """List the names of all collections.

    Ordered by name, in one page.
    """
    names = collections.names()
    return {"names": names, "total": len(names)}


@blueprint.route("/<collection_id>", methods=["GET"])
@blueprint.response(200, CollectionView)
@superadmin(operator="definitions")
def get_collection(collection_id: str) -> JSONObject:
    """Get a collection by its id or name.

    Its rules are a resource of their own (`/collections/{collection_name}/rules`).
    """
    return _views([collections.find(collection_id)])[0]


@blueprint.route("/<uuid:collection_id>", methods=["PUT"])
@blueprint.arguments(ReplacedCollection, example={"schema": SCHEMA})
@blueprint.response(200, CollectionView)
@blueprint.fails(409)
@superadmin(operator="definitions")
def update_collection(body: JSONObject, collection_id: str) -> JSONObject:
    """Update a collection's schema, and rules if they are sent.

    The schema lists all present and new fields; omitted properties get their defaults. A field that
    it leaves out stays as it is, which `warnings` says: only `remove_fields` removes. Fields cannot
    change their type or target. Database constraints and indexes follow.

    A new `name` renames the collection and its table. References to it, webhooks and scopes of API
    keys follow, and history and the change feed span both names. Workflows and hooks that name it
    are a 400 with every place. A name that is taken is a 409.

    `rename_from` of a field is its present name. Values stay; rules, field lists, computed fields
    and indexes follow, also rules of other collections. Filters of webhooks and workflows that name
    the field are a 400 with every place. `rename_from` in a schema whose field has its new name
    already does nothing.

    `remove_fields` names fields to remove, which the schema omits, with the values of all records.
    It needs the `plan_hash` of its plan (400 `plan_required`). Field lists follow; anything else
    that names the field is a 400 with every place. With `plan_hash`, the update does what that
    plan says, or is a 409 `plan_stale`.

    Fields keep their order, whatever that of `schema` is, unless `field_order` names another.

    Existing records without a value for a newly required field get its default; without a default,
    it is a 400 `required` with the count. Duplicates of a newly unique field are a 409 with the
    count, and so is the removal of a `select` or `multi_select` choice that records use. Narrower
    options of other types (lengths, bounds, pattern, choices) apply to new values only. Filling
    defaults does not change `updated_at` and sends no events.

    `indexes`, if sent, replaces all indexes. Records that clash in a newly unique one are a 409
    with the count. On PostgreSQL, an index of present fields is built without blocking writers;
    503 if another index is being built.
    """
    return _updated(collection_id, body, partial=False)


@blueprint.route("/<uuid:collection_id>", methods=["PATCH"])
@blueprint.arguments(
    ChangedCollection, example={"schema": [{"name": "title", "options": {"max_length": 300}}]}
)
@blueprint.response(200, CollectionView)
@blueprint.fails(409)
@superadmin(operator="definitions")
def patch_collection(body: JSONObject, collection_id: str) -> JSONObject:
    """Change some fields or rules of a collection.

    As PUT, but omitted fields and properties stay. `options` and `indexes` are replaced as a whole.
    """
    return _updated(collection_id, body, partial=True)


def _updated(collection_id: str, body: JSONObject, *, partial: bool) -> JSONObject:
    if view_service.is_meant(collection_id, body):
        return _answer(view_service.update(collection_id, body, partial=partial))
    row, change = updates.update(collection_id, _proposal(body, partial=partial), body)
    return _answer(row, change.warnings)


def _answer(row: Collection, warnings: Sequence[str] = ()) -> JSONObject:
    """A collection that was made or changed, with its warnings, if any."""
    warnings = [*warnings, *updates.rule_warnings(definitions.from_row(row))]
    return _views([row])[0] | ({"warnings": warnings} if warnings else {})


def _proposal(body: JSONObject, *, partial: bool = False) -> Proposal:
    """Take the proposal from the body, which keeps rules and options."""
    return Proposal(
        specs=body.pop("schema", None),
        indexes=body.pop("indexes", None),
        removed=body.pop("remove_fields", ()),
        partial=partial,
        name=body.pop("name", None),
        order=body.pop("field_order", ()),
        keeps_omitted=True,
        plan_hash=body.pop("plan_hash", None),
        options=body.get("options", {}),
    )


@blueprint.route("/<uuid:collection_id>/plan", methods=["POST"])
@blueprint.arguments(
    PlannedCollection,
    example={
        "schema": [*SCHEMA, {"name": "code", "type": "text", "unique": True}],
        "indexes": INDEXES,
    },
)
@blueprint.response(
    200,
    CollectionPlan,
    example={
        "operations": [
            {"operation": "add_field", "field": "code", "property": None},
            {"operation": "add_index", "field": None, "property": None, "index": INDEXES[0]},
        ],
        "sql": [
            'ALTER TABLE col_posts ADD COLUMN "code" TEXT',
            CREATE_INDEX,
            'CREATE UNIQUE INDEX "uq_col_posts$code" ON col_posts (account_id, "code")',
        ],
        "problems": [],
        "plan_hash": "3-9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "reverse": {"schema": SCHEMA, "indexes": [], "remove_fields": ["code"]},
        "data_lost": [],
        "warnings": [],
    },
)
@blueprint.fails(409)
@superadmin(reads=True, operator="definitions")
def plan_collection(body: JSONObject, collection_id: str) -> JSONObject:
    """Plan an update without doing it.

    Returns the operations, the SQL, and problems of existing records with counts. The schema is the
    whole one, as for PUT. An invalid schema is a 400, as for the update.

    `reverse` is the body of an update that goes back. What `data_lost` names comes back with its
    default, or empty and not required.
    """
    if view_service.is_meant(collection_id, body):
        return view_service.plan(collection_id, body)
    return updates.plan(collection_id, _proposal(body))


@blueprint.route("/<uuid:collection_id>", methods=["DELETE"])
@blueprint.arguments(DeletionArgs, location="query")
@blueprint.response(
    200,
    DeletedCollection,
    example={
        "message": "The collection and its records are deleted.",
        "collection_name": "posts",
        "table_name": "col_posts",
        "records_deleted": 12,
        "migration_revision": "019a9f00000070008000000000000001",
    },
)
@blueprint.fails(409)
@superadmin(operator="definitions")
def delete_collection(args: JSONObject, collection_id: str) -> JSONObject:
    """Delete a collection with the records of all accounts.

    Returns 409 while another collection refers to it. Collections that refer to each other must be
    deleted together: name the others in `with`.
    """
    references = args.get("along", "").split(",")
    return removal.delete(
        collection_id, [reference.strip() for reference in references if reference.strip()]
    )


@blueprint.route("/<collection_name>/rules", methods=["GET"])
@blueprint.response(200, CollectionRules)
@superadmin(operator="definitions")
def get_rules(collection_name: str) -> JSONObject:
    """Get the rules of a collection, flat and as the permission structure.

    Each operation is in both forms; null is closed to all but superadmins. `PUT` takes the response
    as it is.
    """
    return collections.rules_view(collections.find(collection_name))


@blueprint.route("/<collection_name>/rules", methods=["PUT"])
@blueprint.arguments(CollectionRules, example=RULES)
@blueprint.response(200, ChangedRules)
@superadmin(operator="definitions")
def update_rules(body: JSONObject, collection_name: str) -> JSONObject:
    """Change rules and field lists.

    Takes effect with the next request of every process. If both `list_rule` and `read.rule` are
    sent, the flat form wins. Accepts the format of GET.
    """
    row = collections.change_rules(collection_name, body)
    warnings = trials.all_warnings(definitions.from_row(row))
    return collections.rules_view(row) | ({"warnings": warnings} if warnings else {})


@example(name="posts", schema=SCHEMA, fields=SCHEMA)
class OpenCollectionView(View):
    """A collection that is open to the caller, with the fields that the caller may read."""

    id = fields.Id()
    name = ma.fields.String()
    schema = ma.fields.List(ma.fields.Dict())
    fields_ = ma.fields.List(ma.fields.Dict(), attribute="fields", data_key="fields")


@open_blueprint.route("", methods=["GET"])
@open_blueprint.arguments(PageArgs, location="query")
@open_blueprint.response(200, page_of(OpenCollectionView))
@signed_in(operator="definitions")
def list_open_collections(args: JSONObject) -> JSONObject:
    """List the collections of which the rules open some operation to the caller.

    Ordered by name. Each shows the fields that the caller may read.
    """
    open_collections = collections.open_to(principal())
    return page_body(
        open_collections[args["skip"] : args["skip"] + args["limit"]], len(open_collections), args
    )


class RevisionView(View):
    """A revision of the schema: of the core, or of a collection's table (dynamic)."""

    revision = ma.fields.String()
    description = ma.fields.String()
    is_applied = ma.fields.Boolean()
    is_head = ma.fields.Boolean()
    is_dynamic = ma.fields.Boolean()
    down_revision = ma.fields.String(allow_none=True)
    branch_labels = ma.fields.List(ma.fields.String())
    created_at = ma.fields.String(allow_none=True, metadata={"format": "date-time"})


class Revisions(View):
    """All revisions, newest first."""

    revisions = ma.fields.List(ma.fields.Nested(RevisionView))
    total = ma.fields.Integer()
    current_revision = ma.fields.String(allow_none=True)


class CurrentRevision(View):
    revision = ma.fields.String(allow_none=True)
    current_revision = ma.fields.String(allow_none=True)


@revision_blueprint.route("", methods=["GET"])
@revision_blueprint.route("/history", methods=["GET"], endpoint="list_migration_history")
@revision_blueprint.response(
    200, Revisions, example={"revisions": [REVISION], "total": 1, "current_revision": "0001"}
)
@superadmin
def list_migrations() -> JSONObject:
    """List the revisions of the core and of collections.

    Collections first, then the core, each newest first, in one page. Revisions of the core that are
    not applied yet have `is_applied: false`. `/migrations` and `/migrations/history` are the same.
    """
    return revisions.listing()


@revision_blueprint.route("/current", methods=["GET"])
@revision_blueprint.response(
    200, CurrentRevision, example={"revision": "0001", "current_revision": "0001"}
)
@superadmin
def get_current_migration() -> JSONObject:
    """Get the revision that the schema is at.

    The newest applied revision: of a collection, if any was changed, else of the core.
    """
    current = revisions.listing()["current_revision"]
    return {"revision": current, "current_revision": current}
