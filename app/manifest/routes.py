"""`/manifest`: definitions as a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import marshmallow as ma

from app import web
from app.auth.guard import principal
from app.auth.key_scopes import ScopeDenied
from app.collections.schemas import SCHEMA
from app.errors import InvalidValues, problem
from app.manifest import document, export, service
from app.manifest.document import Document
from app.manifest.export import VERSION
from app.types import JSONObject
from app.web import fields
from app.web.access import superadmin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.schemas import Problem, Schema, View

blueprint = Blueprint(
    "Manifest",
    __name__,
    url_prefix=f"{web.PREFIX}/manifest",
    description="Definitions of an instance and of its accounts as a file. For superadmins.",
)

EXAMPLE_TEXT = {"subject": "Join {{ account.name }}", "text": "Join us:\n\n{{ link }}"}
MANIFEST = {
    "version": VERSION,
    "roles": [{"name": "auditor", "description": "Reads all."}],
    "directory": {"rule": "true", "fields": ["name"]},
    "product": {"name": "Helpdesk", "url": "https://www.example.com"},
    "mail_templates": {"invitation": {"en": EXAMPLE_TEXT}},
    "attributes": {"users": {"fields": [{"name": "department", "type": "text"}]}},
    "plans": {"pro": {"quotas": {"records": {"hard": 100_000}}, "flags": ["sla"]}},
    "account_templates": {"default": {"version": 1, "groups": [{"name": "agents"}]}},
    "operator_webhooks": {
        "billing": {"url": "https://billing.example.com/atrium", "types": ["account.*"]}
    },
    "fragments": {"staff": "@has_any_role([admin, editor])"},
    "collections": [
        {
            "name": "posts",
            "schema": SCHEMA,
            "rules": {"list_rule": "true"},
            "tests": [{"operation": "list", "as": "viewer", "expect": "allow"}],
        }
    ],
    "accounts": {"acme": {"groups": [{"name": "finance", "description": None}]}},
}
YAML = "version: 1\nroles:\n- name: auditor\n  description: Reads all.\n"
OPERATION: JSONObject = {
    "kind": "role",
    "account": None,
    "name": "auditor",
    "action": "create",
    "changes": [],
    "line": 3,
}
HASH = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
OPERATOR_PARTS = {"version", "collections", "fragments", "attributes"}
REVERSE = {"version": VERSION, "roles": [{"name": "auditor", "removed": True}]}


class ExportArgs(Schema):
    accounts = fields.Text(
        longest=40_000,
        **doc("Comma-separated slugs; absent means all active accounts, empty none."),
    )


class ManifestView(View):
    """Definitions of an instance and of its accounts."""

    version = ma.fields.Integer()
    roles = ma.fields.List(ma.fields.Dict())
    directory = ma.fields.Dict()
    product = ma.fields.Dict()
    mail_templates = ma.fields.Dict(**doc("Changed texts by kind and language."))
    attributes = ma.fields.Dict()
    plans = ma.fields.Dict(**doc("By name."))
    account_templates = ma.fields.Dict(**doc("By name."))
    operator_webhooks = ma.fields.Dict(**doc("By key, without secrets."))
    fragments = ma.fields.Dict(**doc("Fragments of rules by name."))
    collections = ma.fields.List(ma.fields.Dict())
    accounts = ma.fields.Dict(**doc("By slug."))


class ManifestBody(Schema):
    """A manifest, as an object or as text."""

    manifest = ma.fields.Dict(keys=ma.fields.String())
    yaml = fields.Text(
        longest=document.MAX_BYTES, **doc("The manifest as YAML or JSON: problems then have lines.")
    )


class ManifestToPlan(ManifestBody):
    strict = fields.StrictBoolean(
        load_default=False, **doc("Whether to list what exists and is not in the manifest.")
    )


class ManifestToApply(ManifestBody):
    plan_hash = fields.Text(longest=100, required=True, **doc("Of the plan of this manifest."))


class ManifestOperation(View):
    """An item that is created, changed or removed."""

    kind = ma.fields.String(
        **doc(
            "collection, fragment, role, directory, product, plans, account_templates, attributes,"
            " operator_webhooks, mail_templates, settings, brand, group, webhook, workflow, hook,"
            " provider or"
            " mail_template."
        )
    )
    account = ma.fields.String(allow_none=True, **doc("The account's slug."))
    name = ma.fields.String()
    action = ma.fields.String(**doc("create, update or remove."))
    changes = ma.fields.List(
        ma.fields.Dict(),
        **doc(
            "As the operations of a collection's plan; what may hold secrets comes without values."
        ),
    )
    line = ma.fields.Integer(allow_none=True)


class LostData(View):
    """A field or collection that is removed with its values."""

    collection = ma.fields.String()
    field = ma.fields.String(allow_none=True, **doc("Null for the whole collection."))
    count = ma.fields.Integer(**doc("Records with a value."))


class AccessChange(View):
    """The numbers of records that open and close to a role."""

    collection = ma.fields.String()
    role = ma.fields.String()
    operation = ma.fields.String()
    gained = ma.fields.Integer(**doc("Counted up to 10,001."))
    lost = ma.fields.Integer(**doc("Counted up to 10,001."))


class RuleTestOutcome(View):
    collection = ma.fields.String()
    operation = ma.fields.String()
    name = ma.fields.String(allow_none=True)
    expected = ma.fields.String(**doc("allow or deny."))
    actual = ma.fields.String()
    passed = ma.fields.Boolean()
    place = ma.fields.String(**doc("Where the test stands: `collections.posts.tests[0]`."))
    line = ma.fields.Integer(allow_none=True)


class Unlisted(View):
    """Something that exists and that the manifest does not name."""

    kind = ma.fields.String(
        **doc(
            "role, fragment, collection, field, index, rule, option, tests, attribute, directory,"
            " product, plan, account_template, mail_template, settings, brand, group, webhook,"
            " workflow, hook or provider."
        )
    )
    account = ma.fields.String(allow_none=True, **doc("The account's slug."))
    name = ma.fields.String(**doc("Such as `tickets.domain` of a field."))


class ManifestPlan(View):
    """The effects that applying a manifest would have."""

    has_changes = ma.fields.Boolean()
    operations = ma.fields.List(ma.fields.Nested(ManifestOperation))
    sql = ma.fields.List(ma.fields.String())
    data_lost = ma.fields.List(ma.fields.Nested(LostData))
    access = ma.fields.List(ma.fields.Nested(AccessChange))
    tests = ma.fields.List(ma.fields.Nested(RuleTestOutcome))
    problems = ma.fields.List(ma.fields.Nested(Problem))
    warnings = ma.fields.List(ma.fields.Nested(Problem))
    drift = ma.fields.List(
        ma.fields.Nested(Unlisted),
        allow_none=True,
        **doc("What exists and is not in the manifest; null unless `strict` is true."),
    )
    plan_hash = ma.fields.String()
    reverse = ma.fields.Dict(**doc("A manifest that undoes this one."))


class NewSecret(View):
    """The signing secret of a new webhook, which is shown only once."""

    account = ma.fields.String()
    kind = ma.fields.String()
    name = ma.fields.String()
    secret = ma.fields.String()
    signing_secret = ma.fields.String()


class AppliedManifest(View):
    """The changes that were made."""

    applied = ma.fields.Boolean(**doc("False if nothing differed."))
    operations = ma.fields.List(ma.fields.Nested(ManifestOperation))
    migrations_created = ma.fields.List(ma.fields.String())
    secrets = ma.fields.List(ma.fields.Nested(NewSecret))
    reverse = ma.fields.Dict()


@blueprint.route("/export", methods=["GET"])
@blueprint.arguments(ExportArgs, location="query")
@blueprint.response(200, ManifestView, example=MANIFEST)
@superadmin
def export_manifest(args: JSONObject) -> JSONObject:
    """Export roles, collections, and the definitions of accounts.

    Groups without members, webhooks, workflows, hooks and provider settings; secrets are `***`.
    Planned on the same instance, an export has no changes.
    """
    slugs = args.get("accounts")
    names = (slug.strip() for slug in (slugs or "").split(","))
    return export.manifest(None if slugs is None else [name for name in names if name])


@blueprint.route("/plan", methods=["POST"])
@blueprint.arguments(ManifestToPlan, example={"yaml": YAML, "strict": False})
@blueprint.response(
    200,
    ManifestPlan,
    example={
        "has_changes": True,
        "operations": [OPERATION],
        "sql": [],
        "data_lost": [],
        "access": [],
        "tests": [],
        "problems": [],
        "warnings": [],
        "drift": None,
        "plan_hash": HASH,
        "reverse": REVERSE,
    },
)
@blueprint.fails(409)
@superadmin(reads=True, operator="definitions")
def plan_manifest(body: JSONObject) -> JSONObject:
    """Plan a manifest without applying it.

    Returns what differs from the instance, the SQL, values that would be lost, how many records
    rules open or close for each role, the results of the manifest's rule tests, and all problems.
    A manifest of another shape is a 400 with all places.

    What the manifest leaves out stays as it is. `removed: true` removes an item, `remove_fields`
    fields, and `rename_from` renames. With `strict`, `drift` lists what the manifest leaves out: of
    the instance, and of the accounts that it names.
    """
    return service.plan(_document(body), strict=body["strict"], by=principal())


@blueprint.route("/apply", methods=["POST"])
@blueprint.arguments(ManifestToApply, example={"yaml": YAML, "plan_hash": HASH})
@blueprint.response(
    200,
    AppliedManifest,
    example={
        "applied": True,
        "operations": [OPERATION],
        "migrations_created": [],
        "secrets": [],
        "reverse": REVERSE,
    },
)
@blueprint.fails(409)
@superadmin(shows_secret=lambda answer: bool(answer["secrets"]), operator="definitions")
def apply_manifest(body: JSONObject) -> JSONObject:
    """Apply a manifest in one transaction, all or nothing.

    It does what the plan of `plan_hash` says, or is a 409 `plan_stale`. Applied again, it does
    nothing. You become the owner of the webhooks, and of the steps of workflows and hooks, that it
    creates or changes. Provider settings and the links of the product need a recent sign-in
    (403 `recent_sign_in_required`). Operator keys may send collections, fragments and attributes.
    """
    return service.apply(_document(body), body["plan_hash"], by=principal())


def _document(body: Mapping[str, Any]) -> Document:
    if ("manifest" in body) == ("yaml" in body):
        raise InvalidValues([problem("manifest", "required", "Send `manifest` or `yaml`.")])
    sent = Document(body["manifest"]) if "manifest" in body else document.parse(body["yaml"])
    if principal().is_operator_key and (others := sent.content.keys() - OPERATOR_PARTS):
        raise ScopeDenied(f"Operator keys may not change {', '.join(sorted(map(str, others)))}.")
    return sent
