"""`/collections/{name}/rules/explain`: why a caller may or may not do something.

A 403 by a rule has an `explain_id`, by which a superadmin finds out why. It is the question itself,
signed: nothing is stored, so refusals cost no more than before.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import marshmallow as ma
from flask import Flask, Response, request
from itsdangerous import BadSignature

from app import clock, crypto, rules
from app.auth import principal as principals
from app.auth.principal import rule_caller
from app.collections import definitions, trials
from app.collections import service as collections
from app.collections.access import RuleDenied
from app.collections.routes import blueprint
from app.collections.rule_routes import blueprint as rules_blueprint
from app.collections.rule_schemas import OWNER, RuleSubject, operation_field
from app.db import versioned_cache
from app.errors import NotFound
from app.records import explain
from app.types import JSONObject
from app.web import error_handlers, fields
from app.web.access import superadmin
from app.web.fields import doc
from app.web.schemas import Schema, View

SIGNED_IN_ONLY = ("email", "role", "groups", "is_superadmin", "mfa")
NOT_SIGNED_IN = "Only who has signed in has this: give an id, too."

EXPLANATION: JSONObject = {
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
        "subqueries": [],
    },
    "sql": "SELECT col_posts.id FROM col_posts WHERE col_posts.created_by = %(_caller_id)s",
    "parameters": {"_caller_id": "019a9f00-0000-7000-8000-00000000000b"},
}
DENIAL = EXPLANATION | {
    "allowed": False,
    "reason": "`@owns_record()` does not hold.",
    "account_id": "019a9f00-0000-7000-8000-00000000000a",
    "user_id": "019a9f00-0000-7000-8000-00000000000b",
    "record_id": "019a9f00-0000-7000-8000-000000000001",
    "occurred_at": "2026-11-20T12:00:00.123456Z",
}


class WhatToExplain(Schema):
    """An operation, who asks (a user or a made-up caller), and with which record.

    Of a made-up caller without an id nothing may be said but the account that is acted in.
    """

    operation = operation_field(required=True)
    user_id = fields.Text()
    auth = ma.fields.Nested(RuleSubject, allow_none=True)
    record_id = fields.GivenId()
    data = ma.fields.Dict(
        keys=ma.fields.String(),
        **doc("The body that would be sent, for create and update (a patch)."),
    )

    @ma.validates_schema
    def one_caller(self, data: JSONObject, **options: object) -> None:
        """A user and a made-up caller exclude each other."""
        if "user_id" in data and "auth" in data:
            raise ma.ValidationError("Give user_id or auth, not both.", "user_id")

    @ma.validates_schema
    def nobody_has_nothing(self, data: JSONObject, **options: object) -> None:
        """Whoever has not signed in has neither role nor groups."""
        auth = data.get("auth")
        given = [name for name in SIGNED_IN_ONLY if auth and getattr(auth, name)]
        if auth and not auth.id and given:
            raise ma.ValidationError({"auth": {name: [NOT_SIGNED_IN] for name in given}})

    @ma.validates_schema
    def one_body(self, data: JSONObject, **options: object) -> None:
        """Only what writes sends something, and a new record is not there yet."""
        if "data" in data and data.get("operation") not in explain.WRITE_OPERATIONS:
            raise ma.ValidationError("Only create and update send data.", "data")
        if "data" in data and "record_id" in data and data.get("operation") == "create":
            raise ma.ValidationError("Give record_id or the data of a new record.", "data")


class ConditionMatches(View):
    """A condition of an `@any`."""

    text = ma.fields.String()
    position = ma.fields.Integer()
    records = ma.fields.Integer(
        allow_none=True, **doc("How many records meet this condition and those before it.")
    )


class SubqueryMatches(View):
    """How far the conditions of an `@any` or `@count` get."""

    text = ma.fields.String()
    position = ma.fields.Integer()
    conditions = ma.fields.List(ma.fields.Nested(ConditionMatches))


class RuleClause(View):
    """The part of a rule that decided."""

    text = ma.fields.String()
    position = ma.fields.Integer()
    holds = ma.fields.Boolean()
    values = ma.fields.Dict(**doc("What it looked at."))
    subqueries = ma.fields.List(
        ma.fields.Nested(SubqueryMatches), **doc("What its `@any` and `@count` found.")
    )


class Explanation(View):
    """Whether the rule lets this through, and what decides it."""

    optional = ("depends_on",)

    collection = ma.fields.String()
    operation = operation_field()
    rule = ma.fields.String(allow_none=True)
    allowed = ma.fields.Boolean(
        allow_none=True, **doc("null: it depends on what is not given, a record or data.")
    )
    reason = ma.fields.String()
    clause = ma.fields.Nested(RuleClause, allow_none=True)
    depends_on = ma.fields.String(**doc("What of the rule is left to be asked then."))
    sql = ma.fields.String(
        allow_none=True, **doc("What the database is sent to find the records of the rule.")
    )
    parameters = ma.fields.Dict(
        allow_none=True, **doc("The parameters of the statement by name, with their values.")
    )


@blueprint.route("/<collection_name>/rules/explain", methods=["POST"])
@blueprint.arguments(
    WhatToExplain,
    example={
        "operation": "view",
        "user_id": "019a9f00-0000-7000-8000-00000000000b",
        "record_id": "019a9f00-0000-7000-8000-000000000001",
    },
)
@blueprint.response(
    200,
    Explanation,
    example=EXPLANATION,
)
@superadmin(reads=True)
@versioned_cache.reloading()  # what was cached may be out of date, and nothing here would tell
def explain_rule(body: JSONObject, collection_name: str) -> JSONObject:
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
    at, but for columns of views. Of a view, the answer is about what refuses first: the list rule
    of what it reads, its `where`, then its own rule; `collection` says whose `rule` it is.
    """
    collection = definitions.get(collections.find(collection_name).name)
    caller, account_id = _caller(body)
    question = explain.Question(
        body["operation"], caller, account_id, body.get("record_id"), body.get("data")
    )
    return explain.explain(collection, question)


class DenialView(Explanation):
    """A refused request, and what decides it now."""

    account_id = ma.fields.String(allow_none=True)
    user_id = ma.fields.String(allow_none=True)
    record_id = ma.fields.String(allow_none=True)
    occurred_at = fields.Timestamp()


@rules_blueprint.route("/denials/<explain_id>", methods=["GET"])
@rules_blueprint.response(200, DenialView, example=DENIAL)
@superadmin
@versioned_cache.reloading()
def get_denial(explain_id: str) -> JSONObject:
    """Explain a request that a rule refused.

    `explain_id` is that of its 403 `rule_denied`. The rule is judged as it is now, for the caller
    and the record as they are now, without the body that was sent. A record that is gone is left
    out.
    """
    denial = read_denial(explain_id)
    asker = {"user_id": denial.user_id} if denial.user_id else {}
    caller = _caller(asker, denial.account_id)[0]
    question = explain.Question(denial.operation, caller, denial.account_id, denial.record_id)
    collection = definitions.get(collections.find(denial.collection).name)
    try:
        found = explain.explain(collection, question)
    except NotFound:
        found = explain.explain(collection, replace(question, record_id=None))
    return {**found, **asdict(denial), "occurred_at": clock.parse(denial.occurred_at)}


def _caller(body: JSONObject, account_id: str | None = None) -> tuple[rules.Subject, str | None]:
    """Who asks, and the one account whose records are looked at, if it is one.

    Of a made-up caller, the account has its own plan, flags and attributes, unless some are given.
    """
    if "user_id" in body:
        caller = trials.load_caller(body["user_id"])
        # A superadmin may act in any account.
        return rule_caller(caller), None if caller.is_superadmin else caller.account_id
    given = body.get("auth") or rules.Subject()
    # Where nobody has signed in, the account is only that of the records.
    asker = given if given.id else rules.Subject(plan=given.plan, flags=given.flags)
    account = principals.reload_active_account(given.account_id or account_id or "")
    if account is not None:
        asker = replace(asker, account_attributes=account.attributes)
        if given.plan is None and not given.flags:
            asker = replace(asker, plan=account.plan, flags=account.flags)
    return asker, given.account_id


PURPOSE = "rule denial"


@dataclass(frozen=True)
class Denial:
    """A refused request."""

    account_id: str | None
    user_id: str | None
    collection: str
    operation: str
    record_id: str | None
    occurred_at: str


def init_app(app: Flask) -> None:
    """Have refusals answered with their id."""
    app.register_error_handler(RuleDenied, _response)


def _response(error: RuleDenied) -> Response:
    caller = error.caller
    record_id = (request.view_args or {}).get("record_id")
    denial = Denial(
        *(caller.account_id, caller.user_id, error.collection, error.operation, record_id),
        occurred_at=clock.iso(clock.now()),
    )
    error.extra = {**error.extra, "explain_id": crypto.sign(asdict(denial), PURPOSE)}
    return error_handlers.error_response(error)


def read_denial(explain_id: str) -> Denial:
    """Return the refused request of an id. Raises NotFound."""
    try:
        return Denial(**crypto.unsign(explain_id, PURPOSE))
    except (BadSignature, TypeError) as error:
        raise NotFound("There is no such refusal.") from error
