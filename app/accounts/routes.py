"""Accounts, users, roles and groups (spec 4.4, contract section 2)."""

from __future__ import annotations

from typing import Any

import marshmallow as ma
from flask import Response

from app import rest
from app.accounts import groups, people, roles, tenants
from app.accounts.models import Account, Group, Role, User
from app.accounts.schemas import ACCOUNT, USER, AccountView, UserView
from app.auth import enrolment, resets, verification
from app.auth.guard import principal
from app.rest import account_admin, page_of, superadmin


def _blueprint(name: str, prefix: str, description: str) -> rest.Blueprint:
    url_prefix = f"{rest.PREFIX}/{prefix}"
    return rest.Blueprint(name, __name__, url_prefix=url_prefix, description=description)


accounts_blueprint = _blueprint("Accounts", "accounts", "The tenants; for superadmins.")
account_blueprint = _blueprint("Account", "account", "The own account; for its admins.")
users_blueprint = _blueprint("Users", "users", "Users of all accounts; for superadmins.")
roles_blueprint = _blueprint("Roles", "roles", "What users are; shared by all accounts.")
groups_blueprint = _blueprint("Groups", "groups", "Sets of users of the own account.")
blueprints = (
    accounts_blueprint,
    account_blueprint,
    users_blueprint,
    roles_blueprint,
    groups_blueprint,
)

ROLE = {
    "id": 3,
    "name": "viewer",
    "description": "Reads the account's records.",
    "created_at": "2026-11-20T12:00:00.123456Z",
    "updated_at": "2026-11-20T12:00:00.123456Z",
}
GROUP = {
    "id": "019a9f00-0000-7000-8000-00000000000c",
    "account_id": ACCOUNT["id"],
    "name": "pii_access",
    "description": "Sees personal data unmasked.",
    "is_system": True,
    "created_at": "2026-11-20T12:00:00.123456Z",
    "updated_at": "2026-11-20T12:00:00.123456Z",
}
PAGE = {"skip": 0, "limit": 25}
FULL = {**ACCOUNT, "is_active": True, "updated_at": ACCOUNT["created_at"]}
OWN = {
    **FULL,
    "allowed_redirect_uris": ["https://client.example.com/signed-in"],
    "default_redirect_uri": None,
    "cors_origins": ["https://client.example.com"],
}
ORDER = ma.validate.OneOf(["asc", "desc"])
SIGNS = ("", "+", "-")
DESCRIBED = {
    "is_active": {"description": "Only those that are, or are not, active."},
    "sort_by": {"description": "What to sort by; `created_at` where it is absent."},
    "sort_order": {"description": "`desc` where it is absent."},
    "role_id": {"description": "Only users with this role."},
}


class NewAccount(rest.Schema):
    """An account to make; its slug is derived from the name where it is absent."""

    name = rest.Text(shortest=1, longest=200, required=True)
    slug = rest.Text(longest=200)


class ChangedAccount(rest.Schema):
    """What of an account to change; `is_active: false` suspends it."""

    name = rest.Text(shortest=1, longest=200)
    is_active = rest.Flag()


class AccountArgs(rest.PageArgs):
    """Which accounts to list."""

    search = rest.Text(longest=100, metadata={"description": "A part of name, slug or code."})
    is_active = ma.fields.Boolean(metadata=DESCRIBED["is_active"])
    sort_by = ma.fields.String(
        validate=ma.validate.OneOf(list(tenants.SORTABLE)), metadata=DESCRIBED["sort_by"]
    )
    sort_order = ma.fields.String(validate=ORDER, metadata=DESCRIBED["sort_order"])


class FullAccountView(AccountView):
    """An account as superadmins and its admins see it."""

    is_active = ma.fields.Boolean(required=True)
    updated_at = rest.Timestamp(required=True)


class OwnAccountView(FullAccountView):
    """The own account with its settings."""

    allowed_redirect_uris = ma.fields.List(
        ma.fields.String(),
        required=True,
        attribute="settings.allowed_redirect_uris",
        dump_default=[],
    )
    default_redirect_uri = ma.fields.String(
        required=True,
        allow_none=True,
        attribute="settings.default_redirect_uri",
        dump_default=None,
    )
    cors_origins = ma.fields.List(
        ma.fields.String(), required=True, attribute="settings.cors_origins", dump_default=[]
    )


class OwnAccountBody(rest.Schema):
    """What of the own account to change."""

    name = rest.Text(shortest=1, longest=200)
    allowed_redirect_uris = ma.fields.List(
        rest.Text(longest=2000), validate=ma.validate.Length(max=50)
    )
    default_redirect_uri = rest.Text(longest=2000, allow_none=True)
    cors_origins = ma.fields.List(rest.Text(longest=300), validate=ma.validate.Length(max=50))


class AccountPage(rest.page_schema(FullAccountView)):  # type: ignore[misc]
    """A page of accounts."""


class UserPage(rest.page_schema(UserView)):  # type: ignore[misc]
    """A page of users."""


class TeamArgs(rest.PageArgs):
    """Which users to list."""

    role_id = rest.Whole(1, rest.LARGEST_ROLE_ID, metadata=DESCRIBED["role_id"])
    is_active = ma.fields.Boolean(metadata=DESCRIBED["is_active"])
    search = rest.Text(longest=200, metadata={"description": "A part of the e-mail address."})
    sort_by = ma.fields.String(
        validate=ma.validate.OneOf(list(people.SORTABLE)), metadata=DESCRIBED["sort_by"]
    )
    sort_order = ma.fields.String(validate=ORDER, metadata=DESCRIBED["sort_order"])


class UserArgs(TeamArgs):
    """Which users of all accounts to list."""

    account_id = rest.Text(longest=100, metadata={"description": "Only users of this account."})
    sort = ma.fields.String(
        validate=ma.validate.OneOf([f"{sign}{name}" for name in people.SORTABLE for sign in SIGNS]),
        metadata={"description": "sort_by and sort_order in one: `email`, `-email`."},
    )

    @ma.post_load
    def settle_sort(self, args: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Turn sort into sort_by and sort_order."""
        sort = args.pop("sort", None)
        if sort is None:
            return args
        order = "desc" if sort.startswith("-") else "asc"
        return {"sort_by": sort.lstrip("+-"), "sort_order": order, **args}


class NewMember(rest.Schema):
    """A user of the own account; a link to set the password is mailed."""

    email = rest.Text(longest=320, required=True)
    name = rest.Text(longest=200, allow_none=True)
    role_id = rest.Whole(1, rest.LARGEST_ROLE_ID)
    role = rest.Text(longest=100)


class NewUser(NewMember):
    """A user of any account. Without a password a link to set one is mailed."""

    account_id = rest.Text(longest=100, required=True)
    password = rest.Text(longest=20_000)


class ChangedUser(rest.Schema):
    """What of a user to change."""

    email = rest.Text(longest=320)
    name = rest.Text(longest=200, allow_none=True)
    role_id = rest.Whole(1, rest.LARGEST_ROLE_ID)
    role = rest.Text(longest=100)
    is_active = rest.Flag()


class NewPassword(rest.Schema):
    """The password itself (under either name), or the wish for a mailed link."""

    new_password = rest.Text(longest=20_000)
    password = rest.Text(longest=20_000)
    send_reset_link = rest.Flag()

    @ma.validates_schema
    def says_how(self, data: dict[str, Any], **options: Any) -> None:
        """One of the ways must be named."""
        if not data.get("send_reset_link") and not {"new_password", "password"} & set(data):
            raise ma.ValidationError("Missing data for required field.", "new_password")


class RoleView(rest.Schema):
    """A role."""

    id = ma.fields.Integer(required=True)
    name = ma.fields.String(required=True)
    description = ma.fields.String(required=True, allow_none=True)
    created_at = rest.Timestamp(required=True)
    updated_at = rest.Timestamp(required=True)


class RolePage(rest.page_schema(RoleView)):  # type: ignore[misc]
    """A page of roles."""


class NewRole(rest.Schema):
    """A role to make."""

    name = rest.Text(longest=100, required=True, shortest=1)
    description = rest.Text(longest=1000, allow_none=True)


class ChangedRole(rest.Schema):
    """What of a role to change."""

    name = rest.Text(longest=100, shortest=1)
    description = rest.Text(longest=1000, allow_none=True)


class GroupView(rest.Schema):
    """A group."""

    id = ma.fields.String(required=True)
    account_id = ma.fields.String(required=True)
    name = ma.fields.String(required=True)
    description = ma.fields.String(required=True, allow_none=True)
    is_system = ma.fields.Boolean(required=True)
    created_at = rest.Timestamp(required=True)
    updated_at = rest.Timestamp(required=True)


class GroupWithMembers(GroupView):
    """A group with the users in it."""

    users = ma.fields.List(ma.fields.Nested(UserView), required=True)


class GroupPage(rest.page_schema(GroupView)):  # type: ignore[misc]
    """A page of groups."""


class GroupArgs(rest.PageArgs):
    """Which groups to list."""

    search = rest.Text(longest=100, metadata={"description": "A part of the name."})


class NewMembership(rest.Schema):
    """Who joins the group."""

    user_id = rest.Text(longest=100, required=True)


# Accounts


@accounts_blueprint.route("", methods=["GET"])
@accounts_blueprint.arguments(AccountArgs, location="query")
@accounts_blueprint.response(200, AccountPage, example=page_of([FULL], 1, PAGE))
@superadmin
def list_accounts(args: dict[str, Any]) -> dict[str, Any]:
    """List accounts."""
    return page_of(*tenants.page(args), args)


@accounts_blueprint.route("", methods=["POST"])
@accounts_blueprint.arguments(NewAccount, example={"name": "Acme"})
@accounts_blueprint.response(201, FullAccountView, example=FULL)
@accounts_blueprint.fails(400, 409)
@superadmin
def create_account(body: dict[str, Any]) -> Account:
    """Create an account without users."""
    return tenants.create(body["name"], body.get("slug"))


@accounts_blueprint.route("/<uuid:account_id>", methods=["GET"])
@accounts_blueprint.response(200, FullAccountView, example=FULL)
@superadmin
def get_account(account_id: str) -> Account:
    """Get an account."""
    return tenants.get(account_id)


@accounts_blueprint.route("/<uuid:account_id>", methods=["PUT", "PATCH"])
@accounts_blueprint.arguments(ChangedAccount, example={"is_active": False})
@accounts_blueprint.response(200, FullAccountView, example=FULL)
@accounts_blueprint.fails(409)
@superadmin
def update_account(body: dict[str, Any], account_id: str) -> Account:
    """Rename, suspend or resume an account.

    Users and API keys of a suspended account get 401 from their next request on.
    """
    return tenants.change(account_id, body)


@accounts_blueprint.route("/<uuid:account_id>", methods=["DELETE"])
@accounts_blueprint.response(204)
@accounts_blueprint.fails(409)
@superadmin
def delete_account(account_id: str) -> Response:
    """Close an account at once; its data is removed in the background."""
    tenants.close(account_id)
    return Response(status=204)


@accounts_blueprint.route("/<uuid:account_id>/users", methods=["GET"])
@accounts_blueprint.arguments(TeamArgs, location="query")
@accounts_blueprint.response(200, UserPage, example=page_of([USER], 1, PAGE))
@superadmin
def list_users_of_account(args: dict[str, Any], account_id: str) -> dict[str, Any]:
    """List the users of an account."""
    return page_of(*people.page(tenants.get(account_id).id, args), args)


# The own account


@account_blueprint.route("", methods=["GET"])
@account_blueprint.response(200, OwnAccountView, example=OWN)
@account_admin
def get_own_account() -> Account:
    """Get the own account and its settings."""
    return tenants.get(_own())


@account_blueprint.route("", methods=["PUT", "PATCH"])
@account_blueprint.arguments(OwnAccountBody, example={"name": "Acme Ltd"})
@account_blueprint.response(200, OwnAccountView, example=OWN)
@account_blueprint.fails(400)
@account_admin
def update_own_account(body: dict[str, Any]) -> Account:
    """Change the own account's name and settings."""
    return tenants.change_own(_own(), body)


@account_blueprint.route("/roles", methods=["GET"])
@account_blueprint.arguments(rest.PageArgs, location="query")
@account_blueprint.response(200, RolePage, example=page_of([ROLE], 1, PAGE))
@account_admin
def list_roles_for_account(args: dict[str, Any]) -> dict[str, Any]:
    """List the roles that a user of the account can have."""
    return page_of(*roles.page(args["skip"], args["limit"]), args)


@account_blueprint.route("/users", methods=["GET"])
@account_blueprint.arguments(TeamArgs, location="query")
@account_blueprint.response(200, UserPage, example=page_of([USER], 1, PAGE))
@account_admin
def list_team(args: dict[str, Any]) -> dict[str, Any]:
    """List the users of the own account."""
    return page_of(*people.page(_own(), args), args)


@account_blueprint.route("/users", methods=["POST"])
@account_blueprint.arguments(NewMember, example={"email": "bob@acme.example", "role": "viewer"})
@account_blueprint.response(201, UserView, example=USER)
@account_blueprint.fails(400, 409)
@account_admin
def create_member(body: dict[str, Any]) -> User:
    """Add a user to the own account; a link to set the password is mailed."""
    return enrolment.enrol(_own(), body)


@account_blueprint.route("/users/<uuid:user_id>", methods=["GET"])
@account_blueprint.response(200, UserView, example=USER)
@account_admin
def get_member(user_id: str) -> User:
    """Get a user of the own account."""
    return people.get(_own(), user_id)


@account_blueprint.route("/users/<uuid:user_id>", methods=["PUT", "PATCH"])
@account_blueprint.arguments(ChangedUser, example={"role": "editor"})
@account_blueprint.response(200, UserView, example=USER)
@account_blueprint.fails(400, 409)
@account_admin
def update_member(body: dict[str, Any], user_id: str) -> User:
    """Change a user of the own account.

    Nobody may deactivate or demote themself (403), nor the account's last admin (409). A changed
    role and a deactivation are obeyed by the user's next request.
    """
    return people.change(_own(), user_id, body, by=principal().user_id)


@account_blueprint.route("/users/<uuid:user_id>", methods=["DELETE"])
@account_blueprint.response(204)
@account_blueprint.fails(409)
@account_admin
def delete_member(user_id: str) -> Response:
    """Remove a user from the own account; what they made stays."""
    people.delete(_own(), user_id, by=principal().user_id)
    return Response(status=204)


# Users of all accounts


@users_blueprint.route("", methods=["GET"])
@users_blueprint.arguments(UserArgs, location="query")
@users_blueprint.response(200, UserPage, example=page_of([USER], 1, PAGE))
@superadmin
def list_users(args: dict[str, Any]) -> dict[str, Any]:
    """List users of all accounts."""
    return page_of(*people.page(None, args), args)


@users_blueprint.route("", methods=["POST"])
@users_blueprint.arguments(
    NewUser,
    example={
        "email": "bob@acme.example",
        "password": "Correct-horse-1",
        "account_id": ACCOUNT["id"],
        "role_id": 3,
    },
)
@users_blueprint.response(201, UserView, example=USER)
@users_blueprint.fails(400, 409)
@superadmin
def create_user(body: dict[str, Any]) -> User:
    """Create a user in an account.

    With a password, a mail asks to verify the address; without one, a link to set it is mailed.
    """
    return enrolment.enrol(body["account_id"], body)


@users_blueprint.route("/<uuid:user_id>", methods=["GET"])
@users_blueprint.response(200, UserView, example=USER)
@superadmin
def get_user(user_id: str) -> User:
    """Get a user."""
    return people.get(None, user_id)


@users_blueprint.route("/<uuid:user_id>", methods=["PUT", "PATCH"])
@users_blueprint.arguments(ChangedUser, example={"is_active": False})
@users_blueprint.response(200, UserView, example=USER)
@users_blueprint.fails(400, 409)
@superadmin
def update_user(body: dict[str, Any], user_id: str) -> User:
    """Change a user.

    Nobody may deactivate or demote themself (403), nor an account's last admin (409).
    """
    return people.change(None, user_id, body, by=principal().user_id)


@users_blueprint.route("/<uuid:user_id>", methods=["DELETE"])
@users_blueprint.response(204)
@users_blueprint.fails(409)
@superadmin
def delete_user(user_id: str) -> Response:
    """Delete a user; what they made stays."""
    people.delete(None, user_id, by=principal().user_id)
    return Response(status=204)


@users_blueprint.route("/<uuid:user_id>/password", methods=["PUT", "POST"])
@users_blueprint.arguments(NewPassword, example={"send_reset_link": True})
@users_blueprint.response(200, rest.Message, example={"message": "A link is on its way."})
@users_blueprint.fails(400)
@superadmin
def reset_password(body: dict[str, Any], user_id: str) -> dict[str, str]:
    """Set a user's password, or mail a link to set it; either ends all of the user's sessions."""
    user = people.get(None, user_id)
    if body.get("send_reset_link"):
        resets.send_link(user)
        return {"message": "A link to set a new password is on its way."}
    resets.set_password(user, body.get("new_password") or body.get("password") or "")
    return {"message": "The password is set."}


@users_blueprint.route("/<uuid:user_id>/verify", methods=["POST"])
@users_blueprint.response(200, UserView, example=USER)
@superadmin
def verify_user(user_id: str) -> User:
    """Take a user's address for verified."""
    return people.verify(None, user_id)


@users_blueprint.route("/<uuid:user_id>/resend-verification", methods=["POST"])
@users_blueprint.response(200, rest.Message, example={"message": "A link is on its way."})
@superadmin
def resend_verification_of_user(user_id: str) -> dict[str, str]:
    """Mail a new verification link to a user."""
    verification.ask_again(people.get(None, user_id))
    return {"message": "A new verification link is on its way."}


# Roles


@roles_blueprint.route("", methods=["GET"])
@roles_blueprint.arguments(rest.PageArgs, location="query")
@roles_blueprint.response(200, RolePage, example=page_of([ROLE], 1, PAGE))
@superadmin
def list_roles(args: dict[str, Any]) -> dict[str, Any]:
    """List roles."""
    return page_of(*roles.page(args["skip"], args["limit"]), args)


@roles_blueprint.route("", methods=["POST"])
@roles_blueprint.arguments(NewRole, example={"name": "auditor", "description": "Reads all."})
@roles_blueprint.response(201, RoleView, example=ROLE)
@roles_blueprint.fails(409)
@superadmin
def create_role(body: dict[str, Any]) -> Role:
    """Create a role."""
    return roles.create(body["name"], body.get("description"))


@roles_blueprint.route("/<integer:role_id>", methods=["GET"])
@roles_blueprint.response(200, RoleView, example=ROLE)
@superadmin
def get_role(role_id: str) -> Role:
    """Get a role."""
    return roles.get(int(role_id))


@roles_blueprint.route("/<integer:role_id>", methods=["PUT", "PATCH"])
@roles_blueprint.arguments(ChangedRole, example={"description": "Reads everything."})
@roles_blueprint.response(200, RoleView, example=ROLE)
@roles_blueprint.fails(409)
@superadmin
def update_role(body: dict[str, Any], role_id: str) -> Role:
    """Rename or describe a role; `admin`, `editor` and `viewer` keep their names."""
    return roles.change(int(role_id), body)


@roles_blueprint.route("/<integer:role_id>", methods=["DELETE"])
@roles_blueprint.response(204)
@roles_blueprint.fails(409)
@superadmin
def delete_role(role_id: str) -> Response:
    """Delete a role that nobody has."""
    roles.delete(int(role_id))
    return Response(status=204)


# Groups


@groups_blueprint.route("", methods=["GET"])
@groups_blueprint.arguments(GroupArgs, location="query")
@groups_blueprint.response(200, GroupPage, example=page_of([GROUP], 1, PAGE))
@account_admin
def list_groups(args: dict[str, Any]) -> dict[str, Any]:
    """List the groups of the own account."""
    found = groups.page(principal().account_id, args["skip"], args["limit"], args.get("search"))
    return page_of(*found, args)


@groups_blueprint.route("", methods=["POST"])
@groups_blueprint.arguments(NewRole, example={"name": "finance"})
@groups_blueprint.response(201, GroupView, example=GROUP)
@groups_blueprint.fails(409)
@account_admin
def create_group(body: dict[str, Any]) -> Group:
    """Create a group in the own account."""
    return groups.create(_own(), body["name"], body.get("description"))


@groups_blueprint.route("/<uuid:group_id>", methods=["GET"])
@groups_blueprint.response(200, GroupWithMembers, example={**GROUP, "users": [USER]})
@account_admin
def get_group(group_id: str) -> dict[str, Any]:
    """Get a group with its users."""
    group = groups.get(principal().account_id, group_id)
    columns = {name: getattr(group, name) for name in GroupView().fields}
    return {**columns, "users": groups.members(group)}


@groups_blueprint.route("/<uuid:group_id>", methods=["PUT", "PATCH"])
@groups_blueprint.arguments(ChangedRole, example={"description": "Sees the figures."})
@groups_blueprint.response(200, GroupView, example=GROUP)
@groups_blueprint.fails(409)
@account_admin
def update_group(body: dict[str, Any], group_id: str) -> Group:
    """Rename or describe a group; `pii_access` keeps its name."""
    return groups.change(_own(), group_id, body)


@groups_blueprint.route("/<uuid:group_id>", methods=["DELETE"])
@groups_blueprint.response(204)
@groups_blueprint.fails(409)
@account_admin
def delete_group(group_id: str) -> Response:
    """Delete a group; `pii_access` stays."""
    groups.delete(_own(), group_id)
    return Response(status=204)


@groups_blueprint.route("/<uuid:group_id>/members", methods=["POST"])
@groups_blueprint.route("/<uuid:group_id>/users", methods=["POST"])
@groups_blueprint.arguments(NewMembership, example={"user_id": USER["id"]})
@groups_blueprint.response(200, GroupView, example=GROUP)
@account_admin
def add_to_group(body: dict[str, Any], group_id: str) -> Group:
    """Put a user into a group; being in it already is fine."""
    return groups.add(_own(), group_id, body["user_id"])


@groups_blueprint.route("/<uuid:group_id>/members/<uuid:user_id>", methods=["DELETE"])
@groups_blueprint.route("/<uuid:group_id>/users/<uuid:user_id>", methods=["DELETE"])
@groups_blueprint.response(204)
@account_admin
def remove_from_group(group_id: str, user_id: str) -> Response:
    """Take a user out of a group."""
    groups.remove(_own(), group_id, user_id)
    return Response(status=204)


def _own() -> str:
    return principal().one_account()
