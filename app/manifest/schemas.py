"""The shape of a manifest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import marshmallow as ma

from app.accounts.attribute_routes import AttributesBody
from app.accounts.directory_routes import DirectoryBody
from app.accounts.models import ADMIN
from app.accounts.plans.schemas import PlanBody
from app.accounts.product.mail_schemas import MailTemplateBody
from app.accounts.product.schemas import FaceBody, ProductBody
from app.accounts.schemas import ChangedGroup, ChangedRole, OwnAccountBody
from app.collections.rule_schemas import (
    RulesOfNew,
    RuleSubject,
    expression_field,
    operation_field,
    records_field,
)
from app.collections.schemas import (
    ALL_INDEXES,
    KINDS,
    CollectionOptions,
    field_order_field,
    indexes_field,
    names_field,
    remove_fields_field,
    schema_field,
)
from app.errors import InvalidValues
from app.manifest.document import Document, Path
from app.operator.webhook_routes import ChangedOperatorWebhook
from app.sso.models import OAUTH, SAML
from app.sso.schemas import ChangedProviderRow
from app.types import JSONObject
from app.web import fields
from app.web.fields import doc
from app.web.schemas import Schema
from app.webhooks.routes import ChangedWebhook
from app.workflows.routes.hooks import ChangedHook
from app.workflows.routes.workflows import ChangedWorkflow

VERSION = 1
ALLOW, DENY = "allow", "deny"
ANONYMOUS = "anonymous"
MAX_ITEMS = 500  # a transaction holds a lock for each table and index
MAX_ACCOUNTS = 1000
MAPS = ("accounts", "plans", "account_templates", "operator_webhooks")


def _list_of(schema: type[Schema]) -> object:
    return ma.fields.List(ma.fields.Nested(schema), validate=ma.validate.Length(max=MAX_ITEMS))


def _removed() -> object:
    return fields.StrictBoolean(**doc("Whether to remove it."))


def _former_name() -> object:
    return fields.Text(longest=200, **doc("The present name of what gets this one."))


class Caller(ma.fields.Field[Any]):
    """The caller of a test: `anonymous`, a role, or properties of a caller."""

    def _deserialize(self, value: object, *args: object, **options: object) -> object:
        if value == ANONYMOUS:
            return RuleSubject().load({})
        if isinstance(value, str):
            value = {"role": value}
        if not isinstance(value, dict):
            raise ma.ValidationError("Must be `anonymous`, a role, or properties of a caller.")
        return RuleSubject().load({"id": "caller", **value})


class RuleTest(Schema):
    """A record, a caller, and whether the rule of an operation lets them in."""

    name = fields.Text(longest=200)
    operation = operation_field(required=True)
    given = ma.fields.Dict(keys=fields.Text(), load_default=dict)
    records = records_field(load_default=dict)
    old = ma.fields.Dict(
        keys=fields.Text(), **doc("The record before the change; absent, it was the same.")
    )
    as_ = Caller(data_key="as", attribute="as_", load_default=lambda: RuleSubject().load({}))
    expect = ma.fields.String(required=True, validate=ma.validate.OneOf([ALLOW, DENY]))


class ManifestCollection(Schema):
    """A collection; what is absent stays as it is."""

    name = fields.Text(longest=200, required=True)
    rename_from = _former_name()
    removed = _removed()
    schema = schema_field()
    remove_fields = remove_fields_field()
    field_order = field_order_field()
    indexes = indexes_field(ALL_INDEXES)
    rules = ma.fields.Nested(RulesOfNew, load_default=dict)
    options = ma.fields.Nested(CollectionOptions)
    tests = _list_of(RuleTest)
    type = fields.Choice(KINDS, **doc("`view` for one that reads another."))
    from_ = fields.Text(longest=200, data_key="from", attribute="from")
    fields_ = names_field(
        "Of a view: the fields that it shows.", data_key="fields", attribute="fields"
    )
    where = expression_field()
    group_by = names_field("Of a view: what the records of a row have in common.")
    aggregates = names_field("Of a view: `count()`, `sum(amount)` and the like.")


class NamedItem(Schema):
    name = fields.Text(shortest=1, longest=200, required=True)
    rename_from = _former_name()
    removed = _removed()


class ManifestGroup(NamedItem, ChangedGroup):
    name = fields.Text(shortest=1, longest=100, required=True)


class ManifestRole(NamedItem, ChangedRole):
    name = fields.Text(shortest=1, longest=100, required=True)


class ManifestWebhook(ChangedWebhook):
    """A webhook, found by its collection and URL."""

    collection = fields.Text(shortest=1, longest=100, required=True)
    url = fields.Text(shortest=1, longest=2048, required=True)
    removed = _removed()


class ManifestWorkflow(NamedItem, ChangedWorkflow):
    name = fields.Text(shortest=1, longest=200, required=True)


class ManifestHook(NamedItem, ChangedHook):
    name = fields.Text(shortest=1, longest=200, required=True)


class ManifestProvider(ChangedProviderRow):
    """The settings of an identity provider."""

    class Meta(Schema.Meta):
        """Leave out who may sign in with it: admins decide that, no file."""

        exclude = ("admits_pii_members",)

    category = ma.fields.String(required=True, validate=ma.validate.OneOf([OAUTH, SAML]))
    provider_name = fields.Text(longest=100, required=True)
    slug = fields.Text(longest=100)
    removed = _removed()


class ManifestAttributes(Schema):
    """Attributes of users and accounts; what is left out stays."""

    users = ma.fields.Nested(AttributesBody)
    accounts = ma.fields.Nested(AttributesBody)


def _mail_templates() -> object:
    texts = ma.fields.Dict(
        keys=fields.Text(longest=20), values=ma.fields.Nested(MailTemplateBody, allow_none=True)
    )
    return ma.fields.Dict(
        keys=fields.Text(longest=50),
        values=texts,
        **doc("Texts by kind and language; null returns to the one that there is without it."),
    )


def _settings() -> object:
    return ma.fields.Nested(OwnAccountBody(exclude=("name", "attributes")))


class AccountPart(Schema):
    settings = _settings()
    brand = ma.fields.Nested(FaceBody)
    groups = _list_of(ManifestGroup)
    webhooks = _list_of(ManifestWebhook)
    workflows = _list_of(ManifestWorkflow)
    hooks = _list_of(ManifestHook)
    providers = _list_of(ManifestProvider)
    mail_templates = _mail_templates()


class TemplateOwner(Schema):
    """A service user of the account, made if there is none of this name."""

    name = fields.Text(shortest=1, longest=100, required=True)
    role = fields.Text(shortest=1, longest=100, load_default=ADMIN, **doc("For a new one."))


class AccountTemplate(Schema):
    """What a new account has from the start, with `{{ account.slug }}` and the like in texts."""

    version = ma.fields.Integer(strict=True, validate=ma.validate.Range(1, 10**9))
    settings = _settings()
    brand = ma.fields.Nested(FaceBody)
    groups = _list_of(ManifestGroup)
    attributes = ma.fields.Dict(keys=fields.Text(longest=100))
    plan = fields.Text(longest=100, allow_none=True)
    workflows = _list_of(ManifestWorkflow)
    webhooks = _list_of(ManifestWebhook)
    providers = _list_of(ManifestProvider)
    owner = ma.fields.Nested(
        TemplateOwner, **doc("Of the workflows and webhooks; else who applied the template.")
    )
    records = ma.fields.Dict(
        keys=fields.Text(longest=100),
        values=ma.fields.List(ma.fields.Dict(keys=fields.Text())),
        **doc("The first records, by collection."),
    )
    removed = _removed()


class ManifestOperatorWebhook(ChangedOperatorWebhook):
    """A webhook of the operator, without its secret."""

    removed = _removed()


class Manifest(Schema):
    """Definitions of an instance and of its accounts; what is absent stays as it is."""

    version = ma.fields.Integer(
        required=True, strict=True, validate=ma.validate.OneOf([VERSION], error="Must be 1.")
    )
    roles = _list_of(ManifestRole)
    directory = ma.fields.Nested(DirectoryBody)
    product = ma.fields.Nested(ProductBody)
    mail_templates = _mail_templates()
    attributes = ma.fields.Nested(ManifestAttributes)
    plans = ma.fields.Dict(
        keys=fields.Text(longest=100), values=ma.fields.Nested(PlanBody), **doc("By name.")
    )
    account_templates = ma.fields.Dict(
        keys=fields.Text(longest=100), values=ma.fields.Nested(AccountTemplate), **doc("By name.")
    )
    operator_webhooks = ma.fields.Dict(
        keys=fields.Text(shortest=1, longest=100),
        values=ma.fields.Nested(ManifestOperatorWebhook),
        validate=ma.validate.Length(max=MAX_ITEMS),
        **doc("By key."),
    )
    collections = _list_of(ManifestCollection)
    fragments = ma.fields.Dict(
        keys=fields.Text(longest=100),
        values=fields.Text(longest=2**30, allow_none=True),
        **doc("Fragments of rules by name; null removes one."),
    )
    accounts = ma.fields.Dict(
        keys=fields.Text(longest=100),
        values=ma.fields.Nested(AccountPart),
        validate=ma.validate.Length(max=MAX_ACCOUNTS),
        **doc("By slug."),
    )


def load(document: Document) -> JSONObject:
    """The validated content of a manifest. Raises InvalidValues with all problems of its shape."""
    try:
        content: JSONObject = Manifest().load(document.content)
    except ma.ValidationError as error:
        found = sorted(_problems(error.messages, ()), key=lambda item: document.line(item[0]) or 0)
        raise InvalidValues(
            [document.problem(path, "manifest_invalid", message) for path, message in found]
        ) from None
    return content


def _problems(messages: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(messages, dict):
        for name, inner in messages.items():
            is_value = len(path) == 2 and path[0] in MAPS and name in ("key", "value")
            yield from _problems(inner, path if is_value or name == "_schema" else (*path, name))
    else:
        yield from ((path, message) for message in messages)
