"""What accounts have, as items of manifests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

import sqlalchemy as sa

from app import db
from app.accounts import groups, sign_in_settings, sso_settings, tenants
from app.accounts.models import Account, Group
from app.accounts.names import Name
from app.accounts.product import mail_templates
from app.accounts.product import settings as product
from app.accounts.product.mail_templates import Template
from app.accounts.product.models import AccountBrand, MailTemplate
from app.accounts.product.settings import Face
from app.auth import account_settings
from app.auth.principal import Principal
from app.db.types import json_equal
from app.errors import Forbidden, InvalidValues, NotFound, problem
from app.manifest.automation_kinds import Hooks, Webhooks, Workflows
from app.manifest.document import Path
from app.manifest.kind import Key, Kind, Single, renames
from app.rules.named import GROUP
from app.sso import service as sso
from app.sso import validation
from app.sso.models import ProviderSetting
from app.types import JSONMapping, JSONObject

NAMING_ROLES = ("mfa_roles", "sso_group_roles")
EMPTY_SETTINGS: JSONMapping = {
    **dict.fromkeys(("allowed_redirect_uris", "cors_origins", "frame_ancestors"), ()),
    **dict.fromkeys(("sso_email_domains", "sso_group_roles", "mfa_roles"), ()),
    **dict.fromkeys(("sso_allow_admin", "sso_tokens_in_fragment", "magic_link"), False),
    "mfa_grace_days": 0,
}
"""The values of settings that nobody has set, where these are not null."""


class Groups(Kind):
    name, section, model = "group", "groups", Group
    properties = ("name", "description")

    def create(self, body: JSONMapping, *, by: Principal) -> None:
        """Create a group without members."""
        groups.create(by.require_account_id(), body["name"], body.get("description"))

    def follow_ups(self, row: Group, body: JSONMapping) -> list[JSONObject]:
        """Return the rules and mappings of the account that follow a new name."""
        name = Name(GROUP, row.name, row.account_id, row.id)
        return renames(name, body["name"]) if "name" in body else []

    def change(self, row: Group, body: JSONMapping, *, by: Principal) -> None:
        groups.change(row.account_id, row.id, body, shows_rules=True)

    def remove(self, row: Group, *, by: Principal) -> None:
        groups.delete(row.account_id, row.id, shows_rules=True)


class Providers(Kind):
    """Settings of identity providers."""

    name, section, model = "provider", "providers", ProviderSetting
    identity, required = ("category", "provider_name", "slug"), ("config",)
    properties = (
        *("category", "provider_name"),
        *("display_name", "enabled", "priority", "shared_callback", "config"),
    )
    hidden = frozenset({"config"})

    def export(self, row: ProviderSetting) -> JSONObject:
        """Return the settings with masked secrets; with a slug if the provider has several."""
        provider = sso.get_provider(row)
        slug = {"slug": provider.name} if provider.discovers else {}
        config = {n: value for n, value in sso.mask_secrets(row).items() if value is not None}
        return super().export(row) | {"provider_name": provider.kind, **slug, "config": config}

    def key(self, item: JSONMapping) -> Key:
        """Category and name, which may have aliases, and the slug if the provider has several."""
        category, name = item["category"], item["provider_name"]
        with suppress(NotFound):
            provider = sso.requested_provider(item)
            slug = (provider.name,) if provider.discovers else ()
            return category, provider.kind, *slug
        return category, name

    def changed(self, row: ProviderSetting, body: JSONMapping, by: Principal) -> list[str]:
        """Compares the config as it would be stored."""
        plain = {n: value for n, value in body.items() if n not in ("config", *self.identity)}
        different = super().changed(row, plain, by)
        if "config" in body:
            given, none = sso.merge_config(row, body["config"]), sso.merge_config(row, {})
            merged = {name: value for name, value in given.items() if value is not None}
            stored = {name: value for name, value in none.items() if value is not None}
            if not json_equal(merged, stored):
                cleaned, problems = validation.validate(sso.get_provider(row), merged, row.config)
                if problems or not json_equal(cleaned, stored):
                    different.append("config")
        return different

    def check(self, body: JSONMapping, by: Principal) -> None:
        """Look the addresses up, too."""
        super().check(body, by)
        with suppress(NotFound):
            provider, complete = sso.requested_provider(body), body.get("enabled", True)
            config, problems = validation.validate(provider, body["config"], complete=complete)
            problems += (
                sso.issuer_problems(by.require_account_id(), provider, config) if complete else []
            )
            if problems:
                raise InvalidValues(problems)

    def create(self, body: JSONMapping, *, by: Principal) -> None:
        sso.create(body, by=by)

    def change(self, row: ProviderSetting, body: JSONMapping, *, by: Principal) -> None:
        sso.change(row.id, body, by=by)

    def remove(self, row: ProviderSetting, *, by: Principal) -> None:
        sso.delete(row.id, by=by)


@dataclass(frozen=True)
class Stored:
    """What an account has set."""

    account_id: str
    values: JSONObject


class OfAccount(Single):
    """Values that an account has once; its section has those that are set."""

    def export(self, row: Stored) -> JSONObject:
        return row.values

    def undone(self, row: Stored, body: JSONMapping) -> JSONObject:
        """Return what was set before."""
        return {name: row.values.get(name) for name in body}


class AccountSettings(OfAccount):
    """The settings that admins of an account change, but for its name and attributes."""

    name = section = "settings"
    properties = (*tenants.OWN_SETTINGS, *sso_settings.NAMES, *sign_in_settings.NAMES)

    def rows(self, account_ids: Sequence[str] | None = None) -> list[Stored]:
        """Return the settings of some accounts, or of all."""
        query = sa.select(Account.id, Account.settings).order_by(Account.id)
        if account_ids is not None:
            query = query.where(Account.id.in_(account_ids))
        found = []
        for id, settings in db.db.session.execute(query):
            set_ = {name: settings[name] for name in self.properties if name in settings}
            defaults = sign_in_settings.DEFAULTS
            values = {n: v for n, v in set_.items() if (v or None) != (defaults.get(n) or None)}
            found.append(Stored(id, values))
        return found

    def changed(self, row: Stored, body: JSONMapping, by: Principal) -> list[str]:
        """Return the settings that differ. Raises InvalidValues."""
        default = sign_in_settings.DEFAULTS
        different = [
            name
            for name, value in body.items()
            if not json_equal(row.values.get(name, default.get(name)) or None, value or None)
        ]
        # Roles may be new in the manifest: the change itself looks for them.
        tenants.check_own({name: body[name] for name in different if name not in NAMING_ROLES})
        return different

    def undone(self, row: Stored, body: JSONMapping) -> JSONObject:
        """Return what was set before; where nothing was, the default."""
        empty = {**EMPTY_SETTINGS, **sign_in_settings.DEFAULTS}
        return {name: row.values.get(name, empty.get(name)) for name in body}

    def change(self, row: Stored, body: JSONMapping, *, by: Principal) -> None:
        account_settings.change(row.account_id, body, by=by)


class Brand(OfAccount):
    """The name, logo, colour and links of an account's own."""

    name = section = "brand"
    properties = tuple(field.name for field in fields(Face))

    def rows(self, account_ids: Sequence[str] | None = None) -> list[Stored]:
        """Return the brands of some accounts, or all that there are."""
        query = sa.select(AccountBrand).order_by(AccountBrand.account_id)
        if account_ids is not None:
            query = query.where(AccountBrand.account_id.in_(account_ids))
        found = {
            row.account_id: {n: getattr(row, n) for n in self.properties if getattr(row, n)}
            for row in db.db.session.scalars(query)
        }
        return [Stored(id, found.get(id, {})) for id in account_ids or found]

    def changed(self, row: Stored, body: JSONMapping, by: Principal) -> list[str]:
        """Return the properties that differ."""
        merged = product.merged(row.values, body)
        return [name for name in body if (merged.get(name) or None) != row.values.get(name)]

    def undone(self, row: Stored, body: JSONMapping) -> JSONObject:
        """Return what was set before."""
        former = super().undone(row, body)
        if "links" in body:
            links = row.values.get("links", {})
            former["links"] = {kind: links.get(kind) for kind in body["links"]}
        return former

    def change(self, row: Stored, body: JSONMapping, *, by: Principal) -> None:
        by.require_recent_sign_in()
        product.change_brand(row.account_id, body)


class MailTemplatesOfAccount(Kind):
    """An account's own texts of mails, which a manifest has by kind and language."""

    name, section, model = "mail_template", "mail_templates", MailTemplate
    identity = ("kind", "language")
    properties = (*identity, "subject", "text", "html", "reply_to")

    def entries(self, section: Any) -> Iterator[tuple[Path, JSONMapping]]:
        """Null removes a text."""
        for kind, texts in section.items():
            for language, one in texts.items():
                item = {"removed": True} if one is None else one
                yield (kind, language), {"kind": kind, "language": language, **item}

    def section_of(self, items: Sequence[JSONMapping]) -> JSONObject:
        section: JSONObject = {}
        for item in items:
            text = {name: value for name, value in item.items() if name not in self.identity}
            shown = None if text.get("removed") else text
            section.setdefault(item["kind"], {})[item["language"]] = shown
        return section

    def export(self, row: MailTemplate) -> JSONObject:
        place = {"kind": row.kind, "language": row.language}
        return place | mail_templates.compact(asdict(mail_templates.template_of(row)))

    def changed(self, row: MailTemplate, body: JSONMapping, by: Principal) -> list[str]:
        """Return all properties if one differs, as a text is stored as a whole."""
        same = self._checked(body, by) == mail_templates.template_of(row)
        return [] if same else list(body)

    def check(self, body: JSONMapping, by: Principal) -> None:
        self._checked(body, by)

    def create(self, body: JSONMapping, *, by: Principal) -> None:
        mail_templates.save(body["kind"], body["language"], by.require_account_id(), body)

    def change(self, row: MailTemplate, body: JSONMapping, *, by: Principal) -> None:
        mail_templates.save(row.kind, row.language, row.account_id, body)

    def remove(self, row: MailTemplate, *, by: Principal) -> None:
        mail_templates.delete(row.kind, row.language, row.account_id)

    def _checked(self, body: JSONMapping, by: Principal) -> Template:
        account_id = by.require_account_id()
        try:
            return mail_templates.checked(body["kind"], body["language"], account_id, body)
        except (Forbidden, NotFound) as error:
            raise InvalidValues([problem("", error.error, error.message)]) from None


OF_ACCOUNT: Sequence[Kind] = (
    AccountSettings(),
    Brand(),
    Groups(),
    Webhooks(),
    Workflows(),
    Hooks(),
    Providers(),
    MailTemplatesOfAccount(),
)
