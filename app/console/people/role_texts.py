"""The descriptions of roles; those that the service came with, in the page's language.

A role gives no access by itself, apart from the console's pages for admins: what it may do with
records is in the rules of collections. So these texts say whom a role is for.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.accounts.models import Role
from app.web.languages import lazy_gettext

SEEDED: Mapping[str, object] = {
    "Runs the account.": lazy_gettext(
        "For those who manage the account: its people, settings and integrations."
    ),
    "Works with the account's records.": lazy_gettext(
        "For those who change records, where rules let them."
    ),
    "Reads the account's records.": lazy_gettext(
        "For those who only read records, where rules say so."
    ),
}


def description(role: Role) -> str:
    text = role.description or ""
    return str(SEEDED.get(text, text))
