"""What `/collections` takes and shows."""

from __future__ import annotations

from typing import Any

import marshmallow as ma

from app.collections import definitions, masking
from app.collections import service as collections
from app.collections.changes import PLANNED_OPERATIONS
from app.collections.fields import RETURN_TYPES, TYPES
from app.collections.indexes import MAX_FIELDS, MAX_INDEXES
from app.collections.rule_schemas import RulesOfNew, expression_field
from app.collections.schema import COLLECTION_NAME, FIELD_NAME, LONGEST_SCHEMA, ON_DELETE
from app.collections.trash import MAX_DAYS
from app.types import JSONObject
from app.web import fields
from app.web.fields import doc
from app.web.paging import PageArgs, page_of
from app.web.schemas import Problem, Schema, View, example

SCHEMA = [
    {"name": "title", "type": "text", "required": True, "options": {"max_length": 200}},
    {"name": "views", "type": "number", "default": 0},
]
OPTIONS = {"require_signature": False}
INDEXES = [{"fields": ["title", "-views"], "unique": False}]

READABLE_IF = (
    "Who reads the field: a condition over the caller alone. For others there is no such field."
    " null: everybody whom the rules and field lists admit. Superadmins pass."
)
WRITABLE_IF = (
    "Who writes the field, alike; a value that somebody else sends is `field_read_only`."
    " One may write what one may not read."
)


class FieldDefinition(Schema):
    name = fields.Text(longest=200, required=True, metadata={"pattern": f"^{FIELD_NAME.pattern}$"})
    type = fields.DocumentedChoice(TYPES, required=True)
    rename_from = fields.Text(
        longest=200, allow_none=True, **doc("The present name of a field that gets this one.")
    )
    required = fields.StrictBoolean()
    default = ma.fields.Raw(
        allow_none=True,
        **doc(
            'A value, or `{"expression": "now()"}`: an expression over the caller, the account and'
            " the time, evaluated when a record is created. Not of json, file, lists, references."
        ),
    )
    unique = fields.StrictBoolean(**doc("Unique within each account."))
    options = ma.fields.Dict(
        keys=ma.fields.String(),
        allow_none=True,
        **doc(
            "text: min_length, max_length, pattern (RE2), choices; number: min, max,"
            " integer; decimal: precision (1 to 38, else 18), scale (else 2), min, max;"
            " select and multi_select: choices; lists of references or users: max_items;"
            " text_list: max_items (else 100), max_length (else 200); sequence: prefix, digits;"
            " any but json, multi_select, text_list and lists: index."
            " Texts, choices among them, are stored in Unicode's form NFC, and lengths count so."
        ),
    )
    collection = fields.Text(allow_none=True, **doc("The collection a reference points into."))
    on_delete = fields.DocumentedChoice(
        ON_DELETE, allow_none=True, **doc("For references (`restrict`) and users (`set_null`).")
    )
    multiple = fields.StrictBoolean(
        **doc("A list of references or users, of at most `options.max_items`; true or absent.")
    )
    pii = fields.StrictBoolean(**doc("Personal data: masked but for superadmins and `pii_access`."))
    mask_type = fields.DocumentedChoice(
        masking.MASKS,
        allow_none=True,
        **doc(
            "With pii; full if absent. custom takes `options.mask`, a text with `*`;"
            " `{first:n}` and `{last:n}` keep characters."
        ),
    )
    readable_if = expression_field(**doc(READABLE_IF))
    writable_if = expression_field(**doc(WRITABLE_IF))
    expression = expression_field(
        **doc("Of a computed field: an expression over the stored fields.")
    )
    return_type = fields.DocumentedChoice(
        RETURN_TYPES, allow_none=True, **doc("Of a computed field.")
    )

    @ma.post_load
    def clean_options(self, data: JSONObject, **options: object) -> JSONObject:
        """The published client's types have null where a field has no options."""
        if "options" not in data:
            return data
        return data | {"options": definitions.with_composed_choices(data["options"] or {})}


class ChangedField(FieldDefinition):
    type = fields.DocumentedChoice(TYPES, **doc("Needed for a new field; cannot change."))


def schema_field(
    field: type[FieldDefinition] = FieldDefinition, *, shortest: int | None = None, **options: Any
) -> object:
    length = ma.validate.Length(min=shortest, max=LONGEST_SCHEMA)
    return ma.fields.List(ma.fields.Nested(field), validate=length, **options)


class FieldOrName(ma.fields.Field[Any]):
    """A field of a collection of records; of a view the name of one, as a text."""

    def _deserialize(self, value: object, *args: object, **options: object) -> object:
        if not isinstance(value, str):
            raise ma.ValidationError("Must be the name of a field.")
        return value


def _schema_as_fields(field: type[FieldDefinition] = FieldDefinition, **limits: int) -> object:
    kinds = [{"$ref": f"#/components/schemas/{field.__name__}"}, {"type": "string"}]
    description = "Another name for schema; of a view the names of the fields that it shows."
    metadata = {"description": description, "maxItems": LONGEST_SCHEMA, **limits}
    item = FieldOrName(metadata={"anyOf": kinds})
    return ma.fields.List(item, data_key="fields", attribute="fields", metadata=metadata)


NAME_PATTERN = {"pattern": f"^{COLLECTION_NAME.pattern}$"}


def _name() -> object:
    description = "A name other than the present one renames the collection."
    return fields.Text(longest=200, **doc(description, **NAME_PATTERN))


KINDS = RECORDS, VIEW = ("base", "view")
PARTS_OF_VIEW = ("from", "fields", "where", "group_by", "aggregates")


def names_field(description: str, **options: Any) -> object:
    """What a view has of names of fields."""
    length = ma.validate.Length(max=LONGEST_SCHEMA)
    return ma.fields.List(fields.Text(longest=300), validate=length, **options, **doc(description))


class WithSchema(Schema):
    """A body with a schema, under either of its names, or what a view reads."""

    needs_all = True

    type = fields.Choice(KINDS, **doc("`view` reads another collection; never changes."))
    from_ = fields.Text(
        longest=200, data_key="from", attribute="from", **doc("The collection that a view reads.")
    )
    where = expression_field(
        **doc("Of a view: which records it reads, by an expression over their fields.")
    )
    group_by = names_field("Of a view: what the records of a row have in common.")
    aggregates = names_field("Of a view: `count()`, `sum(amount)` and the like.")

    schema = schema_field()
    fields_ = _schema_as_fields()

    @ma.pre_load
    def accept_fields(self, data: object, **options: object) -> object:
        """Take `fields` for `schema`, but for names, which a view has."""
        if not isinstance(data, dict) or "fields" not in data:
            return data
        given = data["fields"]
        has_names = isinstance(given, list) and any(isinstance(one, str) for one in given)
        has_parts = any(part in data for part in PARTS_OF_VIEW if part != "fields")
        if has_names or has_parts or data.get("type") == VIEW:
            return data
        without_fields = {key: value for key, value in data.items() if key != "fields"}
        if without_fields.setdefault("schema", data["fields"]) != data["fields"]:
            raise ma.ValidationError("Differs from schema, whose other name it is.", "fields")
        return without_fields

    @ma.validates_schema
    def needs_schema(self, data: JSONObject, **options: object) -> None:
        """One of the two must be there, where the whole is asked for; a view has others."""
        is_view = data.get("type") == VIEW or data.keys() & {*PARTS_OF_VIEW}
        if self.needs_all and "schema" not in data and not is_view:
            raise ma.ValidationError("Missing data for required field.", "schema")


class TrashOptions(Schema):
    """The trash of a collection."""

    days = fields.Integer(1, MAX_DAYS, required=True)


class CollectionOptions(Schema):
    """What a collection demands of its records' writers; what is absent stays, at first false."""

    require_signature = fields.StrictBoolean(
        **doc("Every write needs an electronic signature: 428 without.")
    )
    trash = ma.fields.Nested(
        TrashOptions,
        allow_none=True,
        **doc(
            "Deleted records stay in a trash for so many days; null: they are gone at once. To"
            " switch it off while records are there needs a `plan_hash`."
        ),
    )


class IndexDefinition(Schema):
    """An index of a collection, within each account."""

    fields_ = ma.fields.List(
        fields.Text(longest=64),
        data_key="fields",
        attribute="fields",
        required=True,
        validate=ma.validate.Length(min=1, max=MAX_FIELDS),
        **doc(
            "Stored fields but those of type `json`, `multi_select` and `text_list`, `created_at`,"
            " `updated_at`, `created_by` and `updated_by`, in order; a minus sign for descending."
        ),
    )
    unique = fields.StrictBoolean(**doc("Records with a null in one of the fields never clash."))


def indexes_field(description: str, **options: Any) -> object:
    length = ma.validate.Length(max=MAX_INDEXES)
    metadata = {"description": description}
    nested = ma.fields.Nested(IndexDefinition)
    return ma.fields.List(nested, validate=length, metadata=metadata, **options)


INDEXES_OF_NEW = f"Indexes over several fields; at most {MAX_INDEXES}."
ALL_INDEXES = f"All indexes, at most {MAX_INDEXES}; absent, the present ones stay."


class NewCollection(WithSchema, RulesOfNew):
    name = fields.Text(longest=200, required=True, metadata=NAME_PATTERN)
    options = ma.fields.Nested(CollectionOptions)
    indexes = indexes_field(INDEXES_OF_NEW)


PLAN_HASH = {"description": "Of the plan of this change; needed to remove fields."}


def remove_fields_field() -> object:
    return ma.fields.List(
        fields.Text(longest=200),
        validate=ma.validate.Length(max=LONGEST_SCHEMA),
        **doc("Fields to remove, with the values of all records."),
    )


def field_order_field() -> object:
    return ma.fields.List(
        fields.Text(longest=200),
        validate=ma.validate.Length(max=LONGEST_SCHEMA),
        **doc(
            "Names of fields after the change, in order; fields that it leaves out"
            " follow as they stand."
        ),
    )


class ReplacedCollection(WithSchema, RulesOfNew):
    """A collection as it shall be: every present field but removed ones, and new ones."""

    remove_fields = remove_fields_field()
    field_order = field_order_field()
    plan_hash = fields.Text(longest=100, metadata=PLAN_HASH)

    name = _name()
    schema = schema_field(shortest=1)
    fields_ = _schema_as_fields(minItems=1)
    options = ma.fields.Nested(CollectionOptions)
    indexes = indexes_field(ALL_INDEXES)


class ChangedCollection(WithSchema, RulesOfNew):
    needs_all = False

    remove_fields = remove_fields_field()
    field_order = field_order_field()
    plan_hash = fields.Text(longest=100, metadata=PLAN_HASH)
    name = _name()
    options = ma.fields.Nested(CollectionOptions)
    indexes = indexes_field(ALL_INDEXES)
    schema = schema_field(ChangedField)
    fields_ = _schema_as_fields(ChangedField)


class PlannedCollection(WithSchema):
    """A collection's schema, indexes and options as they shall be; what is absent stays."""

    needs_all = False

    schema = schema_field(shortest=1)
    fields_ = _schema_as_fields(minItems=1)
    indexes = indexes_field(ALL_INDEXES)
    remove_fields = remove_fields_field()
    field_order = field_order_field()
    name = _name()
    options = ma.fields.Nested(CollectionOptions)

    @ma.validates_schema
    def needs_change(self, data: JSONObject, **options: object) -> None:
        """One of them must be there."""
        parts = {
            "schema",
            "indexes",
            "remove_fields",
            "field_order",
            "name",
            "options",
            *PARTS_OF_VIEW,
        }
        if not data.keys() & parts:
            raise ma.ValidationError("Missing data for required field.", "schema")


class PlannedOperation(View):
    """One thing that changes."""

    optional = ("before", "after", "index")

    operation = fields.Choice(
        PLANNED_OPERATIONS,
        **doc("change_reference, change_rule and change_view: other collections and views follow."),
    )
    field = ma.fields.String(
        allow_none=True,
        **doc(
            "Null for indexes, the order and the collection's name, the collection"
            " for rules, the view that follows, `collection.field` for references."
        ),
    )
    property = ma.fields.String(allow_none=True)
    before = ma.fields.Raw(allow_none=True, **doc("The property's value now."))
    after = ma.fields.Raw(allow_none=True, **doc("The value it would have."))
    index = ma.fields.Nested(IndexDefinition, **doc("For indexes only."))


class RowProblem(Problem):
    """What keeps present records from following, or names a choice that would be removed."""

    optional = (*Problem.optional, "count")

    count = ma.fields.Integer(**doc("How many records; of values that clash, how many values."))


class LostValues(View):
    """A field that would be removed with its values, or the trash with its records."""

    field = ma.fields.String(allow_none=True, **doc("Null for the trash."))
    count = ma.fields.Integer(
        **doc("How many records of all accounts have a value, or are in the trash.")
    )


class ReversePlan(View):
    """The body of a PUT or PATCH that undoes an update."""

    optional = ("name", "schema", "remove_fields", "field_order", "options")

    name = ma.fields.String(**doc("If the collection would be renamed."))
    options = ma.fields.Nested(CollectionOptions, **doc("If the trash would change."))
    schema = ma.fields.List(ma.fields.Dict())
    indexes = ma.fields.List(ma.fields.Nested(IndexDefinition))
    remove_fields = ma.fields.List(
        ma.fields.String(), **doc("Needs the `plan_hash` of its own plan.")
    )
    field_order = ma.fields.List(ma.fields.String(), **doc("If the fields would be reordered."))


class CollectionPlan(View):
    """What an update would do."""

    operations = ma.fields.List(ma.fields.Nested(PlannedOperation))
    sql = ma.fields.List(ma.fields.String())
    problems = ma.fields.List(ma.fields.Nested(RowProblem))
    plan_hash = ma.fields.String(**doc("For the update that must do just this."))
    reverse = ma.fields.Nested(ReversePlan)
    data_lost = ma.fields.List(ma.fields.Nested(LostValues))
    warnings = ma.fields.List(
        ma.fields.String(),
        **doc(
            "Fields that the schema leaves out, which stay, what is odd in rules, and how a view of"
            " many records is slow."
        ),
    )


class Indexing(View):
    """What is done of storing the words of fields that have become searchable."""

    fields_ = ma.fields.List(ma.fields.String(), attribute="fields", data_key="fields")
    done = ma.fields.Integer(**doc("Records whose words are stored, as of the last report."))
    total = ma.fields.Integer(**doc("Records that there were at the start."))


@example(
    name="posts",
    table_name="col_posts",
    schema=SCHEMA,
    fields=SCHEMA,
    field_count=2,
    fields_count=2,
    record_count=0,
    records_count=0,
    indexes=INDEXES,
)
class CollectionView(View):
    optional = ("warnings", "type", "view", "indexing")

    warnings = ma.fields.List(
        ma.fields.String(),
        **doc("When made or changed: fields that the schema left out, which stay, and odd rules."),
    )
    id = fields.Id()
    name = ma.fields.String()
    type = fields.Choice([VIEW], **doc("Of views only."))
    view = ma.fields.Dict(**doc("What a view reads: from, fields, where, group_by and aggregates."))
    table_name = ma.fields.String(**doc("Of a view it is no table, but its name in logs."))
    schema = ma.fields.List(ma.fields.Dict(), **doc("Of a view: a field for each column."))
    fields_ = ma.fields.List(ma.fields.Dict(), attribute="fields", data_key="fields")
    field_count = ma.fields.Integer()
    fields_count = ma.fields.Integer(**doc("Alias of `field_count`."))
    record_count = ma.fields.Integer(**doc("Records of all accounts."))
    records_count = ma.fields.Integer(**doc("Alias of `record_count`."))
    has_public_access = ma.fields.Boolean(
        **doc(
            'Whether a rule is `""`, which opens an operation to everyone. Expressions are not'
            " looked at, though one that always holds does the same."
        )
    )
    options = ma.fields.Nested(CollectionOptions)
    indexes = ma.fields.List(ma.fields.Nested(IndexDefinition))
    indexing = ma.fields.Nested(
        Indexing,
        **doc("Only while searches of its fields are a 409 `search_indexing`."),
    )
    created_at = fields.Timestamp()
    updated_at = fields.Timestamp()


CollectionPage = page_of(CollectionView)


class CollectionNames(View):
    names = ma.fields.List(ma.fields.String())
    total = ma.fields.Integer()


class DroppedCollection(View):
    """A collection that was deleted along with another."""

    collection_id = fields.Id()
    collection_name = ma.fields.String()
    table_name = ma.fields.String()
    records_deleted = ma.fields.Integer()
    migration_revision = ma.fields.String(allow_none=True, **doc("Null for a view."))


class DeletedCollection(DroppedCollection):
    optional = ("also_deleted",)

    message = ma.fields.String()
    also_deleted = ma.fields.List(
        ma.fields.Nested(DroppedCollection), **doc("Where `with` names any.")
    )


class DeletionArgs(Schema):
    """What else to delete."""

    along = fields.Text(
        data_key="with",
        longest=40_000,
        **doc("Comma-separated names or ids of collections that go along."),
    )


class CollectionArgs(PageArgs):
    search = fields.Text(longest=100, **doc("A part of the name."))
    sort_by = fields.Choice(
        collections.SORTABLE,
        load_default="name",
        **doc("What to sort by; `name` where it is absent."),
    )
    sort_order = ma.fields.String(
        load_default="asc",
        validate=ma.validate.OneOf(["asc", "desc"]),
        **doc("`asc` where it is absent."),
    )
