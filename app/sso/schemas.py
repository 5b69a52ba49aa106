"""Schemas of single sign-on."""

from __future__ import annotations

import marshmallow as ma

from app.auth.schemas import SignedIn
from app.types import JSONObject
from app.web import fields
from app.web.fields import doc
from app.web.schemas import Schema, View, example

LONGEST_STATE = 1000
ACCOUNT_TEXT = {"description": "Slug, code or id; optional if the host name selects the account."}
STATE_TEXT = {"description": "Returned to the client application unchanged."}
REDIRECT_TEXT = {
    "description": "An address on the account's list, exactly; by default the account's default."
}


class AuthorizeBody(Schema):
    """A sign-in that a client application starts."""

    account = fields.Text(longest=200, metadata=ACCOUNT_TEXT)
    redirect_uri = fields.Text(longest=2000, metadata=REDIRECT_TEXT)
    state = fields.Text(longest=LONGEST_STATE, metadata=STATE_TEXT)


@example(
    authorization_url="https://accounts.google.com/o/oauth2/v2/auth?client_id=...&state=...",
    url="https://accounts.google.com/o/oauth2/v2/auth?client_id=...&state=...",
    state="what-the-client-chose",
    provider="google",
)
class SignInStart(View):
    """The address for the browser, under both names; `state` is the client's."""

    authorization_url = ma.fields.String(metadata=fields.URI)
    url = ma.fields.String(metadata=fields.URI)
    state = ma.fields.String(allow_none=True)
    provider = ma.fields.String()


class CallbackBody(Schema):
    """The parameters of the redirect to a client application."""

    code = fields.Text(longest=5000, required=True)
    state = fields.Text(longest=LONGEST_STATE, required=True)
    iss = fields.Text(longest=2000, **doc("The provider's issuer, if it sends one (RFC 9207)."))
    redirect_uri = fields.Text(longest=2000)


class ExchangeBody(Schema):
    """The one-time code of a sign-in; `state` if the client started it without cookies."""

    code = fields.Text(longest=500, required=True)
    state = fields.Text(longest=LONGEST_STATE)


@example(isNewUser=True)
class ProviderSignedIn(SignedIn):
    """Tokens with user and account, and whether the user is new."""

    isNewUser = ma.fields.Boolean()
    isNewAccount = ma.fields.Boolean()


class StartArgs(Schema):
    """The account to sign in to, and where to return to."""

    account = fields.Text(longest=200, metadata=ACCOUNT_TEXT)
    redirect_uri = fields.Text(longest=2000, metadata=REDIRECT_TEXT)
    client_state = fields.Text(longest=LONGEST_STATE, metadata=STATE_TEXT)
    relay_state = fields.Text(longest=LONGEST_STATE, metadata=STATE_TEXT)
    relay_state_too = fields.Text(longest=LONGEST_STATE, data_key="relayState", metadata=STATE_TEXT)

    @ma.post_load
    def settle(self, args: JSONObject, **options: object) -> JSONObject:
        """Merge the three names of the state into one."""
        names = ("client_state", "relay_state", "relay_state_too")
        values = [args.pop(name, None) for name in names]
        return args | {"client_state": next((value for value in values if value is not None), None)}


class SamlStartArgs(StartArgs):
    """The same for a SAML provider."""

    provider = fields.Text(longest=100, required=True, **doc("okta, azure_ad or generic."))


class SamlArgs(Schema):
    """An account and one of its providers."""

    account = fields.Text(longest=200, metadata=ACCOUNT_TEXT)
    provider = fields.Text(longest=100, required=True, **doc("okta, azure_ad or generic."))


class SignInAddress(View):
    url = ma.fields.String(metadata=fields.URI)
    state = ma.fields.String(allow_none=True)


class AssertionBody(Schema):
    """A response of an identity provider, as a client application received it."""

    SAMLResponse = fields.Text(longest=400_000, required=True)
    relay_state = fields.Text(longest=LONGEST_STATE)
    relay_state_too = fields.Text(longest=LONGEST_STATE, data_key="relayState")
    RelayState = fields.Text(longest=LONGEST_STATE)
    account = fields.Text(longest=200, metadata=ACCOUNT_TEXT)
    provider = fields.Text(longest=100)


class CallbackArgs(Schema):
    """The parameters of a provider's redirect; others are ignored."""

    code = fields.Text(longest=5000, **doc("The provider's code."))
    state = fields.Text(longest=5000, **doc("The state of the sign-in."))
    relay_state = fields.Text(
        longest=5000,
        **doc("Optional: the client gets back the state with which the sign-in was started."),
    )
    error = fields.Text(longest=5000, **doc("The provider's error."))
    iss = fields.Text(longest=5000, **doc("The issuer of the response."))
    user = fields.Text(longest=5000, **doc("From Apple, at the first sign-in: the name, as JSON."))


class ConsumerArgs(Schema):
    """The account of an assertion."""

    account = fields.Text(longest=200, metadata=ACCOUNT_TEXT)
