"""`/users`: users of all accounts, for superadmins."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import web
from app.accounts import users
from app.accounts.attributes import Kind, Level
from app.accounts.models import User
from app.accounts.schemas import (
    ChangedUser,
    NewMember,
    TeamArgs,
    UserPage,
    UserView,
)
from app.accounts.types import Body, Query
from app.auth import password_resets, verification
from app.auth.guard import principal
from app.auth.mfa import enrolment
from app.auth.principal import NO_PASSWORDS
from app.collections import attribute_values
from app.types import JSONObject
from app.web import fields
from app.web.access import superadmin
from app.web.blueprint import Blueprint
from app.web.examples import UUID
from app.web.fields import doc
from app.web.paging import page_body
from app.web.schemas import Message, Schema
from app.web.serialization import json_response

blueprint = Blueprint(
    "Users",
    __name__,
    url_prefix=f"{web.PREFIX}/users",
    description="Manage users of all accounts. For superadmins.",
)

SIGNS = ("", "+", "-")
VERIFIED = "The address is marked as verified."


class UserArgs(TeamArgs):
    """Filters and sort order of a list of all accounts' users."""

    account_id = fields.Text(longest=100, **doc("Only users of this account."))
    sort = ma.fields.String(
        validate=ma.validate.OneOf([f"{sign}{name}" for name in users.SORTABLE for sign in SIGNS]),
        **doc("sort_by and sort_order in one, as `email` or `-email`."),
    )

    @ma.post_load
    def normalize_sort(self, args: JSONObject, **options: object) -> JSONObject:
        """Turn sort into sort_by and sort_order."""
        sort = args.pop("sort", None)
        if sort is None:
            return args
        order = "desc" if sort.startswith("-") else "asc"
        return {"sort_by": sort.lstrip("+-"), "sort_order": order, **args}


class NewUser(NewMember):
    """A new user of any account; a person without a password gets a link to set one by mail."""

    account_id = fields.Text(longest=100, required=True)
    password = fields.Text(longest=20_000)


class NewPassword(Schema):
    """A password (under either name), or a request to mail a link."""

    new_password = fields.Text(longest=20_000)
    password = fields.Text(longest=20_000)
    send_reset_link = fields.StrictBoolean()

    @ma.validates_schema
    def check_presence(self, data: JSONObject, **options: object) -> None:
        """Require a password or a link."""
        if not data.get("send_reset_link") and not {"new_password", "password"} & set(data):
            raise ma.ValidationError("Missing data for required field.", "new_password")


class VerifiedUserView(UserView):
    """A user whose address was marked verified."""

    message = ma.fields.String()


@blueprint.route("", methods=["GET"])
@blueprint.arguments(UserArgs, location="query")
@blueprint.response(200, UserPage)
@superadmin(operator="users")
def list_users(args: Query) -> dict[str, object]:
    """List users of all accounts.

    Admins use `GET /account/users`. Newest first by default. Includes inactive users and
    superadmins.
    """
    query = {**args, "without_system": principal().is_operator_key}
    return page_body(*users.page(None, query), args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(
    NewUser,
    example={
        "email": "bob@acme.example",
        "password": "Correct-horse-1",
        "account_id": UUID,
        "role_id": 3,
    },
)
@blueprint.response(201, UserView)
@blueprint.fails(409, 429)
@superadmin(operator="users")
def create_user(body: Body) -> User:
    """Create a user in an account.

    The user gets a mail: with a password, a link to verify the address; without one, a link to set
    it. With `kind: service` it is a service user, with a name and a role, who gets none. API keys
    cannot set passwords or create admins (403), but an operator key the first one of an account.
    """
    principal().refuse_operator_key_in(body["account_id"].lower())
    enrolment.check_role(body, by=principal(), joins=body["account_id"])
    if body.get("password") is not None:
        principal().refuse_key(NO_PASSWORDS)
    body = attribute_values.replaced(Kind.USERS, body, Level.SUPERADMIN, is_new=True)
    return enrolment.enrol(body["account_id"], body)


@blueprint.route("/<uuid:user_id>", methods=["GET"])
@blueprint.response(200, UserView)
@superadmin(operator="users")
def get_user(user_id: str) -> User:
    """Get a user.

    Finds users of every account. Admins use `GET /account/users/{user_id}`.
    """
    return _user(user_id)


@blueprint.route("/<uuid:user_id>", methods=["PUT", "PATCH"])
@blueprint.arguments(ChangedUser, example={"is_active": False})
@blueprint.response(200, UserView)
@blueprint.fails(409, 429)
@superadmin(operator="users")
def update_user(body: Body, user_id: str) -> User:
    """Change a user.

    You cannot deactivate or demote your own user (403) or an account's last admin (409). API keys
    cannot change email addresses or create admins (403). A new address needs a recent sign-in (403
    `recent_sign_in_required`); the old address gets a mail. If the caller is not in `pii_access`,
    a new address removes the user from that group.
    """
    enrolment.check_role(body, by=principal(), user=_user(user_id))
    enrolment.check_address(None, user_id, body, by=principal())
    body = attribute_values.replaced(Kind.USERS, body, Level.SUPERADMIN)
    return users.change(None, user_id, body, by=principal().user_id)


@blueprint.route("/<uuid:user_id>", methods=["DELETE"])
@blueprint.response(204)
@blueprint.fails(409)
@superadmin(operator="users")
def delete_user(user_id: str) -> Response:
    """Delete a user; their records stay.

    Sessions and API keys of the user stop working at once. You cannot delete your own user (403) or
    an account's last active admin (409).

    Records that refer to the user follow `on_delete` of the field; `restrict` refuses (409). If
    more than 1,000 refer to the user, a job changes them.
    """
    users.delete(None, _user(user_id).id, by=principal().user_id)
    return Response(status=204)


@blueprint.route("/<uuid:user_id>/password", methods=["PUT", "POST"])
@blueprint.arguments(NewPassword, example={"send_reset_link": True})
@blueprint.response(200, Message, example={"message": "A link is on its way."})
@blueprint.fails(429)
@superadmin(api_keys=False)
def set_user_password(body: Body, user_id: str) -> dict[str, str]:
    """Set a user's password, or mail a link to set it; either ends all of the user's sessions.

    A service user is a 409. Setting a password needs a recent sign-in (403
    `recent_sign_in_required`), and removes the user from `pii_access` if the caller is not in it; a
    link does not.
    """
    user = users.get(None, user_id)
    if body.get("send_reset_link"):
        password_resets.send_link(user)
        return {"message": "A link to set a new password is on its way."}
    new_password = body.get("new_password") or body.get("password") or ""
    password_resets.set_password(user, new_password, by=principal())
    return {"message": "The password is set."}


@blueprint.route("/<uuid:user_id>/verify", methods=["POST"])
@blueprint.response(200, VerifiedUserView, example={"message": VERIFIED})
@superadmin
def verify_user(user_id: str) -> Response:
    """Mark a user's address verified.

    The user's sessions and API keys stay valid, and no mail is sent. For a verified address it only
    renews `email_verified_at`. A service user is a 409.
    """
    verified = UserView().dump(users.verify(None, user_id))
    return json_response({**verified, "message": VERIFIED})


@blueprint.route("/<uuid:user_id>/resend-verification", methods=["POST"])
@blueprint.response(200, Message, example={"message": "A link is on its way."})
@blueprint.fails(429)
@superadmin(operator="users")
def resend_verification_of_user(user_id: str) -> dict[str, str]:
    """Mail a new verification link to a user.

    Also a 200 if nothing is sent, because the address is verified, or the user or the account is
    inactive. A service user is a 409. Too many mails to one address are a 429.
    """
    user = _user(user_id)
    users.require_person(user)
    verification.send_again(user)
    return {"message": "A new verification link is on its way."}


def _user(user_id: str) -> User:
    """The user; operator keys do not reach those of the system account."""
    user = users.get(None, user_id)
    principal().refuse_operator_key_in(user.account_id)
    return user
