"""`/admin/configuration/stats` and other lists by the paths of `@snackbase/sdk`."""

from __future__ import annotations

import marshmallow as ma

from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.auth.guard import principal
from app.sso import config_schemas as schemas
from app.sso import overview, service
from app.sso.config_routes import blueprint, view
from app.sso.models import OAUTH, SAML
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin, superadmin
from app.web.fields import doc
from app.web.schemas import Schema, View

MAX_SETTINGS = 100  # more than there are providers
STATS = {
    "system_configs": {"total": 1, "by_category": {OAUTH: 1, SAML: 0}},
    "account_configs": {"total": 5, "by_category": {OAUTH: 3, SAML: 2}},
}


class LevelStats(View):
    """A number of settings."""

    total = ma.fields.Integer()
    by_category = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.Integer())


class ConfigurationStats(View):
    """How many providers are set up for the system and in accounts."""

    system_configs = ma.fields.Nested(LevelStats)
    account_configs = ma.fields.Nested(LevelStats)


class RecentArgs(Schema):
    """The query of the settings that were changed last."""

    limit = fields.Integer(1, 100, load_default=10, **doc("How many settings to return."))


class OfAccountArgs(schemas.ProviderKindArgs):
    """An account, and a filter by category."""

    account_id = fields.Text(longest=100, **doc("The account; by default the current one."))


@blueprint.route("/stats", methods=["GET"])
@blueprint.response(200, ConfigurationStats, example=STATS)
@superadmin
def get_configuration_stats() -> JSONObject:
    """Count the provider settings of the system and of all accounts, by category.

    Counts disabled settings, too.
    """
    return overview.stats()


@blueprint.route("/recent", methods=["GET"])
@blueprint.arguments(RecentArgs, location="query")
@blueprint.response(200, schemas.ProviderRow(many=True))
@superadmin
def list_recent_settings(args: JSONObject) -> list[JSONObject]:
    """List the provider settings that were changed last, as an array.

    Of the system and of all accounts; secrets are `***`.
    """
    return [view(row) for row in overview.recent(args["limit"])]


@blueprint.route("/system", methods=["GET"])
@blueprint.arguments(schemas.ProviderKindArgs, location="query")
@blueprint.response(200, schemas.ProviderRow(many=True))
@superadmin
def list_system_settings(args: JSONObject) -> list[JSONObject]:
    """List the provider settings of the system, as an array.

    The same as `GET /admin/configuration` of the system account.
    """
    return _of_account(SYSTEM_ACCOUNT_ID, args)


@blueprint.route("/account", methods=["GET"])
@blueprint.arguments(OfAccountArgs, location="query")
@blueprint.response(200, schemas.ProviderRow(many=True))
@account_admin
def list_settings_of_account(args: JSONObject) -> list[JSONObject]:
    """List the provider settings of an account, as an array.

    Only of their own account (403 for others); superadmins name any. The same as `GET
    /admin/configuration` with `account_id`.
    """
    return _of_account(args.get("account_id"), args)


def _of_account(account: str | None, args: JSONObject) -> list[JSONObject]:
    filters = {"account": account, "category": args.get("category")}
    rows, _ = service.page(0, MAX_SETTINGS, by=principal(), **filters)
    return [view(row) for row in rows]
