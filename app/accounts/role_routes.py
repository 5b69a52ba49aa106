"""`/roles`: the roles of all accounts, for superadmins."""

from __future__ import annotations

from flask import Response

from app import web
from app.accounts import roles
from app.accounts.models import Role
from app.accounts.schemas import ChangedRole, NewRole, RolePage, RoleView
from app.accounts.types import Body, Query
from app.web.access import superadmin
from app.web.blueprint import Blueprint
from app.web.paging import PageArgs, page_body

blueprint = Blueprint(
    "Roles",
    __name__,
    url_prefix=f"{web.PREFIX}/roles",
    description="Roles of users, shared by all accounts. For superadmins.",
)


@blueprint.route("", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, RolePage)
@superadmin
def list_roles(args: Query) -> dict[str, object]:
    """List roles.

    Admins use `GET /account/roles`. In order of creation, built-in roles first.
    """
    return page_body(*roles.page(args["skip"], args["limit"]), args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(NewRole, example={"name": "auditor", "description": "Reads all."})
@blueprint.response(201, RoleView)
@blueprint.fails(409)
@superadmin
def create_role(body: Body) -> Role:
    """Create a role.

    A new role is available in all accounts, and grants nothing until rules refer to it. A name that
    is taken is a 409; upper and lower case are the same.
    """
    return roles.create(body["name"], body.get("description"), console=body.get("console", False))


@blueprint.route("/<integer:role_id>", methods=["GET"])
@blueprint.response(200, RoleView)
@superadmin
def get_role(role_id: str) -> Role:
    """Get a role.

    Roles belong to no account; admins find theirs in `GET /account/roles`.
    """
    return roles.get(int(role_id))


@blueprint.route("/<integer:role_id>", methods=["PUT", "PATCH"])
@blueprint.arguments(ChangedRole, example={"description": "Reads everything."})
@blueprint.response(200, RoleView)
@blueprint.fails(409)
@superadmin
def update_role(body: Body, role_id: str) -> Role:
    """Change a role's name or description, or whether it opens the console.

    `admin`, `editor` and `viewer` keep their names, and `admin` keeps the console.

    Omitted properties keep their values. Users of the role have the new name at once, and so does
    whatever names it, in all accounts: rules, filters of webhooks, workflows, hooks and saved
    views, and settings. Where a new name cannot follow, it is a 409 with the places; a name that is
    taken is one, too.
    """
    return roles.change(int(role_id), body)


@blueprint.route("/<integer:role_id>", methods=["DELETE"])
@blueprint.response(204)
@blueprint.fails(409)
@superadmin
def delete_role(role_id: str) -> Response:
    """Delete a role that is not in use.

    A built-in role, and one that users or open invitations have, is a 409. So is one that rules,
    webhooks, workflows, hooks or settings name, with all places in `details`.
    """
    roles.delete(int(role_id))
    return Response(status=204)
