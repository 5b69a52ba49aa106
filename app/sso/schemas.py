"""What sign-in by providers takes and answers."""

from __future__ import annotations

import marshmallow as ma

from app.accounts.schemas import ACCOUNT, USER
from app.auth.schemas import PAIR, SignedIn
from app.rest import fields
from app.rest.schemas import Schema
from app.types import JSONObject

LONGEST_STATE = 1000
ACCOUNT_TEXT = {"description": "Slug, code or id; may be left out where the host name tells it."}
STATE_TEXT = {"description": "Comes back to the client application unchanged."}
REDIRECT_TEXT = {
    "description": "An address of the account's list, exactly; else the account's usual one."
}
SIGNED_IN = {
    **PAIR,
    "account": ACCOUNT,
    "user": {**USER, "role": "viewer", "auth_provider": "google"},
    "isNewUser": True,
    "isNewAccount": False,
}
STARTED = {
    "authorization_url": "https://accounts.google.com/o/oauth2/v2/auth?client_id=...&state=...",
    "url": "https://accounts.google.com/o/oauth2/v2/auth?client_id=...&state=...",
    "state": "what-the-client-chose",
    "provider": "google",
}


class AuthorizeBody(Schema):
    """A sign-in to be started by a client application."""

    account = fields.Text(longest=200, metadata=ACCOUNT_TEXT)
    redirect_uri = fields.Text(longest=2000, metadata=REDIRECT_TEXT)
    state = fields.Text(longest=LONGEST_STATE, metadata=STATE_TEXT)


class Started(Schema):
    """Where the browser goes now, under both of its names; `state` is the client's."""

    authorization_url = ma.fields.String(required=True)
    url = ma.fields.String(required=True)
    state = ma.fields.String(required=True, allow_none=True)
    provider = ma.fields.String(required=True)


class CallbackBody(Schema):
    """What a client application was returned with."""

    code = fields.Text(longest=5000, required=True)
    state = fields.Text(longest=LONGEST_STATE, required=True)
    redirect_uri = fields.Text(longest=2000)


class ExchangeBody(Schema):
    """The one-time code of a sign-in; `state` where the client started it without cookies."""

    code = fields.Text(longest=500, required=True)
    state = fields.Text(longest=LONGEST_STATE)


class ProviderSignedIn(SignedIn):
    """Tokens, whose they are, and whether the user is new."""

    isNewUser = ma.fields.Boolean(required=True)
    isNewAccount = ma.fields.Boolean(required=True)


class StartArgs(Schema):
    """Who wants to sign in where, and where to return to."""

    account = fields.Text(longest=200, metadata=ACCOUNT_TEXT)
    redirect_uri = fields.Text(longest=2000, metadata=REDIRECT_TEXT)
    client_state = fields.Text(longest=LONGEST_STATE, metadata=STATE_TEXT)
    relay_state = fields.Text(longest=LONGEST_STATE, metadata=STATE_TEXT)
    relay_state_too = fields.Text(longest=LONGEST_STATE, data_key="relayState", metadata=STATE_TEXT)

    @ma.post_load
    def settle(self, args: JSONObject, **options: object) -> JSONObject:
        """One name for what goes by three."""
        names = ("client_state", "relay_state", "relay_state_too")
        given = [args.pop(name, None) for name in names]
        return args | {"client_state": next((one for one in given if one is not None), None)}


class SamlStartArgs(StartArgs):
    """The same, by one of the providers of SAML."""

    provider = fields.Text(
        longest=100, required=True, metadata={"description": "okta, azure_ad or generic."}
    )


class SamlArgs(Schema):
    """An account and one of its providers."""

    account = fields.Text(longest=200, metadata=ACCOUNT_TEXT)
    provider = fields.Text(
        longest=100, required=True, metadata={"description": "okta, azure_ad or generic."}
    )


class Address(Schema):
    """Where the browser goes now."""

    url = ma.fields.String(required=True)
    state = ma.fields.String(required=True, allow_none=True)


class AssertionBody(Schema):
    """A response of an identity provider, as a client application received it."""

    SAMLResponse = fields.Text(longest=400_000, required=True)
    relay_state = fields.Text(longest=LONGEST_STATE)
    relay_state_too = fields.Text(longest=LONGEST_STATE, data_key="relayState")
    RelayState = fields.Text(longest=LONGEST_STATE)
    account = fields.Text(longest=200, metadata=ACCOUNT_TEXT)
    provider = fields.Text(longest=100)


RELAY_STATE_TEXT = "Not needed: the one that the sign-in was begun with comes back to the client."


class CallbackArgs(Schema):
    """What a provider returns a browser with; of what it adds nothing is looked at."""

    code = fields.Text(longest=5000, metadata={"description": "The provider's code."})
    state = fields.Text(longest=5000, metadata={"description": "The sign-in that this ends."})
    relay_state = fields.Text(longest=5000, metadata={"description": RELAY_STATE_TEXT})
    error = fields.Text(longest=5000, metadata={"description": "Why the provider refused."})
    iss = fields.Text(longest=5000, metadata={"description": "The provider that answers."})
    user = fields.Text(longest=5000, metadata={"description": "By Apple, once: the name, as JSON."})


class ConsumerArgs(Schema):
    """The account that an assertion is for."""

    account = fields.Text(longest=200, metadata=ACCOUNT_TEXT)
