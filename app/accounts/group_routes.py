"""`/groups`: groups of users of the own account."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import web
from app.accounts import groups
from app.accounts.models import Group
from app.accounts.schemas import ChangedGroup, NewGroup, UserView
from app.accounts.types import Body, Query
from app.auth.guard import principal
from app.auth.mfa import enrolment
from app.auth.principal import NO_PII_CHANGES
from app.errors import Forbidden
from app.web import fields
from app.web.access import account_admin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import PageArgs, page_body, page_of
from app.web.schemas import Schema, View, example

blueprint = Blueprint(
    "Groups",
    __name__,
    url_prefix=f"{web.PREFIX}/groups",
    description="Groups of users of your account.",
)


@example(name="pii_access", description="Sees personal data unmasked.", is_system=True)
class GroupView(View):
    id = fields.Id()
    account_id = fields.Id()
    name = ma.fields.String()
    description = ma.fields.String(allow_none=True)
    is_system = ma.fields.Boolean()
    created_at = fields.Timestamp()
    updated_at = fields.Timestamp()


class GroupWithMembers(GroupView):
    users = ma.fields.List(ma.fields.Nested(UserView))


class GroupArgs(PageArgs):
    """Filters of a list of groups."""

    search = fields.Text(longest=100, **doc("Part of the name."))


class NewMembership(Schema):
    user_id = fields.Text(longest=100, required=True)


@blueprint.route("", methods=["GET"])
@blueprint.arguments(GroupArgs, location="query")
@blueprint.response(200, page_of(GroupView))
@account_admin(operator="users")
def list_groups(args: Query) -> dict[str, object]:
    """List the groups of your account.

    Ordered by name, without users. With `X-Account-ID: *` superadmins get the groups of all
    accounts.
    """
    result = groups.page(principal().account_id, args["skip"], args["limit"], args.get("search"))
    return page_body(*result, args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(NewGroup, example={"name": "finance"})
@blueprint.response(201, GroupView)
@blueprint.fails(409)
@account_admin(operator="users")
def create_group(body: Body) -> Group:
    """Create a group in your account.

    Starts without users; rules can refer to it by its name. A name that is taken in the account is
    a 409; upper and lower case are the same.
    """
    return groups.create(_account_id(), body["name"], body.get("description"))


@blueprint.route("/<uuid:group_id>", methods=["GET"])
@blueprint.response(200, GroupWithMembers)
@account_admin(operator="users")
def get_group(group_id: str) -> dict[str, object]:
    """Get a group with its users.

    `users` has all members, including inactive ones, ordered by email address.
    """
    group = groups.get(principal().account_id, group_id)
    columns = {name: getattr(group, name) for name in GroupView().fields}
    return {**columns, "users": groups.members(group)}


@blueprint.route("/<uuid:group_id>", methods=["PUT", "PATCH"])
@blueprint.arguments(ChangedGroup, example={"description": "Sees the figures."})
@blueprint.response(200, GroupView)
@blueprint.fails(409)
@account_admin(operator="users")
def update_group(body: Body, group_id: str) -> Group:
    """Change a group's name or description; `pii_access` keeps its name.

    Omitted properties keep their values. Filters of webhooks, workflows, hooks and saved views of
    the account that name the group follow a new name, as do mapped groups of a directory. A group
    that rules of the service name is not renamed (409, as is what cannot follow, with the places).
    A name that is taken, or another name for `pii_access`, is a 409.
    """
    _refuse_operator_key(group_id)
    return groups.change(_account_id(), group_id, body, shows_rules=principal().is_superadmin)


@blueprint.route("/<uuid:group_id>", methods=["DELETE"])
@blueprint.response(204)
@blueprint.fails(409)
@account_admin(operator="users")
def delete_group(group_id: str) -> Response:
    """Delete a group, except `pii_access`.

    The users stay. A group that rules, webhooks, workflows or hooks name is a 409 with the places,
    as is `pii_access`.
    """
    groups.delete(_account_id(), group_id, shows_rules=principal().is_superadmin)
    return Response(status=204)


@blueprint.route("/<uuid:group_id>/members", methods=["POST"], endpoint="add_group_member")
@blueprint.route("/<uuid:group_id>/users", methods=["POST"])
@blueprint.arguments(NewMembership)
@blueprint.response(200, GroupView)
@account_admin(operator="users")
def add_user_to_group(body: Body, group_id: str) -> Group:
    """Add a user to a group; does nothing if the user is a member.

    Only members of `pii_access` add users to it, or superadmins in accounts other than their own;
    API keys cannot (403).
    """
    enrolment.check_group_assignment(_account_id(), [group_id], by=principal())
    return groups.add_member(_account_id(), group_id, body["user_id"], by=principal().user_id)


@blueprint.route(
    "/<uuid:group_id>/members/<uuid:user_id>", methods=["DELETE"], endpoint="remove_group_member"
)
@blueprint.route("/<uuid:group_id>/users/<uuid:user_id>", methods=["DELETE"])
@blueprint.response(204)
@account_admin(operator="users")
def remove_user_from_group(group_id: str, user_id: str) -> Response:
    """Remove a user from a group.

    Admins who are not members of `pii_access` may remove users from it, too; operator keys cannot
    (403). Takes effect with the user's next request. A 404 means that the group or the user does
    not exist, or that the user is not a member. `/users` and `/members` are the same.
    """
    _refuse_operator_key(group_id)
    groups.remove_member(_account_id(), group_id, user_id)
    return Response(status=204)


def _account_id() -> str:
    return principal().require_account_id()


def _refuse_operator_key(group_id: str) -> None:
    if principal().is_operator_key and groups.get(_account_id(), group_id).is_system:
        raise Forbidden(NO_PII_CHANGES)
