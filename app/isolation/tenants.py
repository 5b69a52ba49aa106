"""A throw-away account: its ids, its marks, and what of it must not be told to another."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

from app.accounts.models import User
from app.auth import api_keys
from app.ids import new_id

MAIL_DOMAIN = "isolation.example"
# What ids are of, by their name in paths, queries, bodies and columns.
THINGS = {
    "account_id": "accounts",
    "user_id": "users",
    "group_id": "groups",
    "key_id": "api_keys",
    "session_id": "sessions",
    "webhook_id": "webhooks",
    "delivery_id": "webhook_deliveries",
    "workflow_id": "workflows",
    "hook_id": "hooks",
    "instance_id": "workflow_instances",
    "configuration_id": "provider_settings",
    "setting_id": "provider_settings",
    "invitation": "invitations",
    "invitation_id": "invitations",
    "job_id": "jobs",
}


@dataclass
class Tenant:
    """An account of the check, or (`nobody`) ids and marks that nothing in the database has."""

    name: str
    mark: str = field(default_factory=lambda: f"isolation-{secrets.token_hex(10)}")
    tail: str = field(default_factory=lambda: secrets.token_hex(6))
    account_id: str = ""
    code: str = "ZZ9999"
    numbers: list[int] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    """Of each table the id of its row; of hooks and users by their role, too."""
    records: dict[str, dict[str, object]] = field(default_factory=dict)
    """Of each collection, by its name, the row of the record."""
    users: dict[str, User] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.account_id = self.account_id or self.new_id("accounts")
        random = hashlib.sha256(self.mark.encode()).hexdigest()
        self.key_random = random[: api_keys.RANDOM_CHARACTERS]

    @property
    def slug(self) -> str:
        """The slug of the account."""
        return f"{self.mark}-slug"

    @property
    def key(self) -> str:
        """The text of the API key."""
        return f"{api_keys.PREFIX}{self.code}_{self.key_random}"

    def email(self, local: str) -> str:
        """An address of the account."""
        return f"{self.mark}-{local}@{MAIL_DOMAIN}"

    def new_id(self, name: str) -> str:
        """An id that ends like all of this account's, noted under a name."""
        self.ids[name] = new_id()[:24] + self.tail
        return self.ids[name]

    def id_of(self, name: str) -> str:
        """The id noted under a name, made where there is none: only nobody lacks one."""
        return self.ids.get(name) or self.new_id(name)

    def number(self) -> int:
        """A number that nobody guesses."""
        self.numbers.append(10**11 + secrets.randbelow(8 * 10**11))
        return self.numbers[-1]

    @property
    def needles(self) -> list[str]:
        """What in an answer would be a leak."""
        return [self.mark, self.tail, self.account_id, self.code, *map(str, self.numbers)]
