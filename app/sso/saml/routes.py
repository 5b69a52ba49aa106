"""SAML: key pairs of an account, single logout, and refreshes of a provider's metadata."""

from __future__ import annotations

import marshmallow as ma
from flask import Response, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.auth import sessions
from app.auth.guard import account_of_request, principal
from app.auth.responses import origin
from app.errors import Forbidden
from app.sso import schemas, service
from app.sso.config_routes import BY_ID, own
from app.sso.config_routes import blueprint as configuration
from app.sso.models import SAML, MetadataRefresh
from app.sso.responses import no_store
from app.sso.routes import SAML_FORM, blueprint, browsers, form_body, form_values
from app.sso.saml import keys, metadata_refresh
from app.types import JSONObject
from app.web import fields, html
from app.web.access import LARGEST_DOCUMENT, account_admin, public, signed_in
from app.web.fields import doc
from app.web.schemas import Schema, View, example
from app.web.serialization import json_response

KEY = "/keys/<uuid:saml_key_id>"
AFTER_LOGOUT = "To the identity provider or the client application."
SIGNED_OUT = {"message": "You are signed out.", "logout_url": "https://idp.example/slo?SAML..."}
FORM_FIELDS = ("SAMLRequest", "SAMLResponse", "RelayState")
METADATA = f"{BY_ID}/metadata"
READ = {
    "read_at": "2026-11-20T12:00:00.123456Z",
    "error": None,
    "changed_at": "2026-11-20T12:00:00.123456Z",
    "changes": [
        {
            "name": "idp_x509_cert",
            "removed": ["idp (SHA-256 0f1e2d3c4b5a6978..., until 2026-12-01)"],
            "added": ["idp (SHA-256 a1b2c3d4e5f60718..., until 2028-12-01)"],
        }
    ],
}
NEVER: JSONObject = {"read_at": None, "error": None, "changed_at": None, "changes": []}


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


@own.route("/keys", methods=["GET"])
@own.response(200, SamlKeyList)
@account_admin
def list_saml_keys() -> JSONObject:
    """List the account's SAML key pairs.

    Ordered by use: the active one first, then the next. The first one is created when a SAML
    sign-in or our metadata needs it.
    """
    items = [keys.describe(key) for key in keys.get_all(principal().require_account_id())]
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
    return keys.describe(keys.create(principal()))


@own.route(f"{KEY}/activate", methods=["POST"])
@own.response(200, SamlKeyView)
@account_admin(recent_sign_in=True, api_keys=False)
def activate_saml_key(saml_key_id: str) -> JSONObject:
    """Sign requests with this SAML key pair from now on.

    The other one still decrypts assertions until you delete it.
    """
    return keys.describe(keys.activate(saml_key_id, principal()))


@own.route(KEY, methods=["DELETE"])
@own.response(204)
@own.fails(409)
@account_admin(recent_sign_in=True, api_keys=False)
def delete_saml_key(saml_key_id: str) -> Response:
    """Delete a SAML key pair; assertions for it can no longer be decrypted.

    The active one of two is a 409. If it is the only one, the next sign-in creates another.
    """
    keys.delete(saml_key_id, principal())
    return Response(status=204)


class LogoutBody(Schema):
    """Where the browser returns after the identity provider has ended its session."""

    redirect_uri = fields.Text(longest=2000, metadata=schemas.REDIRECT_TEXT)


class SignedOut(View):
    """The end of a session here, and the address that ends it at the identity provider."""

    message = ma.fields.String()
    logout_url = ma.fields.String(
        allow_none=True,
        **doc(
            "Where to send the browser; null if the session did not begin by SAML,"
            " or the provider has no single logout.",
            **fields.URI,
        ),
    )


class LogoutArgs(schemas.ConsumerArgs):
    """A message by the HTTP-Redirect binding."""

    checks_repeated = True

    SAMLRequest = fields.Text(longest=20_000, **doc("The provider's logout request."))
    SAMLResponse = fields.Text(longest=20_000, **doc("The provider's response to our request."))
    RelayState = fields.Text(longest=2000, **doc("Returned unchanged."))
    SigAlg = fields.Text(longest=200, **doc("The algorithm: RSA with SHA-2."))
    Signature = fields.Text(longest=2000, **doc("The signature, in base64."))


@blueprint.route("/saml/logout", methods=["POST"])
@blueprint.arguments(
    LogoutBody, required=False, example={"redirect_uri": "https://client.example.com/signed-out"}
)
@blueprint.response(200, SignedOut, example=SIGNED_OUT)
@signed_in
def logout_by_saml(body: JSONObject) -> Response:
    """Sign out here and at the identity provider.

    Ends the session of the access token at once. Then send the browser to `logout_url`, if there is
    one: the provider ends its session and returns it to `redirect_uri`, which must be on the
    account's list. API keys have no session (403).
    """
    from app.sso.saml import logout  # imported on use: large

    caller = principal()
    if caller.session_id is None:
        raise Forbidden("This credential has no session.")
    account_id, user_id = sessions.user_key(caller)
    requested = body.get("redirect_uri")
    target = logout.return_address(account_id, caller.session_id, requested)
    logout_url = logout.start(account_id, caller.session_id, target)
    sessions.end(account_id, user_id, caller.session_id)
    return json_response({"message": "You are signed out.", "logout_url": logout_url})


@browsers.route("/saml/<provider>/slo", methods=["GET"])
@browsers.arguments(LogoutArgs, location="query", unknown=ma.EXCLUDE)
@browsers.response(302, description=AFTER_LOGOUT)
@browsers.fails(400, 401)
@public(across_accounts=True)
def end_saml_session(args: JSONObject, provider: str) -> BaseResponse:
    """Single logout by HTTP-Redirect: the sign-out address for providers.

    A signed `LogoutRequest` ends the sessions that the provider names, and is answered with a
    signed `LogoutResponse`. A signed `LogoutResponse` returns the browser to the client
    application. Each message works once.
    """
    from app.sso.saml import logout

    name, account = _target(provider, args)
    query = request.query_string.decode("latin-1")
    return _answer(logout.receive_query(name, account, query, origin()))


@browsers.route("/saml/<provider>/slo", methods=["POST"])
@browsers.arguments(schemas.ConsumerArgs, location="query", unknown=ma.EXCLUDE)
@browsers.doc(
    requestBody=form_body(
        {"SAMLRequest": {"type": "string"}, **SAML_FORM},
        {"SAMLRequest": "PHNhbWxwOkxvZ291...", "RelayState": "x"},
    )
)
@browsers.response(302, description=AFTER_LOGOUT)
@browsers.fails(400, 401, 413, 415)
@public(max_body=LARGEST_DOCUMENT, across_accounts=True)
def end_saml_session_by_form(args: JSONObject, provider: str) -> BaseResponse:
    """Single logout by HTTP-POST: the sign-out address for providers.

    Like `GET` of the same address, with messages in a form, signed in their XML.
    """
    from app.sso.saml import logout

    name, account = _target(provider, args)
    posted = logout.PostedMessage(*form_values(FORM_FIELDS).values())
    return _answer(logout.receive_form(name, account, posted, origin()))


def _target(provider: str, args: JSONObject) -> tuple[str, str | None]:
    name = service.canonical_name(SAML, provider)
    requested = account_of_request()
    return name, args.get("account") or requested


def _answer(address: str | None) -> BaseResponse:
    if address is not None:
        return no_store(redirect(address))
    g.is_hosted = True
    page = render_template("console/signed_out.html", address=url_for("welcome.sign_in"))
    return no_store(html.add_security_headers(Response(page)))


class MetadataChange(View):
    """A setting that a read changed; certificates by name, fingerprint and last day."""

    name = ma.fields.String()
    removed = ma.fields.List(ma.fields.String())
    added = ma.fields.List(ma.fields.String())


class MetadataReadView(View):
    """The last read, and the last changes that a read brought."""

    read_at = fields.Timestamp(allow_none=True)
    error = ma.fields.String(
        allow_none=True, **doc("Why the last read failed, if it did; it changed nothing.")
    )
    changed_at = fields.Timestamp(allow_none=True)
    changes = ma.fields.List(ma.fields.Nested(MetadataChange))


def refresh_view(read: MetadataRefresh | None) -> JSONObject:
    return {name: getattr(read, name) for name in NEVER} if read else NEVER


@configuration.route(METADATA, methods=["GET"])
@configuration.response(200, MetadataReadView, example=READ)
@account_admin
def get_metadata_read(configuration_id: str) -> JSONObject:
    """Get when the provider's metadata was last read from `metadata_url`, and what changed.

    All properties are null or empty before the first daily read.
    """
    caller = service.act_in_account_of(configuration_id, by=principal())
    return refresh_view(metadata_refresh.find(service.get(configuration_id, by=caller)))


@configuration.route(METADATA, methods=["POST"])
@configuration.response(200, MetadataReadView, example=READ)
@account_admin(recent_sign_in=True, api_keys=False)
def read_metadata(configuration_id: str) -> JSONObject:
    """Read the provider's metadata from `metadata_url` now.

    New certificates and addresses apply at once; another entity id is an error. A failed read is a
    200 with `error`. Does nothing for settings without `metadata_url`.
    """
    caller = service.act_in_account_of(configuration_id, by=principal())
    return refresh_view(metadata_refresh.refresh(configuration_id, by=caller))
