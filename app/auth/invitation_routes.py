"""`/invitations`: inviting users to an account."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import web
from app.accounts.types import Body, Query
from app.auth import invitations
from app.auth import principal as principals
from app.auth import service as auth
from app.auth.guard import principal
from app.auth.invitations import InvitationFilter
from app.auth.mfa import enrolment
from app.auth.mfa.gate import Proof
from app.auth.models import Invitation, InvitationState
from app.auth.responses import origin, sign_in_response
from app.auth.schemas import RedirectBody, SignedIn
from app.web import fields
from app.web.access import account_admin, public
from app.web.app import LARGEST_ROLE_ID
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import Page, PageArgs, items_field, page_body
from app.web.schemas import Schema, View, example

blueprint = Blueprint(
    "Invitations",
    __name__,
    url_prefix=f"{web.PREFIX}/invitations",
    description="Invite users to your account.",
)

RESENT = "A new link is on its way."


@example(email="bob@acme.example", role_id=3, role="viewer", groups=[])
class InvitationView(View):
    """An invitation."""

    id = fields.Id()
    account_id = fields.Id()
    email = ma.fields.String(metadata=fields.EMAIL)
    role_id = ma.fields.Integer(
        allow_none=True, **doc("null if the role was deleted after the invitation was closed")
    )
    role = ma.fields.String(allow_none=True, attribute="role.name", dump_default=None)
    groups = ma.fields.List(ma.fields.String())
    status = fields.Choice(InvitationState)
    invited_by = fields.Id(allow_none=True)
    expires_at = fields.Timestamp()
    accepted_at = fields.Timestamp(allow_none=True)
    created_at = fields.Timestamp()
    updated_at = fields.Timestamp()


class SentInvitation(InvitationView):
    """An invitation with a token to accept it; the mail has another, which verifies the address."""

    optional = ("link",)

    token = ma.fields.String()
    link = ma.fields.String(**doc("Where the token is used; only if no mail was sent."))


class ResentInvitation(SentInvitation):
    """An invitation with its new token."""

    message = ma.fields.String()


class InvitationPage(Page):
    """A page of invitations; `invitations` is an alias of `items`."""

    items = items_field(InvitationView)

    invitations = ma.fields.List(ma.fields.Nested(InvitationView))


class InvitationArgs(PageArgs):
    """Filters of a list of invitations."""

    status = fields.Choice(InvitationState, **doc("Only invitations in this state."))
    status_filter = fields.Choice(InvitationState, **doc("Alias of status."))
    account_id = fields.Text(**doc("The account; superadmins may name any, or `*` for all."))


class SentBody(RedirectBody):
    """How an invitation reaches the invited person."""

    send_mail = fields.StrictBoolean(
        **doc("false: no mail is sent, and `link` of the answer is yours to give."),
    )


class NewInvitation(SentBody):
    """A new invitation. The role defaults to `viewer`; groups are ids or names."""

    email = fields.Text(longest=320, required=True, metadata=fields.EMAIL)
    role_id = fields.Integer(1, LARGEST_ROLE_ID)
    role = fields.Text(longest=100)
    groups = ma.fields.List(fields.Text(longest=100), validate=ma.validate.Length(max=100))


class PublicInvitation(View):
    """The part of an invitation that the holder of its token may see."""

    email = ma.fields.String(metadata=fields.EMAIL)
    account_name = ma.fields.String()
    invited_by_name = ma.fields.String(allow_none=True)
    expires_at = fields.Timestamp()
    status = fields.Choice(InvitationState)
    is_valid = ma.fields.Boolean()


class Acceptance(Schema):
    """The password of the new user."""

    password = fields.Text(longest=20_000, required=True)
    name = fields.Text(longest=200, allow_none=True)


@blueprint.route("", methods=["GET"])
@blueprint.arguments(InvitationArgs, location="query")
@blueprint.response(200, InvitationPage)
@account_admin(operator="users")
def list_invitations(args: Query) -> dict[str, object]:
    """List the invitations of your account, newest first.

    `invitations` repeats `items`. Tokens are not included: only creating and resending an
    invitation return one.
    """
    status = args.get("status") or args.get("status_filter")
    account_id = principals.account_filter(principal(), args.get("account_id"))
    result = invitations.page(InvitationFilter(account_id, status), args["skip"], args["limit"])
    page = page_body(*result, args)
    return {**page, "invitations": page["items"]}


@blueprint.route("", methods=["POST"])
@blueprint.arguments(NewInvitation, example={"email": "bob@acme.example"})
@blueprint.response(201, SentInvitation, example={"token": "AA0001-..."})
@blueprint.fails(409, 429)
@account_admin(shows_secret=True, operator="users")
def create_invitation(body: Body) -> dict[str, object]:
    """Invite somebody to your account.

    The link in the mail works once, within 48 hours; an older open invitation of the address is
    cancelled. The mail names you. An account may invite so many addresses a day (429), fewer in its
    first week, and its quota of mails counts (429 `quota_exceeded`).

    Accepting it creates the user with this role and these groups, and signs in. Only members of
    `pii_access` may include that group, or superadmins in accounts other than their own (403). API
    keys cannot invite admins or members of `pii_access` (403). If registration is off, it is a 403.
    """
    caller = principal()
    account_id = caller.require_account_id()
    enrolment.check_role(body, by=caller, joins=account_id)
    enrolment.check_group_assignment(account_id, body.get("groups") or (), by=caller)
    return _shown(*invitations.create(account_id, body, by=caller.user_id), body)


@blueprint.route("/<uuid:invitation>", methods=["DELETE"])
@blueprint.response(204)
@blueprint.fails(409)
@account_admin(operator="users")
def cancel_invitation(invitation: str) -> Response:
    """Cancel an invitation.

    Its tokens stop working at once. Repeating it changes nothing; an accepted invitation is a 409.
    """
    invitations.cancel(principal().require_account_id(), invitation)
    return Response(status=204)


@blueprint.route("/<uuid:invitation>/resend", methods=["POST"])
@blueprint.arguments(SentBody, required=False, example={"send_mail": True})
@blueprint.response(200, ResentInvitation, example={"token": "AA0001-...", "message": RESENT})
@blueprint.fails(409, 429)
@account_admin(shows_secret=True, operator="users")
def resend_invitation(body: Body, invitation: str) -> dict[str, object]:
    """Mail a new link, which invalidates the old one.

    The same restrictions on `pii_access` and admins apply as for a new invitation (403).
    """
    caller = principal()
    account_id = caller.require_account_id()
    resent = invitations.resend(account_id, invitation, body, by=caller)
    return {**_shown(*resent, body), "message": RESENT}


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
@public(across_accounts=True)
def get_invitation(invitation: str) -> dict[str, object]:
    """Get the invitation of a token.

    Needs no credential. Also finds accepted, expired and cancelled invitations; `is_valid` is false
    for those. An unknown or replaced token, and one of a suspended account, is a 404.
    """
    return invitations.public_view(invitation)


@blueprint.route("/<invitation>/accept", methods=["POST"])
@blueprint.arguments(Acceptance, example={"password": "Correct-horse-1"})
@blueprint.response(200, SignedIn)
@blueprint.fails(400, 403, 409, 429)
@public(across_accounts=True)
def accept_invitation(body: Body, invitation: str) -> Response:
    """Accept an invitation and sign in.

    The mailed token verifies the address. With the token from the API the user is signed in, too,
    but must follow a verification link before the next login. A used, cancelled or expired token is
    a 400 `invalid_token`. Where the account lets this address sign in with a provider only, it is a
    403 `password_sign_in_off`: the first sign-in with the provider accepts the invitation.
    """
    user = invitations.accept(invitation, body["password"], body.get("name"))
    return sign_in_response(auth.sign_in(user, origin(), Proof.PASSWORD))


def _shown(invitation: Invitation, token: str, body: Body) -> dict[str, object]:
    columns = {name: getattr(invitation, name) for name in InvitationView().fields}
    if body.get("send_mail") is False:
        columns["link"] = invitations.link(invitation, token, body.get("redirect_uri"))
    return columns | {"token": token}
