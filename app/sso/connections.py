"""A provider's settings as sign-in uses them."""

from __future__ import annotations

from dataclasses import dataclass

from app.accounts.models import SYSTEM_CODE, Account
from app.sso import providers
from app.sso.providers import Provider
from app.types import JSONMapping


@dataclass(frozen=True)
class Connection:
    """A provider as an account's people sign in by it: the settings, secrets among them."""

    account: Account
    provider: Provider
    config: JSONMapping
    is_own: bool
    """Whether the account itself set it up, and not the system for all."""
    row_id: str = ""
    shared_callback: bool = False
    """Whether the provider was told the shared redirect address, when the row was made."""
    admits_pii_members: bool = True
    """Whether members of the account's `pii_access` may sign in by it."""

    @property
    def row_account_code(self) -> str:
        """The code of the account whose row it is: the account's own, or the system's."""
        return self.account.account_code if self.is_own else SYSTEM_CODE

    @property
    def shares_callback(self) -> bool:
        """Whether it uses the shared redirect address.

        Only where every endpoint is the provider's own: there nobody else is sent a code.
        """
        return self.shared_callback and not has_custom_endpoints(self.config)

    def address(self, name: str) -> str:
        """An address of the provider: as it is set, else its usual one; empty where it has none."""
        usual = self.provider.addresses.get(name, "")
        return str(self.config.get(name) or usual.replace("{tenant}", self.tenant))

    def answers_as(self, issuer: str) -> bool:
        """Whether a browser that comes back with this issuer comes from the provider."""
        usual = self.address("issuer")
        return issuer in (usual, f"{usual}{self.provider.answers_below}")

    @property
    def is_open_to_all(self) -> bool:
        """Whether anybody can have an account there: no directory, and no server of the admins."""
        if self.provider.has_tenants:
            return not self.provider.names_directory(self.config)
        return any(providers.is_public(self.address(name)) for name in self.provider.addresses)

    @property
    def tenant(self) -> str:
        """The tenant of Microsoft's directory."""
        return str(self.config.get("tenant_id") or "common")

    def vouches_for_directory(self, tenant: object) -> bool:
        """Whether an admin named the directory that a token is of.

        Microsoft signs for every directory, and whoever runs one writes its groups: they count
        only where the settings name that tenant by its id.
        """
        if not self.provider.has_tenants:
            return True
        same = str(tenant).lower() == self.tenant.lower()
        return same and self.provider.names_directory(self.config)


def has_custom_endpoints(config: JSONMapping) -> bool:
    """Whether settings name another endpoint or issuer than the provider's own."""
    return any(config.get(name) for name in providers.ENDPOINTS)
