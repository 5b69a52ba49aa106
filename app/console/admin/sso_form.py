"""The forms of provider settings, made from what each provider's settings hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app import clock
from app.accounts.models import Account
from app.console.shell.forms import Form
from app.errors import AppError, InvalidValues, problem
from app.sso import providers, service
from app.sso.connections import Connection
from app.sso.models import OAUTH, ProviderSetting
from app.sso.oauth import addresses as oauth_addresses
from app.sso.providers import Provider, Setting
from app.sso.saml import addresses as saml_addresses

OF_ACCOUNT = (
    "sso_provisioning",
    "sso_email_domains",
    "sso_group_roles",
    "sso_allow_admin",
    "sso_tokens_in_fragment",
    "allowed_redirect_uris",
    "default_redirect_uri",
)
PROVISIONING: Mapping[str, bool | None] = {"usual": None, "yes": True, "no": False}
SEVERAL = (providers.URLS, providers.TEXTS)
LONG = (providers.KEY, providers.CERTIFICATES, providers.METADATA)
# What most never touch stands apart.
FIRST = (
    *("client_id", "client_secret", "tenant_id", "team_id", "key_id", "private_key"),
    *("idp_metadata", "idp_entity_id", "idp_sso_url", "idp_x509_cert"),
)


def names(kind: Provider) -> list[str]:
    """The fields of a provider's form."""
    return [
        "display_name",
        "priority",
        "enabled",
        "shared_callback",
        "admits_pii_members",
        *(one.name for one in kind.settings),
    ]


def parts(kind: Provider) -> Mapping[str, list[dict[str, Any]]]:
    """What to show first, and what apart, each with how it is entered."""
    shown: dict[str, list[dict[str, Any]]] = {"first": [], "more": []}
    for one in kind.settings:
        entry = {"name": one.name, "title": one.title, "help": one.help, "as": _entered(one)}
        shown["first" if one.name in FIRST else "more"].append(entry)
    return shown


def ours(account: Account | None, kind: Provider, row: ProviderSetting | None) -> Mapping[str, str]:
    """What of ours the provider has to be told."""
    if account is None:
        return {}
    config, shared = (row.config, row.shared_callback) if row else ({}, False)
    connection = Connection(account, kind, config, is_own=True, shared_callback=shared)
    if kind.category == OAUTH:
        return {"Redirect address": oauth_addresses.callback_url(connection)}
    return {
        "Entity ID (audience)": saml_addresses.entity_id(connection),
        "Assertion consumer URL": saml_addresses.consumer_url(connection),
    }


def empty(kind: Provider) -> Form:
    """The form of a provider that is not set up yet."""
    return Form({"display_name": kind.title, "priority": "0", "enabled": "true"} | _flags(kind, {}))


def of_row(row: ProviderSetting) -> Form:
    """The form of settings as they are; of secrets only whether they are set."""
    kind, config = service.provider_of(row), row.config
    values = dict.fromkeys(names(kind), "")
    for one in kind.settings:
        values[one.name] = _text(config.get(one.name))
    enabled = "true" if row.enabled else ""
    values["seen"] = clock.iso(row.updated_at)
    values |= {"display_name": row.display_name, "priority": str(row.priority)}
    values["shared_callback"] = "true" if row.shared_callback else ""
    return Form(values | {"enabled": enabled} | _flags(kind, config))


def body(kind: Provider, form: Form) -> dict[str, Any]:
    """What the form asks for. Raises InvalidValues."""
    checked = form.checked(("display_name",), display_name=100, priority=5)
    config = {one.name: _given(one, form) for one in kind.settings}
    kept = {one.name for one in kind.settings if one.secret and not form[one.name]}
    confirmed = {"admits_pii_members": True} if form["admits_pii_members"] else {}
    return {
        **confirmed,
        "display_name": checked["display_name"],
        "priority": _priority(checked["priority"]),
        "enabled": bool(checked["enabled"]),
        "shared_callback": bool(form["shared_callback"]),
        "config": {name: value for name, value in config.items() if name not in kept},
    }


def refused(form: Form, error: AppError) -> Form:
    """Take in what is wrong, beside the field that it is about."""
    if isinstance(error, InvalidValues):
        details = [
            {**one, "field": str(one["field"]).removeprefix("config.")} for one in error.details
        ]
        error = InvalidValues(details)
    return form.refused(error)


def of_account(account: Account) -> Form:
    """The form of what an account says of sign-in by providers."""
    found = account.settings
    words = {value: word for word, value in PROVISIONING.items()}
    mapping = [f"{one['group']} = {one['role']}" for one in found.get("sso_group_roles", ())]
    return Form(
        {
            "sso_provisioning": words[found.get("sso_provisioning")],
            "sso_email_domains": _text(found.get("sso_email_domains")),
            "sso_group_roles": "\n".join(mapping),
            "sso_allow_admin": "true" if found.get("sso_allow_admin") else "",
            "sso_tokens_in_fragment": "true" if found.get("sso_tokens_in_fragment") else "",
            "allowed_redirect_uris": _text(found.get("allowed_redirect_uris")),
            "default_redirect_uri": found.get("default_redirect_uri") or "",
            "seen": clock.iso(account.updated_at),
        }
    )


def account_body(form: Form) -> dict[str, Any]:
    """What that form asks for. Raises InvalidValues."""
    if form["sso_provisioning"] not in PROVISIONING:
        raise InvalidValues([problem("sso_provisioning", "invalid_option", "Choose one of these.")])
    lines = [line.rpartition("=") for line in form["sso_group_roles"].splitlines() if line.strip()]
    if any(not group.strip() or not role.strip() for group, _, role in lines):
        message = "Write one line for each group: its name, an equals sign, the role."
        raise InvalidValues([problem("sso_group_roles", "pattern_mismatch", message)])
    return {
        "sso_provisioning": PROVISIONING[form["sso_provisioning"]],
        "sso_email_domains": form["sso_email_domains"].split(),
        "sso_group_roles": [{"group": g.strip(), "role": r.strip()} for g, _, r in lines],
        "sso_allow_admin": bool(form["sso_allow_admin"]),
        "sso_tokens_in_fragment": bool(form["sso_tokens_in_fragment"]),
        "allowed_redirect_uris": form["allowed_redirect_uris"].split(),
        "default_redirect_uri": form["default_redirect_uri"] or None,
    }


def _entered(setting: Setting) -> str:
    if setting.secret and setting.kind != providers.KEY:
        return "password"
    if setting.kind in (*SEVERAL, *LONG):
        return "area"
    return "box" if setting.kind == providers.FLAG else "text"


def _flags(kind: Provider, config: Mapping[str, Any]) -> dict[str, str]:
    usual = {"email_verified": True}
    flags = [one.name for one in kind.settings if one.kind == providers.FLAG]
    return {name: "true" if config.get(name, usual.get(name)) else "" for name in flags}


def _text(value: Any) -> str:
    return "\n".join(value) if isinstance(value, list) else str(value or "")


def _given(setting: Setting, form: Form) -> Any:
    text = form[setting.name]
    if setting.kind == providers.FLAG:
        return bool(text)
    if setting.kind == providers.CERTIFICATES and "-----" not in text:
        return text.split() or None
    return text or None


def _priority(text: str) -> int:
    try:
        number = int(text or "0")
    except ValueError:
        number = 10_000
    if not -1000 <= number <= 1000:
        message = "A whole number from -1000 to 1000."
        raise InvalidValues([problem("priority", "number_out_of_range", message)])
    return number
