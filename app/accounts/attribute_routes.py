"""`/attributes`: the schemas of attributes of users and accounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import marshmallow as ma

from app import web
from app.accounts import attributes
from app.accounts.attributes import VIEWERS, WRITERS, Attributes, Kind, Level
from app.accounts.types import Body
from app.auth.guard import principal
from app.collections import attribute_definitions, attribute_values
from app.collections.attribute_definitions import ALLOWED_TYPES, MAX_ATTRIBUTES, Change
from app.types import JSONObject
from app.web import fields
from app.web.access import signed_in, superadmin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.schemas import Problem, Schema, View, example

blueprint = Blueprint(
    "Attributes",
    __name__,
    url_prefix=f"{web.PREFIX}/attributes",
    description="What users and accounts have beside their built-in properties.",
)

Shown = dict[str, list[JSONObject]]
Operation = TypeVar("Operation", bound=Callable[..., object])
OPERATORS = ("claim", "scim", "sso")
"""Properties that tell nothing to who is no superadmin."""
EXAMPLE = {"name": "department", "type": "text", "label": "Department", "visible_to": "members"}
REMOVED = {Kind.USERS: "department", Kind.ACCOUNTS: "plan_code"}
PLAN = "Find out what a change of {}' attributes would do, and which values it would lose."
HASH = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


class AttributeBody(Schema):
    """An attribute; of a present one, what is absent stays."""

    name = fields.Text(longest=100, required=True)
    rename_from = fields.Text(longest=100, **doc("The present name of what gets this one."))
    type = fields.Text(longest=100, **doc(f"One of {', '.join(ALLOWED_TYPES)}; cannot change."))
    label = fields.Text(longest=200, allow_none=True)
    options = ma.fields.Dict(keys=fields.Text(), **doc("As those of a collection's field."))
    required = fields.StrictBoolean(**doc("Whether a value is needed, and cannot be taken away."))
    writable_by = fields.Choice(WRITERS, **doc("Who writes it, and those who may more: `admin`."))
    visible_to = fields.Choice(VIEWERS, **doc("Who sees it, and those who may more: `admin`."))
    claim = fields.Text(longest=100, allow_none=True, **doc("The claim that has it."))
    scim = fields.Text(longest=300, allow_none=True, **doc("The SCIM attribute that fills it."))
    sso = fields.Text(longest=300, allow_none=True, **doc("The claim or SAML attribute of it."))


class AttributesBody(Schema):
    """Attributes to add or change; what is left out stays."""

    fields_ = ma.fields.List(
        ma.fields.Nested(AttributeBody),
        data_key="fields",
        attribute="fields",
        validate=ma.validate.Length(max=MAX_ATTRIBUTES),
    )
    remove_fields = ma.fields.List(
        fields.Text(longest=100),
        validate=ma.validate.Length(max=MAX_ATTRIBUTES),
        **doc("Names of attributes to remove, with all values."),
    )


class ChangedAttributes(AttributesBody):
    plan_hash = fields.Text(longest=100, **doc("Of the plan of this change; removals need it."))


@example(**EXAMPLE)
class AttributeView(View):
    """An attribute; superadmins also see what fills it."""

    optional = OPERATORS

    name = ma.fields.String()
    type = ma.fields.String()
    label = ma.fields.String(allow_none=True)
    options = ma.fields.Dict()
    required = ma.fields.Boolean()
    writable_by = ma.fields.String()
    visible_to = ma.fields.String()
    claim = ma.fields.String(allow_none=True)
    scim = ma.fields.String(allow_none=True)
    sso = ma.fields.String(allow_none=True)


class AttributesView(View):
    """The attributes that the caller sees, in the order in which they were added."""

    fields_ = ma.fields.List(ma.fields.Nested(AttributeView), data_key="fields", attribute="fields")


@example(count=12)
class LostAttribute(View):
    """How many lose a value."""

    field = ma.fields.String()
    count = ma.fields.Integer()


@example(field="department", place="collections.tickets.list_rule", refused=False)
class AttributeUse(View):
    """A place that names what is renamed, removed, or written by others from now on."""

    field = ma.fields.String(**doc("The attribute; a choice that it loses is `team=red`."))
    place = ma.fields.String()
    refused = ma.fields.Boolean(**doc("Whether the change is refused because of this place."))


@example(plan_hash=HASH, operations=[], lost=[], effect=[], problems=[])
class AttributesPlan(View):
    """What a change would do."""

    operations = ma.fields.List(ma.fields.Dict())
    lost = ma.fields.List(ma.fields.Nested(LostAttribute))
    effect = ma.fields.List(ma.fields.Nested(AttributeUse))
    problems = ma.fields.List(ma.fields.Nested(Problem))
    plan_hash = ma.fields.String()


SEEN = {
    Kind.USERS: "Those that you see of your own user; admins: of all users of the account.",
    Kind.ACCOUNTS: "Superadmins see all.",
}
CHANGED = {
    Kind.USERS: (
        "What is left out stays, also properties of an attribute that is listed. Removals lose"
        " values and need the `plan_hash` of a plan (400 `plan_required`, 409 `plan_stale`)."
    ),
    Kind.ACCOUNTS: "As for users, whose admins stand for the account itself.",
}


def _add_operations(kind: Kind) -> None:
    """Add the operations on the attributes of users, or of accounts."""
    of, whose = f"attributes_of_{kind}", "your account" if kind is Kind.ACCOUNTS else "users"

    @blueprint.route(f"/{kind}", methods=["GET"], endpoint=f"get_{of}")
    @blueprint.response(200, AttributesView)
    @signed_in(operator="definitions")
    @_documented(f"Get the attributes of {whose} that you see.", SEEN[kind])
    def get() -> Shown:
        level = attribute_values.level_for_account(principal())
        own = Level.SELF if kind is Kind.USERS else level
        return _shown(attributes.load(kind), max(level, own))

    @blueprint.route(f"/{kind}", methods=["PUT", "PATCH"], endpoint=f"update_{of}")
    @blueprint.arguments(ChangedAttributes, example={"fields": [EXAMPLE]})
    @blueprint.response(200, AttributesView)
    @blueprint.fails(409)
    @superadmin(operator="definitions")
    @_documented(f"Add, change, rename or remove attributes of all {kind}.", CHANGED[kind])
    def update(body: Body) -> Shown:
        sent = {key: value for key, value in body.items() if key != "plan_hash"}
        changed = attribute_definitions.change(kind, sent, plan_hash=body.get("plan_hash"))
        return _shown(changed, Level.SUPERADMIN)

    @blueprint.route(f"/{kind}/plan", methods=["POST"], endpoint=f"plan_{of}")
    @blueprint.arguments(AttributesBody, example={"remove_fields": [REMOVED[kind]]})
    @blueprint.response(200, AttributesPlan)
    @superadmin(reads=True, operator="definitions")
    @_documented(PLAN.format(kind), "Changes nothing.")
    def plan(body: Body) -> Change:
        return attribute_definitions.plan(kind, body)


def _documented(summary: str, text: str) -> Callable[[Operation], Operation]:
    def declare(view: Operation) -> Operation:
        view.__doc__ = f"{summary}\n\n{text}"
        return view

    return declare


def _shown(schema: Attributes, level: Level) -> Shown:
    hidden = () if level is Level.SUPERADMIN else OPERATORS
    seen = schema.seen_by(level)
    return {"fields": [{key: one[key] for key in one if key not in hidden} for one in seen]}


for _kind in Kind:
    _add_operations(_kind)
