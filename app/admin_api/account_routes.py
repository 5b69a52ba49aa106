"""`/accounts`: the tenants, as superadmins keep them (spec 4.4, contract section 2)."""

from __future__ import annotations

from typing import Any

import marshmallow as ma
from flask import Response

from app import rest
from app.accounts import tenants, users
from app.accounts.models import Account
from app.accounts.schemas import (
    DESCRIBED,
    FULL_ACCOUNT,
    ORDER,
    PAGE,
    USER,
    FullAccountView,
    TeamArgs,
    UserPage,
)
from app.rest import fields
from app.rest.access import superadmin
from app.rest.blueprint import Blueprint
from app.rest.paging import Page, PageArgs, items_field, page_body
from app.rest.schemas import Schema

blueprint = Blueprint(
    "Accounts",
    __name__,
    url_prefix=f"{rest.PREFIX}/accounts",
    description="The tenants; for superadmins.",
)


class NewAccount(Schema):
    """An account to make; its slug is derived from the name where it is absent."""

    name = fields.Text(shortest=1, longest=200, required=True)
    slug = fields.Text(longest=200)


class ChangedAccount(Schema):
    """What of an account to change; `is_active: false` suspends it."""

    name = fields.Text(shortest=1, longest=200)
    is_active = fields.StrictBoolean()


class AccountArgs(PageArgs):
    """Which accounts to list."""

    search = fields.Text(longest=100, metadata={"description": "A part of name, slug or code."})
    is_active = ma.fields.Boolean(metadata=DESCRIBED["is_active"])
    sort_by = ma.fields.String(
        validate=ma.validate.OneOf(list(tenants.SORTABLE)), metadata=DESCRIBED["sort_by"]
    )
    sort_order = ma.fields.String(validate=ORDER, metadata=DESCRIBED["sort_order"])


class AccountPage(Page):
    """A page of accounts."""

    items = items_field(FullAccountView)


@blueprint.route("", methods=["GET"])
@blueprint.arguments(AccountArgs, location="query")
@blueprint.response(200, AccountPage, example=page_body([FULL_ACCOUNT], 1, PAGE))
@superadmin
def list_accounts(args: dict[str, Any]) -> dict[str, Any]:
    """List accounts."""
    return page_body(*tenants.page(args), args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(NewAccount, example={"name": "Acme"})
@blueprint.response(201, FullAccountView, example=FULL_ACCOUNT)
@blueprint.fails(400, 409)
@superadmin
def create_account(body: dict[str, Any]) -> Account:
    """Create an account without users."""
    return tenants.create(body["name"], body.get("slug"))


@blueprint.route("/<uuid:account_id>", methods=["GET"])
@blueprint.response(200, FullAccountView, example=FULL_ACCOUNT)
@superadmin
def get_account(account_id: str) -> Account:
    """Get an account."""
    return tenants.get(account_id)


@blueprint.route("/<uuid:account_id>", methods=["PUT", "PATCH"])
@blueprint.arguments(ChangedAccount, example={"is_active": False})
@blueprint.response(200, FullAccountView, example=FULL_ACCOUNT)
@blueprint.fails(409)
@superadmin
def update_account(body: dict[str, Any], account_id: str) -> Account:
    """Rename, suspend or resume an account.

    Users and API keys of a suspended account get 401 from their next request on.
    """
    return tenants.change(account_id, body)


@blueprint.route("/<uuid:account_id>", methods=["DELETE"])
@blueprint.response(204)
@blueprint.fails(409)
@superadmin
def delete_account(account_id: str) -> Response:
    """Close an account at once; its data is removed in the background."""
    tenants.close(account_id)
    return Response(status=204)


@blueprint.route("/<uuid:account_id>/users", methods=["GET"])
@blueprint.arguments(TeamArgs, location="query")
@blueprint.response(200, UserPage, example=page_body([USER], 1, PAGE))
@superadmin
def list_users_of_account(args: dict[str, Any], account_id: str) -> dict[str, Any]:
    """List the users of an account."""
    return page_body(*users.page(tenants.get(account_id).id, args), args)
