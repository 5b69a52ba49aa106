"""`/account-templates`: what new accounts have from the start."""

from __future__ import annotations

from typing import Any

import marshmallow as ma

from app import web
from app.auth.guard import principal
from app.manifest import templates, upgrades
from app.types import JSONObject
from app.web import fields
from app.web.access import superadmin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.schemas import Schema, View, example

MAX_SLUGS = 1000

blueprint = Blueprint(
    "Account templates",
    __name__,
    url_prefix=f"{web.PREFIX}/account-templates",
    description="What new accounts have from the start. For superadmins.",
)


@example(
    name="default",
    version=2,
    accounts=40,
    behind=3,
    template={"version": 2, "groups": [{"name": "agents"}]},
)
class TemplateView(View):
    """A template, and who has it."""

    name = ma.fields.String()
    version = ma.fields.Integer()
    accounts = ma.fields.Integer(**doc("How many accounts it has filled."))
    behind = ma.fields.Integer(**doc("How many of these have an earlier version."))
    template = ma.fields.Dict(**doc("As in a manifest."))


class TemplateList(View):
    items = ma.fields.List(ma.fields.Nested(TemplateView))


@blueprint.route("", methods=["GET"])
@blueprint.response(200, TemplateList)
@superadmin(operator="accounts")
def list_account_templates() -> JSONObject:
    """List account templates.

    Ordered by name. A manifest defines them (`account_templates`).
    """
    return {"items": templates.versions()}


class Accounts(ma.fields.Field[Any]):
    """`"all"`, or a list of slugs."""

    def _deserialize(self, value: object, *args: object, **options: object) -> object:
        is_list = isinstance(value, list) and all(isinstance(slug, str) for slug in value)
        if value != upgrades.ALL and not (is_list and 0 < len(value) <= MAX_SLUGS):  # type: ignore[arg-type]
            raise ma.ValidationError(f'Must be "all", or up to {MAX_SLUGS} slugs.')
        return value


class UpgradeBody(Schema):
    """The accounts to bring up, and whether what they have changed is overwritten."""

    accounts = Accounts(
        required=True,
        metadata={
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "`all` that the template has filled, or slugs of any.",
        },
    )
    force = fields.StrictBoolean(
        load_default=False, **doc("Whether to overwrite what was changed by hand.")
    )


class UpgradeToApply(UpgradeBody):
    plan_hash = fields.Text(longest=100, required=True, **doc("Of the plan of the same body."))


class UpgradePlan(View):
    """What an upgrade does to the first accounts."""

    plan_hash = ma.fields.String()
    version = ma.fields.Integer()
    items = ma.fields.List(
        ma.fields.Dict(),
        **doc("`account`, `from_version`, `changes`, and `kept`: what was changed by hand."),
    )
    has_more = ma.fields.Boolean(**doc("Whether there are more than the 100 accounts here."))


class UpgradeStarted(View):
    version = ma.fields.Integer(**doc("`behind` of `GET /account-templates` tells the progress."))


EXAMPLE = {"accounts": "all", "force": False}
CHANGE = {"place": "groups.agents", "action": "update", "properties": ["description"]}


@blueprint.route("/<template_name>/plan", methods=["POST"])
@blueprint.arguments(UpgradeBody, example=EXAMPLE)
@blueprint.response(
    200,
    UpgradePlan,
    example={
        "plan_hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "version": 2,
        "items": [{"account": "acme", "from_version": 1, "changes": [CHANGE], "kept": []}],
        "has_more": False,
    },
)
@blueprint.fails(409)
@superadmin(reads=True)
def plan_account_template(body: JSONObject, template_name: str) -> JSONObject:
    """Plan to bring accounts to the version of a template.

    An account that already has it is left out. Changes nothing.
    """
    return upgrades.plan(template_name, body["accounts"], force=body["force"], by=principal())


@blueprint.route("/<template_name>/apply", methods=["POST"])
@blueprint.arguments(UpgradeToApply, example=EXAMPLE | {"plan_hash": "9f86d081884c7d65"})
@blueprint.response(202, UpgradeStarted)
@blueprint.fails(409)
@superadmin
def apply_account_template(body: JSONObject, template_name: str) -> JSONObject:
    """Bring accounts to the version of a template, in a job.

    What an account has changed by hand stays unless `force` is true; an account is brought up as a
    whole or, where something stands against it, not at all. If the template or the body differs
    from that of the plan, it is a 409 `plan_stale`.
    """
    accounts, plan_hash = body["accounts"], body["plan_hash"]
    return upgrades.start(template_name, accounts, plan_hash, force=body["force"], by=principal())
