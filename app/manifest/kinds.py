"""The kinds of items that a manifest lists, besides collections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import sqlalchemy as sa
from cryptography.fernet import InvalidToken

from app import crypto, db
from app.accounts import (
    attributes,
    directory,
    groups,
    names,
    roles,
    sign_in_settings,
    sso_settings,
    tenants,
)
from app.accounts.directory import Settings
from app.accounts.models import Account, Group, Role
from app.accounts.names import Name
from app.accounts.plans import service as plans
from app.accounts.plans import stored as stored_plans
from app.accounts.product import mail_templates
from app.accounts.product import settings as product
from app.accounts.product.mail_kinds import KINDS
from app.accounts.product.mail_templates import Template
from app.accounts.product.models import AccountBrand, MailTemplate
from app.accounts.product.settings import Face, Product
from app.auth import account_settings
from app.auth.principal import Principal
from app.collections import attribute_definitions
from app.db.types import json_equal
from app.errors import Forbidden, InvalidValues, NotFound, problem
from app.manifest.document import Path
from app.manifest.kind import Key, Kind
from app.outbound.header_values import MASK
from app.rules.named import GROUP, ROLE
from app.rules.nodes import PLAN
from app.sso import service as sso
from app.sso import validation
from app.sso.models import ProviderSetting
from app.types import JSONMapping, JSONObject
from app.webhooks import headers
from app.webhooks import service as webhooks
from app.webhooks.models import Webhook
from app.workflows import hooks
from app.workflows import service as workflows
from app.workflows.language import step_headers
from app.workflows.models import HOOK, WORKFLOW, Workflow


class Roles(Kind):
    """Roles, which all accounts share."""

    name, section, model = "role", "roles", Role
    properties = ("name", "description", "console")

    def create(self, body: JSONMapping, *, by: Principal) -> None:
        console = body.get("console", False)
        roles.create(body["name"], body.get("description"), console=console)

    def follow_ups(self, row: Role, body: JSONMapping) -> list[JSONObject]:
        """Return the rules and mappings of all accounts that follow a new name."""
        return _follow_ups(Name(ROLE, row.name), body["name"]) if "name" in body else []

    def change(self, row: Role, body: JSONMapping, *, by: Principal) -> None:
        roles.change(row.id, body)

    def remove(self, row: Role, *, by: Principal) -> None:
        roles.delete(row.id)


class Groups(Kind):
    name, section, model = "group", "groups", Group
    properties = ("name", "description")

    def create(self, body: JSONMapping, *, by: Principal) -> None:
        """Create a group without members."""
        groups.create(by.require_account_id(), body["name"], body.get("description"))

    def follow_ups(self, row: Group, body: JSONMapping) -> list[JSONObject]:
        """Return the rules and mappings of the account that follow a new name."""
        name = Name(GROUP, row.name, row.account_id, row.id)
        return _follow_ups(name, body["name"]) if "name" in body else []

    def change(self, row: Group, body: JSONMapping, *, by: Principal) -> None:
        groups.change(row.account_id, row.id, body, shows_rules=True)

    def remove(self, row: Group, *, by: Principal) -> None:
        groups.delete(row.account_id, row.id, shows_rules=True)


class Webhooks(Kind):
    """Webhooks; the signing secret of a new one is shown once."""

    name, section, model = "webhook", "webhooks", Webhook
    identity, required = ("collection", "url"), ("events",)
    properties = (*identity, "events", "filter", "headers", "enabled", "include_pii")
    hidden = frozenset({"headers", "secret"})

    def rows(self, account_ids: Sequence[str] | None = None) -> list[Webhook]:
        """Return those of accounts, not the operator's."""
        return [row for row in super().rows(account_ids) if row.types is None]

    def export(self, row: Webhook) -> JSONObject:
        """Return the webhook with masked headers."""
        return super().export(row) | {"headers": headers.masked(row.headers)}

    def changed(self, row: Webhook, body: JSONMapping, by: Principal) -> list[str]:
        """Compares secrets and headers in clear text; `***` is the stored value."""
        plain = {name: value for name, value in body.items() if name not in self.hidden}
        different = super().changed(row, plain, by)
        webhooks.check({name: body[name] for name in different})
        if "headers" in body:
            stored, sent = headers.decrypted(row.headers), body["headers"]
            if sent is not None:
                sent = {name: stored.get(name) if v == MASK else v for name, v in sent.items()}
            if sent != (None if row.headers is None else stored):
                different.append("headers")
        if body.get("secret"):
            secret = None
            with suppress(InvalidToken):  # its key was removed from the settings
                secret = crypto.decrypt(row.secret)
            if secret != body["secret"]:
                different.append("secret")
        return different

    def check(self, body: JSONMapping, by: Principal) -> None:
        """Look the address up, too."""
        super().check(body, by)
        webhooks.check(body)

    def create(self, body: JSONMapping, *, by: Principal) -> JSONObject:
        made = webhooks.create(body, by=by)
        return {"secret": made.secret, "signing_secret": made.signing_secret}

    def change(self, row: Webhook, body: JSONMapping, *, by: Principal) -> None:
        webhooks.change(row.id, body, by=by)

    def remove(self, row: Webhook, *, by: Principal) -> None:
        webhooks.delete(row.id, by=by)


class Workflows(Kind):
    """Workflows; the caller becomes the owner of changed steps."""

    name, section, model = "workflow", "workflows", Workflow
    required = ("trigger",)
    properties: ClassVar[Sequence[str]] = ("name", "description", "enabled", "trigger", "steps")
    hidden = frozenset({"steps"})
    stored_kind: ClassVar[str] = WORKFLOW

    def rows(self, account_ids: Sequence[str] | None = None) -> list[Workflow]:
        """Return the workflows or hooks of some accounts."""
        return [row for row in super().rows(account_ids) if row.kind == self.stored_kind]

    def export(self, row: Workflow) -> JSONObject:
        """Return the workflow with masked headers."""
        return super().export(row) | {"steps": step_headers.masked(row.steps)}

    def changed(self, row: Workflow, body: JSONMapping, by: Principal) -> list[str]:
        """Compares what saving would store."""
        saved = workflows.preview(body, row, by=by)
        different = super().changed(saved, {n: getattr(row, n) for n in body if n != "steps"}, by)
        return [*different, *(["steps"] if "steps" in body and not _same_steps(saved, row) else [])]

    def check(self, body: JSONMapping, by: Principal) -> None:
        """Look the addresses up, too."""
        super().check(body, by)
        workflows.preview(body, None, by=by)

    def create(self, body: JSONMapping, *, by: Principal) -> None:
        workflows.create({"steps": [], **body}, by=by)

    def change(self, row: Workflow, body: JSONMapping, *, by: Principal) -> None:
        workflows.change(row.id, body, by=by)

    def remove(self, row: Workflow, *, by: Principal) -> None:
        """Delete a workflow or hook."""
        workflows.delete(row.id, by=by, kind=self.stored_kind)


class Hooks(Workflows):
    name, section, stored_kind = "hook", "hooks", HOOK
    properties = ("name", "description", "enabled", "trigger", "condition", "actions")
    hidden = frozenset({"actions"})

    def export(self, row: Workflow) -> JSONObject:
        """Return the hook with masked headers."""
        plain = {name: getattr(row, name) for name in self.properties if name != "actions"}
        return plain | {"actions": hooks.list_actions(row)}

    def changed(self, row: Workflow, body: JSONMapping, by: Principal) -> list[str]:
        """Compares what saving would store."""
        saved = hooks.preview(body, row, by=by)
        plain = {name: getattr(row, name) for name in body if name != "actions"}
        different = Kind.changed(self, saved, plain, by)
        return different if different or _same_steps(saved, row) else ["actions"]

    def check(self, body: JSONMapping, by: Principal) -> None:
        """Look the addresses up, too."""
        Kind.check(self, body, by)
        hooks.preview(body, None, by=by)

    def create(self, body: JSONMapping, *, by: Principal) -> None:
        hooks.create({"actions": [], **body}, by=by)

    def change(self, row: Workflow, body: JSONMapping, *, by: Principal) -> None:
        hooks.change(row.id, body, by=by)


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


class Single(Kind):
    """A kind of which the instance has one item, always."""

    is_single, identity = True, ()
    path: tuple[str, ...]
    """The names that lead to the item in a manifest."""

    def entries(self, section: Any) -> Iterator[tuple[Path, JSONMapping]]:
        """The section is the item."""
        yield (), section

    def section_of(self, items: Sequence[JSONMapping]) -> JSONMapping:
        return items[0]

    def create(self, body: JSONMapping, *, by: Principal) -> None:
        raise NotImplementedError

    def remove(self, row: object, *, by: Principal) -> None:
        raise NotImplementedError


class Attributes(Single):
    """The attributes of users, or of accounts."""

    name, properties = "attributes", ("fields",)

    def __init__(self, of: attributes.Kind) -> None:
        self.of, self.path = of, ("attributes", of.value)
        self.section = of.value  # type: ignore[misc]

    def rows(self, account_ids: Sequence[str] | None = None) -> list[attributes.Attributes]:
        """Return the schema as the only row."""
        return [attributes.load(self.of)]

    def export(self, row: attributes.Attributes) -> JSONObject:
        """Return the attributes without the properties that have their defaults."""
        return {"fields": attribute_definitions.compact(row)}

    def changed(self, row: attributes.Attributes, body: JSONMapping, by: Principal) -> list[str]:
        """Return all properties if anything changes. Raises InvalidValues."""
        plan = attribute_definitions.plan(self.of, body)
        if plan.problems:
            raise InvalidValues(plan.problems)
        return list(body) if plan.operations else []

    def changes(self, row: attributes.Attributes, body: JSONMapping) -> list[JSONObject]:
        return attribute_definitions.plan(self.of, body).operations

    def follow_ups(self, row: attributes.Attributes, body: JSONMapping) -> list[JSONObject]:
        """Return the expressions and settings that follow new names."""
        renamed = attribute_definitions.plan(self.of, body).renamed
        mention = attribute_definitions.MENTIONS[self.of]
        pairs = ((Name(mention, former), new) for former, new in renamed.items())
        return [change for name, new in pairs for change in _follow_ups(name, new)]

    def undone(self, row: attributes.Attributes, body: JSONMapping) -> JSONObject:
        """Return the former definitions; the values of removed attributes stay lost."""
        plan = attribute_definitions.plan(self.of, body)
        former = {old: {"rename_from": new} for old, new in plan.renamed.items()}
        added = [one["field"] for one in plan.operations if one["operation"] == "add_field"]
        fields = [{**one, **former.get(one["name"], {})} for one in row.definitions]
        return {"fields": fields, **({"remove_fields": added} if added else {})}

    def change(self, row: attributes.Attributes, body: JSONMapping, *, by: Principal) -> None:
        """Change the schema; the manifest's plan is the one of removals."""
        plan_hash = attribute_definitions.plan(self.of, body).plan_hash
        attribute_definitions.change(self.of, body, plan_hash=plan_hash)


class Directory(Single):
    """The settings of the directory, which the instance has once."""

    name = section = "directory"
    properties, path = ("rule", "fields"), ("directory",)

    def rows(self, account_ids: Sequence[str] | None = None) -> list[Settings]:
        """Return the settings as the only row."""
        return [directory.current()]

    def export(self, row: Settings) -> JSONObject:
        return {"rule": row.rule, "fields": list(row.fields)}

    def changed(self, row: Settings, body: JSONMapping, by: Principal) -> list[str]:
        """Return the properties that differ. Raises InvalidValues."""
        directory.check(body, row.rule, row.fields)
        return [name for name, value in self.export(row).items() if body.get(name, value) != value]

    def change(self, row: Settings, body: JSONMapping, *, by: Principal) -> None:
        directory.change(body)


class ProductSettings(Single):
    """What the product is called, looks like, and where its pages are."""

    name = section = "product"
    properties = tuple(field.name for field in fields(Product))
    path = ("product",)

    def rows(self, account_ids: Sequence[str] | None = None) -> list[Product]:
        """Return the settings as the only row."""
        return [product.load()]

    def export(self, row: Product) -> JSONObject:
        """Return what is set."""
        return {name: value for name, value in asdict(row).items() if value}

    def changed(self, row: Product, body: JSONMapping, by: Principal) -> list[str]:
        """Return the properties that differ. Raises InvalidValues."""
        product.check(body)
        stored = self.export(row)
        merged = product.merged(stored, body)
        return [name for name in body if (merged.get(name) or None) != stored.get(name)]

    def undone(self, row: Product, body: JSONMapping) -> JSONObject:
        """Return what was set before."""
        stored = self.export(row)
        former = {name: stored.get(name) for name in body}
        if "links" in body:
            former["links"] = {kind: row.links.get(kind) for kind in body["links"]}
        if "accounts_may_brand" in body:
            former["accounts_may_brand"] = row.accounts_may_brand
        return former

    def change(self, row: Product, body: JSONMapping, *, by: Principal) -> None:
        if product.changes_links(body):
            by.require_recent_sign_in()
        product.change(body)


class MailTemplates(Single):
    """The texts of mails that the instance has changed, by kind and language."""

    name, section, path = "mail_templates", "mail_templates", ("mail_templates",)
    properties = tuple(KINDS)

    def rows(self, account_ids: Sequence[str] | None = None) -> list[JSONObject]:
        """Return the texts as the only row."""
        return [mail_templates.instance_templates()]

    def export(self, row: JSONObject) -> JSONObject:
        return {kind: {n: compact(one) for n, one in texts.items()} for kind, texts in row.items()}

    def changed(self, row: JSONObject, body: JSONMapping, by: Principal) -> list[str]:
        """Return the kinds whose texts differ. Raises InvalidValues."""
        merged = mail_templates.merged(row, mail_templates.checked_instance(body))
        return [kind for kind in body if merged.get(kind) != row.get(kind)]

    def undone(self, row: JSONObject, body: JSONMapping) -> JSONObject:
        """Return the former texts; null for built-in ones."""
        before = self.export(row)
        return {
            kind: {language: before.get(kind, {}).get(language) for language in texts}
            for kind, texts in body.items()
        }

    def change(self, row: JSONObject, body: JSONMapping, *, by: Principal) -> None:
        mail_templates.change_instance(body)


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
        return place | compact(asdict(mail_templates.template_of(row)))

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


@dataclass(frozen=True)
class _Stored:
    """What an account has set."""

    account_id: str
    values: JSONObject


class OfAccount(Single):
    """Values that an account has once; its section has those that are set."""

    def export(self, row: _Stored) -> JSONObject:
        return row.values

    def undone(self, row: _Stored, body: JSONMapping) -> JSONObject:
        """Return what was set before."""
        return {name: row.values.get(name) for name in body}


class AccountSettings(OfAccount):
    """The settings that admins of an account change, but for its name and attributes."""

    name = section = "settings"
    properties = (*tenants.OWN_SETTINGS, *sso_settings.NAMES, *sign_in_settings.NAMES)

    def rows(self, account_ids: Sequence[str] | None = None) -> list[_Stored]:
        """Return the settings of some accounts, or of all."""
        query = sa.select(Account.id, Account.settings).order_by(Account.id)
        if account_ids is not None:
            query = query.where(Account.id.in_(account_ids))
        found = []
        for id, settings in db.db.session.execute(query):
            set_ = {name: settings[name] for name in self.properties if name in settings}
            values = {name: value for name, value in set_.items() if not _is_default(name, value)}
            found.append(_Stored(id, values))
        return found

    def changed(self, row: _Stored, body: JSONMapping, by: Principal) -> list[str]:
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

    def undone(self, row: _Stored, body: JSONMapping) -> JSONObject:
        """Return what was set before; where nothing was, the default."""
        empty = {**EMPTY_SETTINGS, **sign_in_settings.DEFAULTS}
        return {name: row.values.get(name, empty.get(name)) for name in body}

    def change(self, row: _Stored, body: JSONMapping, *, by: Principal) -> None:
        account_settings.change(row.account_id, body, by=by)


NAMING_ROLES = ("mfa_roles", "sso_group_roles")
EMPTY_SETTINGS: JSONMapping = {
    **dict.fromkeys(("allowed_redirect_uris", "cors_origins", "frame_ancestors"), ()),
    **dict.fromkeys(("sso_email_domains", "sso_group_roles", "mfa_roles"), ()),
    **dict.fromkeys(("sso_allow_admin", "sso_tokens_in_fragment", "magic_link"), False),
    "mfa_grace_days": 0,
}
"""The values of settings that nobody has set, where these are not null."""


def _is_default(name: str, value: object) -> bool:
    return (value or None) == (sign_in_settings.DEFAULTS.get(name) or None)


class Brand(OfAccount):
    """The name, logo, colour and links of an account's own."""

    name = section = "brand"
    properties = tuple(field.name for field in fields(Face))

    def rows(self, account_ids: Sequence[str] | None = None) -> list[_Stored]:
        """Return the brands of some accounts, or all that there are."""
        query = sa.select(AccountBrand).order_by(AccountBrand.account_id)
        if account_ids is not None:
            query = query.where(AccountBrand.account_id.in_(account_ids))
        found = {
            row.account_id: {n: getattr(row, n) for n in self.properties if getattr(row, n)}
            for row in db.db.session.scalars(query)
        }
        return [_Stored(id, found.get(id, {})) for id in account_ids or found]

    def changed(self, row: _Stored, body: JSONMapping, by: Principal) -> list[str]:
        """Return the properties that differ."""
        merged = product.merged(row.values, body)
        return [name for name in body if (merged.get(name) or None) != row.values.get(name)]

    def undone(self, row: _Stored, body: JSONMapping) -> JSONObject:
        """Return what was set before."""
        former = super().undone(row, body)
        if "links" in body:
            links = row.values.get("links", {})
            former["links"] = {kind: links.get(kind) for kind in body["links"]}
        return former

    def change(self, row: _Stored, body: JSONMapping, *, by: Principal) -> None:
        by.require_recent_sign_in()
        product.change_brand(row.account_id, body)


def compact(values: JSONMapping) -> JSONObject:
    """Return the values that are none of null."""
    return {name: value for name, value in values.items() if value is not None}


class Plans(Single):
    """The plans of accounts, by name."""

    name = section = "plans"
    properties, path = (), ("plans",)

    def rows(self, account_ids: Sequence[str] | None = None) -> list[stored_plans.Plans]:
        """Return all plans as the only row."""
        return [stored_plans.load()]

    def export(self, row: stored_plans.Plans) -> JSONObject:
        return {name: plan.body for name, plan in row.items()}

    def changed(self, row: stored_plans.Plans, body: JSONMapping, by: Principal) -> list[str]:
        """Return the names of the plans that differ. Raises InvalidValues."""
        compared = plans.compare(body, row, whole=False)
        if compared.problems:
            raise InvalidValues(compared.problems)
        return [name for name in body if name in (*compared.changed, *compared.removed)]

    def changes(self, row: stored_plans.Plans, body: JSONMapping) -> list[JSONObject]:
        """Return how each plan changes."""
        before, after = self.export(row), plans.compare(body, row, whole=False).after
        return [
            {"operation": "change_property", "field": None, "property": name}
            | {"before": before.get(item.get("rename_from") or name)}
            | {"after": after[name].body if name in after else None}
            for name, item in body.items()
        ]

    def undone(self, row: stored_plans.Plans, body: JSONMapping) -> JSONObject:
        """Return the former plans."""
        before, renamed = self.export(row), plans.compare(body, row, whole=False).renamed
        former = {old: {**before[old], "rename_from": new} for old, new in renamed.items()}
        others = [name for name in body if name not in renamed.values()]
        return former | {name: before.get(name, {"removed": True}) for name in others}

    def follow_ups(self, row: stored_plans.Plans, body: JSONMapping) -> list[JSONObject]:
        """Return what follows new names."""
        renamed = plans.compare(body, row, whole=False).renamed
        return [one for old, new in renamed.items() for one in _follow_ups(Name(PLAN, old), new)]

    def change(self, row: stored_plans.Plans, body: JSONMapping, *, by: Principal) -> None:
        plans.change(body)


ROLES = Roles()
SINGLES: Sequence[Single] = (
    *map(Attributes, attributes.Kind),
    Directory(),
    ProductSettings(),
    Plans(),
    MailTemplates(),
)
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


def _follow_ups(name: Name, new: str) -> list[JSONObject]:
    """Return the changes that a rename brings along, as a plan shows them."""
    changes: list[JSONObject] = []
    for use in names.uses(name):
        operation = "change_rule" if use.account_id is None else "change_name"
        for place, text in (use.after(name, new) or {}).items():
            change = {"operation": operation, "field": use.owner, "property": place}
            changes.append(change | {"before": use.texts[place], "after": text})
    return changes


def _same_steps(one: Workflow, other: Workflow) -> bool:
    comparable = step_headers.comparable
    return json_equal(comparable(one.steps), comparable(other.steps))
