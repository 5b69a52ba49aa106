"""The descriptions of roles; those that the service came with, in the page's language."""

from __future__ import annotations

from collections.abc import Mapping

from app.accounts.models import Role
from app.http.languages import lazy_gettext

SEEDED: Mapping[str, object] = {
    "Runs the account.": lazy_gettext("Runs the account."),
    "Works with the account's records.": lazy_gettext("Works with the records of the account."),
    "Reads the account's records.": lazy_gettext("Reads the records of the account."),
}


def description(role: Role) -> str:
    """The description of a role."""
    text = role.description or ""
    return str(SEEDED.get(text, text))
