"""`/api-keys`: keys by which programs act as users."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import marshmallow as ma
from flask import Response

from app import web
from app.accounts.types import Body, Query
from app.auth import api_keys, key_changes, key_scopes
from app.auth.guard import principal
from app.auth.models import ApiKey
from app.collections import definitions
from app.errors import InvalidValues, problem
from app.rules import OPERATIONS
from app.web import fields
from app.web.access import OPERATOR_SCOPES, signed_in
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import OffsetArgs, page_body, page_of
from app.web.schemas import Schema, View, example

blueprint = Blueprint(
    "API keys",
    __name__,
    url_prefix=web.PREFIX,
    description="Keys by which programs act as the user who created them, or a service user.",
)

EXAMPLE = "svc_sk_AA0001_0123456789abcdefghijABCDEFGHIJ01"
READ_ONLY = (
    "Whether the key only reads: GET, and POST where nothing changes, such as plans, tests of rules"
    " and tickets of streams. Anything else is a 403 `read_only_key`."
)
SCOPES = (
    "The operations on records that the key is restricted to, by collection:"
    ' `{"tickets": ["create", "list"], "customers": ["view"]}`. The older form has `collections`'
    " and `operations`, and opens each of these operations on each of these collections; an object"
    " without other properties is of the older form. Superadmins make operator keys with a list,"
    ' `["accounts:write", "users:write"]`: these name the account by `X-Account-ID`.'
)
MAX_COLLECTIONS = 200
DAY, LONGEST_OVERLAP = 86_400, 30 * 86_400  # seconds


def addresses_field() -> ma.fields.List[str]:
    """Return the field of the addresses that a key may be used from."""
    return ma.fields.List(
        fields.Text(longest=60),
        allow_none=True,
        validate=ma.validate.Length(max=50),
        **doc(
            "IP addresses and networks that it may be used from, such as"
            " 192.0.2.0/24; others get 403 `address_not_allowed`. Null: any."
        ),
    )


def check_unique(names: Sequence[str]) -> None:
    """Raise ValidationError for duplicates."""
    if len(set(names)) < len(names):
        raise ma.ValidationError("Duplicate values are not allowed.")


class Scopes(Schema):
    """Scopes in their older form: each operation on each collection."""

    collections = ma.fields.List(
        fields.Text(longest=100), validate=ma.validate.Length(1, MAX_COLLECTIONS)
    )
    operations = ma.fields.List(
        ma.fields.String(validate=ma.validate.OneOf(OPERATIONS)),
        validate=[ma.validate.Length(1, len(OPERATIONS)), check_unique],
        metadata={"uniqueItems": True},
    )


PAIRS = ma.fields.Dict(
    keys=fields.Text(shortest=1, longest=100),
    values=Scopes._declared_fields["operations"],
    validate=ma.validate.Length(1, MAX_COLLECTIONS),
)
OF_OPERATOR = ma.fields.List(
    fields.Choice(OPERATOR_SCOPES),
    validate=[ma.validate.Length(1, len(OPERATOR_SCOPES)), check_unique],
)
LISTED = {"type": "array", "items": {"type": "string", "enum": list(OPERATIONS)}}
BOUNDS = {"minItems": 1, "uniqueItems": True}


class ScopesField(fields.Alternatives):
    """Pairs of collections and operations or the older form, told apart by their keys.

    Of an operator key a list. Those of a key (`shown`) can be empty for a renamed collection.
    """

    schemas = (Scopes,)

    def __init__(self, *, shown: bool = False) -> None:
        listed = LISTED if shown else LISTED | BOUNDS
        of_operator = {"type": "array", "items": {"type": "string", "enum": list(OPERATOR_SCOPES)}}
        one_of = [
            {"type": "object", "additionalProperties": listed},
            {"$ref": f"#/components/schemas/{Scopes.__name__}"},
            of_operator | BOUNDS,
            {"type": "null"},
        ]
        super().__init__(allow_none=True, metadata={"anyOf": one_of, "description": SCOPES})

    def _deserialize(self, value: Any, *args: Any, **options: Any) -> Any:
        if isinstance(value, list):
            return OF_OPERATOR.deserialize(value, *args, **options)
        if not isinstance(value, dict):
            raise ma.ValidationError("Not a valid mapping type.")
        if key_scopes.is_older_form(value):
            return Scopes().load(value)
        return PAIRS.deserialize(value, *args, **options)


class NewKey(Schema):
    name = fields.Text(shortest=1, longest=200, required=True)
    description = fields.Text(longest=1000, allow_none=True)
    expires_at = fields.DateTime(allow_none=True)
    scopes = ScopesField()
    read_only = fields.StrictBoolean(load_default=False, **doc(READ_ONLY))
    user_id = fields.GivenId(
        **doc("The service user that it acts as; admins only. By default: you.")
    )
    ip_addresses = addresses_field()


class ChangedKey(Schema):
    """The changeable properties of an API key."""

    name = fields.Text(shortest=1, longest=200)
    description = fields.Text(longest=1000, allow_none=True)
    ip_addresses = addresses_field()


class RotateBody(Schema):
    """How long the present secret works on."""

    overlap_seconds = fields.Integer(
        0,
        LONGEST_OVERLAP,
        load_default=DAY,
        **doc("How long the present secret works on; a day by default."),
    )


@example(
    name="nightly import",
    hint="IJ01",
    ip_addresses=["192.0.2.0/24"],
    scopes={"tickets": ["create", "list"], "customers": ["view"]},
    read_only=True,
)
class KeyView(View):
    """An API key without its secret."""

    id = fields.Id()
    name = ma.fields.String()
    hint = ma.fields.String(
        allow_none=True, **doc("The last characters of its secret; null for older keys.")
    )
    description = ma.fields.String(allow_none=True)
    account_id = fields.Id()
    account_code = ma.fields.String()
    user_id = fields.Id(**doc("The user that it acts as."))
    created_by = fields.Id(**doc("The same as `user_id`."))
    scopes = ScopesField(shown=True)
    read_only = ma.fields.Boolean(**doc(READ_ONLY))
    ip_addresses = ma.fields.List(ma.fields.String(), allow_none=True)
    previous_valid_until = fields.Timestamp(
        allow_none=True, **doc("Until when the secret before the last rotation works.")
    )
    created_at = fields.Timestamp()
    updated_at = fields.Timestamp()
    last_used_at = fields.Timestamp(allow_none=True)
    expires_at = fields.Timestamp(allow_none=True)
    is_active = ma.fields.Boolean()
    is_revoked = ma.fields.Boolean()
    revoked_at = fields.Timestamp(allow_none=True)
    revoked_by = fields.Id(allow_none=True)


class CreatedKey(KeyView):
    """A new API key with its secret, which is not shown again."""

    key = ma.fields.String()


class KeyArgs(OffsetArgs):
    """Paging of a list of API keys."""

    default_limit = 25


class RevokedKey(View):
    id = fields.Id()
    is_revoked = ma.fields.Boolean()
    revoked_at = fields.Timestamp()
    revoked_by = fields.Id()


@blueprint.route("/admin/api-keys", methods=["GET"], endpoint="list_api_keys_as_admin")
@blueprint.route("/api-keys", methods=["GET"])
@blueprint.arguments(KeyArgs, location="query")
@blueprint.response(200, page_of(KeyView))
@signed_in
def list_api_keys(args: Query) -> dict[str, object]:
    """List your API keys; admins get all keys of the account.

    Newest first, without secrets. Includes expired and revoked keys. `/api-keys` and
    `/admin/api-keys` are the same.
    """
    return page_body(*api_keys.page(args["skip"], args["limit"], by=principal()), args)


@blueprint.route("/admin/api-keys", methods=["POST"], endpoint="create_api_key_as_admin")
@blueprint.route("/api-keys", methods=["POST"])
@blueprint.arguments(NewKey, example={"name": "nightly import"})
@blueprint.response(201, CreatedKey, example={"key": EXAMPLE})
@signed_in(recent_sign_in=True, api_keys=False, shows_secret=True)
def create_api_key(body: Body) -> dict[str, object]:
    """Create an API key.

    It acts as you, with your current role and groups, in your account only; with `user_id` as a
    service user of the account, who is in `pii_access` only if you are (403). The secret is in this
    response and cannot be retrieved again. Scopes restrict the key to these operations on records
    of these collections, `read_only` to what changes nothing; neither can be changed later. What
    the scopes leave out is a 403 `scope_denied` that names it.
    """
    _check_collections(body.get("scopes"))
    key, secret = api_keys.create(body, by=principal())
    return _with_secret(key, secret)


@blueprint.route("/api-keys/<uuid:key_id>/rotate", methods=["POST"])
@blueprint.arguments(RotateBody, required=False, example={"overlap_seconds": 3600})
@blueprint.response(200, CreatedKey, example={"key": EXAMPLE})
@blueprint.fails(409)
@signed_in(recent_sign_in=True, api_keys=False, shows_secret=True)
def rotate_api_key(body: Body, key_id: str) -> dict[str, object]:
    """Give one of your API keys, or as an admin one of a service user, a new secret.

    The present secret works on for a while, a day by default; the one before it stops at once. The
    new one is in this response and cannot be retrieved again.
    """
    overlap = timedelta(seconds=body["overlap_seconds"])
    return _with_secret(*key_changes.rotate(key_id, overlap, by=principal()))


@blueprint.route("/api-keys/<uuid:key_id>", methods=["PATCH"])
@blueprint.arguments(ChangedKey, example={"ip_addresses": ["192.0.2.0/24"]})
@blueprint.response(200, KeyView)
@blueprint.fails(409)
@signed_in(recent_sign_in=True, api_keys=False)
def update_api_key(body: Body, key_id: str) -> ApiKey:
    """Change an API key's name, description or addresses; admins those of their account."""
    return key_changes.change(key_id, body, by=principal())


@blueprint.route("/admin/api-keys/<uuid:key_id>", methods=["GET"], endpoint="get_api_key_as_admin")
@blueprint.route("/api-keys/<uuid:key_id>", methods=["GET"])
@blueprint.response(200, KeyView)
@signed_in
def get_api_key(key_id: str) -> ApiKey:
    """Get an API key, without its secret.

    Users get their own keys, admins all keys of the account; any other key is a 404. `/api-keys`
    and `/admin/api-keys` are the same.
    """
    return api_keys.get(key_id, by=principal())


@blueprint.route(
    "/admin/api-keys/<uuid:key_id>/revoke", methods=["POST"], endpoint="revoke_api_key_as_admin"
)
@blueprint.route("/api-keys/<uuid:key_id>/revoke", methods=["POST"])
@blueprint.response(200, RevokedKey, example={"is_revoked": True})
@blueprint.fails(409)
@signed_in
def revoke_api_key(key_id: str) -> ApiKey:
    """Revoke an API key; it stops working at once.

    Users revoke their own keys, admins all keys of the account; any other key is a 404. This cannot
    be undone, and a second time is a 409. The key stays in the list. `/api-keys` and
    `/admin/api-keys` are the same.
    """
    return api_keys.revoke(key_id, by=principal())


@blueprint.route(
    "/admin/api-keys/<uuid:key_id>", methods=["DELETE"], endpoint="delete_api_key_as_admin"
)
@blueprint.route("/api-keys/<uuid:key_id>", methods=["DELETE"])
@blueprint.response(204)
@blueprint.fails(409)
@signed_in
def delete_api_key(key_id: str) -> Response:
    """Revoke an API key.

    Does the same as `POST /api-keys/{key_id}/revoke`: the key stops working at once, stays in the
    list, and a second time is a 409. Users revoke their own keys, admins all keys of the account.
    """
    api_keys.revoke(key_id, by=principal())
    return Response(status=204)


def _check_collections(scopes: Any) -> None:
    if not isinstance(scopes, dict) or key_scopes.is_older_form(scopes):  # which takes any name
        return
    known = {one.name.lower() for one in definitions.get_all(with_views=True)}
    problems = [
        problem("scopes", "unknown_collection", f"There is no collection {name[:80]}.")
        for name in scopes
        if name.lower() not in known
    ]
    if problems:
        raise InvalidValues(problems)


def _with_secret(key: ApiKey, secret: str) -> dict[str, object]:
    columns = {name: getattr(key, name) for name in KeyView().fields}
    return columns | {"key": secret}
