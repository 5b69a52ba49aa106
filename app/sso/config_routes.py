"""Provider settings, and what an account's admins see of its sign-ins (contract section 10)."""

from __future__ import annotations

from flask import Response

from app import rest
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.auth.guard import principal
from app.auth.principal import Principal
from app.rest.access import account_admin
from app.rest.blueprint import Blueprint
from app.rest.paging import PageArgs, page_body
from app.rest.responses import json_response
from app.sso import config_schemas as schemas
from app.sso import connections, dry_run, providers, refusals, roles, service
from app.sso.models import ProviderSetting
from app.sso.oauth import addresses
from app.types import JSONObject

blueprint = Blueprint(
    "Provider settings",
    __name__,
    url_prefix=f"{rest.PREFIX}/admin/configuration",
    description="How people sign in by providers: of an account, or of the system for all.",
)
own = Blueprint(
    "Sign-ins of the account",
    __name__,
    url_prefix=f"{rest.PREFIX}/account/sso",
    description="Refused sign-ins by providers, and the mapping of groups to roles.",
)
ONE = "/<uuid:configuration_id>"
PAGE = {"skip": 0, "limit": 25}
WORKS = "The provider answers, and takes the settings."
FAILS = "Something is not right yet."


@blueprint.route("", methods=["GET"])
@blueprint.arguments(schemas.ProviderRowArgs, location="query")
@blueprint.response(200, schemas.ProviderRowPage, example=page_body([schemas.ROW], 1, PAGE))
@account_admin
def list_provider_settings(args: JSONObject) -> JSONObject:
    """List the provider settings of the account acted in; of the system for superadmins."""
    wanted = {"account": args.get("account_id"), "category": args.get("category")}
    rows, total = service.page(args["skip"], args["limit"], by=principal(), **wanted)
    return page_body([_view(row) for row in rows], total, args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(schemas.NewProviderRow, example=schemas.NEW_ROW)
@blueprint.response(201, schemas.ProviderRow, example=schemas.ROW)
@blueprint.fails(400, 403, 404, 409)
@account_admin
def create_provider_settings(body: JSONObject) -> JSONObject:
    """Set a provider up; with `idp_metadata` a SAML provider needs nothing else.

    With `enabled: false` it need not be complete yet, so that the provider can have our metadata
    first; enabling it needs the rest.
    """
    return _view(service.create(body, by=principal()))


@blueprint.route("/providers", methods=["GET"])
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
def list_providers() -> JSONObject:
    """List the providers that can be set up."""
    items = [
        {
            "category": one.category,
            "provider_name": one.name,
            "display_name": one.title,
            "is_builtin": True,
        }
        for one in providers.PROVIDERS
    ]
    return {"items": items, "total": len(items)}


@blueprint.route("/schema/<category>/<provider>", methods=["GET"])
@blueprint.response(
    200,
    schemas.JsonSchema,
    example={"type": "object", "properties": {"client_id": {"type": "string"}}},
)
@account_admin
def get_provider_schema(category: str, provider: str) -> Response:
    """Get the JSON schema of a provider's `config`; what is `writeOnly` is never shown."""
    return json_response(providers.get(category, provider).schema())


@blueprint.route("/test-connection", methods=["POST"])
@blueprint.arguments(schemas.Trial, example=schemas.NEW_ROW)
@blueprint.response(200, schemas.Tried, example=schemas.TESTED)
@blueprint.fails(400, 403, 404, 429)
@account_admin
def test_connection(body: JSONObject) -> JSONObject:
    """Try settings: whether the provider answers, and knows the client."""
    steps = dry_run.run(body, by=principal())
    success = all(step.ok for step in steps)
    return {"success": success, "message": WORKS if success else FAILS, "details": steps}


@blueprint.route(ONE, methods=["GET"])
@blueprint.response(200, schemas.ProviderRow, example=schemas.ROW)
@account_admin
def get_provider_settings(configuration_id: str) -> JSONObject:
    """Get one provider's settings."""
    return _view(service.get(configuration_id, by=_caller(configuration_id)))


@blueprint.route(ONE, methods=["PATCH"])
@blueprint.arguments(schemas.ChangedProviderRow, example={"enabled": False})
@blueprint.response(200, schemas.ProviderRow, example=schemas.ROW)
@blueprint.fails(400, 403)
@account_admin
def update_provider_settings(body: JSONObject, configuration_id: str) -> JSONObject:
    """Change a provider's settings, or switch it on and off.

    Who moves `token_url` must send the secret anew. What somebody outside `pii_access` changes of
    where it points to keeps the members from signing in by it, until one sets `admits_pii_members`.
    """
    return _view(service.change(configuration_id, body, by=_caller(configuration_id)))


@blueprint.route(ONE, methods=["DELETE"])
@blueprint.response(204)
@blueprint.fails(403)
@account_admin
def delete_provider_settings(configuration_id: str) -> Response:
    """Remove a provider's settings; its users stay, and cannot sign in by it any more."""
    service.delete(configuration_id, by=_caller(configuration_id))
    return Response(status=204)


@blueprint.route(f"{ONE}/values", methods=["GET"])
@blueprint.response(200, schemas.ConfigValues, example=schemas.ROW["config"])
@account_admin
def get_provider_values(configuration_id: str) -> Response:
    """Get the `config` of a provider alone; a secret is `***`, or null where it is not set."""
    return json_response(
        service.mask_secrets(service.get(configuration_id, by=_caller(configuration_id)))
    )


@blueprint.route(f"{ONE}/values", methods=["PATCH"])
@blueprint.arguments(schemas.ConfigValues, example={"client_secret": "GOCSPX-..."})
@blueprint.response(200, schemas.ConfigValues, example=schemas.ROW["config"])
@blueprint.fails(400, 403)
@account_admin
def update_provider_values(body: JSONObject, configuration_id: str) -> Response:
    """Change what of a provider's `config` is named; null takes out."""
    row = service.change(configuration_id, {"config": body}, by=_caller(configuration_id))
    return json_response(service.mask_secrets(row))


@own.route("/refusals", methods=["GET"])
@own.arguments(PageArgs, location="query")
@own.response(200, schemas.RefusalPage, example=page_body([schemas.REFUSAL], 1, PAGE))
@account_admin
def list_refusals(args: JSONObject) -> JSONObject:
    """List the last refused sign-ins of the account, and by which check; at most 100 are kept."""
    account_id = principal().require_account_id()
    return page_body(*refusals.page(account_id, args["skip"], args["limit"]), args)


@own.route("/plan", methods=["POST"])
@own.arguments(
    schemas.PlanBody,
    required=False,
    example={"sso_group_roles": [{"group": "Finance", "role": "editor"}]},
)
@own.response(200, schemas.Planned, example=schemas.PLANNED)
@own.fails(400)
@account_admin
def plan_group_roles(body: JSONObject) -> JSONObject:
    """Tell whose role a mapping of groups would change at the next sign-in; changes nothing."""
    changes = roles.preview(body, by=principal())
    return {"changes": changes, "total": len(changes)}


def _caller(setting_id: str) -> Principal:
    return service.acting_in_account_of(setting_id, by=principal())


def _view(row: ProviderSetting) -> JSONObject:
    names = ("id", "category", "provider_name", "display_name", "account_id", "enabled")
    view = {name: getattr(row, name) for name in (*names, "priority", "created_at", "updated_at")}
    return {
        **view,
        "shared_callback": row.shared_callback and not connections.has_custom_endpoints(row.config),
        "callback_url": addresses.callback_url_of(row),
        "admits_pii_members": row.admits_pii_members is not False,
        "is_system": row.account_id == SYSTEM_ACCOUNT_ID,
        "config": service.mask_secrets(row),
    }
