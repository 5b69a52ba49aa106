"""SAML providers in the console: the account's key pairs, and metadata read by URL."""

from __future__ import annotations

from collections.abc import Callable

from werkzeug.wrappers import Response as BaseResponse

from app.auth.portals import PortalPage
from app.auth.principal import Principal
from app.console.admin.sso import SETTING
from app.console.shell import scopes
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import redirect_with_notice
from app.errors import Conflict
from app.sso import setup_links
from app.sso.saml import keys, metadata_refresh
from app.web.languages import gettext

KEYS = f"{SETTING}/keys"


@page(f"{SETTING}/metadata", "POST", role=ADMIN, portal=PortalPage.SSO, setup=setup_links.SSO)
def read_provider_metadata(account_id: str, setting_id: str) -> BaseResponse:
    """Read the provider's metadata now."""
    scope = scopes.account_scope(account_id)
    read = metadata_refresh.refresh(setting_id, by=scope.by)
    notice = gettext("The metadata was not read.")
    if read is not None and read.error is None:
        notice = gettext("The metadata was read.")
    return redirect_with_notice(
        notice, "console.show_provider", account_id=scope.account.id, setting_id=setting_id
    )


@page(KEYS, "POST", role=ADMIN, portal=PortalPage.SSO, setup=setup_links.SSO)
def create_saml_key(account_id: str, setting_id: str) -> BaseResponse:
    """Create the next key pair."""
    notice = gettext("The key pair is created. Give the providers the new metadata.")
    return _changed(account_id, setting_id, keys.create, notice)


@page(
    f"{KEYS}/<uuid:saml_key_id>/activate",
    "POST",
    role=ADMIN,
    portal=PortalPage.SSO,
    setup=setup_links.SSO,
)
def activate_saml_key(account_id: str, setting_id: str, saml_key_id: str) -> BaseResponse:
    """Sign requests with a key pair."""
    notice = gettext("Requests are signed with this key pair now.")
    return _changed(account_id, setting_id, lambda by: keys.activate(saml_key_id, by), notice)


@page(
    f"{KEYS}/<uuid:saml_key_id>/remove",
    "POST",
    role=ADMIN,
    portal=PortalPage.SSO,
    setup=setup_links.SSO,
)
def remove_saml_key(account_id: str, setting_id: str, saml_key_id: str) -> BaseResponse:
    """Delete a key pair."""
    notice = gettext("The key pair is deleted.")
    return _changed(account_id, setting_id, lambda by: keys.delete(saml_key_id, by), notice)


def _changed(
    account_id: str, setting_id: str, change: Callable[[Principal], object], notice: str
) -> BaseResponse:
    scope = scopes.account_scope(account_id)
    url_args = {"account_id": scope.account.id, "setting_id": setting_id}
    try:
        change(scope.by)
    except Conflict as error:
        notice = error.message
    return redirect_with_notice(notice, "console.show_provider", **url_args)
