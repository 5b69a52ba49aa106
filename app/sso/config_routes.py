"""Provider settings, refused sign-ins and group roles for admins."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import web
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.auth.guard import principal
from app.auth.principal import Principal
from app.sso import connections, dry_run, overview, providers, refusals, roles, service
from app.sso import schemas as schemas
from app.sso.models import OAUTH, SAML, ProviderSetting
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin, superadmin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import PageArgs, page_body
from app.web.schemas import Schema, View
from app.web.serialization import json_response

blueprint = Blueprint(
    "Provider settings",
    __name__,
    url_prefix=f"{web.PREFIX}/admin/configuration",
    description="Identity providers of an account, or of the system for all accounts.",
)
own = Blueprint(
    "Sign-ins of the account",
    __name__,
    url_prefix=f"{web.PREFIX}/account/sso",
    description="Refused single sign-ons, and the mapping of groups to roles.",
)
BY_ID = "/<uuid:configuration_id>"
WORKS = "The provider accepts the settings."
FAILS = "At least one check failed."
MAX_SETTINGS = 100  # more than there are providers
STATS = {
    "system_configs": {"total": 1, "by_category": {OAUTH: 1, SAML: 0}},
    "account_configs": {"total": 5, "by_category": {OAUTH: 3, SAML: 2}},
}


@blueprint.route("", methods=["GET"])
@blueprint.arguments(schemas.ProviderRowArgs, location="query")
@blueprint.response(200, schemas.ProviderRowPage)
@account_admin
def list_provider_settings(args: JSONObject) -> JSONObject:
    """List the provider settings of the current account; of the system for superadmins.

    Highest `priority` first. Secrets are `***`. The system's settings apply to accounts without
    their own, but only superadmins see them here.
    """
    filters = {"account": args.get("account_id"), "category": args.get("category")}
    rows, total = service.page(args["skip"], args["limit"], by=principal(), **filters)
    return page_body([view(row) for row in rows], total, args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(schemas.NewProviderRow, example=schemas.NEW_ROW)
@blueprint.response(201, schemas.SavedProviderRow, example={"status": "created"})
@blueprint.fails(409)
@account_admin(recent_sign_in=True, api_keys=False)
def create_provider_settings(body: JSONObject) -> JSONObject:
    """Set up a provider; for SAML `idp_metadata` is enough, for OpenID Connect the `issuer`.

    With `enabled: false` the settings may be incomplete, so that you can give our metadata to the
    provider first; enabling requires the rest, and an OpenID Connect issuer that can be read. An
    account may have 50 providers.
    """
    return {**view(service.create(body, by=principal())), "status": "created"}


@blueprint.route("/providers", methods=["GET"])
@blueprint.arguments(schemas.ProviderKindArgs, location="query")
@blueprint.response(
    200,
    schemas.ProviderKinds,
    example={
        "items": [
            {
                "category": "auth_providers",
                "provider_name": "google",
                "display_name": "Google",
                "is_builtin": True,
            }
        ],
        "total": 1,
    },
)
@account_admin
def list_providers(args: JSONObject) -> JSONObject:
    """List the providers that can be set up.

    The same for every account, and in a fixed order; `/schema` describes the settings of each.
    """
    items = [
        {
            "category": provider.category,
            "provider_name": provider.name,
            "display_name": provider.title,
            "is_builtin": True,
        }
        for provider in providers.PROVIDERS
        if args.get("category") in (None, provider.category)
    ]
    return {"items": items, "total": len(items)}


@blueprint.route("/schema/<category>/<provider>", methods=["GET"])
@blueprint.response(
    200,
    schemas.JsonSchemaDocument,
    example={"type": "object", "properties": {"client_id": {"type": "string"}}},
)
@account_admin
def get_provider_schema(category: str, provider: str) -> Response:
    """Get the JSON schema of a provider's `config`; `writeOnly` properties are never returned.

    `config` of settings with `enabled: false` need not have all required properties. An unknown
    provider is a 404.
    """
    return json_response(providers.get(category, provider).schema())


@blueprint.route("/test-connection", methods=["POST"])
@blueprint.arguments(schemas.ConnectionSettings, example=schemas.NEW_ROW)
@blueprint.response(200, schemas.ConnectionTestResult)
@blueprint.fails(429)
@account_admin(api_keys=False)
def test_connection(body: JSONObject) -> JSONObject:
    """Test settings: whether the provider answers and accepts the client.

    Signs nobody in and saves nothing. A failed check is a 200 with `success: false`; settings that
    are not valid are a 400. While other tests run, it may be a 429.
    """
    steps = dry_run.run(body, by=principal())
    success = all(step.ok for step in steps)
    return {"success": success, "message": WORKS if success else FAILS, "details": steps}


@blueprint.route(BY_ID, methods=["GET"])
@blueprint.response(200, schemas.ProviderRow)
@account_admin
def get_provider_settings(configuration_id: str) -> JSONObject:
    """Get one provider's settings.

    Secrets are `***`, or null if not set. Superadmins get the settings of every account.
    """
    return view(service.get(configuration_id, by=_caller(configuration_id)))


@blueprint.route(BY_ID, methods=["PATCH"])
@blueprint.arguments(schemas.ChangedProviderRow, example={"enabled": False})
@blueprint.response(200, schemas.SavedProviderRow, example={"status": "updated"})
@account_admin(recent_sign_in=True, api_keys=False)
def update_provider_settings(body: JSONObject, configuration_id: str) -> JSONObject:
    """Change a provider's settings, or enable or disable it.

    Send the secret again when you change `token_url`. If someone outside `pii_access` changes its
    addresses, members of that group cannot sign in until one of them sets `admits_pii_members`.
    """
    row = service.change(configuration_id, body, by=_caller(configuration_id))
    return {**view(row), "status": "updated"}


@blueprint.route(BY_ID, methods=["DELETE"])
@blueprint.response(204)
@account_admin(recent_sign_in=True, api_keys=False)
def delete_provider_settings(configuration_id: str) -> Response:
    """Delete a provider's settings; its users remain, but cannot sign in with it.

    Where the account had replaced settings of the system, those apply again.
    """
    service.delete(configuration_id, by=_caller(configuration_id))
    return Response(status=204)


@blueprint.route(f"{BY_ID}/values", methods=["GET"])
@blueprint.response(200, schemas.ConfigValues, example=schemas.NEW_ROW["config"])
@account_admin
def get_provider_values(configuration_id: str) -> Response:
    """Get only the `config` of a provider; secrets are `***`, or null if not set.

    `GET` without `/values` returns the other properties of the settings, too.
    """
    return json_response(
        service.mask_secrets(service.get(configuration_id, by=_caller(configuration_id)))
    )


@blueprint.route(f"{BY_ID}/values", methods=["PATCH"])
@blueprint.arguments(schemas.ConfigValues, example={"client_secret": "GOCSPX-..."})
@blueprint.response(200, schemas.ConfigValues, example=schemas.NEW_ROW["config"])
@account_admin(recent_sign_in=True, api_keys=False)
def update_provider_values(body: JSONObject, configuration_id: str) -> Response:
    """Change the given properties of a provider's `config`; null removes one.

    A secret sent as `***` stays. All other conditions are those of changing the settings with
    `config`.
    """
    row = service.change(configuration_id, {"config": body}, by=_caller(configuration_id))
    return json_response(service.mask_secrets(row))


@own.route("/refusals", methods=["GET"])
@own.arguments(PageArgs, location="query")
@own.response(200, schemas.RefusalPage)
@account_admin
def list_refusals(args: JSONObject) -> JSONObject:
    """List the account's last refused sign-ins with the failed check; at most 100 are stored.

    Newest first, for 30 days. `check` and `detail` are only here and in the log; the user gets no
    reason.
    """
    account_id = principal().require_account_id()
    return page_body(*refusals.page(account_id, args["skip"], args["limit"]), args)


@own.route("/plan", methods=["POST"])
@own.arguments(
    schemas.RolePlanBody,
    required=False,
    example={"sso_group_roles": [{"group": "Finance", "role": "editor"}]},
)
@own.response(200, schemas.RolePlan)
@account_admin(reads=True)
def plan_group_roles(body: JSONObject) -> JSONObject:
    """Preview whose role a group mapping would change at the next sign-in.

    Changes nothing. Judges active users with a role from a sign-in, by the groups of their last
    one; ordered by email address. Without a body it previews the stored mapping. A mapping that is
    not valid is a 400.
    """
    changes = roles.preview(body, by=principal())
    return {"changes": changes, "total": len(changes)}


def _caller(setting_id: str) -> Principal:
    return service.act_in_account_of(setting_id, by=principal())


def view(row: ProviderSetting) -> JSONObject:
    """Return settings as in responses, without secrets."""
    names = ("id", "category", "display_name", "account_id", "enabled", "priority")
    view = {name: getattr(row, name) for name in (*names, "created_at", "updated_at")}
    return {
        **view,
        "provider_name": service.get_provider(row).kind,
        "slug": row.provider_name,
        "shared_callback": row.shared_callback and not connections.has_custom_endpoints(row.config),
        "callback_url": connections.callback_url_for_row(row),
        "admits_pii_members": row.admits_pii_members is not False,
        "is_system": row.account_id == SYSTEM_ACCOUNT_ID,
        "is_builtin": True,
        "is_default": False,
        "config": service.mask_secrets(row),
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
