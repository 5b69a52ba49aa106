"""`/account/sso/keys`: the SAML key pairs of an account."""

from __future__ import annotations

import marshmallow as ma
from flask import Response

from app.auth.guard import principal
from app.sso.config_routes import own
from app.sso.models import SamlKey
from app.sso.saml import certificates, keys
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin
from app.web.fields import doc
from app.web.schemas import View, example

BY_ID = "/keys/<uuid:saml_key_id>"


@example(certificate="MIIEHzCCAoegAwIBAgIUZ...", fingerprint="SHA-256 0f1e2d3c4b5a6978...")
class SamlKeyView(View):
    """A key pair without its private key."""

    id = fields.Id()
    is_active = ma.fields.Boolean(**doc("Whether it signs requests. All keys decrypt."))
    certificate = ma.fields.String(**doc("DER in base64."))
    fingerprint = ma.fields.String()
    expires_at = fields.Timestamp()
    created_at = fields.Timestamp()


class SamlKeyList(View):
    """The key pairs of an account, at most two."""

    items = ma.fields.List(ma.fields.Nested(SamlKeyView))
    total = ma.fields.Integer()


def view(key: SamlKey) -> JSONObject:
    """Return a key pair as in responses, without the private key."""
    return {
        "id": key.id,
        "is_active": key.is_active,
        "certificate": key.certificate,
        "fingerprint": certificates.fingerprint(key.certificate),
        "expires_at": certificates.expires_at(key.certificate),
        "created_at": key.created_at,
    }


@own.route("/keys", methods=["GET"])
@own.response(200, SamlKeyList)
@account_admin
def list_saml_keys() -> JSONObject:
    """List the account's SAML key pairs.

    Ordered by use: the active one first, then the next. The first one is created when a SAML
    sign-in or our metadata needs it.
    """
    items = [view(key) for key in keys.get_all(principal().require_account_id())]
    return {"items": items, "total": len(items)}


@own.route("/keys", methods=["POST"])
@own.response(201, SamlKeyView, example={"is_active": False})
@own.fails(409)
@account_admin(recent_sign_in=True, api_keys=False)
def create_saml_key() -> JSONObject:
    """Create the next SAML key pair; our metadata then has both certificates.

    An account has at most two (409). Give the identity providers our metadata before you activate
    it.
    """
    return view(keys.create(principal()))


@own.route(f"{BY_ID}/activate", methods=["POST"])
@own.response(200, SamlKeyView)
@account_admin(recent_sign_in=True, api_keys=False)
def activate_saml_key(saml_key_id: str) -> JSONObject:
    """Sign requests with this SAML key pair from now on.

    The other one still decrypts assertions until you delete it.
    """
    return view(keys.activate(saml_key_id, principal()))


@own.route(BY_ID, methods=["DELETE"])
@own.response(204)
@own.fails(409)
@account_admin(recent_sign_in=True, api_keys=False)
def delete_saml_key(saml_key_id: str) -> Response:
    """Delete a SAML key pair; assertions for it can no longer be decrypted.

    The active one of two is a 409. If it is the only one, the next sign-in creates another.
    """
    keys.delete(saml_key_id, principal())
    return Response(status=204)
