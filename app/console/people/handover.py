"""What a user made, and leaves behind (ADR 55)."""

from __future__ import annotations

from flask import render_template

from app.accounts import users
from app.auth.principal import Principal
from app.console.shell import scopes
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.lists import UrlArgs
from app.web.languages import lazy_gettext
from app.webhooks import handover
from app.webhooks.handover import LeftKind

KIND_NAMES = {
    LeftKind.WEBHOOK: lazy_gettext("Webhook"),
    LeftKind.STREAM: lazy_gettext("Receiver of the security log"),
    LeftKind.SCIM: lazy_gettext("SCIM token"),
    LeftKind.SETUP_LINK: lazy_gettext("Setup link"),
    LeftKind.PROVIDER: lazy_gettext("Identity provider"),
    LeftKind.REDIRECT: lazy_gettext("Redirect address"),
}


@page("/console/team/left/<uuid:user_id>", role=ADMIN, in_account=True)
def show_left(user_id: str, account_id: str | None = None) -> str:
    """What a user, who may be removed, made and could still use."""
    scope = scopes.account_or_own_scope(account_id)
    found = handover.of_user(scope.account.id, user_id.lower())
    email = users.emails(scope.account.id, [user_id.lower()]).get(user_id.lower())
    return render_template(
        "console/team/left.html",
        scope=scope,
        user_id=user_id.lower(),
        email=email,
        items=found,
        kind_names=KIND_NAMES,
    )


def url_args(account_id: str, user_id: str, *, by: Principal) -> UrlArgs | None:
    """The arguments of the page's address; None if the user has made nothing."""
    if not handover.of_user(account_id, user_id):
        return None
    home, _ = by.home_and_user()
    return {"user_id": user_id} | ({} if account_id == home.id else {"account_id": account_id})
