"""The settings of an account at a glance: what each is for, and its state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flask import render_template, url_for

from app.accounts import sign_in_settings, tenants
from app.accounts.domains import senders
from app.accounts.domains.models import AccountDomain
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account
from app.accounts.product import settings as product
from app.accounts.product.settings import Face
from app.accounts.sign_in_settings import MfaMode
from app.audit.security_log.models import SecurityStream
from app.auth.models import ScimToken, SetupLink
from app.console.admin.account_settings import ACCOUNT_SETTINGS
from app.console.shell import lists
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.navigation import ACCOUNT, MenuItem
from app.console.shell.scopes import AccountScope
from app.db import Base, counts
from app.db.counts import Where
from app.portability.bundle.models import AccountExport, ExportState
from app.portability.retention import policy as policies
from app.sso import setup_links
from app.sso.models import ProviderSetting
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext, ngettext

GOOD, OPEN, BAD, PLAIN = "good", "open", "bad", ""
FACTORS: Mapping[str, object] = {
    MfaMode.OFF: lazy_gettext("second factors off"),
    MfaMode.OPTIONAL: lazy_gettext("second factors optional"),
    MfaMode.REQUIRED: lazy_gettext("second factors required"),
}


@dataclass(frozen=True)
class Card:
    """A page of settings; `tone` is that of its state."""

    name: str
    icon: str
    help: str
    url: str
    state: str
    tone: str = PLAIN


@dataclass(frozen=True)
class Numbers:
    """The numbers of an account that its settings show."""

    providers: int
    enabled_providers: int
    domains: int
    verified_domains: int
    scim_tokens: int
    receivers: int
    enabled_receivers: int
    failing_receivers: int
    exports: int
    open_setup_links: int


@page(ACCOUNT_SETTINGS, role=ADMIN, menu=MenuItem(ACCOUNT, 1, lazy_gettext("Settings"), "settings"))
def show_settings(scope: AccountScope) -> str:
    cards = list(_cards(scope, tenants.get(scope.account.id)))
    return render_template("console/settings/home.html", scope=scope, cards=cards)


def _cards(scope: AccountScope, account: Account) -> Iterator[Card]:
    at, numbers = scope.url_args, _numbers(account.id)
    yield Card(
        gettext("General"),
        "building",
        gettext("The name of the account, and the browser applications that may call the API."),
        url_for("console.show_general_settings", **at),
        _origins(len(account.settings.get("cors_origins", ()))),
    )
    yield Card(
        gettext("Sign-in and sessions"),
        "key",
        gettext("Passwords, mailed links, second factors, and how long sessions last."),
        url_for("console.show_sign_in_settings", **at),
        str(FACTORS[sign_in_settings.mode(account.settings)]),
        GOOD if sign_in_settings.mode(account.settings) == MfaMode.REQUIRED else PLAIN,
    )
    may_brand = product.may_brand(account.id)
    if may_brand:
        yield Card(
            gettext("Brand"),
            "star",
            gettext("The name, logo, color and pages that the users of the account see."),
            url_for("console.show_brand", **at),
            gettext("on") if product.load_brand(account.id) != Face() else gettext("none"),
        )
    if may_brand or senders.is_offered():
        yield Card(
            gettext("Mails"),
            "send",
            gettext("The address that mails of the account come from, and what they say."),
            url_for("console.show_mail_templates", **at),
            account.settings.get("mail_from") or gettext("as the operator\u2019s"),
        )
    yield _providers(scope, numbers)
    if account.id != SYSTEM_ACCOUNT_ID:
        yield from _directory(scope, numbers)
    yield _retention(scope, account.settings)
    yield _receiver(scope, numbers)
    if account.id != SYSTEM_ACCOUNT_ID:
        yield Card(
            gettext("Export"),
            "download",
            gettext("The whole account as one file: to keep, to move, or to restore."),
            url_for("console.show_exports", account_id=account.id),
            gettext("ready") if numbers.exports else gettext("none"),
            GOOD if numbers.exports else PLAIN,
        )
        yield _portal(scope, account)
    if scope.by.is_superadmin and account.id != SYSTEM_ACCOUNT_ID:
        yield Card(
            gettext("Suspend or close"),
            "x",
            gettext("Stop all work in the account for a while, or delete it with its data."),
            url_for("console.show_account", account_id=account.id, state="open", _anchor="state"),
            gettext("active"),
            GOOD,
        )


def _portal(scope: AccountScope, account: Account) -> Card:
    ancestors = len(account.settings.get("frame_ancestors", ()))
    return Card(
        gettext("Portal"),
        "external-link",
        gettext("Pages of administration within the product, and who may frame them."),
        url_for("console.show_portal_settings", **scope.url_args),
        ngettext("%(num)s origin", "%(num)s origins", ancestors) if ancestors else gettext("none"),
    )


def directory_cards(scope: AccountScope) -> list[Card]:
    """The pages about the directory that an account signs in with."""
    if scope.account.id == SYSTEM_ACCOUNT_ID:
        return []
    numbers = _numbers(scope.account.id)
    return [*_directory(scope, numbers), _setup_links(scope, numbers.open_setup_links)]


def _numbers(account_id: str) -> Numbers:
    provider = ProviderSetting.account_id == account_id
    domain = AccountDomain.account_id == account_id
    receiver, enabled = SecurityStream.account_id == account_id, SecurityStream.is_enabled.is_(True)
    sources: Sequence[tuple[type[Base], Where]] = [
        (ProviderSetting, [provider]),
        (ProviderSetting, [provider, ProviderSetting.enabled.is_(True)]),
        (AccountDomain, [domain]),
        (AccountDomain, [domain, AccountDomain.verified_at.is_not(None)]),
        (ScimToken, [ScimToken.account_id == account_id]),
        (SecurityStream, [receiver]),
        (SecurityStream, [receiver, enabled]),
        (SecurityStream, [receiver, enabled, SecurityStream.failing_since.is_not(None)]),
        (
            AccountExport,
            [AccountExport.account_id == account_id, AccountExport.status == ExportState.READY],
        ),
        (SetupLink, setup_links.open_in(account_id)),
    ]
    return Numbers(*counts.count_all_up_to(sources, lists.MAX_COUNTED))


def _origins(number: int) -> str:
    if not number:
        return gettext("no browser applications")
    return ngettext("%(num)s browser application", "%(num)s browser applications", number)


def _providers(scope: AccountScope, numbers: Numbers) -> Card:
    number = numbers.enabled_providers
    if number:
        state, tone = ngettext("%(num)s provider", "%(num)s providers", number), GOOD
    else:
        state, tone = gettext("switched off") if numbers.providers else gettext("none"), PLAIN
    return Card(
        gettext("Single sign-on"),
        "lock",
        gettext("Providers that users sign in with, who becomes a user, and roles by group."),
        url_for("console.show_providers", **scope.url_args),
        state,
        tone,
    )


def _directory(scope: AccountScope, numbers: Numbers) -> Iterator[Card]:
    values = {"verified": numbers.verified_domains, "total": numbers.domains}
    is_open = numbers.verified_domains < numbers.domains
    yield Card(
        gettext("Domains"),
        "link",
        gettext(
            "Users with addresses in a verified domain find their provider by their address, and"
            " no other account\u2019s provider can sign in as them."
        ),
        url_for("console.show_domains", **scope.url_args),
        gettext("%(verified)s of %(total)s verified", **values)
        if numbers.domains
        else gettext("none"),
        OPEN if is_open else GOOD if numbers.domains else PLAIN,
    )
    yield Card(
        gettext("Provisioning (SCIM)"),
        "users-group",
        gettext("Lets your directory create, change and deactivate users and groups."),
        url_for("console.show_scim", **scope.url_args),
        gettext("on") if numbers.scim_tokens else gettext("off"),
        GOOD if numbers.scim_tokens else PLAIN,
    )


def _setup_links(scope: AccountScope, number: int) -> Card:
    return Card(
        gettext("Setup links"),
        "send",
        gettext(
            "A link lets the people who run the identity provider set all this up, without a user."
        ),
        url_for("console.show_setup_links", **scope.url_args),
        ngettext("%(num)s open", "%(num)s open", number) if number else gettext("none"),
    )


def _retention(scope: AccountScope, settings: JSONObject) -> Card:
    policy = policies.load(settings)
    number = len(policy.records) + sum(days is not None for days in policy.log_days.values())
    return Card(
        gettext("Retention"),
        "history",
        gettext("When old records, deliveries, workflow instances and audit entries are deleted."),
        url_for("console.show_retention", **scope.url_args),
        ngettext("%(num)s limit", "%(num)s limits", number) if number else gettext("no limits"),
        GOOD if number else PLAIN,
    )


def _receiver(scope: AccountScope, numbers: Numbers) -> Card:
    state, tone = gettext("none"), PLAIN
    if numbers.failing_receivers:
        state, tone = gettext("failing"), BAD
    elif numbers.enabled_receivers:
        state, tone = gettext("on"), GOOD
    elif numbers.receivers:
        state = gettext("switched off")
    return Card(
        gettext("Receiver of the security log"),
        "shield",
        gettext("Where security events are sent as they happen, such as your SIEM."),
        url_for("console.show_receiver", **scope.url_args),
        state,
        tone,
    )
