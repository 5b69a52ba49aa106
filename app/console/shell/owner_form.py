"""The choice of whom something belongs to: oneself, or a service user."""

from __future__ import annotations

from collections.abc import Mapping

from app.auth import owners
from app.console.shell import forms
from app.console.shell.scopes import AccountScope
from app.web.languages import gettext


def choices(
    scope: AccountScope, owner_id: str | None = None, *, admins: bool = False
) -> Mapping[str, str]:
    """Names of owners by id; the present one comes first, whoever that is.

    `admins`: of what only admins may have.
    """
    named = {scope.by.require_user_id(): gettext("You")}
    found = owners.service_users(scope.account.id, forms.MAX_SELECTED, admins=admins)
    named |= {user.id: user.label for user in found}
    present = {owner_id: named.pop(owner_id, gettext("somebody else"))} if owner_id else {}
    return present | named
