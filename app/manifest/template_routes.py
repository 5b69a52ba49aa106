"""`/account-templates`: what new accounts have from the start."""

from __future__ import annotations

from typing import Any

import marshmallow as ma

from app import web
from app.accounts.types import Query
from app.auth.guard import principal
from app.manifest import templates, upgrades
from app.manifest.models import TemplateJob, TemplateJobState
from app.manifest.upgrades import Started
from app.types import JSONObject
from app.web import fields
from app.web.access import superadmin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import PageArgs, page_body, page_of
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


ACCOUNTS = {
    "anyOf": [
        {"type": "string", "enum": [upgrades.ALL]},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_SLUGS},
    ],
    "description": "`all` that the template has filled, or slugs of any.",
}


class UpgradeBody(Schema):
    """The accounts to bring up, and whether what they have changed is overwritten."""

    accounts = Accounts(
        required=True,
        metadata=ACCOUNTS,
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


@example(
    template="default",
    version=2,
    accounts="all",
    status=TemplateJobState.RUNNING,
    total=10_000,
    done=4_150,
    kept=12,
    failed=1,
    failures=[{"account": "acme", "message": "This name is taken.", "details": []}],
    error=None,
    finished_at=None,
)
class TemplateJobView(View):
    """A job that brings accounts up, and how far it is."""

    id = fields.Id()
    template = ma.fields.String()
    version = ma.fields.Integer(attribute="template_version")
    accounts = ma.fields.Raw(metadata=ACCOUNTS)
    force = ma.fields.Boolean()
    status = fields.Choice(
        TemplateJobState, **doc("`failed`: it has ended before it had seen all; `error` says why.")
    )
    total = ma.fields.Integer(**doc("The accounts that were behind when it was ordered."))
    done = ma.fields.Integer(**doc("Accounts that are brought up."))
    kept = ma.fields.Integer(**doc("Of these, those in which changes by hand stayed."))
    failed = ma.fields.Integer(**doc("Accounts against which something stood."))
    failures = ma.fields.List(
        ma.fields.Dict(), **doc("The first 100: `account`, `message`, `details` with places.")
    )
    error = ma.fields.String(allow_none=True)
    requested_by = fields.Id()
    created_at = fields.Timestamp()
    finished_at = fields.Timestamp(allow_none=True)


class UpgradeStarted(View):
    version = ma.fields.Integer()
    job = ma.fields.Nested(TemplateJobView)


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
def apply_account_template(body: JSONObject, template_name: str) -> Started:
    """Bring accounts to the version of a template, in a job.

    What an account has changed by hand stays unless `force` is true; an account is brought up as a
    whole or, where something stands against it, not at all. If the template or the body differs
    from that of the plan, it is a 409 `plan_stale`. The job works in pieces, and goes on after a
    kill; its own address tells the progress.
    """
    accounts, plan_hash = body["accounts"], body["plan_hash"]
    return upgrades.start(template_name, accounts, plan_hash, force=body["force"], by=principal())


@blueprint.route("/<template_name>/jobs", methods=["GET"])
@blueprint.arguments(PageArgs, location="query")
@blueprint.response(200, page_of(TemplateJobView))
@superadmin(operator="accounts")
def list_account_template_jobs(args: Query, template_name: str) -> dict[str, object]:
    """List the jobs that brought accounts up to a template.

    Newest first; for 90 days after their end.
    """
    return page_body(*upgrades.job_page(template_name, args), args)


@blueprint.route("/<template_name>/jobs/<uuid:template_job_id>", methods=["GET"])
@blueprint.response(200, TemplateJobView)
@superadmin(operator="accounts")
def get_account_template_job(template_name: str, template_job_id: str) -> TemplateJob:
    """Get a job that brings accounts up, with its progress."""
    return upgrades.get_job(template_name, template_job_id)
