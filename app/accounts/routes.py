"""`/accounts`: managing tenants, for superadmins."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import slugs, web
from app.accounts import tenants, users
from app.accounts.attributes import Kind, Level
from app.accounts.models import Account
from app.accounts.plans import service as plans
from app.accounts.plans.schemas import OverridesBody
from app.accounts.schemas import (
    ACTIVE,
    MAY_BRAND,
    ORDER,
    SORT_BY,
    SORT_ORDER,
    FullAccountView,
    TeamArgs,
    UserPage,
    values_field,
)
from app.accounts.types import Body, Query
from app.collections import attribute_values
from app.web import fields
from app.web.access import superadmin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import PageArgs, page_body, page_of
from app.web.schemas import Schema

blueprint = Blueprint(
    "Accounts",
    __name__,
    url_prefix=f"{web.PREFIX}/accounts",
    description="Manage all tenants. For superadmins.",
)


class NewAccount(Schema):
    """A new account; the slug defaults to one derived from the name."""

    name = fields.Text(shortest=1, longest=200, required=True)
    slug = fields.Text(longest=200, metadata=slugs.DESCRIBED)
    attributes = values_field()
    template = fields.Text(
        longest=100, **doc("The template that fills it; `default` if there is one.")
    )


class ChangedAccount(Schema):
    """The properties of an account to change; `is_active: false` suspends it."""

    name = fields.Text(shortest=1, longest=200)
    is_active = fields.StrictBoolean()
    may_brand = fields.StrictBoolean(allow_none=True, **doc(MAY_BRAND))
    attributes = values_field()
    plan = fields.Text(longest=100, allow_none=True, **doc("One of `/plans`; null: none."))
    overrides = ma.fields.Nested(OverridesBody)


class OperatorAccountView(FullAccountView):
    """An account as superadmins see it."""

    overrides = ma.fields.Function(
        plans.overrides,
        metadata={"type": "object", "description": "What it has beside its plan, as in `PATCH`."},
    )
    template = ma.fields.String(allow_none=True, **doc("The template that filled it."))
    template_version = ma.fields.Integer(allow_none=True)


class AccountArgs(PageArgs):
    """Filters and sort order of a list of accounts."""

    search = fields.Text(longest=100, **doc("Part of the name, slug or code."))
    is_active = ma.fields.Boolean(**ACTIVE)
    sort_by = ma.fields.String(validate=ma.validate.OneOf(list(tenants.SORTABLE)), **SORT_BY)
    sort_order = ma.fields.String(validate=ORDER, **SORT_ORDER)


@blueprint.route("", methods=["GET"])
@blueprint.arguments(AccountArgs, location="query")
@blueprint.response(200, page_of(OperatorAccountView, "AccountPage"))
@superadmin(operator="accounts")
def list_accounts(args: Query) -> dict[str, object]:
    """List accounts.

    Newest first by default. Includes suspended accounts and the system account, but no deleted
    ones.
    """
    return page_body(*tenants.page(args), args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(NewAccount, example={"name": "Acme"})
@blueprint.response(201, OperatorAccountView)
@blueprint.fails(409)
@superadmin(operator="accounts")
def create_account(body: Body) -> Account:
    """Create an account without users.

    `POST /users` adds the first admin; `/auth/register` creates both at once. A slug that is taken
    is a 409, also if it was derived from the name. A template that does not exist is a 400; where
    one has a fault, nothing is created: a 409 `template_fault` with the places in `details`.
    """
    body = attribute_values.replaced(Kind.ACCOUNTS, body, Level.SUPERADMIN, is_new=True)
    return tenants.create(body["name"], body.get("slug"), body["attributes"], body.get("template"))


@blueprint.route("/<uuid:account_id>", methods=["GET"])
@blueprint.response(200, OperatorAccountView)
@superadmin(operator="accounts")
def get_account(account_id: str) -> Account:
    """Get an account.

    Admins use `GET /account`. A deleted account is a 404.
    """
    return tenants.get(account_id)


@blueprint.route("/<uuid:account_id>", methods=["PUT", "PATCH"])
@blueprint.arguments(ChangedAccount, example={"is_active": False})
@blueprint.response(200, OperatorAccountView)
@blueprint.fails(409)
@superadmin(operator="accounts")
def update_account(body: Body, account_id: str) -> Account:
    """Rename, suspend or resume an account, or give it a plan and overrides.

    Every request of a suspended account's users and API keys gets a 401. A plan and overrides hold
    on the next request of every process. A plan that does not exist is a 400 `unknown_plan`, a flag
    that no plan has `unknown_flag`. The system account has none (409).
    """
    body = attribute_values.replaced(Kind.ACCOUNTS, body, Level.SUPERADMIN)
    return tenants.change(account_id, body)


@blueprint.route("/<uuid:account_id>", methods=["DELETE"])
@blueprint.response(204)
@blueprint.fails(409)
@superadmin(operator="accounts")
def delete_account(account_id: str) -> Response:
    """Close an account at once; a background job deletes its data.

    Users and API keys of the account get a 401 from then on; this cannot be undone. The slug
    becomes available again, the code does not. The system account is a 409.
    """
    tenants.close(account_id)
    return Response(status=204)


@blueprint.route("/<uuid:account_id>/users", methods=["GET"])
@blueprint.arguments(TeamArgs, location="query")
@blueprint.response(200, UserPage)
@superadmin(operator="users")
def list_users_of_account(args: Query, account_id: str) -> dict[str, object]:
    """List the users of an account.

    Admins use `GET /account/users`. Newest first by default. Includes inactive users.
    """
    return page_body(*users.page(tenants.get(account_id).id, args), args)
