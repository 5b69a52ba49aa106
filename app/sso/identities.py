"""What a provider asserts about a user, once it is verified."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Claims:
    """What a provider says of somebody who signed in there, once that was verified."""

    issuer: str
    subject: str
    email: str | None = None
    email_verified: bool = False
    name: str | None = None
    groups: list[str] = field(default_factory=list)
    in_directory: bool = True
    """Whether it is of the directory that the settings name; others sign in only if known."""


MOST_GROUPS = 500


def group_names(found: object) -> list[str]:
    """The groups in a claim, as far as they are names."""
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    names = [one[:300].replace("\0", "") for one in listed if isinstance(one, str) and one]
    return list(dict.fromkeys(names))[:MOST_GROUPS]
