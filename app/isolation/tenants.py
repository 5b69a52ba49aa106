"""A temporary account: its ids and marks, and the texts that must not leak."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from functools import cache

from app.accounts.models import User
from app.auth import api_keys
from app.collections.definitions import Definition
from app.db import policies
from app.db.policy import Placement
from app.extensions import registry
from app.ids import new_id
from app.sso.scim import tokens

MAIL_DOMAIN = "isolation.example"


@cache
def table_by_parameter() -> dict[str, str]:
    """Tables by the name of their ids in paths, queries, bodies and columns."""
    tables = {
        id_name: name
        for name, policy in policies().items()
        if name == "accounts" or policy.placement is Placement.SHARDED
        for id_name in policy.id_names
    }
    return tables | {"hook_id": "hooks"}  # workflows of another kind


registry.on_change(table_by_parameter.cache_clear)


def trash_name(definition: Definition) -> str:
    """What a tenant knows the id of its record in the trash by."""
    return f"{definition.table_name} in the trash"


@dataclass
class Tenant:
    """An account of the check, or (`nobody`) ids and marks that do not exist in the database."""

    name: str
    mark: str = field(default_factory=lambda: f"isolation-{secrets.token_hex(10)}")
    tail: str = field(default_factory=lambda: secrets.token_hex(6))
    account_id: str = ""
    code: str = "ZZ9999"
    numbers: list[int] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    """The id of each table's row; also of the hook, and of users by role."""
    records: dict[str, dict[str, object]] = field(default_factory=dict)
    """The record's row by collection name."""
    users: dict[str, User] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.account_id = self.account_id or self.new_id("accounts")
        random = hashlib.sha256(self.mark.encode()).hexdigest()
        self.key_random = random[: api_keys.RANDOM_CHARACTERS]
        self.scim_random = random[: tokens.RANDOM_CHARACTERS]

    @property
    def slug(self) -> str:
        return f"{self.mark}-slug"

    @property
    def key(self) -> str:
        """The text of the API key."""
        return f"{api_keys.PREFIX}{self.code}_{self.key_random}"

    @property
    def scim_token(self) -> str:
        return f"{tokens.PREFIX}{self.code}_{self.scim_random}"

    def email(self, local: str) -> str:
        """An address of the account."""
        return f"{self.mark}-{local}@{MAIL_DOMAIN}"

    def new_id(self, name: str) -> str:
        """Generate and store an id, which ends like all ids of this account."""
        self.ids[name] = new_id()[:24] + self.tail
        return self.ids[name]

    def id_of(self, name: str) -> str:
        """Return a stored id, generated if missing (only `nobody` lacks one)."""
        return self.ids.get(name) or self.new_id(name)

    @property
    def audit_entry(self) -> str:
        if "audit_entries" not in self.ids:
            self.ids["audit_entries"] = str(self.number())
        return self.ids["audit_entries"]

    def number(self) -> int:
        """Generate an unguessable number."""
        self.numbers.append(10**11 + secrets.randbelow(8 * 10**11))
        return self.numbers[-1]

    @property
    def needles(self) -> list[str]:
        """Texts whose occurrence in a response is a leak."""
        return [self.mark, self.tail, self.account_id, self.code, *map(str, self.numbers)]
