"""`/rules/fragments`: named parts of rules."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import web
from app.collections import fragments
from app.collections.rule_schemas import operation_field
from app.db import versioned_cache
from app.types import JSONObject
from app.web import fields
from app.web.access import superadmin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.schemas import Schema, View
from app.web.serialization import json_response

blueprint = Blueprint(
    "Rule fragments",
    __name__,
    url_prefix=f"{web.PREFIX}/rules/fragments",
    description="Named parts of rules, used as `@rule(name)`. Superadmins only.",
)

EXAMPLE = {"staff": "@has_any_role([agent, lead])"}


class Fragments(Schema):
    """All fragments: their conditions by name."""

    class Meta:
        """Names are free; the service checks them."""

        unknown = ma.INCLUDE


class FragmentArgs(Schema):
    """What was planned."""

    plan_hash = fields.Text(**doc("Of the plan: another change is a 409 `plan_stale`."))


class RoleEffect(View):
    """The records that open and close to the users of a role, up to 10,001."""

    role = ma.fields.String()
    gained = ma.fields.Integer()
    lost = ma.fields.Integer()


class FragmentEffect(View):
    """A rule that changes with its fragments."""

    collection = ma.fields.String()
    operation = operation_field()
    rule = ma.fields.String()
    roles = ma.fields.List(
        ma.fields.Nested(RoleEffect),
        **doc("Those that gain or lose records; creating has none to look at."),
    )


class FragmentPlan(View):
    """What a change of fragments does."""

    plan_hash = ma.fields.String()
    effect = ma.fields.List(ma.fields.Nested(FragmentEffect))


@blueprint.route("", methods=["GET"])
@blueprint.response(200, Fragments, example=EXAMPLE)
@superadmin
def get_fragments() -> Response:
    """Show all fragments of rules."""
    return json_response(fragments.load())


@blueprint.route("", methods=["PUT"])
@blueprint.arguments(FragmentArgs, location="query")
@blueprint.arguments(Fragments, example=EXAMPLE)
@blueprint.response(200, Fragments, example=EXAMPLE)
@superadmin
def replace_fragments(args: JSONObject, body: JSONObject) -> Response:
    """Replace all fragments of rules.

    A rule uses a fragment as `@rule(name)`; a fragment uses no other. A change acts at once on all
    rules that use it: if one of them does not fit any more, nothing is changed. A fragment that a
    rule uses is not removed (409 with all places), and does not gain or lose `@old` and `@changed`.
    """
    return json_response(fragments.change(body, args.get("plan_hash")))


@blueprint.route("/plan", methods=["POST"])
@blueprint.arguments(Fragments, example=EXAMPLE)
@blueprint.response(
    200,
    FragmentPlan,
    example={
        "plan_hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "effect": [
            {
                "collection": "tickets",
                "operation": "view",
                "rule": "@rule(staff)",
                "roles": [{"role": "viewer", "gained": 0, "lost": 12}],
            }
        ],
    },
)
@superadmin(reads=True)
@versioned_cache.reloading()
def plan_fragments(body: JSONObject) -> JSONObject:
    """Show what a change of all fragments does to each rule that uses them. Changes nothing."""
    return fragments.plan(body)
