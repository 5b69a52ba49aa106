"""Provider settings with secrets, for signing in; our addresses there, and the provider's claims.

All OAuth settings have a redirect address of their own, so a code that arrives at the address of
other settings is refused before it is sent anywhere (mix-up attacks: RFC 9700, section 4.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app import config, db
from app.accounts.models import SYSTEM_CODE, Account
from app.sso import providers
from app.sso.models import OAUTH, ProviderSetting
from app.sso.providers import Provider
from app.types import JSONMapping

MAX_GROUPS = 500


@dataclass(frozen=True)
class Metadata:
    """The metadata that an issuer publishes (OpenID Connect Discovery 1.0, section 3)."""

    addresses: Mapping[str, str] = field(default_factory=dict)
    """Its endpoints, by the names of the settings that replace them."""
    accepts_post: bool = True
    """Whether the client's secret may stand in the body, not only in a header."""
    sends_issuer: bool = False
    """Whether each callback has an `iss` parameter (RFC 9207)."""


@dataclass(frozen=True)
class Connection:
    """A provider with the settings and secrets that apply to an account."""

    account: Account
    provider: Provider
    config: JSONMapping
    is_own: bool
    """Whether the settings are the account's, not the system's."""
    row_id: str = ""
    shared_callback: bool = False
    """Whether the shared redirect address is registered at the provider (older settings)."""
    admits_pii_members: bool = True
    """Whether members of the account's `pii_access` may sign in with it."""
    metadata: Metadata = field(default_factory=Metadata)

    @property
    def row_account_code(self) -> str:
        """The code of the account that owns the settings: this account, or the system."""
        return self.account.account_code if self.is_own else SYSTEM_CODE

    @property
    def shares_callback(self) -> bool:
        """Whether it uses the shared redirect address.

        Only if all endpoints are the provider's own, so that no one else receives a code.
        """
        return self.shared_callback and not has_custom_endpoints(self.config)

    def address(self, name: str) -> str:
        """Return an address: the configured, else the published, else the default, else empty."""
        usual = self.metadata.addresses.get(name) or self.provider.addresses.get(name, "")
        return str(self.config.get(name) or usual.replace("{tenant}", self.tenant))

    def answers_as(self, issuer: str) -> bool:
        """Whether an `iss` parameter of a callback (RFC 9207) is the provider's."""
        usual = self.address("issuer")
        return issuer in (usual, f"{usual}{self.provider.answers_below}")

    @property
    def is_open_to_all(self) -> bool:
        """Whether anyone can have an account there: no single directory, no own server."""
        if self.provider.has_tenants:
            return not self.provider.names_directory(self.config)
        if self.provider.discovers:
            return providers.is_open_issuer(self.address("issuer"))
        return any(providers.is_public(self.address(name)) for name in self.provider.addresses)

    @property
    def is_microsoft(self) -> bool:
        """Whether it is a directory of Microsoft Entra."""
        is_issuer = self.provider.discovers and providers.is_of_microsoft(self.address("issuer"))
        return self.provider.name == "microsoft" or is_issuer

    @property
    def is_google(self) -> bool:
        """Whether it is Google, which names a user's Workspace in the claim `hd`."""
        is_issuer = self.provider.discovers and providers.is_of_google(self.address("issuer"))
        return self.provider.name == "google" or is_issuer

    @property
    def mapped_groups(self) -> set[str]:
        """The groups to which the account maps roles."""
        return {entry["group"] for entry in self.account.settings.get("sso_group_roles") or ()}

    @property
    def signs_requests(self) -> bool:
        """Whether requests to a SAML provider are signed."""
        return self.config.get("sign_requests") is not False

    @property
    def name_id_format(self) -> str:
        """The name of the NameID format that a SAML provider is asked for."""
        return str(self.config.get("name_id_format") or providers.PERSISTENT)

    @property
    def tenant(self) -> str:
        """The tenant of Microsoft's directory."""
        return str(self.config.get("tenant_id") or "common")

    def vouches_for_directory(self, tenant: object) -> bool:
        """Whether the settings name the directory of a token.

        Microsoft signs tokens for every directory, and a directory's admin controls its groups, so
        groups count only if the settings name that tenant by id.
        """
        if not self.provider.has_tenants:
            return True
        same = str(tenant).lower() == self.tenant.lower()
        return same and self.provider.names_directory(self.config)


@dataclass(frozen=True)
class Claims:
    """Verified claims about a user who signed in at the provider."""

    issuer: str
    subject: str
    email: str | None = None
    email_verified: bool = False
    name: str | None = None
    groups: list[str] = field(default_factory=list)
    in_directory: bool = True
    """Whether the user is in the directory of the settings; others need a linked identity."""
    mfa: bool = False
    """Whether the provider verified more than one factor."""
    hosted_domain: str | None = None
    """The domain of the Google Workspace that the user belongs to now."""
    sent: JSONMapping = field(default_factory=dict, repr=False)
    """All claims, or SAML attributes, by name, of a provider who may fill the user's attributes."""


def has_custom_endpoints(config: JSONMapping) -> bool:
    """Whether settings replace an endpoint or issuer of the provider."""
    return any(config.get(name) for name in providers.ENDPOINTS)


def saml_entity_id(connection: Connection) -> str:
    """Our entity id at a SAML provider."""
    return str(connection.config.get("sp_entity_id") or _saml_url(connection, ""))


def saml_consumer_url(connection: Connection) -> str:
    """Return the address that a SAML provider posts its responses to."""
    return str(connection.config.get("assertion_consumer_url") or _saml_url(connection, "/acs"))


def saml_logout_url(connection: Connection) -> str:
    """Return the address of single logout, for a SAML provider."""
    return _saml_url(connection, "/slo")


def _saml_url(connection: Connection, path: str) -> str:
    # It carries the account, and comes from settings only.
    base, name = config.current().base_url, connection.provider.name
    return f"{base}/saml/{name}{path}?account={connection.account.slug}"


def callback_url(connection: Connection) -> str:
    """Return the redirect address of a connection."""
    own = "" if connection.shares_callback else f"/{connection.row_account_code}"
    return f"{config.current().base_url}{callback_path(connection.provider.name)}{own}"


def callback_url_for_row(row: ProviderSetting) -> str | None:
    """Return the redirect address to register at the provider; None for SAML."""
    if row.category != OAUTH:
        return None
    account = db.db.session.get_one(Account, row.account_id)
    provider = providers.of_settings(row.category, row.provider_name, row.kind)
    shared = row.shared_callback
    return callback_url(Connection(account, provider, row.config, True, shared_callback=shared))


def callback_path(provider: str) -> str:
    """Return the path of a provider's redirect addresses, which older settings share."""
    return f"/oauth/{provider}/callback"


def group_names(claim: object, connection: Connection) -> list[str]:
    """Return the valid group names in a claim: of more than 500 those that are mapped, first."""
    listed = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    names = [name[:300].replace("\0", "") for name in listed if isinstance(name, str) and name]
    distinct = list(dict.fromkeys(names))
    if len(distinct) > MAX_GROUPS:
        mapped = connection.mapped_groups
        distinct.sort(key=lambda name: name not in mapped)
    return distinct[:MAX_GROUPS]
