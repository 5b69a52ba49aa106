"""`/rules`: rules tried before they are saved, fragments of rules, and rules by role.

`/rules/fragments` has named parts of rules. `/roles/validate-rule`, `/roles/test-rule` and
`/roles/{role_id}/permissions` are the paths of `@snackbase/sdk`.
"""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import rules, web
from app.accounts import names, roles
from app.accounts.role_routes import blueprint as roles_blueprint
from app.accounts.types import Query
from app.collections import definitions, expression_names, fragments, population, trials
from app.collections import service as collections
from app.collections.routes import blueprint as collections_blueprint
from app.collections.rule_schemas import (
    OWNER,
    CollectionRules,
    RulesBody,
    RuleSubject,
    expression_field,
    operation_field,
    records_field,
)
from app.collections.trials import Reach
from app.db import versioned_cache
from app.types import JSONObject
from app.web import fields
from app.web.access import superadmin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import Page, PageArgs, items_field, page_body, page_of
from app.web.schemas import Schema, View
from app.web.serialization import json_response

blueprint = Blueprint(
    "Rules",
    __name__,
    url_prefix=f"{web.PREFIX}/rules",
    description="Try rules out before they are saved. Superadmins only.",
)

VALID: JSONObject = {"valid": True, "error": None, "errors": [], "details": [], "warnings": []}
ALLOWED = {"result": True, "allowed": True, "error": None, "evaluation_details": None}
fragment_blueprint = Blueprint(
    "Rule fragments",
    __name__,
    url_prefix=f"{web.PREFIX}/rules/fragments",
    description="Named parts of rules, used as `@rule(name)`. Superadmins only.",
)

FRAGMENTS_EXAMPLE = {"staff": "@has_any_role([agent, lead])"}
PERMISSIONS_EXAMPLE = {
    "collection": "posts",
    "list": Reach.ALL,
    "view": Reach.ALL,
    "create": Reach.SOME,
    "update": Reach.SOME,
    "delete": Reach.NONE,
}


class RolePermissions(CollectionRules):
    """The rules of a collection, which apply to the role as to all others."""

    role_id = ma.fields.Integer(required=True)


class PermissionRow(View):
    """The records of a collection that each operation opens to users of a role."""

    collection = ma.fields.String()
    list = fields.Choice(Reach)
    view = fields.Choice(Reach)
    create = fields.Choice(Reach)
    update = fields.Choice(Reach)
    delete = fields.Choice(Reach)


class PermissionMatrix(Page):
    """What a role opens, by collection."""

    items = items_field(PermissionRow)

    role_id = ma.fields.Integer()
    role_name = ma.fields.String()


@roles_blueprint.route("/<integer:role_id>/permissions", methods=["GET"])
@roles_blueprint.arguments(PageArgs, location="query")
@roles_blueprint.response(200, page_of(RolePermissions))
@superadmin
def list_permissions_of_role(args: Query, role_id: str) -> JSONObject:
    """List the rules that users of a role are under, by collection.

    Rules belong to collections and apply to all roles: change them with `PUT
    /collections/{collection_name}/rules`. Ordered by the name of the collection.
    """
    role = roles.get(int(role_id))
    rows, total = collections.page(args["skip"], args["limit"])
    items = [{**collections.rules_view(row), "role_id": role.id} for row in rows]
    return page_body(items, total, args)


@roles_blueprint.route("/<integer:role_id>/permissions/matrix", methods=["GET"])
@roles_blueprint.arguments(PageArgs, location="query")
@roles_blueprint.response(
    200,
    PermissionMatrix,
    example={
        **page_body([PERMISSIONS_EXAMPLE], 1, {"skip": 0, "limit": 25}),
        "role_id": 3,
        "role_name": "viewer",
    },
)
@superadmin
def get_permission_matrix(args: Query, role_id: str) -> JSONObject:
    """Show which records each operation opens to users of a role, by collection.

    `all` or `none`: whatever the record and the user. `some`: that depends on the record, or on the
    user's id, email address, account or groups. Ordered by the name of the collection. Superadmins
    may do everything.
    """
    role = roles.get(int(role_id))
    rows, total = collections.page(args["skip"], args["limit"])
    items = [
        {"collection": row.name, **trials.reach_of_role(role.name, definitions.from_row(row))}
        for row in rows
    ]
    return {**page_body(items, total, args), "role_id": role.id, "role_name": role.name}


class RuleContext(Schema):
    """A record, and who asks."""

    record = ma.fields.Dict(keys=ma.fields.String())
    records = records_field()
    old = ma.fields.Dict(
        keys=ma.fields.String(), **doc("The record before the change; absent, it was the same.")
    )
    auth = ma.fields.Nested(RuleSubject, allow_none=True)


class RuleToValidate(Schema):
    """A rule, and the names that it may use."""

    rule = expression_field(required=True)
    operation = operation_field(
        **doc("`update` has `@old` and `@changed`; else all have the same language.")
    )
    collection = fields.Text(**doc("Check against this collection's fields."))
    collection_fields = ma.fields.List(
        fields.Text(),
        data_key="collectionFields",
        **doc("Without a collection: names of fields, of any type."),
    )


class RuleTrial(RuleContext):
    """A rule with a record and a caller, here or in `context`."""

    rule = expression_field(required=True)
    context = ma.fields.Nested(RuleContext)


class RuleValidity(View):
    """Whether a text is a rule, and why not."""

    valid = ma.fields.Boolean()
    error = ma.fields.String(allow_none=True, **doc("The first of `errors`."))
    errors = ma.fields.List(ma.fields.String())
    details = ma.fields.List(
        ma.fields.Dict(), **doc("The same with code and position (a character, from 0).")
    )
    warnings = ma.fields.List(
        ma.fields.Dict(),
        **doc(
            "Parts that always or never hold, groups that no account has, attributes that users"
            " write themselves, fields of an update rule that who is compared with them may write,"
            " and `@any` and large lists without an index, with code and position."
        ),
    )


class RuleTestResult(View):
    """Whether the rule lets the caller at the record."""

    result = ma.fields.Boolean()
    allowed = ma.fields.Boolean(**doc("Alias of `result`."))
    error = ma.fields.String(
        allow_none=True, **doc("Always null: a rule that is not valid is a 400.")
    )
    evaluation_details = ma.fields.String(
        allow_none=True, **doc("Always null. `POST .../rules/explain` shows the deciding parts.")
    )


class ProposedRules(RulesBody):
    """Rules as they might be; what is absent stays as it is."""


class RulesToCompare(Schema):
    rules = ma.fields.Nested(ProposedRules, required=True)
    account_id = fields.Text(**doc("Look at this account's users and records only."))


class RecordSample(View):
    """How many records, and the newest of them."""

    count = ma.fields.Integer()
    sample = ma.fields.List(ma.fields.String())


class RoleDifference(View):
    """What changes for the users of a role."""

    role = ma.fields.String()
    operation = operation_field()
    gained = ma.fields.Nested(RecordSample)
    lost = ma.fields.Nested(RecordSample)


class RoleDifferences(View):
    """What changes for each role, and for callers who have not signed in."""

    items = ma.fields.List(ma.fields.Nested(RoleDifference))


@roles_blueprint.route("/validate-rule", methods=["POST"], endpoint="validate_rule_by_alias")
@blueprint.route("/validate", methods=["POST"])
@blueprint.arguments(RuleToValidate, example={"rule": OWNER, "collection": "posts"})
@blueprint.response(200, RuleValidity, example=VALID)
@superadmin(reads=True, operator="definitions")
@versioned_cache.reloading()  # what was cached may be out of date, and nothing here would tell
def validate_rule(body: JSONObject) -> JSONObject:
    """Check a rule.

    Against the fields of a collection and their choices, or against names alone, or else only its
    form. Roles that it names must exist. Warnings tell of a group that no account has
    (`unknown_group`), of an update rule that compares the caller with a field that it may write
    (`unguarded_field`), of a part that always or never holds (`always_true`, `always_false`), and
    of what no index narrows (`no_index`): `@any`, `@count`, and in a collection of which an account
    has 10,000 records what lists compare.
    """
    collection, operation = body.get("collection"), body.get("operation")
    scope = trials.scope_for(collection, body.get("collection_fields", ()), operation)
    of = definitions.get(collection) if collection is not None else None
    problems = trials.rule_problems(body["rule"], scope)
    if not problems and (unknown := expression_names.problem_in(body["rule"], of)):
        problems = [unknown | {"field": "rule"}]
    return {
        "valid": not problems,
        "error": problems[0]["message"] if problems else None,
        "errors": [problem_["message"] for problem_ in problems],
        "details": problems,
        "warnings": []
        if problems  # an expression that is too long may take long to read
        else [
            one | {"field": "rule"}
            for one in (
                *names.warnings(body["rule"], expression_names.role_test(of)),
                *trials.warnings_of_rule(body["rule"], scope, operation, of),
            )
        ],
    }


@roles_blueprint.route("/test-rule", methods=["POST"], endpoint="test_rule_by_alias")
@blueprint.route("/test", methods=["POST"])
@blueprint.arguments(
    RuleTrial,
    example={"rule": OWNER, "record": {"created_by": "u1"}, "auth": {"id": "u1", "role": "viewer"}},
)
@blueprint.response(200, RuleTestResult, example=ALLOWED)
@superadmin(reads=True, operator="definitions")
@versioned_cache.reloading()  # what was cached may be out of date, and nothing here would tell
def test_rule(body: JSONObject) -> JSONObject:
    """Evaluate a rule for a made-up record and caller.

    Fields that the record lacks are null. A field of another type than the rule needs makes its
    comparison false; system fields have their types, so that moments compare as moments.
    References are followed into nested objects. `@any` and `@count` look at `records`, which has
    those of each collection.
    """
    situation = {**body, **body.get("context", {})}
    caller = situation.get("auth") or rules.Subject()
    record, records = situation.get("record", {}), situation.get("records", {})
    result = trials.evaluate(body["rule"], record, caller, records, situation.get("old"))
    return {"result": result, "allowed": result, "error": None, "evaluation_details": None}


@collections_blueprint.route("/<collection_name>/rules/diff", methods=["POST"])
@collections_blueprint.arguments(RulesToCompare, example={"rules": {"view_rule": OWNER}})
@collections_blueprint.response(
    200,
    RoleDifferences,
    example={
        "items": [
            {
                "role": "viewer",
                "operation": "view",
                "gained": {"count": 0, "sample": []},
                "lost": {"count": 1, "sample": ["019a9f00-0000-7000-8000-000000000001"]},
            }
        ]
    },
)
@superadmin(reads=True)
@versioned_cache.reloading()  # what was cached may be out of date, and nothing here would tell
def compare_rules(body: JSONObject, collection_name: str) -> JSONObject:
    """Show what rules would change before they are saved.

    For each role and for callers who have not signed in, on the records there are: how many become
    open to at least one active user of the role in the record's account (`gained`), how many stop
    being open to at least one (`lost`), and the newest ten of each. Creating has no records to
    look at. Nothing is saved.
    """
    present, proposed = collections.proposed_rules(collection_name, body["rules"])
    return {"items": population.differences(present, proposed, body.get("account_id"))}


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


@fragment_blueprint.route("", methods=["GET"])
@fragment_blueprint.response(200, Fragments, example=FRAGMENTS_EXAMPLE)
@superadmin(operator="definitions")
def get_fragments() -> Response:
    """Show all fragments of rules."""
    return json_response(fragments.load())


@fragment_blueprint.route("", methods=["PUT"])
@fragment_blueprint.arguments(FragmentArgs, location="query")
@fragment_blueprint.arguments(Fragments, example=FRAGMENTS_EXAMPLE)
@fragment_blueprint.response(200, Fragments, example=FRAGMENTS_EXAMPLE)
@fragment_blueprint.fails(409)
@superadmin(operator="definitions")
def replace_fragments(args: JSONObject, body: JSONObject) -> Response:
    """Replace all fragments of rules.

    A rule uses a fragment as `@rule(name)`; a fragment uses no other. A change acts at once on all
    rules that use it: if one of them does not fit any more, nothing is changed. A fragment that a
    rule uses is not removed (409 with all places), and does not gain or lose `@old` and `@changed`.
    """
    return json_response(fragments.change(body, args.get("plan_hash")))


@fragment_blueprint.route("/plan", methods=["POST"])
@fragment_blueprint.arguments(Fragments, example=FRAGMENTS_EXAMPLE)
@fragment_blueprint.response(
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
@superadmin(reads=True, operator="definitions")
@versioned_cache.reloading()
def plan_fragments(body: JSONObject) -> JSONObject:
    """Show what a change of all fragments does to each rule that uses them. Changes nothing."""
    return fragments.plan(body)
