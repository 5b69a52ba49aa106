"""`/rules` and `/collections/{name}/rules/...`: rules tried before they are saved (contract 6)."""

from __future__ import annotations

from typing import Any

import marshmallow as ma

from app import rest, rules, stamps
from app.collections import access, definition, population, trials
from app.collections import service as collections
from app.collections.definition import OPERATIONS
from app.collections.routes import RulesBody
from app.collections.routes import blueprint as collections_blueprint
from app.records import explain
from app.rest import superadmin

blueprint = rest.Blueprint(
    "Rules",
    __name__,
    url_prefix=f"{rest.PREFIX}/rules",
    description="Try rules out before they are saved. Superadmins only.",
)

OF_THE_SIGNED_IN = ("email", "role", "groups", "is_superadmin")
NOT_SIGNED_IN = "Only who has signed in has this: give an id, too."
OWNER = "@owns_record() || @has_role(admin)"


def _operation(**options: Any) -> Any:
    return ma.fields.String(validate=ma.validate.OneOf(OPERATIONS), **options)


class Asker(rest.Schema):
    """A made-up caller; without an id nobody has signed in."""

    id = rest.Text(allow_none=True)
    email = rest.Text(allow_none=True)
    role = rest.Text(allow_none=True)
    account_id = rest.Text(allow_none=True)
    groups = ma.fields.List(rest.Text())
    is_superadmin = rest.Flag()

    @ma.post_load
    def as_asker(self, data: dict[str, Any], **options: Any) -> rules.Asker:
        """The caller as rules see it."""
        return rules.Asker(**{**data, "groups": frozenset(data.get("groups", ()))})


class Situation(rest.Schema):
    """A record, and who asks."""

    record = ma.fields.Dict(keys=ma.fields.String())
    auth = ma.fields.Nested(Asker, allow_none=True)


class RuleToValidate(rest.Schema):
    """A rule, and the names that it may use."""

    rule = rest.Text(longest=2**30, allow_none=True, required=True)
    operation = _operation(metadata={"description": "All operations have the same language."})
    collection = rest.Text(metadata={"description": "Check against this collection's fields."})
    collection_fields = ma.fields.List(
        rest.Text(),
        data_key="collectionFields",
        metadata={"description": "Without a collection: names of fields, of any type."},
    )


class RuleToTest(Situation):
    """A rule with a record and a caller, here or in `context`."""

    rule = rest.Text(longest=2**30, allow_none=True, required=True)
    context = ma.fields.Nested(Situation)


class Validity(rest.Schema):
    """Whether a text is a rule, and why not."""

    valid = ma.fields.Boolean(required=True)
    errors = ma.fields.List(ma.fields.String(), required=True)
    details = ma.fields.List(
        ma.fields.Dict(),
        required=True,
        metadata={"description": "The same with code and position (a character, from 0)."},
    )


class RuleTestResult(rest.Schema):
    """Whether the rule lets the caller at the record."""

    result = ma.fields.Boolean(required=True)


class WhatToExplain(rest.Schema):
    """An operation, who asks (a user or a made-up caller), and with which record.

    Of a made-up caller without an id nothing may be said but the account that is acted in.
    """

    operation = _operation(required=True)
    user_id = rest.Text()
    auth = ma.fields.Nested(Asker, allow_none=True)
    record_id = rest.Text()
    data = ma.fields.Dict(
        keys=ma.fields.String(),
        metadata={"description": "The body that would be sent, for create and update (a patch)."},
    )

    @ma.validates_schema
    def one_caller(self, data: dict[str, Any], **options: Any) -> None:
        """A user and a made-up caller exclude each other."""
        if "user_id" in data and "auth" in data:
            raise ma.ValidationError("Give user_id or auth, not both.", "user_id")

    @ma.validates_schema
    def nobody_has_nothing(self, data: dict[str, Any], **options: Any) -> None:
        """Whoever has not signed in has neither role nor groups."""
        auth = data.get("auth")
        owned = [name for name in OF_THE_SIGNED_IN if auth and getattr(auth, name)]
        if auth and not auth.id and owned:
            raise ma.ValidationError({"auth": {name: [NOT_SIGNED_IN] for name in owned}})

    @ma.validates_schema
    def one_body(self, data: dict[str, Any], **options: Any) -> None:
        """Only what writes sends something, and a new record is not there yet."""
        if "data" in data and data.get("operation") not in explain.WRITING:
            raise ma.ValidationError("Only create and update send data.", "data")
        if "data" in data and "record_id" in data and data.get("operation") == "create":
            raise ma.ValidationError("Give record_id or the data of a new record.", "data")


class Clause(rest.Schema):
    """The part of a rule that decided."""

    text = ma.fields.String(required=True)
    position = ma.fields.Integer(required=True)
    holds = ma.fields.Boolean(required=True)
    values = ma.fields.Dict(required=True, metadata={"description": "What it looked at."})


class Explanation(rest.Schema):
    """Whether the rule lets this through, and what decides it."""

    collection = ma.fields.String(required=True)
    operation = ma.fields.String(required=True)
    rule = ma.fields.String(required=True, allow_none=True)
    allowed = ma.fields.Boolean(
        required=True,
        allow_none=True,
        metadata={"description": "null: it depends on what is not given, a record or data."},
    )
    reason = ma.fields.String(required=True)
    clause = ma.fields.Nested(Clause, required=True, allow_none=True)
    depends_on = ma.fields.String(
        metadata={"description": "What of the rule is left to be asked then."}
    )
    sql = ma.fields.String(
        required=True,
        allow_none=True,
        metadata={"description": "What the database is sent to find the records of the rule."},
    )
    parameters = ma.fields.Dict(
        required=True,
        allow_none=True,
        metadata={"description": "The parameters of the statement by name, with their values."},
    )


class ProposedRules(RulesBody):
    """Rules as they might be; what is absent stays as it is."""


class RulesToCompare(rest.Schema):
    """Rules as they might be."""

    rules = ma.fields.Nested(ProposedRules, required=True)
    account_id = rest.Text(
        metadata={"description": "Look at this account's users and records only."}
    )


class Records(rest.Schema):
    """How many records, and the newest of them."""

    count = ma.fields.Integer(required=True)
    sample = ma.fields.List(ma.fields.String(), required=True)


class Difference(rest.Schema):
    """What changes for the users of a role."""

    role = ma.fields.String(required=True)
    operation = ma.fields.String(required=True)
    gained = ma.fields.Nested(Records, required=True)
    lost = ma.fields.Nested(Records, required=True)


class Differences(rest.Schema):
    """What changes for each role, and for callers who have not signed in."""

    items = ma.fields.List(ma.fields.Nested(Difference), required=True)


@blueprint.route("/validate", methods=["POST"])
@blueprint.arguments(RuleToValidate, example={"rule": OWNER, "collection": "posts"})
@blueprint.response(200, Validity, example={"valid": True, "errors": [], "details": []})
@superadmin
@stamps.reloading()  # what was cached may be out of date, and nothing here would tell
def validate_rule(body: dict[str, Any]) -> dict[str, Any]:
    """Check a rule.

    Against the fields of a collection, or against names alone, or else only its form.
    """
    scope = trials.scope_for(body.get("collection"), body.get("collection_fields", ()))
    found = trials.rule_problems(body["rule"], scope)
    return {"valid": not found, "errors": [one["message"] for one in found], "details": found}


@blueprint.route("/test", methods=["POST"])
@blueprint.arguments(
    RuleToTest,
    example={"rule": OWNER, "record": {"created_by": "u1"}, "auth": {"id": "u1", "role": "viewer"}},
)
@blueprint.response(200, RuleTestResult, example={"result": True})
@blueprint.fails(400)
@superadmin
@stamps.reloading()  # what was cached may be out of date, and nothing here would tell
def test_rule(body: dict[str, Any]) -> dict[str, Any]:
    """Evaluate a rule for a made-up record and caller.

    Fields that the record lacks are null. A field of another type than the rule needs makes its
    comparison false. References are followed into nested objects.
    """
    given = {**body, **body.get("context", {})}
    asker = given.get("auth") or rules.Asker()
    return {"result": trials.judge(body["rule"], given.get("record", {}), asker)}


@collections_blueprint.route("/<collection_name>/rules/explain", methods=["POST"])
@collections_blueprint.arguments(
    WhatToExplain,
    example={
        "operation": "view",
        "user_id": "019a9f00-0000-7000-8000-00000000000b",
        "record_id": "019a9f00-0000-7000-8000-000000000001",
    },
)
@collections_blueprint.response(
    200,
    Explanation,
    example={
        "collection": "posts",
        "operation": "view",
        "rule": OWNER,
        "allowed": True,
        "reason": "`@owns_record()` holds.",
        "clause": {
            "text": "@owns_record()",
            "position": 0,
            "holds": True,
            "values": {
                "created_by": "019a9f00-0000-7000-8000-00000000000b",
                "@request.auth.id": "019a9f00-0000-7000-8000-00000000000b",
            },
        },
        "sql": "SELECT col_posts.id FROM col_posts WHERE col_posts.created_by = %(_caller_id)s",
        "parameters": {"_caller_id": "019a9f00-0000-7000-8000-00000000000b"},
    },
)
@collections_blueprint.fails(400)
@superadmin
@stamps.reloading()  # what was cached may be out of date, and nothing here would tell
def explain_rule(body: dict[str, Any], collection_name: str) -> dict[str, Any]:
    """Explain why a caller may or may not do something.

    With `user_id` for a user as they are, in their own account; with `auth` for a made-up caller;
    with neither, or without an id in `auth`, for somebody who has not signed in: `auth.account_id`
    is then the account acted in, and `@request.auth.account_id` null. Without a record, what can be
    said of all.

    What is created or updated hangs on what is sent: `data` is the body. Nothing is stored; the
    rule judges the new record, or the record as it is and as a patch would leave it. Without `data`
    a rule that asks for `@request.data` is answered `allowed: null`, and one for updating judges
    the record as it is. What is wrong with `data` is a 400 where a write would get as far; so is a
    lacking `auth.account_id` where the rule asks for a new record's account, or for what references
    lead to there. Whether references lead to records that the caller may view is not looked
    at.
    """
    collection = definition.named(collections.find(collection_name).name)
    if "user_id" in body:
        caller = trials.caller_of(body["user_id"])
        asker = access.asker_of(caller)
        # A superadmin may act in any account.
        within = None if caller.is_superadmin else caller.account_id
    else:
        made_up = body.get("auth") or rules.Asker()
        # Where nobody has signed in, the account is only that of the records.
        within, asker = made_up.account_id, made_up if made_up.id else rules.Asker()
    question = explain.Question(
        body["operation"], asker, within, body.get("record_id"), body.get("data")
    )
    return explain.explain(collection, question)


@collections_blueprint.route("/<collection_name>/rules/diff", methods=["POST"])
@collections_blueprint.arguments(RulesToCompare, example={"rules": {"view_rule": OWNER}})
@collections_blueprint.response(
    200,
    Differences,
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
@collections_blueprint.fails(400)
@superadmin
@stamps.reloading()  # what was cached may be out of date, and nothing here would tell
def compare_rules(body: dict[str, Any], collection_name: str) -> dict[str, Any]:
    """Show what rules would change before they are saved.

    For each role and for callers who have not signed in, on the records there are: how many become
    open to at least one active user of the role in the record's account (`gained`), how many stop
    being open to at least one (`lost`), and the newest ten of each. Creating has no records to
    look at. Nothing is saved.
    """
    present, proposed = collections.proposed_rules(collection_name, body["rules"])
    return {"items": population.differences(present, proposed, body.get("account_id"))}
