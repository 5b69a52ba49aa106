"""Verified claims of a provider about a user."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.sso.connections import Connection


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


MAX_GROUPS = 500


def group_names(claim: object, connection: Connection) -> list[str]:
    """The valid group names in a claim; of more than 500 those that the account maps, first."""
    listed = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    names = [name[:300].replace("\0", "") for name in listed if isinstance(name, str) and name]
    distinct = list(dict.fromkeys(names))
    if len(distinct) > MAX_GROUPS:
        mapped = connection.mapped_groups
        distinct.sort(key=lambda name: name not in mapped)
    return distinct[:MAX_GROUPS]
