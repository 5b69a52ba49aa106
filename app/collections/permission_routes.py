"""`/roles/{role_id}/permissions`: rules by role, as `@snackbase/sdk` asks for them."""

from __future__ import annotations

import marshmallow as ma

from app.accounts import roles
from app.accounts.role_routes import blueprint
from app.accounts.types import Query
from app.collections import definitions, trials
from app.collections import service as collections
from app.collections.rule_schemas import CollectionRules
from app.collections.trials import Reach
from app.types import JSONObject
from app.web import fields
from app.web.access import superadmin
from app.web.paging import Page, PageArgs, items_field, page_body, page_of
from app.web.schemas import View

EXAMPLE_ROW = {
    "collection": "posts",
    "list": Reach.ALL,
    "view": Reach.ALL,
    "create": Reach.SOME,
    "update": Reach.SOME,
    "delete": Reach.NONE,
}


class RolePermissions(CollectionRules):
    """The rules of a collection, which apply to the role as to all others."""

    role_id = ma.fields.Integer(required=True)


class PermissionRow(View):
    """The records of a collection that each operation opens to users of a role."""

    collection = ma.fields.String()
    list = fields.Choice(Reach)
    view = fields.Choice(Reach)
    create = fields.Choice(Reach)
    update = fields.Choice(Reach)
    delete = fields.Choice(Reach)


class PermissionMatrix(Page):
    """What a role opens, by collection."""

    items = items_field(PermissionRow)

    role_id = ma.fields.Integer()
    role_name = ma.fields.String()


@blueprint.route("/<integer:role_id>/permissions", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, page_of(RolePermissions))
@superadmin
def list_permissions_of_role(args: Query, role_id: str) -> JSONObject:
    """List the rules that users of a role are under, by collection.

    Rules belong to collections and apply to all roles: change them with `PUT
    /collections/{collection_name}/rules`. Ordered by the name of the collection.
    """
    role = roles.get(int(role_id))
    rows, total = collections.page(args["skip"], args["limit"])
    items = [{**collections.rules_view(row), "role_id": role.id} for row in rows]
    return page_body(items, total, args)


@blueprint.route("/<integer:role_id>/permissions/matrix", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(
    200,
    PermissionMatrix,
    example={
        **page_body([EXAMPLE_ROW], 1, {"skip": 0, "limit": 25}),
        "role_id": 3,
        "role_name": "viewer",
    },
)
@superadmin
def get_permission_matrix(args: Query, role_id: str) -> JSONObject:
    """Show which records each operation opens to users of a role, by collection.

    `all` or `none`: whatever the record and the user. `some`: that depends on the record, or on the
    user's id, email address, account or groups. Ordered by the name of the collection. Superadmins
    may do everything.
    """
    role = roles.get(int(role_id))
    rows, total = collections.page(args["skip"], args["limit"])
    items = [
        {"collection": row.name, **trials.reach_of_role(role.name, definitions.from_row(row))}
        for row in rows
    ]
    return {**page_body(items, total, args), "role_id": role.id, "role_name": role.name}
