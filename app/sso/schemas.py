"""Schemas of sign-ins, provider settings, refusals and group roles."""

from __future__ import annotations

import marshmallow as ma

from app.accounts.schemas import UserView
from app.auth.schemas import SignedIn
from app.sso import providers
from app.sso.models import CATEGORIES, OAUTH
from app.types import JSONObject
from app.web import fields
from app.web.fields import doc
from app.web.paging import PageArgs, page_of
from app.web.schemas import Schema, View, example

LONGEST_STATE = 1000
ACCOUNT_TEXT = {"description": "Slug, code or id; optional if the host name selects the account."}
STATE_TEXT = {"description": "Returned to the client application unchanged."}
REDIRECT_TEXT = {
    "description": "An address on the account's list, exactly; by default the account's default."
}
NEW_ROW = {
    "category": OAUTH,
    "provider_name": "google",
    "config": {"client_id": "123.apps.example", "client_secret": "GOCSPX-..."},
}


SHARED = (
    "Whether the redirect address is the shared one of older settings, without the account's code."
    " Possible only with the provider's default endpoints."
)
MEMBERS = (
    "Whether members of `pii_access` may sign in with it. Becomes false when someone outside the"
    " group creates it or changes its addresses; only a member can set it to true again."
)


SLUG = (
    "What stands in the addresses of the provider. Of the kind `oidc` there may be several, each"
    " with a slug of its own, by default `oidc`; for others it is `provider_name`."
)


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


@example(
    slug="google",
    display_name="Google",
    is_builtin=True,
    config={"client_id": "123.apps.example", "client_secret": "***"},
    callback_url="https://api.example.com/oauth/google/callback/AA0001",
    admits_pii_members=True,
    priority=0,
)
class ProviderRow(View):
    """Settings of an identity provider. Secrets in `config` are `***`, or null."""

    id = fields.Id()
    category = fields.Choice(CATEGORIES)
    provider_name = fields.Choice(providers.NAMES)
    slug = ma.fields.String(**doc(SLUG))
    display_name = ma.fields.String()
    account_id = fields.Id()
    is_system = ma.fields.Boolean()
    is_builtin = ma.fields.Boolean(**doc("Always true: all providers are built in."))
    is_default = ma.fields.Boolean(**doc("Always false: `priority` orders providers."))
    config = ma.fields.Dict()
    callback_url = ma.fields.String(
        allow_none=True, **doc("The redirect address to enter at an OAuth provider.", **fields.URI)
    )
    shared_callback = ma.fields.Boolean(**doc(SHARED))
    enabled = ma.fields.Boolean()
    admits_pii_members = ma.fields.Boolean(**doc(MEMBERS))
    priority = ma.fields.Integer()
    created_at = fields.Timestamp()
    updated_at = fields.Timestamp()


class SavedProviderRow(ProviderRow):
    """Settings, and what happened to them."""

    status = fields.Choice(("created", "updated"))


ProviderRowPage = page_of(ProviderRow)


PRIORITY = "Order on the sign-in page: the highest comes first."
CONFIG = "As `/admin/configuration/schema/{category}/{provider}` describes it."


class NewProviderRow(Schema):
    category = fields.Choice(CATEGORIES, required=True)
    provider_name = fields.Text(longest=100, required=True)
    slug = fields.Text(longest=100, **doc(SLUG))
    display_name = fields.Text(longest=100, shortest=1)
    account_id = fields.Text(
        longest=100,
        allow_none=True,
        **doc("The account; for superadmins the system account by default."),
    )
    config = ma.fields.Dict(keys=fields.Text(longest=100), required=True, **doc(CONFIG))
    enabled = fields.StrictBoolean()
    priority = fields.Integer(-1000, 1000, **doc(PRIORITY))
    shared_callback = fields.StrictBoolean(**doc(SHARED))


class ChangedProviderRow(Schema):
    """Changes to a provider's settings; in `config` only the given properties, null removes one."""

    display_name = fields.Text(longest=100, shortest=1)
    config = ma.fields.Dict(keys=fields.Text(longest=100), **doc(CONFIG))
    enabled = fields.StrictBoolean()
    admits_pii_members = fields.StrictBoolean(**doc(MEMBERS))
    priority = fields.Integer(-1000, 1000, **doc(PRIORITY))
    shared_callback = fields.StrictBoolean(**doc(SHARED))


def category_filter() -> fields.Choice:
    return fields.Choice(CATEGORIES, **doc("Only this category."))


class ProviderKindArgs(Schema):
    """Filters of the list of providers."""

    category = category_filter()


class ProviderRowArgs(PageArgs):
    """Filters of the list of settings."""

    account_id = fields.Text(longest=100, **doc("For superadmins: the account."))
    category = category_filter()


class ConfigValues(Schema):
    """A provider's settings, by name."""

    class Meta:
        """The service validates by the provider's schema."""

        unknown = ma.INCLUDE


class ConnectionSettings(Schema):
    """Settings to test. If a secret is absent or `***`, the stored one is used."""

    category = fields.Choice(CATEGORIES, required=True)
    provider_name = fields.Text(longest=100, required=True)
    slug = fields.Text(longest=100, **doc(SLUG))
    config = ma.fields.Dict(keys=fields.Text(longest=100), required=True, **doc(CONFIG))
    account_id = fields.Text(longest=100, allow_none=True)


class ConnectionCheck(View):
    check = ma.fields.String()
    ok = ma.fields.Boolean()
    message = ma.fields.String()


@example(
    message="The provider accepts the settings.",
    details=[{"check": "key set", "ok": True, "message": "2 usable keys."}],
)
class ConnectionTestResult(View):
    success = ma.fields.Boolean()
    message = ma.fields.String()
    details = ma.fields.List(ma.fields.Nested(ConnectionCheck))


class JsonSchemaDocument(Schema):
    """A JSON schema (draft 2020-12) of `config`."""

    class Meta:
        """Any keyword of JSON schema."""

        unknown = ma.INCLUDE


class ProviderKind(View):
    """A provider that can be set up."""

    category = fields.Choice(CATEGORIES)
    provider_name = fields.Choice(providers.NAMES)
    display_name = ma.fields.String()
    is_builtin = ma.fields.Boolean()


class ProviderKinds(View):
    """The providers that can be set up."""

    items = ma.fields.List(ma.fields.Nested(ProviderKind))
    total = ma.fields.Integer()


@example(provider_name="okta", check="audience", detail="It is for https://other.example.")
class RefusalView(View):
    """A refused sign-in with the failed check."""

    id = fields.Id()
    category = fields.Choice(CATEGORIES)
    provider_name = ma.fields.String()
    check = ma.fields.String()
    detail = ma.fields.String()
    ip_address = ma.fields.String(allow_none=True)
    created_at = fields.Timestamp()


RefusalPage = page_of(RefusalView)


class MappedGroup(Schema):
    """A provider's group and the role of its members."""

    group = fields.Text(shortest=1, longest=300, required=True)
    role = fields.Text(shortest=1, longest=100, required=True)


class RolePlanBody(Schema):
    """A mapping to preview; the current one by default."""

    sso_group_roles = ma.fields.List(
        ma.fields.Nested(MappedGroup), validate=ma.validate.Length(max=200)
    )
    sso_allow_admin = fields.StrictBoolean(**doc("Whether a group may give the role `admin`."))


@example(groups=["Finance"], role="viewer", becomes="editor")
class PlannedRoleChange(View):
    """A user whose role would change at the next sign-in."""

    user = ma.fields.Nested(UserView)
    groups = ma.fields.List(ma.fields.String())
    role = ma.fields.String()
    becomes = ma.fields.String()


class RolePlan(View):
    """The users whose role would change."""

    changes = ma.fields.List(ma.fields.Nested(PlannedRoleChange))
    total = ma.fields.Integer()
