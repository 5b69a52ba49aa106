"""Workflows: what they are, and how they are started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import marshmallow as ma
from flask import Response

from app import web
from app.auth.guard import principal
from app.types import JSONObject
from app.web import fields
from app.web.access import LARGEST_DOCUMENT, account_admin, public
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import OffsetArgs, page_body, page_of
from app.web.schemas import Message, Schema, View, example
from app.workflows import service
from app.workflows.language import missing, step_headers
from app.workflows.models import TRIGGERS, Workflow
from app.workflows.routes import described

blueprint = Blueprint(
    "Workflows",
    __name__,
    url_prefix=f"{web.PREFIX}/workflows",
    description="Steps that are carried out one after the other, whatever is killed meanwhile.",
)
callers = Blueprint(
    "Workflow webhooks",
    __name__,
    url_prefix=f"{web.PREFIX}/workflow-webhooks",
    description="Where other services start workflows whose trigger is a webhook.",
)

TIME = "2026-11-20T12:00:00.123456Z"
TRIGGER = {"type": "event", "event": "records.create", "collection": "posts"}
STEPS = [
    {
        "name": "announce",
        "type": "action",
        "action_type": "send_webhook",
        "config": {
            "url": "https://hooks.example.com/new",
            "body": {"title": "{{ trigger.record.title }}"},
        },
    },
    {"name": "pause", "type": "wait_delay", "duration": "1d"},
]
NEW = {"name": "Announce posts", "trigger": TRIGGER, "steps": STEPS}
OWNER = (
    "Whose rights the steps have: you, or a service user of the account, which stays the owner when"
    " others send steps. One in `pii_access` is named by its members only (403)."
)
STARTED = {"message": "The workflow is started."}


class WarningView(View):
    """A part that is saved, but cannot do anything as it is."""

    field = ma.fields.String()
    code = fields.Choice((missing.COLLECTION_MISSING, missing.FIELD_MISSING, missing.GROUP_MISSING))
    message = ma.fields.String()


class DefinitionView(View):
    """The common properties of workflows and hooks."""

    id = fields.Id()
    account_id = fields.Id()
    name = ma.fields.String()
    description = ma.fields.String(allow_none=True)
    enabled = ma.fields.Boolean()
    warnings = ma.fields.List(
        ma.fields.Nested(WarningView),
        **doc(
            "Collections that it names and that do not exist; of a single one,"
            " also fields that its collections do not have or hide from you."
        ),
    )
    owner_id = fields.Id(
        **doc("Whose rights the steps have: who last sent them, or a service user.")
    )
    created_at = fields.Timestamp()
    updated_at = fields.Timestamp()
    created_by = fields.Id(allow_none=True)


@example(
    name="Announce posts",
    trigger={"type": "event", "event": "records.create", "collection": "posts"},
    steps=[
        {
            "name": "announce",
            "type": "action",
            "action_type": "send_webhook",
            "config": {
                "url": "https://hooks.example.com/new",
                "body": {"title": "{{ trigger.record.title }}"},
            },
        },
        {"name": "pause", "type": "wait_delay", "duration": "1d"},
    ],
    trigger_config={"event": "records.create", "collection": "posts"},
    warnings=[],
)
class WorkflowView(DefinitionView):
    trigger = ma.fields.Dict(metadata=described.STARTED_BY)
    trigger_type = fields.Choice(TRIGGERS)
    trigger_config = ma.fields.Dict(**doc("The trigger without its type."))
    steps = ma.fields.List(ma.fields.Dict(metadata=described.STEP))
    version = ma.fields.Integer(**doc("Grows when what is carried out changes."))


class DefinitionArgs(OffsetArgs):
    trigger_type = fields.Choice(TRIGGERS, **doc("Only those that this starts."))
    enabled = ma.fields.Boolean(**doc("Only enabled ones, or only others."))


class ChangedDefinition(Schema):
    """The properties of workflows and hooks that can change."""

    name = fields.Text(shortest=1, longest=200)
    description = fields.Text(longest=2000, allow_none=True)
    enabled = fields.StrictBoolean()
    owner_id = fields.GivenId(**doc(OWNER))


class NewDefinition(Schema):
    """The properties that a new workflow or hook needs."""

    name = fields.Text(shortest=1, longest=200, required=True)


def trigger_field(types: Sequence[str], **options: Any) -> object:
    metadata = {
        "description": "`{type: event, event, collection?, condition?}`, `{type: schedule, cron,"
        " timezone?}`, or only a `type`.",
        **described.trigger(types),
    }
    return ma.fields.Dict(keys=fields.Text(longest=100), metadata=metadata, **options)


def _steps(**options: Any) -> object:
    metadata = {"description": "The steps, each `{name, type, next?, ...}`.", **described.STEPS}
    step = ma.fields.Dict(metadata=described.STEP)
    return ma.fields.List(step, metadata=metadata, **options)


class ChangedWorkflow(ChangedDefinition):
    trigger = trigger_field(TRIGGERS)
    steps = _steps()


class NewWorkflow(NewDefinition, ChangedWorkflow):
    trigger = trigger_field(TRIGGERS, required=True)
    steps = _steps(load_default=list)


class ToggleBody(Schema):
    """The new state; toggles if absent."""

    enabled = fields.StrictBoolean()


class TriggerBody(Schema):
    """The object that steps see as `trigger`."""

    class Meta:
        """Any properties."""

        unknown = ma.INCLUDE


class StartedInstance(Message):
    instance_id = fields.Id()


@blueprint.route("", methods=["GET"])
@blueprint.arguments(DefinitionArgs, location="query")
@blueprint.response(200, page_of(WorkflowView))
@account_admin(operator="workflows")
def list_workflows(args: JSONObject) -> JSONObject:
    """List the workflows of the own account, oldest first.

    Without hooks, which are a list of their own (`/hooks`). Header values are `***`. With
    `X-Account-ID: *` superadmins get those of all accounts.
    """
    workflows, total = service.page(args, args["skip"], args["limit"], by=principal())
    return page_body(_views(workflows), total, args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(NewWorkflow, example=NEW)
@blueprint.response(201, WorkflowView)
@blueprint.fails(409)
@account_admin(
    api_keys=False, shows_secret=lambda answer: "token" in answer["trigger"], operator="workflows"
)
def create_workflow(body: JSONObject) -> JSONObject:
    """Create a workflow.

    Validation reports all problems: `details` of a 400 names the place of each, such as
    `steps[2].config.url`. Missing collections are only `warnings`. Steps run in list order unless
    `next` names another step of the same list (null ends the list):

    - `action` with `action_type` and `config`: `send_webhook {url, method, headers, body}`,
      `send_email {to, subject, body}` to addresses, `{user: id}`, `{role: name}`, `{group: name}`
      or `{field: name}` of the record, `create_record {collection, data}`, `update_record
      {collection, record_id, data}`, `delete_record {collection, record_id}`, `query_records
      {collection, filter, sort, limit}`, whose output is `{records, first, count, total}`,
      `aggregate_records {collection, functions, filter, group_by, limit}`, whose output is
      `{results, first, total_groups}`;
    - `condition {expression, on_true, on_false}`: names of steps, or null for the end;
    - `wait_delay {duration}`, such as `30s`, `5m`, `2h`, `1d`;
    - `wait_condition {expression, poll_interval, timeout}`, whose `record` is the current version
    of
      the trigger's record;
    - `wait_event {event, collection?, condition?, timeout}`, whose output is the event. Only
      events committed after the instance has the status `waiting` count. In its condition `record`,
      `previous` and `event` belong to the awaited event, and names other than `trigger`, `steps`,
      `now`, `item` and `index` are the record's fields;
    - `loop {items, steps}`, whose steps see `item` and `index`;
    - `for_each {collection, filter, sort, on_error, steps}`, whose steps see each record of the
      collection as `item`, and `index`; its output is `{count, failed, errors}`;
    - `parallel {branches}`, lists of steps.

    Values are templates: `{{ trigger.x }}`, `{{ steps.name.output.y }}`, `{{ now }}`, or any
    expression of the rule language over these names. A template that is the whole value keeps its
    type. In a `filter` it becomes a literal.

    Header values are stored encrypted and returned as `***`. Sending `***` keeps the value of the
    step with that name as long as its `url` stays the same; otherwise it is a 400.

    Steps run with the rights of the user who last sent them, or of the service user in `owner_id`.
    Operator keys name one. Record steps are executed exactly
    once; requests and mails at least once, requests with the same `Idempotency-Key`. By default,
    mails go only to active members of the account at their verified addresses, at most 500 a day.
    Workflows that start each other stop at depth 8. An account has at most 50 workflows (409
    `limit_reached`).
    """
    return view(service.create(body, by=principal()))


@blueprint.route("/<uuid:workflow_id>", methods=["GET"])
@blueprint.response(200, WorkflowView)
@account_admin(operator="workflows")
def get_workflow(workflow_id: str) -> JSONObject:
    """Get a workflow.

    `trigger.token` is part of the address of a workflow with a webhook trigger, and its only
    credential; read-only API keys do not get it. Header values are `***`. The id of a hook is a
    404.
    """
    return view(service.get(workflow_id, by=principal()))


@blueprint.route("/<uuid:workflow_id>", methods=["PUT", "PATCH"])
@blueprint.arguments(ChangedWorkflow, example={"steps": STEPS})
@blueprint.response(200, WorkflowView)
@account_admin(api_keys=False, operator="workflows")
def update_workflow(body: JSONObject, workflow_id: str) -> JSONObject:
    """Change a workflow; omitted properties keep their values.

    Only sending `steps` makes the caller their owner (`owner_id`), unless a service user owns them
    or is named. Steps see events as their owner
    does, so callers who see less cannot change an event trigger without sending the steps (403).
    Started instances keep their steps. `***` keeps a header's value.
    """
    return view(service.change(workflow_id, body, by=principal()))


@blueprint.route("/<uuid:workflow_id>", methods=["DELETE"])
@blueprint.response(204)
@account_admin(operator="workflows")
def delete_workflow(workflow_id: str) -> Response:
    """Delete a workflow with its instances.

    A background job deletes the instances with their logs, including active ones. This cannot be
    undone.
    """
    service.delete(workflow_id, by=principal())
    return Response(status=204)


@blueprint.route("/<uuid:workflow_id>/toggle", methods=["PATCH"])
@blueprint.arguments(ToggleBody, example={"enabled": False}, required=False)
@blueprint.response(200, WorkflowView)
@account_admin(operator="workflows")
def toggle_workflow(body: JSONObject, workflow_id: str) -> JSONObject:
    """Enable or disable a workflow.

    A disabled workflow cannot be started; started instances continue. A stored schedule that is
    no longer supported cannot be enabled (400 `cron_invalid`).
    """
    return view(service.toggle(workflow_id, body.get("enabled"), by=principal()))


@blueprint.route("/<uuid:workflow_id>/trigger", methods=["POST"])
@blueprint.arguments(TriggerBody, example={"order": 7}, required=False)
@blueprint.response(202, StartedInstance, example=STARTED)
@blueprint.fails(409)
@account_admin(operator="workflows")
def trigger_workflow(body: JSONObject, workflow_id: str) -> JSONObject:
    """Start a workflow manually, whatever its trigger.

    Steps see the body as `trigger`. Returns 409 `disabled` if the workflow is disabled, and 429
    `limit_reached` if the account has 10,000 pending instances.
    """
    instance_id = service.trigger(workflow_id, body, by=principal())
    return {"message": "The workflow is started.", "instance_id": instance_id}


@callers.route("/<token>", methods=["POST"])
@callers.arguments(TriggerBody, example={"order": 7}, required=False)
@callers.response(202, StartedInstance, example=STARTED)
@callers.fails(400)
@public(max_body=LARGEST_DOCUMENT, across_accounts=True)
def trigger_by_webhook(body: JSONObject, token: str) -> JSONObject:
    """Start the workflow of a token, which is the credential.

    Steps see the body as `trigger`. Returns 404 for unknown tokens and disabled workflows. A
    request by a workflow's step continues its chain of triggers; beyond depth 8 the instance is
    cancelled. Returns 429 `limit_reached` for 10,000 pending instances of the account or 1,000
    instances in a chain.
    """
    instance_id = service.trigger_by_token(token, body)
    return {"message": "The workflow is started.", "instance_id": instance_id}


def view(workflow: Workflow) -> JSONObject:
    shown = _views([workflow])[0]
    return {**shown, "warnings": shown["warnings"] + missing.field_warnings(workflow, principal())}


def _views(workflows: Sequence[Workflow]) -> list[JSONObject]:
    warnings = missing.collection_warnings(workflows)
    return [_view(workflow, warnings[workflow.id]) for workflow in workflows]


def _view(workflow: Workflow, warnings: list[JSONObject]) -> JSONObject:
    # The token starts the workflow, which a read-only key may not.
    with_token = not principal().read_only
    trigger = service.trigger_with_token(workflow) if with_token else dict(workflow.trigger)
    trigger_config = {name: value for name, value in trigger.items() if name != "type"}
    names = WorkflowView().fields.keys() - {"trigger", "trigger_config", "steps", "warnings"}
    view_ = {name: getattr(workflow, name) for name in names}
    view_ |= {"steps": step_headers.masked(workflow.steps), "warnings": warnings}
    return {**view_, "trigger": trigger, "trigger_config": trigger_config}
