"""`/account/scim/tokens`: the tokens of an account's directory."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app import config, web
from app.accounts.types import Body
from app.auth.guard import principal
from app.sso.scim import resources
from app.sso.scim import tokens as scim_tokens
from app.web import fields
from app.web.access import account_admin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.schemas import Schema, View, example

blueprint = Blueprint(
    "SCIM tokens",
    __name__,
    url_prefix=f"{web.PREFIX}/account/scim/tokens",
    description="Tokens by which your directory provisions users at `/scim/v2` (SCIM 2.0).",
)

BASE_URL = "https://api.example.com/scim/v2"
EXAMPLE = "svc_scim_AA0001_0123456789abcdefghijABCDEFGHIJ0123456789"


@example(hint="IJ01")
class ScimTokenView(View):
    """A SCIM token without its text."""

    id = fields.Id()
    hint = ma.fields.String(**doc("The last characters of the token."))
    created_by = fields.Id(**doc("The owner."))
    created_at = fields.Timestamp()
    last_used_at = fields.Timestamp(allow_none=True)


class NewScimToken(Schema):
    """Whom a new token belongs to."""

    owner_id = fields.GivenId(
        **doc("A service user who is an admin, by default you. The token goes on without either.")
    )


class ScimTokenList(View):
    """The tokens of an account, at most two."""

    items = ma.fields.List(ma.fields.Nested(ScimTokenView))
    base_url = ma.fields.String(**doc("The address that the directory needs."))


class CreatedScimToken(ScimTokenView):
    """A new SCIM token with its text, which is not shown again."""

    token = ma.fields.String()


@blueprint.route("", methods=["GET"])
@blueprint.response(200, ScimTokenList, example={"base_url": BASE_URL})
@account_admin
def list_scim_tokens() -> dict[str, object]:
    """List the SCIM tokens of your account.

    The newest comes first.
    """
    tokens = scim_tokens.list_active(principal().require_account_id())
    return {"items": tokens, "base_url": base_url()}


@blueprint.route("", methods=["POST"])
@blueprint.arguments(NewScimToken, required=False, example={})
@blueprint.response(201, CreatedScimToken, example={"token": EXAMPLE})
@blueprint.fails(409)
@account_admin(recent_sign_in=True, api_keys=False, shows_secret=True)
def create_scim_token(body: Body) -> dict[str, object]:
    """Create a SCIM token for the directory of your account.

    With it a directory creates, changes and deletes users and groups of the account at `/scim/v2`;
    it works nowhere else. The token is in this response and cannot be retrieved again. An account
    has at most two, so that the directory can change to a new one (409). The system account has
    none.
    """
    token, text = scim_tokens.create(owner_id=body.get("owner_id"), by=principal())
    return {name: getattr(token, name) for name in ScimTokenView().fields} | {"token": text}


@blueprint.route("/<uuid:scim_token_id>", methods=["DELETE"])
@blueprint.response(204)
@account_admin(api_keys=False)
def revoke_scim_token(scim_token_id: str) -> Response:
    """Revoke a SCIM token; it stops working at once.

    The users and groups stay as they are.
    """
    scim_tokens.revoke(scim_token_id, by=principal())
    return Response(status=204)


def base_url() -> str:
    """The address that the directory needs."""
    return f"{config.current().base_url}{resources.ROOT}"
