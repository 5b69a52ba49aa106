"""Second factors of users, for admins: a report and resets."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app.accounts import own_account_routes, user_routes, users
from app.accounts.types import Query
from app.auth.guard import principal
from app.auth.mfa import report
from app.auth.mfa import service as mfa
from app.auth.mfa.models import KINDS
from app.web import fields
from app.web.access import account_admin, superadmin
from app.web.fields import doc
from app.web.paging import PageArgs, page_body, page_of
from app.web.schemas import View, example


class ReportArgs(PageArgs):
    """Which users to list."""

    second_factor = fields.Choice(
        report.STATES, **doc("Only users with or without a second factor.")
    )


@example(role="viewer")
class UserFactorsView(View):
    """A user's second factors."""

    user_id = fields.Id(attribute="user.id")
    email = ma.fields.String(attribute="user.email", metadata=fields.EMAIL)
    role = ma.fields.String(attribute="user.role_name")
    methods = ma.fields.List(fields.Choice(KINDS))
    required_from = fields.Timestamp(
        allow_none=True, **doc("When the user needs a second factor to sign in; null: never.")
    )


@own_account_routes.blueprint.route("/second-factors", methods=["GET"])
@own_account_routes.blueprint.arguments(ReportArgs, location="query")
@own_account_routes.blueprint.response(200, page_of(UserFactorsView))
@account_admin
def list_second_factors(args: Query) -> dict[str, object]:
    """List the active users of your account with the kinds of their second factors.

    Newest first.
    """
    part = (args["skip"], args["limit"], args.get("second_factor"))
    return page_body(*report.page(principal().require_account_id(), *part), args)


@own_account_routes.blueprint.route("/users/<uuid:user_id>/second-factors", methods=["DELETE"])
@own_account_routes.blueprint.response(204)
@account_admin(recent_sign_in=True, api_keys=False)
def reset_member_factors(user_id: str) -> Response:
    """Remove all second factors and recovery codes of a user of your account.

    All sessions of the user end, and the user gets a mail.
    """
    mfa.reset(users.get(principal().require_account_id(), user_id))
    return Response(status=204)


@user_routes.blueprint.route("/<uuid:user_id>/second-factors", methods=["DELETE"])
@user_routes.blueprint.response(204)
@superadmin(recent_sign_in=True, api_keys=False)
def reset_user_factors(user_id: str) -> Response:
    """Remove all second factors and recovery codes of a user.

    All sessions of the user end, and the user gets a mail.
    """
    mfa.reset(users.get(None, user_id))
    return Response(status=204)
