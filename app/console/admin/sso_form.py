"""The forms of provider settings, built from each provider's settings."""

from __future__ import annotations

from collections.abc import Mapping

from app import clock
from app.accounts.models import Account
from app.console.admin import group_roles
from app.console.shell.forms import Form
from app.errors import AppError, InvalidValues, problem
from app.sso import connections, service
from app.sso.connections import Connection
from app.sso.models import OAUTH, ProviderSetting
from app.sso.providers import Kind, Provider, Setting
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext, gettext_noop, lazy_gettext

ACCOUNT_FIELDS = (
    "sso_provisioning",
    "sso_email_domains",
    "sso_group_roles",
    "sso_allow_admin",
    "sso_tokens_in_fragment",
    "allowed_redirect_uris",
    "default_redirect_uri",
)
PROVISIONING: Mapping[str, bool | None] = {"usual": None, "yes": True, "no": False}
MULTIPLE = (Kind.URLS, Kind.TEXTS)
MULTILINE = (Kind.KEY, Kind.CERTIFICATES, Kind.METADATA)
# The sections of the form; settings in none of them are advanced.
SECTIONS = {
    "credentials": (
        *("issuer", "client_id", "client_secret", "tenant_id", "team_id", "key_id", "private_key"),
        *("metadata_url", "idp_metadata"),
    ),
    "by_hand": ("idp_entity_id", "idp_sso_url", "idp_slo_url", "idp_x509_cert"),
    "roles": ("default_role", "email_verified"),
    "addresses": ("allowed_redirect_uris", "sp_entity_id", "assertion_consumer_url"),
    "attributes": ("email_attribute", "name_attribute", "groups_attribute", "groups_claim"),
}
ADVANCED = "advanced"
BY_HAND = "by_hand"
# Folded while their inputs are empty.
OPTIONAL = (BY_HAND, "addresses", "attributes", ADVANCED)
METADATA = ("metadata_url", "idp_metadata")
FOR_ADMINS = ("default_role",)
"""Settings that holders of setup links neither see nor change."""
SECTION_NAMES = {
    "credentials": lazy_gettext("Credentials"),
    "by_hand": lazy_gettext("Without metadata"),
    "roles": lazy_gettext("Roles and users"),
    "addresses": lazy_gettext("Redirect and entity addresses"),
    "attributes": lazy_gettext("Attributes"),
    ADVANCED: lazy_gettext("Advanced"),
}


ENTITY_ID = gettext_noop("Entity ID (audience)")
CONSUMER_URL = gettext_noop("Assertion consumer URL")
LOGOUT_URL = gettext_noop("Sign-out URL")
# These texts stand in the providers' own consoles, in English.
NAMES_AT_PROVIDER: Mapping[str, Mapping[str, str]] = {
    "okta": {
        CONSUMER_URL: "Single sign-on URL",
        ENTITY_ID: "Audience URI (SP Entity ID)",
        LOGOUT_URL: "Single Logout URL",
    },
    "azure_ad": {
        ENTITY_ID: "Identifier (Entity ID)",
        CONSUMER_URL: "Reply URL (Assertion Consumer Service URL)",
        LOGOUT_URL: "Logout Url",
    },
}
GUIDES = {
    "okta": "https://help.okta.com/oie/en-us/content/topics/apps/apps_app_integration_wizard_saml.htm",
    "azure_ad": "https://learn.microsoft.com/en-us/entra/identity/enterprise-apps/add-application-portal-setup-sso",
}
"""The providers' own instructions."""


def field_names(kind: Provider) -> list[str]:
    return [
        "display_name",
        "priority",
        "enabled",
        "shared_callback",
        "admits_pii_members",
        *(setting.name for setting in kind.settings),
    ]


def sections(kind: Provider, *, for_admin: bool = True) -> Mapping[str, list[JSONObject]]:
    """The settings of a provider by section, with their inputs."""
    section_of = {name: section for section, names in SECTIONS.items() for name in names}
    order = {name: number for number, name in enumerate(section_of)}
    if not kind.discovers:
        section_of["issuer"] = ADVANCED
    found: dict[str, list[JSONObject]] = {section: [] for section in SECTION_NAMES}
    for setting in sorted(kind.settings, key=lambda one: order.get(one.name, len(order))):
        if setting.name in FOR_ADMINS and not for_admin:
            continue
        entry = {
            "name": setting.name,
            "title": gettext(setting.title),
            "help": setting.help and gettext(setting.help),
            "as": _input_kind(setting),
            "is_secret": setting.secret,
            "choices": {"": gettext("none"), **{choice: choice for choice in setting.choices}},
        }
        found[section_of.get(setting.name, ADVANCED)].append(entry)
    # The priority is advanced, too.
    return {name: entries for name, entries in found.items() if entries or name == ADVANCED}


def section_names(kind: Provider, *, for_admin: bool = True) -> Mapping[str, object]:
    names: dict[str, object] = {**SECTION_NAMES}
    if kind.category == OAUTH:
        names["addresses"] = gettext("Redirect addresses of applications")
    if not for_admin:
        names["roles"] = gettext("Users")
    return names


def sections_in_use(kind: Provider, form: Form) -> list[str]:
    """The sections that have entries or errors; boxes say nothing, as they have defaults.

    With metadata, entries by hand were read from it.
    """
    is_read = any(form[name] for name in METADATA)
    used = [
        section
        for section, entries in sections(kind).items()
        if any(
            entry["name"] in form.errors
            or (
                entry["as"] != "box"
                and form[entry["name"]]
                and not (is_read and section == BY_HAND)
            )
            for entry in entries
        )
    ]
    has_priority = "priority" in form.errors or form["priority"] not in ("", "0")
    return [*used, ADVANCED] if has_priority and ADVANCED not in used else used


def service_addresses(
    account: Account | None, kind: Provider, row: ProviderSetting | None
) -> Mapping[str, str]:
    if account is None or (kind.discovers and row is None):  # the slug is not known yet
        return {}
    config, shared = (row.config, row.shared_callback) if row else ({}, False)
    connection = Connection(account, kind, config, is_own=True, shared_callback=shared)
    if kind.category == OAUTH:
        return {gettext("Redirect address"): connections.callback_url(connection)}
    return {
        gettext(ENTITY_ID): connections.saml_entity_id(connection),
        gettext(CONSUMER_URL): connections.saml_consumer_url(connection),
        gettext(LOGOUT_URL): connections.saml_logout_url(connection),
    }


def names_at_provider(kind: Provider) -> Mapping[str, str]:
    """The names that a provider has for the addresses of this service, by our names."""
    return {gettext(name): text for name, text in NAMES_AT_PROVIDER.get(kind.name, {}).items()}


class ProviderForm(Form):
    """The settings of a provider as a form."""

    def with_error(self, error: AppError) -> ProviderForm:
        """The form with the messages of an error; properties of the config have inputs, too."""
        if isinstance(error, InvalidValues):
            error = InvalidValues(
                [
                    {**detail, "field": str(detail["field"]).removeprefix("config.")}
                    for detail in error.details
                ]
            )
        super().with_error(error)
        return self


def blank(kind: Provider) -> ProviderForm:
    values = {"display_name": kind.title, "slug": kind.name, "priority": "0", "enabled": "true"}
    return ProviderForm(values | _flags(kind, {}))


def from_setting(row: ProviderSetting) -> ProviderForm:
    """The form with stored settings; secrets show only whether they are set."""
    kind, config = service.get_provider(row), row.config
    values = dict.fromkeys(field_names(kind), "")
    for setting in kind.settings:
        values[setting.name] = _text(config.get(setting.name))
    enabled = "true" if row.enabled else ""
    values["seen"] = clock.iso(row.updated_at)
    values |= {"display_name": row.display_name, "priority": str(row.priority)}
    values["shared_callback"] = "true" if row.shared_callback else ""
    return ProviderForm(values | {"enabled": enabled} | _flags(kind, config))


def body(kind: Provider, form: Form, *, by_admin: bool = True) -> JSONObject:
    """The settings that the form submits. Raises InvalidValues."""
    checked = form.validated(("display_name",), display_name=100, priority=5)
    left_out = () if by_admin else FOR_ADMINS
    if any(form[name] for name in left_out):
        message = gettext("The admins of the account choose the roles.")
        raise InvalidValues([problem(name, "invalid_option", message) for name in left_out])
    config = {
        setting.name: _value(setting, form)
        for setting in kind.settings
        if setting.name not in left_out
    }
    unchanged = {
        setting.name for setting in kind.settings if setting.secret and not form[setting.name]
    }
    confirmed = {"admits_pii_members": True} if form["admits_pii_members"] else {}
    return {
        **confirmed,
        "display_name": checked["display_name"],
        "priority": _priority(checked["priority"]),
        "enabled": bool(checked["enabled"]),
        "shared_callback": bool(form["shared_callback"]),
        "config": {name: value for name, value in config.items() if name not in unchanged},
    }


def from_account(account: Account) -> Form:
    """The form with an account's provisioning settings."""
    settings = account.settings
    words = {value: word for word, value in PROVISIONING.items()}
    return Form(
        {
            "sso_provisioning": words[settings.get("sso_provisioning")],
            "sso_email_domains": _text(settings.get("sso_email_domains")),
            "sso_group_roles": "",
            **group_roles.values(settings.get("sso_group_roles", ())),
            "sso_allow_admin": "true" if settings.get("sso_allow_admin") else "",
            "sso_tokens_in_fragment": "true" if settings.get("sso_tokens_in_fragment") else "",
            "allowed_redirect_uris": _text(settings.get("allowed_redirect_uris")),
            "default_redirect_uri": settings.get("default_redirect_uri") or "",
            "seen": clock.iso(account.updated_at),
        }
    )


def account_body(form: Form) -> JSONObject:
    """The provisioning settings that the form submits. Raises InvalidValues."""
    if form["sso_provisioning"] not in PROVISIONING:
        message = gettext("Choose one of the options.")
        raise InvalidValues([problem("sso_provisioning", "invalid_option", message)])
    return {
        "sso_provisioning": PROVISIONING[form["sso_provisioning"]],
        "sso_email_domains": form["sso_email_domains"].split(),
        "sso_group_roles": group_roles.body(form),
        "sso_allow_admin": bool(form["sso_allow_admin"]),
        "sso_tokens_in_fragment": bool(form["sso_tokens_in_fragment"]),
        "allowed_redirect_uris": form["allowed_redirect_uris"].split(),
        "default_redirect_uri": form["default_redirect_uri"] or None,
    }


def _input_kind(setting: Setting) -> str:
    if setting.secret and setting.kind != Kind.KEY:
        return "password"
    if setting.kind in (*MULTIPLE, *MULTILINE):
        return "area"
    kinds = {Kind.FLAG: "box", Kind.CHOICE: "choice"}
    return kinds.get(setting.kind, "text")


def _flags(kind: Provider, config: JSONMapping) -> dict[str, str]:
    defaults = {"email_verified": True, "sign_requests": True}
    flags = [setting.name for setting in kind.settings if setting.kind == Kind.FLAG]
    return {name: "true" if config.get(name, defaults.get(name)) else "" for name in flags}


def _text(value: object) -> str:
    return "\n".join(value) if isinstance(value, list) else str(value or "")


def _value(setting: Setting, form: Form) -> object:
    text = form[setting.name]
    if setting.kind == Kind.FLAG:
        return bool(text)
    if setting.kind == Kind.CERTIFICATES and "-----" not in text:
        return text.split() or None
    return text or None


def _priority(text: str) -> int:
    try:
        number = int(text or "0")
    except ValueError:
        number = 10_000
    if not -1000 <= number <= 1000:
        message = gettext("A whole number from -1000 to 1000.")
        raise InvalidValues([problem("priority", "number_out_of_range", message)])
    return number
