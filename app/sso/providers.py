"""The supported providers with their settings and endpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from urllib.parse import urlsplit

from app.errors import NotFound
from app.sso.models import OAUTH, SAML
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext_noop


class Kind(StrEnum):
    """The kind of value that a setting has."""

    TEXT = "text"
    TEXTS = "texts"
    WORD = "word"
    URL = "url"
    URLS = "urls"
    ISSUER = "issuer"
    ROLE = "role"
    FLAG = "flag"
    CHOICE = "choice"
    KEY = "key"
    CERTIFICATES = "certificates"
    METADATA = "metadata"
    NAME_ID = "name_id"


PERSISTENT, EMAIL_ADDRESS = "persistent", "emailAddress"
NAME_ID_FORMATS = {
    PERSISTENT: "urn:oasis:names:tc:SAML:2.0:nameid-format:persistent",
    EMAIL_ADDRESS: "urn:oasis:names:tc:SAML:1.1:nameid-format:emailAddress",
    "unspecified": "urn:oasis:names:tc:SAML:1.1:nameid-format:unspecified",
}
LONGEST = {
    Kind.TEXT: 2000,
    Kind.URL: 2000,
    Kind.ROLE: 100,
    Kind.WORD: 200,
    Kind.KEY: 10_000,
    Kind.METADATA: 500_000,
}
MAX_ITEMS = 50
ENDPOINTS = ("authorize_url", "token_url", "userinfo_url", "jwks_url", "issuer")
IDENTITY_PROVIDER = ("idp_entity_id", "idp_sso_url", "idp_x509_cert")
HIDDEN = "***"  # shown for a secret that is set
TENANT_HELP = gettext_noop(
    "The id of your Entra directory, as 8-4-4-4-12 hexadecimal digits. Without it, or with common,"
    " organizations or consumers, users of any directory can sign in. Then single sign-on creates"
    " no users, and groups map to no roles."
)
TENANT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PERSONAL_ACCOUNTS = "9188040d-6c67-4c5b-b112-36a304b66dad"  # the id behind `consumers`
ALIASES = {(SAML, "generic_saml"): "generic"}
OIDC = "oidc"
SLUG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST_SLUG = 40
PROMPTS = ("login", "consent", "select_account")


@dataclass(frozen=True)
class Setting:
    """One property of a provider's `config`."""

    name: str
    kind: Kind
    title: str
    required: bool = False
    secret: bool = False
    help: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Provider:
    """A kind of identity provider."""

    category: str
    name: str
    title: str
    settings: tuple[Setting, ...]
    addresses: Mapping[str, str] = field(default_factory=dict)
    scopes: tuple[str, ...] = ()
    openid: bool = True
    posts_callback: bool = False
    answers_below: str = ""
    """The path after its issuer in the `iss` parameter of callbacks, if any."""
    discovers: bool = False
    """Whether its issuer publishes the endpoints, so that there may be several, named by slug."""

    @property
    def kind(self) -> str:
        """Its name in `provider_name`; `name` is what stands in addresses."""
        return OIDC if self.discovers else self.name

    def named(self, slug: str) -> Provider:
        return replace(self, name=slug)

    @property
    def secrets(self) -> list[str]:
        """The names of encrypted settings, which are never shown."""
        return [setting.name for setting in self.settings if setting.secret]

    @property
    def needed(self) -> list[str]:
        """The names of the settings that signing in requires."""
        saml_settings = list(IDENTITY_PROVIDER) if self.category == SAML else []
        return [setting.name for setting in self.settings if setting.required] + saml_settings

    @property
    def has_tenants(self) -> bool:
        """Whether it signs for many directories with different admins."""
        return any(setting.name == "tenant_id" for setting in self.settings)

    def names_directory(self, config: JSONMapping) -> bool:
        """Whether settings name a single directory, not a tenant that is open to everyone."""
        tenant = str(config.get("tenant_id") or "").lower()
        is_single = TENANT_ID.fullmatch(tenant) is not None and tenant != PERSONAL_ACCOUNTS
        return is_single or not self.has_tenants

    def schema(self) -> JSONObject:
        """Return the JSON schema of `config`."""
        alternatives = [
            {"required": ["idp_metadata"]},
            {"required": ["metadata_url"]},
            {"required": list(IDENTITY_PROVIDER)},
        ]
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": self.title,
            "type": "object",
            "properties": {setting.name: _property(setting) for setting in self.settings},
            "required": [setting.name for setting in self.settings if setting.required],
            "additionalProperties": False,
            **({"anyOf": alternatives} if self.category == SAML else {}),
        }


def hostname(address: str) -> str | None:
    """Return the host name of an address or issuer, or None."""
    try:
        return urlsplit(address if "//" in address else f"//{address}").hostname
    except ValueError:
        return None


def _property(setting: Setting) -> JSONObject:
    text = {"type": "string", "maxLength": LONGEST.get(setting.kind, 2000)}
    items = {"type": "array", "items": text, "maxItems": MAX_ITEMS}
    shapes: dict[str, JSONObject] = {
        Kind.URL: {**text, "format": "uri"},
        Kind.URLS: {**items, "items": {**text, "format": "uri"}},
        Kind.TEXTS: items,
        Kind.FLAG: {"type": "boolean"},
        Kind.NAME_ID: {"type": "string", "enum": list(NAME_ID_FORMATS)},
        Kind.CERTIFICATES: {
            "type": ["string", "array"],
            "items": {"type": "string"},
            "maxItems": 10,
        },
        Kind.ISSUER: {**text, "format": "uri"},
        Kind.CHOICE: {"type": "string", "enum": list(setting.choices)},
    }
    shape = shapes.get(setting.kind, text)
    description = {"title": setting.title} | ({"description": setting.help} if setting.help else {})
    return {**shape, **description, **({"writeOnly": True} if setting.secret else {})}


_ALLOWED = Setting(
    "allowed_redirect_uris",
    Kind.URLS,
    gettext_noop("Redirect addresses of client applications"),
    help=gettext_noop(
        "Allowed return addresses besides those of the account: one per line, exact."
    ),
)
_DEFAULT_ROLE = Setting(
    "default_role",
    Kind.ROLE,
    gettext_noop("Role of new users"),
    help=gettext_noop("Default: viewer."),
)
_CLIENT_ID = Setting("client_id", Kind.TEXT, gettext_noop("Client ID"), required=True)
_CLIENT_SECRET = Setting(
    "client_secret", Kind.TEXT, gettext_noop("Client secret"), required=True, secret=True
)
_OAUTH = (
    Setting("scopes", Kind.TEXTS, gettext_noop("Scopes")),
    _ALLOWED,
    _DEFAULT_ROLE,
    Setting("authorize_url", Kind.URL, gettext_noop("Custom authorization URL")),
    Setting("token_url", Kind.URL, gettext_noop("Custom token URL")),
    Setting("userinfo_url", Kind.URL, gettext_noop("Custom user info URL")),
    Setting("jwks_url", Kind.URL, gettext_noop("Custom key set (JWKS) URL")),
    Setting("issuer", Kind.TEXT, gettext_noop("Custom issuer")),
)
_OIDC = (
    Setting(
        "issuer",
        Kind.ISSUER,
        gettext_noop("Issuer"),
        required=True,
        help=gettext_noop("Such as https://id.example.com: the provider publishes the rest there."),
    ),
    _CLIENT_ID,
    _CLIENT_SECRET,
    Setting("scopes", Kind.TEXTS, gettext_noop("Scopes")),
    _ALLOWED,
    _DEFAULT_ROLE,
    Setting(
        "groups_claim",
        Kind.TEXT,
        gettext_noop("Groups claim"),
        help=gettext_noop("Default: groups."),
    ),
    Setting(
        "prompt",
        Kind.CHOICE,
        gettext_noop("Prompt"),
        help=gettext_noop("login, consent or select_account."),
        choices=PROMPTS,
    ),
    Setting("acr_values", Kind.TEXTS, gettext_noop("Requested authentication contexts (ACR)")),
    Setting(
        "mfa_acr_values",
        Kind.TEXTS,
        gettext_noop("Authentication contexts (ACR) that count as two factors"),
    ),
)
_APPLE = (
    Setting("team_id", Kind.WORD, gettext_noop("Team ID"), required=True),
    Setting("key_id", Kind.WORD, gettext_noop("Key ID"), required=True),
    Setting("private_key", Kind.KEY, gettext_noop("Private key (.p8)"), required=True, secret=True),
)
_SAML = (
    Setting("idp_metadata", Kind.METADATA, gettext_noop("Metadata of the identity provider (XML)")),
    Setting(
        "metadata_url",
        Kind.URL,
        gettext_noop("Metadata URL of the identity provider"),
        help=gettext_noop("Read when you save it, then daily: new certificates need no work."),
    ),
    Setting("idp_entity_id", Kind.TEXT, gettext_noop("Entity ID of the identity provider")),
    Setting("idp_sso_url", Kind.URL, gettext_noop("Sign-in URL of the identity provider")),
    Setting("idp_slo_url", Kind.URL, gettext_noop("Sign-out URL of the identity provider")),
    Setting("idp_x509_cert", Kind.CERTIFICATES, gettext_noop("Certificates (PEM)")),
    Setting("sp_entity_id", Kind.TEXT, gettext_noop("Custom entity ID of this service")),
    Setting(
        "assertion_consumer_url",
        Kind.URL,
        gettext_noop("Custom assertion consumer URL of this service"),
    ),
    _ALLOWED,
    _DEFAULT_ROLE,
    Setting(
        "allow_idp_initiated",
        Kind.FLAG,
        gettext_noop("Accept sign-ins that start at the identity provider"),
    ),
    Setting("sign_requests", Kind.FLAG, gettext_noop("Sign requests to the identity provider")),
    Setting(
        "name_id_format",
        Kind.NAME_ID,
        gettext_noop("Requested NameID format"),
        help=gettext_noop("persistent (default), emailAddress or unspecified."),
    ),
    Setting("email_verified", Kind.FLAG, gettext_noop("Trust the email addresses that it sends")),
    Setting("email_attribute", Kind.TEXT, gettext_noop("Custom email attribute")),
    Setting("name_attribute", Kind.TEXT, gettext_noop("Custom name attribute")),
    Setting("groups_attribute", Kind.TEXT, gettext_noop("Custom groups attribute")),
)
_MICROSOFT = "https://login.microsoftonline.com/{tenant}"
_OPENID = ("openid", "email", "profile")

PROVIDERS = (
    Provider(
        OAUTH,
        "google",
        "Google",
        (_CLIENT_ID, _CLIENT_SECRET, *_OAUTH),
        {
            "authorize_url": "https://accounts.google.com/o/oauth2/v2/auth",
            "token_url": "https://oauth2.googleapis.com/token",
            "jwks_url": "https://www.googleapis.com/oauth2/v3/certs",
            "issuer": "https://accounts.google.com",
        },
        _OPENID,
    ),
    Provider(
        OAUTH,
        "github",
        "GitHub",
        (_CLIENT_ID, _CLIENT_SECRET, *_OAUTH),
        {
            "authorize_url": "https://github.com/login/oauth/authorize",
            "token_url": "https://github.com/login/oauth/access_token",
            "userinfo_url": "https://api.github.com/user",
            "issuer": "https://github.com",
        },
        ("read:user", "user:email"),
        openid=False,
        answers_below="/login/oauth",
    ),
    Provider(
        OAUTH,
        "microsoft",
        "Microsoft",
        (
            _CLIENT_ID,
            _CLIENT_SECRET,
            Setting(
                "tenant_id",
                Kind.WORD,
                gettext_noop("Tenant ID of your directory"),
                help=TENANT_HELP,
            ),
            *_OAUTH,
        ),
        {
            "authorize_url": f"{_MICROSOFT}/oauth2/v2.0/authorize",
            "token_url": f"{_MICROSOFT}/oauth2/v2.0/token",
            "jwks_url": f"{_MICROSOFT}/discovery/v2.0/keys",
            "issuer": f"{_MICROSOFT}/v2.0",
        },
        _OPENID,
    ),
    Provider(
        OAUTH,
        "apple",
        "Apple",
        (_CLIENT_ID, *_APPLE, *_OAUTH),
        {
            "authorize_url": "https://appleid.apple.com/auth/authorize",
            "token_url": "https://appleid.apple.com/auth/token",
            "jwks_url": "https://appleid.apple.com/auth/keys",
            "issuer": "https://appleid.apple.com",
        },
        ("openid", "email", "name"),
        posts_callback=True,
    ),
    Provider(OAUTH, OIDC, "OpenID Connect", _OIDC, scopes=_OPENID, discovers=True),
    Provider(SAML, "okta", "Okta", _SAML),
    Provider(SAML, "azure_ad", "Microsoft Entra ID", _SAML),
    Provider(SAML, "generic", "SAML 2.0", _SAML),
)
NAMES = tuple(dict.fromkeys(one.name for one in PROVIDERS))
# Slugs share addresses, identities and `auth_provider` of users with other names.
RESERVED_SLUGS = frozenset((*NAMES, *(name for _, name in ALIASES), "password", "scim")) - {OIDC}
_BY_NAME = {(one.category, one.name): one for one in PROVIDERS}

_DEFAULT_ADDRESSES = [address for one in PROVIDERS for address in one.addresses.values()]
MICROSOFT_HOSTS = ("login.microsoftonline.com", "sts.windows.net")
# Where anyone can have an account, besides the hosts of the providers above.
OPEN_ISSUERS = (
    *("sts.windows.net", "gitlab.com", "login.salesforce.com", "slack.com", "www.linkedin.com"),
    *("www.facebook.com", "id.twitch.tv", "api.login.yahoo.com", "www.paypal.com"),
)
PUBLIC_HOSTS = frozenset([*map(hostname, _DEFAULT_ADDRESSES), *OPEN_ISSUERS])


def is_public(address: str) -> bool:
    """Whether an address or issuer belongs to a provider where anyone can have an account."""
    return hostname(address) in PUBLIC_HOSTS


def is_open_issuer(issuer: str) -> bool:
    """Whether anyone can have an account at an issuer: it is public, and no single directory."""
    parts = urlsplit(issuer).path.lower().split("/")
    directories = [part for part in parts if TENANT_ID.fullmatch(part)]
    is_directory = is_of_microsoft(issuer) and directories not in ([], [PERSONAL_ACCOUNTS])
    return is_public(issuer) and not is_directory


def is_of_microsoft(issuer: str) -> bool:
    """Whether an issuer is a directory of Microsoft Entra."""
    return hostname(issuer) in MICROSOFT_HOSTS


def is_of_google(issuer: str) -> bool:
    """Whether an issuer is Google."""
    return hostname(issuer) == "accounts.google.com"


def find_by_issuer(issuer: str) -> Provider | None:
    """Find the OAuth provider by its default issuer, in any spelling."""
    hosts = {
        hostname(provider.addresses["issuer"]): provider
        for provider in PROVIDERS
        if provider.addresses
    }
    return hosts.get(hostname(issuer))


def slug_problem(slug: str) -> str | None:
    """Return why new settings may not have this slug, or None."""
    if len(slug) > LONGEST_SLUG or not SLUG.fullmatch(slug):
        return (
            f"A slug has up to {LONGEST_SLUG} lower-case letters, digits and single hyphens between"
            " them, a letter first."
        )
    return f"The slug {slug} is reserved. Choose another." if slug in RESERVED_SLUGS else None


def of_settings(category: str, name: str, kind: str | None) -> Provider:
    """Return the provider of stored settings; `kind` says which, if it is not the name."""
    return get(category, kind).named(name) if kind else get(category, name)


def get(category: str, name: str) -> Provider:
    """Return a provider. Raises NotFound."""
    provider = _BY_NAME.get((category, ALIASES.get((category, name), name)))
    if provider is None:
        raise NotFound("There is no such provider.")
    return provider
