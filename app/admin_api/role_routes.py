"""`/roles`: the roles of all accounts, for superadmins (contract section 2)."""

from __future__ import annotations

from flask import Response

from app import rest
from app.accounts import roles
from app.accounts.models import Role
from app.accounts.schemas import PAGE, ROLE, ChangedRole, NewRole, RolePage, RoleView
from app.accounts.types import Body, Query
from app.rest.access import superadmin
from app.rest.blueprint import Blueprint
from app.rest.paging import PageArgs, page_body

blueprint = Blueprint(
    "Roles",
    __name__,
    url_prefix=f"{rest.PREFIX}/roles",
    description="Roles of users, shared by all accounts. For superadmins.",
)


@blueprint.route("", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, RolePage, example=page_body([ROLE], 1, PAGE))
@superadmin
def list_roles(args: Query) -> dict[str, object]:
    """List roles."""
    return page_body(*roles.page(args["skip"], args["limit"]), args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(NewRole, example={"name": "auditor", "description": "Reads all."})
@blueprint.response(201, RoleView, example=ROLE)
@blueprint.fails(400, 409)
@superadmin
def create_role(body: Body) -> Role:
    """Create a role."""
    return roles.create(body["name"], body.get("description"))


@blueprint.route("/<integer:role_id>", methods=["GET"])
@blueprint.response(200, RoleView, example=ROLE)
@superadmin
def get_role(role_id: str) -> Role:
    """Get a role."""
    return roles.get(int(role_id))


@blueprint.route("/<integer:role_id>", methods=["PUT", "PATCH"])
@blueprint.arguments(ChangedRole, example={"description": "Reads everything."})
@blueprint.response(200, RoleView, example=ROLE)
@blueprint.fails(400, 409)
@superadmin
def update_role(body: Body, role_id: str) -> Role:
    """Change a role's name or description; `admin`, `editor` and `viewer` keep their names."""
    return roles.change(int(role_id), body)


@blueprint.route("/<integer:role_id>", methods=["DELETE"])
@blueprint.response(204)
@blueprint.fails(409)
@superadmin
def delete_role(role_id: str) -> Response:
    """Delete a role that is not in use."""
    roles.delete(int(role_id))
    return Response(status=204)
