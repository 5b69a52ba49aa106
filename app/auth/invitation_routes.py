"""`/invitations`: offers to join an account (spec 4.5, contract section 2)."""

from __future__ import annotations

from typing import Any

import marshmallow as ma
from flask import Response

from app import rest
from app.accounts.schemas import ACCOUNT, PAGE, USER
from app.auth import enrolment, invitations
from app.auth import principal as principals
from app.auth import service as auth
from app.auth.answers import answer_sign_in, origin
from app.auth.guard import principal
from app.auth.models import Invitation
from app.auth.schemas import PAIR, SignedIn
from app.rest import fields
from app.rest.access import account_admin, across_accounts, public, shows_secret
from app.rest.blueprint import Blueprint
from app.rest.converters import LARGEST_ROLE_ID
from app.rest.paging import Page, PageArgs, items_field, page_body
from app.rest.schemas import Schema

blueprint = Blueprint(
    "Invitations",
    __name__,
    url_prefix=f"{rest.PREFIX}/invitations",
    description="Offers to join the own account.",
)

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
    "created_at": "2026-11-20T12:00:00.123456Z",
    "updated_at": "2026-11-20T12:00:00.123456Z",
}


class InvitationView(Schema):
    """An invitation."""

    id = ma.fields.String(required=True)
    account_id = ma.fields.String(required=True)
    email = ma.fields.String(required=True)
    role_id = ma.fields.Integer(
        required=True,
        allow_none=True,
        metadata={"description": "null once the invitation is closed and its role deleted"},
    )
    role = ma.fields.String(
        required=True, allow_none=True, attribute="role.name", dump_default=None
    )
    groups = ma.fields.List(ma.fields.String(), required=True)
    status = ma.fields.String(
        required=True, metadata={"description": "pending, accepted, expired or cancelled"}
    )
    invited_by = ma.fields.String(required=True, allow_none=True)
    expires_at = fields.Timestamp(required=True)
    accepted_at = fields.Timestamp(required=True, allow_none=True)
    created_at = fields.Timestamp(required=True)
    updated_at = fields.Timestamp(required=True)


class SentInvitation(InvitationView):
    """An invitation with a token to accept it; another one is mailed, which proves the address."""

    token = ma.fields.String(required=True)


class InvitationPage(Page):
    """A page of invitations; `invitations` is another name for `items`."""

    items = items_field(InvitationView)

    invitations = ma.fields.List(ma.fields.Nested(InvitationView), required=True)


class InvitationArgs(PageArgs):
    """Which invitations to list."""

    status = ma.fields.String(
        validate=ma.validate.OneOf(invitations.STATES),
        metadata={"description": "Only invitations in this state."},
    )
    status_filter = ma.fields.String(
        validate=ma.validate.OneOf(invitations.STATES),
        metadata={"description": "Another name for status."},
    )
    account_id = fields.Text(
        metadata={
            "description": "Of which account: superadmins may name any, or `*`; others their own."
        }
    )


class NewInvitation(Schema):
    """Whom to invite. The role is `viewer` where none is named; groups by id or name."""

    email = fields.Text(longest=320, required=True)
    role_id = fields.Integer(1, LARGEST_ROLE_ID)
    role = fields.Text(longest=100)
    groups = ma.fields.List(fields.Text(longest=100), validate=ma.validate.Length(max=100))


class PublicInvitation(Schema):
    """What the holder of a token may know."""

    email = ma.fields.String(required=True)
    account_name = ma.fields.String(required=True)
    invited_by_name = ma.fields.String(required=True, allow_none=True)
    expires_at = fields.Timestamp(required=True)
    status = ma.fields.String(required=True)
    is_valid = ma.fields.Boolean(required=True)


class Acceptance(Schema):
    """The password of the new user."""

    password = fields.Text(longest=20_000, required=True)
    name = fields.Text(longest=200, allow_none=True)


@blueprint.route("", methods=["GET"])
@blueprint.arguments(InvitationArgs, location="query")
@blueprint.response(
    200, InvitationPage, example={**page_body([INVITATION], 1, PAGE), "invitations": [INVITATION]}
)
@blueprint.fails(404)
@account_admin
def list_invitations(args: dict[str, Any]) -> dict[str, Any]:
    """List the invitations of the own account, newest first."""
    status = args.get("status") or args.get("status_filter")
    account_id = principals.account_to_list(principal(), args.get("account_id"))
    found = invitations.page(account_id, args["skip"], args["limit"], status)
    page = page_body(*found, args)
    return {**page, "invitations": page["items"]}


@blueprint.route("", methods=["POST"])
@blueprint.arguments(NewInvitation, example={"email": "bob@acme.example"})
@blueprint.response(201, SentInvitation, example={**INVITATION, "token": "AA0001-..."})
@blueprint.fails(400, 409, 429)
@account_admin
@shows_secret
def create_invitation(body: dict[str, Any]) -> dict[str, Any]:
    """Invite somebody to the own account.

    A link is mailed; it works once, within 48 hours. Accepting it makes the user with the role and
    the groups named here, and signs in. Only a member of `pii_access` names that group (403), or a
    superadmin in an account not the own. Where registration is off nobody is invited (403). An API
    key cannot make admins, or members of `pii_access` (403).
    """
    caller = principal()
    account_id = caller.one_account()
    enrolment.check_role(body, by=caller, joins=account_id)
    enrolment.check_admission(account_id, body.get("groups") or (), by=caller)
    return _sent(*invitations.create(account_id, body, by=caller.user_id))


@blueprint.route("/<uuid:invitation>", methods=["DELETE"])
@blueprint.response(204)
@blueprint.fails(409)
@account_admin
def cancel_invitation(invitation: str) -> Response:
    """Take an invitation back."""
    invitations.cancel(principal().one_account(), invitation)
    return Response(status=204)


@blueprint.route("/<uuid:invitation>/resend", methods=["POST"])
@blueprint.response(200, SentInvitation, example={**INVITATION, "token": "AA0001-..."})
@blueprint.fails(409, 429)
@account_admin
@shows_secret
def resend_invitation(invitation: str) -> dict[str, Any]:
    """Mail a new link; the old one is void from now on.

    One into `pii_access` is sent again by whom may invite into it (403). An API key cannot make
    admins, or members of `pii_access` (403).
    """
    caller = principal()
    return _sent(*invitations.resend(caller.one_account(), invitation, by=caller))


@blueprint.route("/<invitation>", methods=["GET"])
@blueprint.response(
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
@across_accounts
def get_invitation(invitation: str) -> dict[str, Any]:
    """Look at the invitation that a mailed token belongs to."""
    return invitations.public_view(invitation)


@blueprint.route("/<invitation>/accept", methods=["POST"])
@blueprint.arguments(Acceptance, example={"password": "Correct-horse-1"})
@blueprint.response(200, SignedIn, example={**PAIR, "account": ACCOUNT, "user": USER})
@blueprint.fails(400, 403, 409)
@public
@across_accounts
def accept_invitation(body: dict[str, Any], invitation: str) -> Response:
    """Join the account, and be signed in.

    The token of the mail proves the address. With the one that the inviter was shown the user is
    signed in, too, but has to follow a mailed link before the next login. A token that is used,
    taken back or too old is 400 `invalid_token`.
    """
    user = invitations.accept(invitation, body["password"], body.get("name"))
    return answer_sign_in(auth.sign_in(user, origin()))


def _sent(invitation: Invitation, token: str) -> dict[str, Any]:
    columns = {name: getattr(invitation, name) for name in InvitationView().fields}
    return columns | {"token": token}
