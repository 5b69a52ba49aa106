"""Sign-in with OAuth 2.0 and SAML 2.0, for browsers and for API clients."""

from __future__ import annotations

import marshmallow as ma
import orjson
from flask import Response, request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.wrappers import Response as BaseResponse

from app import web
from app.auth.guard import account_of_request
from app.auth.responses import origin
from app.sso import one_time_codes, schemas, service, sign_in
from app.sso.connections import callback_path
from app.sso.models import OAUTH, SAML, FlowPurpose
from app.sso.responses import (
    begin,
    flow_cookie,
    provider_sign_in_response,
    redirect_to_client,
    requested_account,
    set_flow_cookie,
    start_flow,
)
from app.sso.sign_in import OAuthCallback, SamlCallback
from app.types import JSONObject
from app.web.access import LARGEST_DOCUMENT, public
from app.web.blueprint import Blueprint
from app.web.schemas import TEXT
from app.web.serialization import json_response

blueprint = Blueprint(
    "Single sign-on",
    __name__,
    url_prefix=f"{web.PREFIX}/auth",
    description="Sign-in with OAuth 2.0 and SAML 2.0.",
)
browsers = Blueprint(
    "Single sign-on in browsers",
    __name__,
    description="Start and callback addresses for browsers, without the version prefix.",
)
OAUTH_FORM = ("code", "state", "error", "iss", "user")
TO_PROVIDER = "To the provider."
TO_CLIENT = "To the client application, with a one-time `code` for `/auth/exchange`."
FORM = "application/x-www-form-urlencoded"
APPLE_FORM = {"code": {"type": "string"}, "state": {"type": "string"}, "user": {"type": "string"}}
SAML_FORM = {"SAMLResponse": {"type": "string"}, "RelayState": {"type": "string"}}


def form_body(properties: JSONObject, example: dict[str, str]) -> JSONObject:
    """Return the description of a request body by form."""
    schema = {"type": "object", "properties": properties}
    return {"required": True, "content": {FORM: {"schema": schema, "example": example}}}


@blueprint.route("/oauth/<provider_name>/authorize", methods=["POST"])
@blueprint.arguments(
    schemas.AuthorizeBody,
    example={
        "account": "acme",
        "redirect_uri": "https://client.example.com/signed-in",
        "state": "what-the-client-chose",
    },
)
@blueprint.response(200, schemas.SignInStart)
@blueprint.fails(400, 401, 429)
@public(across_accounts=True)
def authorize_oauth(body: JSONObject, provider_name: str) -> object:
    """Start an OAuth sign-in for a client application.

    Send the browser to `authorization_url`. It returns to `redirect_uri` with a one-time `code` and
    the client's `state` (generated if absent).
    """
    args = {**body, "client_state": body.get("state")}
    url, begun, connection = start_flow(OAUTH, provider_name, FlowPurpose.API, args)
    state = begun.flow.client_state
    answer = {"authorization_url": url, "url": url, "state": state, "provider": provider_name}
    return set_flow_cookie(json_response(answer), begun, connection)


@blueprint.route("/oauth/<provider_name>/callback", methods=["POST"])
@blueprint.arguments(
    schemas.CallbackBody,
    example={
        "code": "4/0AX4XfWh...",
        "state": "AA0001-...",
        "redirect_uri": "https://client.example.com/signed-in",
    },
)
@blueprint.response(200, schemas.ProviderSignedIn)
@blueprint.fails(400, 401, 403, 429)
@public(across_accounts=True)
def complete_oauth(body: JSONObject, provider_name: str) -> Response:
    """Complete an OAuth sign-in without a browser redirect.

    `code` and `state` are those of the redirect to the client application: our one-time code with
    the client's state, or the provider's code with the provider's state.
    """
    callback = OAuthCallback(
        provider=service.canonical_name(OAUTH, provider_name),
        state=body["state"],
        code=body["code"],
        issuer=body.get("iss") or None,
        account=account_of_request(),
        redirect_uri=body.get("redirect_uri"),
    )
    return provider_sign_in_response(
        *one_time_codes.end_for_client(callback, flow_cookie, origin())
    )


@blueprint.route("/exchange", methods=["POST"])
@blueprint.arguments(schemas.ExchangeBody, example={"code": "AA0001-..."})
@blueprint.response(200, schemas.ProviderSignedIn)
@blueprint.fails(400, 429)
@public(across_accounts=True)
def exchange_code(body: JSONObject) -> Response:
    """Exchange the one-time code of a sign-in for tokens, once and within 60 seconds.

    Needs no credential. `state` must be the client's state, if the sign-in returned to another
    browser than the one that started it. A wrong, used or expired code, or a wrong state, is a 400
    `invalid_state`.
    """
    return provider_sign_in_response(
        *one_time_codes.exchange(body["code"], body.get("state"), origin(), account_of_request())
    )


@blueprint.route("/saml/sso", methods=["GET"])
@blueprint.arguments(schemas.SamlStartArgs, location="query")
@blueprint.response(
    200, schemas.SignInAddress, example={"url": "https://acme.okta.example/sso?...", "state": None}
)
@blueprint.alt_response(302, description=TO_PROVIDER)
@blueprint.fails(400, 404)
@public(across_accounts=True)
def begin_saml(args: JSONObject) -> object:
    """Start a SAML sign-in: returns a redirect, or its address for clients that accept only JSON.

    A script's `fetch` (`Sec-Fetch-Mode: cors`) gets the address, too, as it cannot follow
    redirects.
    """
    as_json = request.accept_mimetypes.best == "application/json"
    as_json = as_json or request.headers.get("Sec-Fetch-Mode") == "cors"
    if not as_json:
        return begin(SAML, args["provider"], FlowPurpose.BROWSER, args)
    url, begun, connection = start_flow(SAML, args["provider"], FlowPurpose.API, args)
    answer = {"url": url, "state": begun.flow.client_state}
    return set_flow_cookie(json_response(answer), begun, connection)


@blueprint.route("/saml/metadata", methods=["GET"])
@blueprint.arguments(schemas.SamlArgs, location="query")
@blueprint.response(
    200,
    schema=TEXT,
    content_type="application/samlmetadata+xml",
    example="<md:EntityDescriptor ...>",
    description="XML.",
)
@blueprint.fails(400, 404)
@public(across_accounts=True)
def get_saml_metadata(args: JSONObject) -> Response:
    """Get our service provider metadata for an account's identity provider.

    Available as soon as the provider is set up, even if incomplete or disabled.
    """
    from app.sso.saml import metadata  # imported on use: large

    account = requested_account(args.get("account"))
    connection = service.as_service_provider(account, args["provider"])
    return Response(metadata.render(connection), mimetype="application/samlmetadata+xml")


@blueprint.route("/saml/acs", methods=["POST"])
@blueprint.arguments(
    schemas.AssertionBody,
    example={"SAMLResponse": "PHNhbWxwOlJlc3...", "relayState": "QUEwMDAx..."},
)
@blueprint.response(200, schemas.ProviderSignedIn)
@blueprint.fails(400, 401, 403, 404, 429)
@public(max_body=LARGEST_DOCUMENT, across_accounts=True)
def complete_saml(body: JSONObject) -> Response:
    """Complete a SAML sign-in with a response that was posted to the client application.

    Needs no credential. Send what the provider posted; without a relay state, also `provider` and
    `account`, for a sign-in that the provider started. Each response works once. A refused one is a
    401, an unknown user a 403 `not_invited`; only `/account/sso/refusals` has the reason.
    """
    names = ("relay_state", "relay_state_too", "RelayState")
    relay_state = next((body[name] for name in names if name in body), "")
    requested = account_of_request()
    provider_name = body.get("provider")
    provider = service.canonical_name(SAML, provider_name) if provider_name else ""
    account = body.get("account") or requested
    posted = SamlCallback(provider, body["SAMLResponse"], relay_state, account)
    completed = sign_in.complete_saml(posted, flow_cookie, origin())
    return provider_sign_in_response(
        *one_time_codes.exchange(completed.code, completed.flow.client_state, origin())
    )


@browsers.route("/oauth/<provider>/authorize", methods=["GET"])
@browsers.arguments(schemas.StartArgs, location="query")
@browsers.response(302, description=TO_PROVIDER)
@browsers.fails(400)
@public(across_accounts=True)
def begin_oauth(args: JSONObject, provider: str) -> BaseResponse:
    """Start an OAuth sign-in in a browser.

    Needs no credential. `redirect_uri` must be on the account's list (400), and may be omitted if
    the account has one. Sets a cookie, so that the same browser must come back within 10 minutes. A
    provider that the account does not offer is a 404. Clients without a browser use `POST
    /auth/oauth/{provider_name}/authorize`.
    """
    return begin(OAUTH, provider, FlowPurpose.BROWSER, args)


@browsers.route("/oauth/<provider>/callback", methods=["GET"])
@browsers.arguments(schemas.CallbackArgs, location="query", unknown=ma.EXCLUDE)
@browsers.response(302, description=TO_CLIENT)
@browsers.fails(400, 401, 403, 429)
@public(across_accounts=True)
def end_oauth(args: JSONObject, provider: str) -> BaseResponse:
    """Complete an OAuth sign-in: the redirect address for providers.

    Only for the provider's redirect. The client application gets a one-time `code` and its `state`,
    or `error` if the sign-in was refused. Browsers get a page if `state` is unknown, used or
    expired (400).
    """
    return _end_oauth(provider, None, args)


@browsers.route("/oauth/<provider>/callback/<account_code>", methods=["GET"])
@browsers.arguments(schemas.CallbackArgs, location="query", unknown=ma.EXCLUDE)
@browsers.response(302, description=TO_CLIENT)
@browsers.fails(400, 401, 403, 429)
@public(across_accounts=True)
def end_oauth_of_row(args: JSONObject, provider: str, account_code: str) -> BaseResponse:
    """Complete an OAuth sign-in at the redirect address of one account's settings.

    Like `/oauth/{provider}/callback`, for settings with an address of their own (`callback_url`):
    the client application gets a one-time `code` and its `state`, or `error` if the sign-in was
    refused.
    """
    return _end_oauth(provider, account_code, args)


@browsers.route("/oauth/<provider>/callback", methods=["POST"])
@browsers.doc(requestBody=form_body(APPLE_FORM, {"code": "c1234...", "state": "AA0001-..."}))
@browsers.response(302, description=TO_CLIENT)
@browsers.fails(400, 401, 403, 413, 415, 422, 429)
@public(max_body=LARGEST_DOCUMENT, across_accounts=True)
def end_oauth_by_form(provider: str) -> BaseResponse:
    """Complete an OAuth sign-in with a provider that posts a form, such as Apple.

    Like `GET` of the same address, with `code` and `state` in the form. `user` is Apple's JSON with
    the user's name, which it sends at the first sign-in only.
    """
    return _end_oauth(provider, None, form_values(OAUTH_FORM))


@browsers.route("/oauth/<provider>/callback/<account_code>", methods=["POST"])
@browsers.doc(requestBody=form_body(APPLE_FORM, {"code": "c1234...", "state": "AA0001-..."}))
@browsers.response(302, description=TO_CLIENT)
@browsers.fails(400, 401, 403, 413, 415, 422, 429)
@public(across_accounts=True)
def end_oauth_of_row_by_form(provider: str, account_code: str) -> BaseResponse:
    """Complete an OAuth sign-in by form at the redirect address of one account's settings.

    Like `POST /oauth/{provider}/callback`, for settings with an address of their own
    (`callback_url`).
    """
    return _end_oauth(provider, account_code, form_values(OAUTH_FORM))


@browsers.route("/saml/<provider>/sso", methods=["GET"])
@browsers.arguments(schemas.StartArgs, location="query")
@browsers.response(302, description=TO_PROVIDER)
@browsers.fails(400)
@public(across_accounts=True)
def begin_saml_in_browser(args: JSONObject, provider: str) -> BaseResponse:
    """Start a SAML sign-in in a browser.

    Needs no credential. `redirect_uri` must be on the account's list (400), and may be omitted if
    the account has one. Sets a cookie, so that the same browser must come back within 10 minutes. A
    provider that the account does not offer is a 404. Clients use `GET /auth/saml/sso`.
    """
    return begin(SAML, provider, FlowPurpose.BROWSER, args)


@browsers.route("/saml/<provider>/acs", methods=["POST"])
@browsers.arguments(schemas.ConsumerArgs, location="query")
@browsers.doc(
    requestBody=form_body(
        SAML_FORM, {"SAMLResponse": "PHNhbWxwOlJlc3...", "RelayState": "QUEwMDAx..."}
    )
)
@browsers.response(302, description=TO_CLIENT)
@browsers.fails(400, 401, 403, 413, 415, 429)
@public(max_body=LARGEST_DOCUMENT, across_accounts=True)
def consume_assertion(args: JSONObject, provider: str) -> BaseResponse:
    """Complete a SAML sign-in: the assertion consumer address for providers.

    Only for the provider's form. The client application gets a one-time `code` and its `state`, or
    `error` if the sign-in was refused. Responses of more than 256 KiB are a 413. Clients that
    receive the form themselves use `POST /auth/saml/acs`.
    """
    name = service.canonical_name(SAML, provider)
    requested = account_of_request()
    account = args.get("account") or requested
    try:
        form = form_values(("SAMLResponse", "RelayState"))
    except RequestEntityTooLarge:
        sign_in.refuse_large(name, account, origin())
    posted = SamlCallback(name, form["SAMLResponse"], form["RelayState"], account)
    return redirect_to_client(sign_in.complete_saml(posted, flow_cookie, origin()))


def form_values(names: tuple[str, ...]) -> dict[str, str]:
    """Return these fields of the submitted form, empty if missing."""
    return {name: request.form.get(name, "").replace("\0", "") for name in names}


def _end_oauth(provider: str, account_code: str | None, args: JSONObject) -> BaseResponse:
    name = service.canonical_name(OAUTH, provider)
    own = "" if account_code is None else f"/{account_code}"
    try:
        user = orjson.loads(args.get("user", ""))
    except ValueError:
        user = None
    callback = OAuthCallback(
        provider=name,
        path=f"{callback_path(name)}{own}",
        state=args.get("state", ""),
        code=args.get("code", ""),
        error=args.get("error") or None,
        issuer=args.get("iss") or None,
        user=user if isinstance(user, dict) else {},
        account=account_of_request(),
    )
    return redirect_to_client(sign_in.complete_oauth(callback, flow_cookie, origin()))
