"""`/collections` and `/migrations`: definitions, rules and revisions (spec 4.3, 4.8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import marshmallow as ma

from app import rest
from app.auth.guard import principal
from app.collections import masking, removal, revisions, updates
from app.collections import service as collections
from app.collections.fields import RETURN_TYPES, TYPES
from app.collections.models import Collection
from app.collections.schema import LONGEST_SCHEMA
from app.rest import page_of, superadmin

blueprint = rest.Blueprint(
    "Collections",
    __name__,
    url_prefix=f"{rest.PREFIX}/collections",
    description="The collections that all accounts share; superadmins define them.",
)
own = rest.Blueprint(
    "Own collections",
    __name__,
    url_prefix=f"{rest.PREFIX}/account/collections",
    description="The collections that are open to the caller.",
)
migrations = rest.Blueprint(
    "Migrations",
    __name__,
    url_prefix=f"{rest.PREFIX}/migrations",
    description="Which revisions of the schema there are, and which are applied.",
)

RULES = {
    "list_rule": "true",
    "view_rule": "true",
    "create_rule": "true",
    "update_rule": "true",
    "delete_rule": None,
    "list_fields": "*",
    "view_fields": "*",
    "create_fields": "*",
    "update_fields": "*",
}
SCHEMA = [
    {"name": "title", "type": "text", "required": True, "options": {"max_length": 200}},
    {"name": "views", "type": "number", "default": 0},
]
OPTIONS = {"require_signature": False}
COLLECTION = {
    "id": "019a9f00-0000-7000-8000-0000000000c0",
    "name": "posts",
    "table_name": "col_posts",
    "schema": SCHEMA,
    "fields": SCHEMA,
    "field_count": 2,
    "record_count": 0,
    "options": OPTIONS,
    "created_at": "2026-11-20T12:00:00.123456Z",
    "updated_at": "2026-11-20T12:00:00.123456Z",
}


def _expression(**options: Any) -> Any:
    # How long it may be the rule language says itself, as a 400 with a position.
    return rest.Text(longest=2**30, allow_none=True, **options)


class FieldDefinition(rest.Schema):
    """A field of a collection."""

    name = rest.Text(longest=200, required=True)
    type = rest.Text(required=True, metadata={"description": f"One of: {', '.join(TYPES)}."})
    required = rest.Flag()
    default = ma.fields.Raw(allow_none=True)
    unique = rest.Flag(metadata={"description": "Unique within each account."})
    options = ma.fields.Dict(
        keys=ma.fields.String(),
        metadata={
            "description": "text: min_length, max_length, pattern (RE2), choices; number: min, max,"
            " integer; any but json: index."
        },
    )
    collection = rest.Text(
        allow_none=True, metadata={"description": "The collection a reference points into."}
    )
    on_delete = rest.Text(
        allow_none=True, metadata={"description": "restrict, cascade or set_null, for references."}
    )
    pii = rest.Flag(
        metadata={"description": "Personal data: masked but for superadmins and `pii_access`."}
    )
    mask_type = rest.Text(
        allow_none=True,
        metadata={
            "description": f"With pii, one of: {', '.join(masking.MASKS)}; full if absent. custom"
            " takes `options.mask`, a text with `*`; `{first:n}` and `{last:n}` keep characters."
        },
    )
    expression = _expression(
        metadata={"description": "Of a computed field: an expression over the stored fields."}
    )
    return_type = rest.Text(
        allow_none=True,
        metadata={"description": f"Of a computed field: {', '.join(RETURN_TYPES)}."},
    )


class RulePart(rest.Schema):
    """The rule and the fields of one operation."""

    rule = _expression()
    fields_ = ma.fields.Raw(
        data_key="fields",
        attribute="fields",
        metadata={"description": '`"*"` or an array of field names.'},
    )


class RulesOfNew(rest.Schema):
    """Rules that a new collection may bring along."""

    list_rule = _expression()
    view_rule = _expression()
    create_rule = _expression()
    update_rule = _expression()
    delete_rule = _expression()
    list_fields = ma.fields.Raw()
    view_fields = ma.fields.Raw()
    create_fields = ma.fields.Raw()
    update_fields = ma.fields.Raw()


class RulesBody(RulesOfNew):
    """Rules and field lists; what is absent stays as it is."""

    create = ma.fields.Nested(RulePart)
    read = ma.fields.Nested(RulePart, metadata={"description": "Sets list and view."})
    update = ma.fields.Nested(RulePart)
    delete = ma.fields.Nested(RulePart)


class Rules(RulesBody):
    """The rules of a collection, in both forms."""

    collection = ma.fields.String()


def _schema_field(**options: Any) -> Any:
    return ma.fields.List(ma.fields.Nested(FieldDefinition), **options)


class WithSchema(rest.Schema):
    """A body with a schema, under either of its names."""

    needs_all = True

    schema = _schema_field(validate=ma.validate.Length(max=LONGEST_SCHEMA))
    fields_ = _schema_field(data_key="fields", metadata={"description": "Another name for schema."})

    @ma.pre_load
    def accept_fields(self, data: Any, **options: Any) -> Any:
        """Take `fields` for `schema`."""
        if not isinstance(data, dict) or "fields" not in data:
            return data
        rest_of = {key: value for key, value in data.items() if key != "fields"}
        if rest_of.setdefault("schema", data["fields"]) != data["fields"]:
            raise ma.ValidationError("Differs from schema, whose other name it is.", "fields")
        return rest_of

    @ma.validates_schema
    def needs_schema(self, data: dict[str, Any], **options: Any) -> None:
        """One of the two must be there, where the whole is asked for."""
        if self.needs_all and "schema" not in data:
            raise ma.ValidationError("Missing data for required field.", "schema")


class Options(rest.Schema):
    """What a collection demands of its records' writers; what is absent stays, at first false."""

    require_signature = rest.Flag(
        metadata={"description": "Every write needs an electronic signature: 428 without."}
    )


class NewCollection(WithSchema, RulesOfNew):
    """A collection to make."""

    name = rest.Text(longest=200, required=True)
    options = ma.fields.Nested(Options)


class ReplacedCollection(WithSchema, RulesOfNew):
    """A collection as it shall be: every present field, and new ones."""

    name = rest.Text(longest=200, metadata={"description": "The present name; it cannot change."})
    schema = _schema_field(validate=ma.validate.Length(min=1, max=LONGEST_SCHEMA))
    options = ma.fields.Nested(Options)


class ChangedField(FieldDefinition):
    """What changes of a field, or a new one."""

    type = rest.Text(metadata={"description": "Needed for a new field; cannot change."})


class ChangedCollection(WithSchema, RulesOfNew):
    """What changes of a collection."""

    needs_all = False

    name = rest.Text(longest=200, metadata={"description": "The present name; it cannot change."})
    options = ma.fields.Nested(Options)
    schema = ma.fields.List(
        ma.fields.Nested(ChangedField), validate=ma.validate.Length(max=LONGEST_SCHEMA)
    )
    fields_ = ma.fields.List(
        ma.fields.Nested(ChangedField),
        data_key="fields",
        metadata={"description": "Another name for schema."},
    )


class PlannedCollection(WithSchema):
    """A collection's schema as it shall be."""

    schema = _schema_field(validate=ma.validate.Length(min=1, max=LONGEST_SCHEMA))


class Operation(rest.Schema):
    """One thing that changes."""

    operation = ma.fields.String(
        required=True, metadata={"description": "add_field or change_field."}
    )
    field = ma.fields.String(required=True)
    property = ma.fields.String(required=True, allow_none=True)
    before = ma.fields.Raw(allow_none=True, metadata={"description": "The property's value now."})
    after = ma.fields.Raw(allow_none=True, metadata={"description": "The value it would have."})


class RowProblem(rest.Problem):
    """What keeps present records from following."""

    count = ma.fields.Integer(
        required=True,
        metadata={"description": "How many records; of values that clash, how many values."},
    )


class Plan(rest.Schema):
    """What an update would do."""

    operations = ma.fields.List(ma.fields.Nested(Operation), required=True)
    sql = ma.fields.List(ma.fields.String(), required=True)
    problems = ma.fields.List(ma.fields.Nested(RowProblem), required=True)


class CollectionView(rest.Schema):
    """A collection."""

    id = ma.fields.String(required=True)
    name = ma.fields.String(required=True)
    table_name = ma.fields.String(required=True)
    schema = ma.fields.List(ma.fields.Dict(), required=True)
    fields_ = ma.fields.List(ma.fields.Dict(), attribute="fields", data_key="fields", required=True)
    field_count = ma.fields.Integer(required=True)
    record_count = ma.fields.Integer(
        required=True, metadata={"description": "Records of all accounts."}
    )
    options = ma.fields.Nested(Options, required=True)
    created_at = rest.Timestamp(required=True)
    updated_at = rest.Timestamp(required=True)


class CollectionPage(rest.page_schema(CollectionView)):  # type: ignore[misc]
    """A page of collections."""


class OpenCollectionView(rest.Schema):
    """A collection that is open to the caller, with the fields that the caller may read."""

    id = ma.fields.String(required=True)
    name = ma.fields.String(required=True)
    schema = ma.fields.List(ma.fields.Dict(), required=True)
    fields_ = ma.fields.List(ma.fields.Dict(), attribute="fields", data_key="fields", required=True)


class OpenCollectionPage(rest.page_schema(OpenCollectionView)):  # type: ignore[misc]
    """A page of collections that are open to the caller."""


class Names(rest.Schema):
    """The names of all collections."""

    names = ma.fields.List(ma.fields.String(), required=True)
    total = ma.fields.Integer(required=True)


class DroppedCollection(rest.Schema):
    """A collection that was deleted along with another."""

    collection_id = ma.fields.String(required=True)
    collection_name = ma.fields.String(required=True)
    table_name = ma.fields.String(required=True)
    records_deleted = ma.fields.Integer(required=True)
    migration_revision = ma.fields.String(required=True)


class DeletedCollection(DroppedCollection):
    """What was deleted."""

    message = ma.fields.String(required=True)
    also_deleted = ma.fields.List(
        ma.fields.Nested(DroppedCollection), metadata={"description": "Where `with` names any."}
    )


class DeletionArgs(rest.Schema):
    """What else to delete."""

    along = rest.Text(
        data_key="with",
        longest=40_000,
        metadata={"description": "Comma-separated names or ids of collections that go along."},
    )


class CollectionArgs(rest.PageArgs):
    """Which collections to list."""

    search = rest.Text(longest=100, metadata={"description": "A part of the name."})


class RevisionView(rest.Schema):
    """A revision of the schema: of the core, or of a collection's table (dynamic)."""

    revision = ma.fields.String(required=True)
    description = ma.fields.String(required=True)
    is_applied = ma.fields.Boolean(required=True)
    is_head = ma.fields.Boolean(required=True)
    is_dynamic = ma.fields.Boolean(required=True)
    down_revision = ma.fields.String(allow_none=True, required=True)
    branch_labels = ma.fields.List(ma.fields.String(), required=True)
    created_at = ma.fields.String(allow_none=True, required=True)


class Revisions(rest.Schema):
    """All revisions, newest first."""

    revisions = ma.fields.List(ma.fields.Nested(RevisionView), required=True)
    total = ma.fields.Integer(required=True)
    current_revision = ma.fields.String(allow_none=True, required=True)


class CurrentRevision(rest.Schema):
    """The revision that the schema is at."""

    revision = ma.fields.String(allow_none=True, required=True)
    current_revision = ma.fields.String(allow_none=True, required=True)


def _views(rows: Sequence[Collection]) -> list[dict[str, Any]]:
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
@blueprint.response(200, CollectionPage, example=page_of([COLLECTION], 1, {"skip": 0, "limit": 25}))
@superadmin
def list_collections(args: dict[str, Any]) -> dict[str, Any]:
    """List collections."""
    rows, total = collections.page(args["skip"], args["limit"], args.get("search"))
    return page_of(_views(rows), total, args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(NewCollection, example={"name": "posts", "schema": SCHEMA, **RULES})
@blueprint.response(201, CollectionView, example=COLLECTION)
@blueprint.fails(400, 409)
@superadmin
def create_collection(body: dict[str, Any]) -> dict[str, Any]:
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
def list_collection_names() -> dict[str, Any]:
    """List the names of all collections."""
    names = collections.names()
    return {"names": names, "total": len(names)}


@blueprint.route("/<collection_id>", methods=["GET"])
@blueprint.response(200, CollectionView, example=COLLECTION)
@superadmin
def get_collection(collection_id: str) -> dict[str, Any]:
    """Get a collection by its id or name."""
    return _views([collections.find(collection_id)])[0]


@blueprint.route("/<uuid:collection_id>", methods=["PUT"])
@blueprint.arguments(ReplacedCollection, example={"schema": SCHEMA})
@blueprint.response(200, CollectionView, example=COLLECTION)
@blueprint.fails(400, 409)
@superadmin
def update_collection(body: dict[str, Any], collection_id: str) -> dict[str, Any]:
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
def patch_collection(body: dict[str, Any], collection_id: str) -> dict[str, Any]:
    """Change some fields or rules of a collection.

    As PUT, but fields and properties that are left out stay as they are. `options` are one
    property: they are replaced as a whole.
    """
    return _updated(collection_id, body, partial=True)


def _updated(collection_id: str, body: dict[str, Any], *, partial: bool) -> dict[str, Any]:
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
def plan_collection(body: dict[str, Any], collection_id: str) -> dict[str, Any]:
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
def delete_collection(args: dict[str, Any], collection_id: str) -> dict[str, Any]:
    """Delete a collection with the records of all accounts.

    While another refers to it, it is a 409. Collections that refer to each other in a circle can
    only go together: `with` names the others.
    """
    named = args.get("along", "").split(",")
    return removal.delete(collection_id, [one.strip() for one in named if one.strip()])


EXAMPLE_RULES = {
    "collection": "posts",
    **RULES,
    **{part: {"rule": "true", "fields": "*"} for part in ("create", "read", "update")},
    "delete": {"rule": None, "fields": "*"},
}


@blueprint.route("/<collection_name>/rules", methods=["GET"])
@blueprint.response(200, Rules, example=EXAMPLE_RULES)
@superadmin
def get_rules(collection_name: str) -> dict[str, Any]:
    """Get the rules of a collection, flat and as the permission structure."""
    return collections.rules_of(collections.find(collection_name))


@blueprint.route("/<collection_name>/rules", methods=["PUT"])
@blueprint.arguments(RulesBody, example=RULES)
@blueprint.response(200, Rules, example=EXAMPLE_RULES)
@blueprint.fails(400)
@superadmin
def update_rules(body: dict[str, Any], collection_name: str) -> dict[str, Any]:
    """Change rules and field lists.

    They act on the next request of every process. Where `list_rule` and `read.rule` are both
    given, the flat form counts.
    """
    return collections.rules_of(collections.change_rules(collection_name, body))


OPEN_COLLECTION = {key: COLLECTION[key] for key in ("id", "name", "schema", "fields")}


@own.route("", methods=["GET"])
@own.arguments(rest.PageArgs, location="query")
@own.response(
    200, OpenCollectionPage, example=page_of([OPEN_COLLECTION], 1, {"skip": 0, "limit": 25})
)
def list_open_collections(args: dict[str, Any]) -> dict[str, Any]:
    """List the collections of which the rules open some operation to the caller.

    Each shows the fields that the caller may read.
    """
    found = collections.open_to(principal())
    return page_of(found[args["skip"] : args["skip"] + args["limit"]], len(found), args)


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


@migrations.route("", methods=["GET"])
@migrations.route("/history", methods=["GET"])
@migrations.response(
    200, Revisions, example={"revisions": [REVISION], "total": 1, "current_revision": "0001"}
)
@superadmin
def list_migrations() -> dict[str, Any]:
    """List the revisions of the core and of collections."""
    return revisions.listing()


@migrations.route("/current", methods=["GET"])
@migrations.response(200, CurrentRevision, example={"revision": "0001", "current_revision": "0001"})
@superadmin
def get_current_migration() -> dict[str, Any]:
    """Get the revision that the schema is at."""
    current = revisions.listing()["current_revision"]
    return {"revision": current, "current_revision": current}
