"""Instances of workflows: what they did, and going on with them (contract section 9)."""

from __future__ import annotations

import marshmallow as ma

from app import rest
from app.accounts.schemas import ACCOUNT
from app.auth.guard import principal
from app.rest import fields
from app.rest.access import account_admin
from app.rest.blueprint import Blueprint
from app.rest.paging import OffsetArgs, Page, items_field, page_body
from app.rest.schemas import Message, Schema
from app.types import JSONObject
from app.workflows import instances, service
from app.workflows.api.routes import INSTANCE_ID, TIME, WORKFLOW, blueprint
from app.workflows.models import STATES
from app.workflows.models import WORKFLOW as KIND

all_instances = Blueprint(
    "Workflow instances",
    __name__,
    url_prefix=f"{rest.PREFIX}/workflow-instances",
    description="Runs of workflows and hooks, with what each step was given and gave.",
)

INSTANCE = {
    "id": INSTANCE_ID,
    "workflow_id": WORKFLOW["id"],
    "account_id": ACCOUNT["id"],
    "version": 1,
    "trigger_type": "event",
    "status": "failed",
    "current_step": "announce",
    "context": {"trigger": {"event": "records.create", "collection": "posts"}},
    "withheld": False,
    "error_message": "The receiver responded with 503.",
    "started_at": TIME,
    "completed_at": TIME,
    "created_at": TIME,
}
LOG = {
    "id": "019a9f00-0000-7000-8000-0000000000f0",
    "instance_id": INSTANCE_ID,
    "workflow_id": WORKFLOW["id"],
    "account_id": ACCOUNT["id"],
    "place": "announce#1",
    "step_name": "announce",
    "step_type": "action",
    "status": "failed",
    "attempt": 1,
    "input": {"url": "https://hooks.example.com/new"},
    "output": None,
    "error_message": "The receiver responded with 503.",
    "started_at": TIME,
    "completed_at": TIME,
}
WITH_LOGS = {**INSTANCE, "step_logs": [LOG], "step_logs_total": 1}
RESUMED = {**INSTANCE, "status": "pending", "error_message": None, "completed_at": None}


class InstanceView(Schema):
    """A run of a workflow."""

    id = ma.fields.String(required=True)
    workflow_id = ma.fields.String(required=True)
    account_id = ma.fields.String(required=True)
    version = ma.fields.Integer(
        required=True, metadata={"description": "The version of the workflow that it carries out."}
    )
    trigger_type = ma.fields.String(required=True)
    status = ma.fields.String(required=True, metadata={"description": f"{', '.join(STATES)}"})
    current_step = ma.fields.String(
        required=True,
        allow_none=True,
        metadata={"description": "What is next, or has failed; several of parallel branches."},
    )
    context = ma.fields.Dict(
        required=True, metadata={"description": "What the steps may refer to: trigger and steps."}
    )
    withheld = ma.fields.Boolean(
        required=True,
        metadata={
            "description": "Whether context, input and output hold personal data: they are"
            " shown to superadmins and members of pii_access only."
        },
    )
    error_message = ma.fields.String(required=True, allow_none=True)
    started_at = fields.Timestamp(required=True, allow_none=True)
    completed_at = fields.Timestamp(required=True, allow_none=True)
    created_at = fields.Timestamp(required=True)


OF_LONG_ONES = (
    "Of more than 16,384 characters of JSON: `{truncated: true, bytes, beginning}`; once the log of"
    " the instance holds 10 MiB, `{truncated: true, bytes, reason}`."
)


class StepLogView(Schema):
    """One try of a step."""

    id = ma.fields.String(required=True)
    instance_id = ma.fields.String(required=True)
    workflow_id = ma.fields.String(required=True)
    account_id = ma.fields.String(required=True)
    place = ma.fields.String(
        required=True,
        metadata={"description": "The step within loops and branches, and its visit."},
    )
    step_name = ma.fields.String(required=True)
    step_type = ma.fields.String(required=True)
    status = ma.fields.String(
        required=True,
        metadata={"description": "running, waiting, completed, failed or cancelled"},
    )
    attempt = ma.fields.Integer(required=True)
    input = ma.fields.Raw(
        required=True, allow_none=True, metadata={"type": "object", "description": OF_LONG_ONES}
    )
    output = ma.fields.Raw(
        required=True, allow_none=True, metadata={"type": "object", "description": OF_LONG_ONES}
    )
    error_message = ma.fields.String(required=True, allow_none=True)
    started_at = fields.Timestamp(required=True)
    completed_at = fields.Timestamp(required=True, allow_none=True)


class InstanceWithLogs(InstanceView):
    """A run with the log of its first 100 steps, the first one first."""

    step_logs = ma.fields.List(ma.fields.Nested(StepLogView), required=True)
    step_logs_total = ma.fields.Integer(
        required=True,
        metadata={"description": "How long the log is: `/step-logs` has all of it, by pages."},
    )


class StepLogPage(Page):
    """A page of the log of an instance's steps."""

    items = items_field(StepLogView)


class StepLogArgs(OffsetArgs):
    """Where in the log to start."""


class ResumedInstance(InstanceWithLogs):
    """An instance that goes on."""

    message = ma.fields.String(required=True)
    instance_id = ma.fields.String(required=True)


class InstancePage(Page):
    """A page of instances."""

    items = items_field(InstanceView)


class InstanceArgs(OffsetArgs):
    """Which instances of a workflow to list."""

    status = ma.fields.String(
        validate=ma.validate.OneOf(STATES),
        metadata={"description": "Only instances in this state."},
    )


def _moment(name: str, about: str) -> object:
    return fields.DateTime(data_key=name, attribute=f"{name}_date", metadata={"description": about})


OF_ONE = "Only instances of this workflow, or of this hook. Without it, of all workflows but hooks."


class AllInstancesArgs(InstanceArgs):
    """Which instances to list."""

    workflow_id = ma.fields.UUID(metadata={"description": OF_ONE})
    from_ = _moment("from", "Only what began since then.")
    to_ = _moment("to", "Only what began before then.")


class ResumeFilter(Schema):
    """Which failed instances go on; without a filter those of all workflows of the account."""

    workflow_id = ma.fields.UUID(allow_none=True, metadata={"description": OF_ONE})
    from_ = _moment("from", "Only what began since then.")
    to_ = _moment("to", "Only what began before then.")


class NoBody(Schema):
    """There is nothing to say."""


class ResumedCount(Message):
    """How many instances go on."""

    count = ma.fields.Integer(required=True)


@blueprint.route("/<uuid:workflow_id>/instances", methods=["GET"])
@blueprint.arguments(InstanceArgs, location="query")
@blueprint.response(200, InstancePage, example=page_body([INSTANCE], 1, {"skip": 0, "limit": 50}))
@account_admin
def list_instances_of_workflow(args: JSONObject, workflow_id: str) -> JSONObject:
    """List the instances of a workflow, newest first."""
    workflow = service.get(workflow_id, by=principal())
    wanted = {"status": args.get("status"), "workflow_id": workflow.id}
    return _page(wanted, args)


@all_instances.route("", methods=["GET"])
@all_instances.arguments(AllInstancesArgs, location="query")
@all_instances.response(
    200, InstancePage, example=page_body([INSTANCE], 1, {"skip": 0, "limit": 50})
)
@account_admin
def list_instances(args: JSONObject) -> JSONObject:
    """List the instances of all workflows of the account, newest first.

    They are kept for 30 days after they are over, unless the settings say otherwise.
    """
    return _page(_filter(args), args)


@all_instances.route("/<uuid:instance_id>", methods=["GET"])
@all_instances.response(200, InstanceWithLogs, example=WITH_LOGS)
@account_admin
def get_instance(instance_id: str) -> JSONObject:
    """Get an instance with the log of its first 100 steps."""
    return _only(instances.get(instance_id, by=principal()))


@all_instances.route("/<uuid:instance_id>/step-logs", methods=["GET"])
@all_instances.arguments(StepLogArgs, location="query")
@all_instances.response(200, StepLogPage, example=page_body([LOG], 1, {"skip": 0, "limit": 50}))
@account_admin
def list_step_logs(args: JSONObject, instance_id: str) -> JSONObject:
    """List the log of an instance's steps, first to last."""
    found, total = instances.step_logs(instance_id, args["skip"], args["limit"], by=principal())
    return page_body(found, total, args)


@all_instances.route("/<uuid:instance_id>/cancel", methods=["POST"])
@all_instances.arguments(NoBody, example={}, required=False)
@all_instances.response(200, InstanceWithLogs, example={**WITH_LOGS, "status": "cancelled"})
@all_instances.fails(409)
@account_admin
def cancel_instance(body: JSONObject, instance_id: str) -> JSONObject:
    """End an instance that is pending, running or waiting.

    The step that is being done is undone, unless it reaches outside. One that is over: 409.
    """
    return _only(instances.cancel(instance_id, by=principal()))


@all_instances.route("/<uuid:instance_id>/resume", methods=["POST"])
@all_instances.arguments(NoBody, example={}, required=False)
@all_instances.response(
    200,
    ResumedInstance,
    example={
        **RESUMED,
        "step_logs": [LOG],
        "step_logs_total": 1,
        "message": "The instance is resumed.",
        "instance_id": INSTANCE_ID,
    },
)
@all_instances.fails(409)
@account_admin
def resume_instance(body: JSONObject, instance_id: str) -> JSONObject:
    """Have a failed instance go on at the step that failed.

    What was done before is not done again. Unless it has failed: 409 `not_failed`; of several who
    ask at the same time one succeeds.
    """
    found = _only(instances.resume(instance_id, by=principal()))
    return {**found, "message": "The instance is resumed.", "instance_id": found["id"]}


@all_instances.route("/resume", methods=["POST"])
@all_instances.arguments(ResumeFilter, example={"from": TIME}, required=False)
@all_instances.response(
    200, ResumedCount, example={"message": "The failed instances are resumed.", "count": 3}
)
@account_admin
def resume_instances(body: JSONObject) -> JSONObject:
    """Have all failed instances go on that match: those that the list would show as failed."""
    count = instances.resume_all(_filter(body), by=principal())
    return {"message": "The failed instances are resumed.", "count": count}


def _filter(args: JSONObject) -> JSONObject:
    id = args.get("workflow_id")
    chosen = {name: args.get(name) for name in ("status", "from_date", "to_date")}
    # What is named may be a hook; without a name hooks are left to their own lists.
    return {**chosen, **({"workflow_id": str(id)} if id else {"kind": KIND})}


def _page(wanted: JSONObject, args: JSONObject) -> JSONObject:
    found, total = instances.page(wanted, args["skip"], args["limit"], by=principal())
    return page_body(found, total, args)


def _only(found: JSONObject) -> JSONObject:
    names = InstanceWithLogs().fields.keys()
    return {name: value for name, value in found.items() if name in names}
