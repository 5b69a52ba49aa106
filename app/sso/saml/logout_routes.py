"""Single logout by SAML: the addresses for identity providers, and for client applications."""

from __future__ import annotations

import marshmallow as ma
from flask import Response, redirect, render_template, request
from werkzeug.wrappers import Response as BaseResponse

from app.auth import sessions
from app.auth.guard import account_of_request, principal
from app.auth.responses import origin
from app.errors import Forbidden
from app.sso import schemas, service
from app.sso.models import SAML
from app.sso.responses import no_store
from app.sso.routes import SAML_FORM, blueprint, browsers, form_body, form_values
from app.types import JSONObject
from app.web import fields, html
from app.web.access import LARGEST_DOCUMENT, public, signed_in
from app.web.fields import doc
from app.web.schemas import Schema, View
from app.web.serialization import json_response

AFTER_LOGOUT = "To the identity provider or the client application."
SIGNED_OUT = {"message": "You are signed out.", "logout_url": "https://idp.example/slo?SAML..."}
NAMES = ("SAMLRequest", "SAMLResponse", "RelayState")


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
    posted = logout.PostedMessage(*form_values(NAMES).values())
    return _answer(logout.receive_form(name, account, posted, origin()))


def _target(provider: str, args: JSONObject) -> tuple[str, str | None]:
    name = service.canonical_name(SAML, provider)
    requested = account_of_request()
    return name, args.get("account") or requested


def _answer(address: str | None) -> BaseResponse:
    if address is not None:
        return no_store(redirect(address))
    page = Response(render_template("auth/signed_out.html"))
    return no_store(html.add_security_headers(page))
