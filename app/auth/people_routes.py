"""Invitations and API keys (spec 4.5, contract section 2)."""

from __future__ import annotations

from typing import Any

import marshmallow as ma
from flask import Response

from app import rest
from app.accounts.schemas import ACCOUNT, USER
from app.auth import api_keys, invitations
from app.auth import service as auth
from app.auth.guard import principal
from app.auth.models import ApiKey, Invitation
from app.auth.routes import PAIR, SignedIn, answer_sign_in, origin
from app.collections.definition import OPERATIONS
from app.rest import account_admin, page_of, public

invitations_blueprint = rest.Blueprint(
    "Invitations",
    __name__,
    url_prefix=f"{rest.PREFIX}/invitations",
    description="Offers to join the own account.",
)
keys_blueprint = rest.Blueprint(
    "API keys",
    __name__,
    url_prefix=rest.PREFIX,
    description="Keys by which programs act as the user who made them.",
)
blueprints = (invitations_blueprint, keys_blueprint)

PAGE = {"skip": 0, "limit": 25}
TIME = "2026-11-20T12:00:00.123456Z"
INVITATION = {
    "id": "019a9f00-0000-7000-8000-0000000000e0",
    "account_id": ACCOUNT["id"],
    "email": "bob@acme.example",
    "role_id": 3,
    "role": "viewer",
    "groups": [],
    "status": "pending",
    "invited_by": USER["id"],
    "expires_at": "2026-11-22T12:00:00.123456Z",
    "accepted_at": None,
    "created_at": TIME,
    "updated_at": TIME,
}
KEY = {
    "id": "019a9f00-0000-7000-8000-0000000000f0",
    "name": "nightly import",
    "description": None,
    "account_id": ACCOUNT["id"],
    "account_code": ACCOUNT["account_code"],
    "created_by": USER["id"],
    "scopes": {"collections": ["posts"], "operations": ["list", "create"]},
    "created_at": TIME,
    "updated_at": TIME,
    "last_used_at": None,
    "expires_at": None,
    "is_active": True,
    "is_revoked": False,
    "revoked_at": None,
    "revoked_by": None,
}


class InvitationView(rest.Schema):
    """An invitation."""

    id = ma.fields.String(required=True)
    account_id = ma.fields.String(required=True)
    email = ma.fields.String(required=True)
    role_id = ma.fields.Integer(required=True)
    role = ma.fields.String(required=True, attribute="role.name")
    groups = ma.fields.List(ma.fields.String(), required=True)
    status = ma.fields.String(
        required=True, metadata={"description": "pending, accepted, expired or cancelled"}
    )
    invited_by = ma.fields.String(required=True, allow_none=True)
    expires_at = rest.Timestamp(required=True)
    accepted_at = rest.Timestamp(required=True, allow_none=True)
    created_at = rest.Timestamp(required=True)
    updated_at = rest.Timestamp(required=True)


class SentInvitation(InvitationView):
    """An invitation with the token that was mailed; it is not shown again."""

    token = ma.fields.String(required=True)


class InvitationPage(rest.page_schema(InvitationView)):  # type: ignore[misc]
    """A page of invitations; `invitations` is another name for `items`."""

    invitations = ma.fields.List(ma.fields.Nested(InvitationView), required=True)


class InvitationArgs(rest.PageArgs):
    """Which invitations to list."""

    status = ma.fields.String(
        validate=ma.validate.OneOf(invitations.STATES),
        metadata={"description": "Only invitations in this state."},
    )
    status_filter = ma.fields.String(
        validate=ma.validate.OneOf(invitations.STATES),
        metadata={"description": "Another name for status."},
    )


class NewInvitation(rest.Schema):
    """Whom to invite. The role is `viewer` where none is named; groups by id or name."""

    email = rest.Text(longest=320, required=True)
    role_id = rest.Whole(1, rest.LARGEST_ROLE_ID)
    role = rest.Text(longest=100)
    groups = ma.fields.List(rest.Text(longest=100), validate=ma.validate.Length(max=100))


class PublicInvitation(rest.Schema):
    """What the holder of a token may know."""

    email = ma.fields.String(required=True)
    account_name = ma.fields.String(required=True)
    invited_by_name = ma.fields.String(required=True, allow_none=True)
    expires_at = rest.Timestamp(required=True)
    status = ma.fields.String(required=True)
    is_valid = ma.fields.Boolean(required=True)


class Acceptance(rest.Schema):
    """The password of the new user."""

    password = rest.Text(longest=20_000, required=True)
    name = rest.Text(longest=200, allow_none=True)


class Scopes(rest.Schema):
    """The only collections and operations that a key is for."""

    collections = ma.fields.List(rest.Text(longest=100), validate=ma.validate.Length(1, 200))
    operations = ma.fields.List(
        ma.fields.String(validate=ma.validate.OneOf(OPERATIONS)), validate=ma.validate.Length(1)
    )


class NewKey(rest.Schema):
    """A key to make."""

    name = rest.Text(shortest=1, longest=200, required=True)
    description = rest.Text(longest=1000, allow_none=True)
    expires_at = rest.Moment(allow_none=True)
    scopes = ma.fields.Nested(Scopes, allow_none=True)


class KeyView(rest.Schema):
    """A key, without its text."""

    id = ma.fields.String(required=True)
    name = ma.fields.String(required=True)
    description = ma.fields.String(required=True, allow_none=True)
    account_id = ma.fields.String(required=True)
    account_code = ma.fields.String(required=True)
    created_by = ma.fields.String(required=True)
    scopes = ma.fields.Nested(Scopes, required=True, allow_none=True)
    created_at = rest.Timestamp(required=True)
    updated_at = rest.Timestamp(required=True)
    last_used_at = rest.Timestamp(required=True, allow_none=True)
    expires_at = rest.Timestamp(required=True, allow_none=True)
    is_active = ma.fields.Boolean(required=True)
    is_revoked = ma.fields.Boolean(required=True)
    revoked_at = rest.Timestamp(required=True, allow_none=True)
    revoked_by = ma.fields.String(required=True, allow_none=True)


class MadeKey(KeyView):
    """A new key with its text, which is not shown again."""

    key = ma.fields.String(required=True)


class KeyPage(rest.page_schema(KeyView)):  # type: ignore[misc]
    """A page of keys."""


class KeyArgs(rest.PageArgs):
    """Which keys to list."""

    offset = rest.Whole(0, rest.LARGEST_SKIP, metadata={"description": "Another name for skip."})

    @ma.post_load
    def settle_offset(self, args: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Take offset for skip."""
        offset = args.pop("offset", None)
        return args if offset is None else args | {"skip": offset}


class RevokedKey(rest.Schema):
    """That a key is revoked."""

    id = ma.fields.String(required=True)
    is_revoked = ma.fields.Boolean(required=True)
    revoked_at = rest.Timestamp(required=True)
    revoked_by = ma.fields.String(required=True)


@invitations_blueprint.route("", methods=["GET"])
@invitations_blueprint.arguments(InvitationArgs, location="query")
@invitations_blueprint.response(
    200, InvitationPage, example={**page_of([INVITATION], 1, PAGE), "invitations": [INVITATION]}
)
@account_admin
def list_invitations(args: dict[str, Any]) -> dict[str, Any]:
    """List the invitations of the own account, newest first."""
    status = args.get("status") or args.get("status_filter")
    found = invitations.page(principal().account_id, args["skip"], args["limit"], status)
    page = page_of(*found, args)
    return {**page, "invitations": page["items"]}


@invitations_blueprint.route("", methods=["POST"])
@invitations_blueprint.arguments(NewInvitation, example={"email": "bob@acme.example"})
@invitations_blueprint.response(201, SentInvitation, example={**INVITATION, "token": "AA0001-..."})
@invitations_blueprint.fails(400, 409)
@account_admin
def create_invitation(body: dict[str, Any]) -> dict[str, Any]:
    """Invite somebody to the own account.

    A link is mailed; it works once, within 48 hours. Accepting it makes the user with the role and
    the groups named here, and signs in.
    """
    caller = principal()
    return _sent(*invitations.create(caller.one_account(), body, by=caller.user_id))


@invitations_blueprint.route("/<uuid:invitation>", methods=["DELETE"])
@invitations_blueprint.response(204)
@invitations_blueprint.fails(409)
@account_admin
def cancel_invitation(invitation: str) -> Response:
    """Take an invitation back."""
    invitations.cancel(principal().one_account(), invitation)
    return Response(status=204)


@invitations_blueprint.route("/<uuid:invitation>/resend", methods=["POST"])
@invitations_blueprint.response(200, SentInvitation, example={**INVITATION, "token": "AA0001-..."})
@invitations_blueprint.fails(409)
@account_admin
def resend_invitation(invitation: str) -> dict[str, Any]:
    """Mail a new link; the old one is void from now on."""
    return _sent(*invitations.resend(principal().one_account(), invitation))


@invitations_blueprint.route("/<invitation>", methods=["GET"])
@invitations_blueprint.response(
    200,
    PublicInvitation,
    example={
        "email": "bob@acme.example",
        "account_name": "Acme",
        "invited_by_name": "Alice",
        "expires_at": "2026-11-22T12:00:00.123456Z",
        "status": "pending",
        "is_valid": True,
    },
)
@public
def get_invitation(invitation: str) -> dict[str, Any]:
    """Look at the invitation that a mailed token belongs to."""
    return invitations.public_view(invitation)


@invitations_blueprint.route("/<invitation>/accept", methods=["POST"])
@invitations_blueprint.arguments(Acceptance, example={"password": "Correct-horse-1"})
@invitations_blueprint.response(200, SignedIn, example={**PAIR, "account": ACCOUNT, "user": USER})
@invitations_blueprint.fails(400, 403, 409)
@public
def accept_invitation(body: dict[str, Any], invitation: str) -> Response:
    """Join the account, and be signed in.

    A link that is used, taken back or too old is 400 `invalid_token`.
    """
    user = invitations.accept(invitation, body["password"], body.get("name"))
    return answer_sign_in(auth.sign_in(user, origin()))


@keys_blueprint.route("/admin/api-keys", methods=["GET"])
@keys_blueprint.route("/api-keys", methods=["GET"])
@keys_blueprint.arguments(KeyArgs, location="query")
@keys_blueprint.response(200, KeyPage, example=page_of([KEY], 1, PAGE))
def list_api_keys(args: dict[str, Any]) -> dict[str, Any]:
    """List the own API keys; an admin's list is the account's."""
    return page_of(*api_keys.page(args["skip"], args["limit"], by=principal()), args)


@keys_blueprint.route("/admin/api-keys", methods=["POST"])
@keys_blueprint.route("/api-keys", methods=["POST"])
@keys_blueprint.arguments(NewKey, example={"name": "nightly import"})
@keys_blueprint.response(
    201, MadeKey, example={**KEY, "key": "svc_sk_AA0001_0123456789abcdefghijABCDEFGHIJ01"}
)
@keys_blueprint.fails(400, 403)
def create_api_key(body: dict[str, Any]) -> dict[str, Any]:
    """Create an API key.

    It acts as the caller, with the caller's present role and groups, in the caller's account only.
    Its text is in this answer and nowhere else. With scopes it opens only the records of the named
    collections, by the named operations.
    """
    key, text = api_keys.create(body, by=principal())
    return _columns(key, KeyView) | {"key": text}


@keys_blueprint.route("/admin/api-keys/<uuid:key_id>", methods=["GET"])
@keys_blueprint.route("/api-keys/<uuid:key_id>", methods=["GET"])
@keys_blueprint.response(200, KeyView, example=KEY)
def get_api_key(key_id: str) -> ApiKey:
    """Get an API key, without its text."""
    return api_keys.get(key_id, by=principal())


@keys_blueprint.route("/admin/api-keys/<uuid:key_id>/revoke", methods=["POST"])
@keys_blueprint.route("/api-keys/<uuid:key_id>/revoke", methods=["POST"])
@keys_blueprint.response(
    200,
    RevokedKey,
    example={"id": KEY["id"], "is_revoked": True, "revoked_at": TIME, "revoked_by": USER["id"]},
)
@keys_blueprint.fails(409)
def revoke_api_key(key_id: str) -> ApiKey:
    """Revoke an API key; the next request with it is refused."""
    return api_keys.revoke(key_id, by=principal())


@keys_blueprint.route("/admin/api-keys/<uuid:key_id>", methods=["DELETE"])
@keys_blueprint.route("/api-keys/<uuid:key_id>", methods=["DELETE"])
@keys_blueprint.response(204)
@keys_blueprint.fails(409)
def delete_api_key(key_id: str) -> Response:
    """Revoke an API key."""
    api_keys.revoke(key_id, by=principal())
    return Response(status=204)


def _sent(invitation: Invitation, token: str) -> dict[str, Any]:
    return _columns(invitation, InvitationView) | {"token": token}


def _columns(row: Any, view: type[rest.Schema]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in view().fields}
