"""What an instance has once, and its roles, as items of manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields

from app.accounts import attributes, directory, roles
from app.accounts.directory import Settings
from app.accounts.models import Role
from app.accounts.names import Name
from app.accounts.plans import service as plans
from app.accounts.plans import stored as stored_plans
from app.accounts.product import mail_templates
from app.accounts.product import settings as product
from app.accounts.product.mail_kinds import KINDS
from app.accounts.product.settings import Product
from app.auth.principal import Principal
from app.collections import attribute_definitions
from app.errors import InvalidValues, problem
from app.manifest import templates
from app.manifest.kind import ByName, Kind, Single, renames
from app.manifest.templates import Templates
from app.operator import webhooks
from app.rules.named import ROLE
from app.rules.nodes import PLAN
from app.types import JSONMapping, JSONObject
from app.webhooks.models import Webhook

WebhooksByKey = Mapping[str, Webhook]
NEEDED = ("url", "types")
"""The properties that a new webhook of the operator needs."""


class Roles(Kind):
    """Roles, which all accounts share."""

    name, section, model = "role", "roles", Role
    properties = ("name", "description", "console")

    def create(self, body: JSONMapping, *, by: Principal) -> None:
        console = body.get("console", False)
        roles.create(body["name"], body.get("description"), console=console)

    def follow_ups(self, row: Role, body: JSONMapping) -> list[JSONObject]:
        """Return the rules and mappings of all accounts that follow a new name."""
        return renames(Name(ROLE, row.name), body["name"]) if "name" in body else []

    def change(self, row: Role, body: JSONMapping, *, by: Principal) -> None:
        roles.change(row.id, body)

    def remove(self, row: Role, *, by: Principal) -> None:
        roles.delete(row.id)


class Attributes(Single):
    """The attributes of users, or of accounts."""

    name, properties = "attributes", ("fields",)

    def __init__(self, of: attributes.Kind) -> None:
        self.of = of
        self.section = of.value  # type: ignore[misc]

    @property
    def path(self) -> tuple[str, ...]:
        return "attributes", self.section

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
        return [change for name, new in pairs for change in renames(name, new)]

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
    properties = ("rule", "fields")

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


class Plans(ByName):
    """The plans of accounts, by name."""

    name = section = "plans"

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

    def after(self, row: stored_plans.Plans, body: JSONMapping) -> JSONMapping:
        return self.export(plans.compare(body, row, whole=False).after)

    def undone(self, row: stored_plans.Plans, body: JSONMapping) -> JSONObject:
        """Return the former plans."""
        before, renamed = self.export(row), plans.compare(body, row, whole=False).renamed
        former = {old: {**before[old], "rename_from": new} for old, new in renamed.items()}
        others = [name for name in body if name not in renamed.values()]
        return former | {name: before.get(name, {"removed": True}) for name in others}

    def follow_ups(self, row: stored_plans.Plans, body: JSONMapping) -> list[JSONObject]:
        """Return what follows new names."""
        renamed = plans.compare(body, row, whole=False).renamed
        return [one for old, new in renamed.items() for one in renames(Name(PLAN, old), new)]

    def change(self, row: stored_plans.Plans, body: JSONMapping, *, by: Principal) -> None:
        plans.change(body)


class MailTemplates(Single):
    """The texts of mails that the instance has changed, by kind and language."""

    name = section = "mail_templates"
    properties = tuple(KINDS)

    def rows(self, account_ids: Sequence[str] | None = None) -> list[JSONObject]:
        """Return the texts as the only row."""
        return [mail_templates.instance_templates()]

    def export(self, row: JSONObject) -> JSONObject:
        return {
            kind: {n: mail_templates.compact(one) for n, one in texts.items()}
            for kind, texts in row.items()
        }

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


class AccountTemplates(ByName):
    """What new accounts have from the start, by the name of the template."""

    name = section = "account_templates"

    def rows(self, account_ids: Sequence[str] | None = None) -> list[Templates]:
        """Return all templates as the only row."""
        return [templates.load()]

    def export(self, row: Templates) -> JSONObject:
        return {name: templates.shown(one) for name, one in row.items()}

    def changed(self, row: Templates, body: JSONMapping, by: Principal) -> list[str]:
        """Return the names of the templates that differ. Raises InvalidValues."""
        after, problems = templates.compare(body, row)
        if problems:
            raise InvalidValues(problems)
        return [name for name in body if after.get(name) != row.get(name)]

    def after(self, row: Templates, body: JSONMapping) -> JSONMapping:
        return self.export(templates.compare(body, row)[0])

    def undone(self, row: Templates, body: JSONMapping) -> JSONObject:
        """Return the former templates, as later versions."""
        former = self.export(row)
        for name, given in body.items():
            if name not in row:
                former[name] = {"removed": True}
            elif not given.get("removed"):
                former[name] = {**former[name], "version": given.get("version", 0) + 1}
        return {name: former[name] for name in body}

    def change(self, row: Templates, body: JSONMapping, *, by: Principal) -> None:
        templates.change(body, by=by)


class OperatorWebhooks(ByName):
    """The operator's webhooks; those without a key go by their id. Secrets are no part of it."""

    name = section = "operator_webhooks"

    def rows(self, account_ids: Sequence[str] | None = None) -> list[WebhooksByKey]:
        """Return all webhooks as the only row."""
        return [{one.key or one.id: one for one in webhooks.all_()}]

    def export(self, row: WebhooksByKey) -> JSONObject:
        return {key: _shown(one) for key, one in row.items()}

    def changed(self, row: WebhooksByKey, body: JSONMapping, by: Principal) -> list[str]:
        """Return the keys of the webhooks that differ. Raises InvalidValues."""
        problems, found = list[JSONObject](), list[str]()
        for key, given in body.items():
            present = _shown(row[key]) if key in row else {}
            wanted = {**present, **given}
            if given.get("removed"):
                found += [key] if key in row else []
                continue
            problems += [
                problem(f"{key}.{name}", "required", "A new webhook needs this.")
                for name in NEEDED
                if name not in wanted
            ]
            problems += [
                {**one, "field": f"{key}.{one['field']}"}
                for one in webhooks.problems(given, present)
            ]
            if wanted != present:
                found.append(key)
        if problems:
            raise InvalidValues(problems)
        return found

    def after(self, row: WebhooksByKey, body: JSONMapping) -> JSONMapping:
        before = self.export(row)
        return {
            key: {**before.get(key, {}), **given}
            for key, given in body.items()
            if not given.get("removed")
        }

    def undone(self, row: WebhooksByKey, body: JSONMapping) -> JSONObject:
        """Return the former webhooks; one that was removed gets another secret."""
        before = self.export(row)
        return {key: before.get(key, {"removed": True}) for key in body}

    def change(self, row: WebhooksByKey, body: JSONMapping, *, by: Principal) -> None:
        for key, given in body.items():
            if given.get("removed"):
                webhooks.delete(row[key].id, by=by)
            elif key in row:
                webhooks.change(row[key].id, given, by=by)
            else:
                webhooks.create({**given, "key": key}, by=by)


def _shown(webhook: Webhook) -> JSONObject:
    shown: JSONObject = {"url": webhook.url, "types": webhook.types, "is_active": webhook.enabled}
    return {**shown, "collections": webhook.collections or []}


ROLES = Roles()
SINGLES: Sequence[Single] = (
    *map(Attributes, attributes.Kind),
    Directory(),
    ProductSettings(),
    Plans(),
    MailTemplates(),
    AccountTemplates(),
    OperatorWebhooks(),
)
