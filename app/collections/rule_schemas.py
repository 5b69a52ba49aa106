"""What the API takes and shows of rules."""

from __future__ import annotations

from typing import Any

import marshmallow as ma

from app import rules
from app.rules import OPERATIONS
from app.types import JSONObject
from app.web import fields
from app.web.fields import doc
from app.web.schemas import Problem, Schema

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
OWNER = "@owns_record() || @has_role(admin)"


FIELD_LIST = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    "description": '`"*"` or an array of field names.',
}


def expression_field(**options: Any) -> object:
    # No limit here: the rule language has its own, and answers 400 with a position.
    return fields.Text(longest=2**30, allow_none=True, **options)


def operation_field(**options: Any) -> object:
    """What rules are about: list, view, create, update or delete."""
    return fields.Choice(OPERATIONS, **options)


def records_field(**options: Any) -> object:
    """Made-up records of other collections."""
    rows = ma.fields.List(ma.fields.Dict(keys=fields.Text()))
    described = doc("What `@any` and `@count` look at: lists of records by collection.")
    return ma.fields.Dict(keys=fields.Text(), values=rows, **options, **described)


class FieldList(ma.fields.Field[Any]):
    """`"*"`, or an array of names; also as the JSON text of one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, metadata=FIELD_LIST)

    def _deserialize(self, value: object, *args: object, **options: object) -> object:
        is_list = isinstance(value, list) and all(isinstance(name, str) for name in value)
        if not is_list and not isinstance(value, str):
            raise ma.ValidationError('Must be "*" or an array of field names.')
        return value


class RulePart(Schema):
    """The rule and the fields of one operation."""

    rule = expression_field()
    fields_ = FieldList(data_key="fields", attribute="fields")


class RulesOfNew(Schema):
    """Rules that a new collection may bring along."""

    list_rule = expression_field()
    view_rule = expression_field()
    create_rule = expression_field()
    update_rule = expression_field()
    delete_rule = expression_field()
    list_fields = FieldList()
    view_fields = FieldList()
    create_fields = FieldList()
    update_fields = FieldList()


class RulesBody(RulesOfNew):
    """Rules and field lists; what is absent stays as it is."""

    create = ma.fields.Nested(RulePart)
    read = ma.fields.Nested(RulePart, **doc("Sets list and view."))
    update = ma.fields.Nested(RulePart)
    delete = ma.fields.Nested(RulePart)


class CollectionRules(RulesBody):
    """The rules of a collection, in both forms."""

    collection = fields.Text(longest=200, **doc("The collection's name; sent, it must be that."))


class ChangedRules(CollectionRules):
    """The rules after a change."""

    warnings = ma.fields.List(
        ma.fields.Nested(Problem), **doc("What is odd in them, as `/rules/validate` says; or none.")
    )


class RuleSubject(Schema):
    """A made-up caller; without an id, an anonymous one."""

    id = fields.Text(allow_none=True)
    email = fields.Text(allow_none=True)
    role = fields.Text(allow_none=True)
    account_id = fields.Text(allow_none=True)
    groups = ma.fields.List(fields.Text())
    is_superadmin = fields.StrictBoolean()
    mfa = fields.StrictBoolean(**doc("Whether it passed a second factor."))
    plan = fields.Text(allow_none=True, **doc("The plan of the account acted in."))
    flags = ma.fields.List(fields.Text(), **doc("Those of the account acted in."))

    @ma.post_load
    def as_subject(self, data: JSONObject, **options: object) -> rules.Subject:
        """The caller as rules see it."""
        sets = {name: frozenset(data.get(name, ())) for name in ("groups", "flags")}
        return rules.Subject(**{**data, **sets})
