"""Instances of workflows: what they did, and going on with them."""

from __future__ import annotations

import marshmallow as ma

from app import web
from app.auth.guard import principal
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import OffsetArgs, page_body, page_of
from app.web.schemas import Message, Schema, View, example
from app.workflows import instances, service
from app.workflows.instances import InstanceFilter
from app.workflows.language import definition
from app.workflows.models import LOG_STATES, STATES, TRIGGERS
from app.workflows.models import WORKFLOW as KIND
from app.workflows.routes.workflows import (
    STARTED,
    TIME,
    StartedInstance,
    blueprint,
)

all_instances = Blueprint(
    "Workflow instances",
    __name__,
    url_prefix=f"{web.PREFIX}/workflow-instances",
    description="Runs of workflows and hooks, with what each step was given and gave.",
)


class ProgressView(View):
    """Records that the outermost `for_each` of an instance is done with."""

    step = ma.fields.String()
    done = ma.fields.Integer()
    failed = ma.fields.Integer(**doc("Those among them whose steps have failed."))
    total = ma.fields.Integer(
        allow_none=True, **doc("As counted when it began; null for more than 1,000,000.")
    )


@example(
    current_step="announce",
    progress=None,
    context={"trigger": {"event": "records.create", "collection": "posts"}},
    started_at=TIME,
)
class InstanceView(View):
    """A run of a workflow."""

    id = fields.Id()
    workflow_id = fields.Id()
    account_id = fields.Id()
    version = ma.fields.Integer(**doc("The version of the workflow that it carries out."))
    trigger_type = fields.Choice(TRIGGERS)
    status = fields.Choice(STATES)
    current_step = ma.fields.String(
        allow_none=True, **doc("What is next, or has failed; several of parallel branches.")
    )
    progress = ma.fields.Nested(
        ProgressView, allow_none=True, **doc("How far a `for_each` is; else null.")
    )
    context = ma.fields.Dict(**doc("What the steps may refer to: trigger and steps."))
    withheld = ma.fields.Boolean(
        **doc(
            "Whether context, input and output contain personal data: they are"
            " shown only to superadmins and members of pii_access."
        )
    )
    error_message = ma.fields.String(allow_none=True)
    resume_job_id = ma.fields.String(
        allow_none=True, dump_default=None, **doc("Always null: instances resume by themselves.")
    )
    started_at = fields.Timestamp(allow_none=True)
    completed_at = fields.Timestamp(allow_none=True)
    created_at = fields.Timestamp()


LONG_VALUES = (
    "Values over 16,384 characters of JSON are `{truncated: true, bytes, beginning}`; once the log"
    " of the instance has 10 MiB, `{truncated: true, bytes, reason}`."
)


@example(
    place="announce#1",
    step_name="announce",
    status="failed",
    input={"url": "https://hooks.example.com/new"},
    error_message="The receiver responded with 503.",
    completed_at=TIME,
)
class StepLogView(View):
    id = fields.Id()
    instance_id = fields.Id()
    workflow_id = fields.Id()
    account_id = fields.Id()
    place = ma.fields.String(**doc("The step within loops and branches, and its visit."))
    step_name = ma.fields.String()
    step_type = fields.Choice(definition.PROPERTIES)
    status = fields.Choice(LOG_STATES)
    attempt = ma.fields.Integer()
    input = ma.fields.Dict(allow_none=True, **doc(LONG_VALUES))
    output = ma.fields.Dict(allow_none=True, **doc(LONG_VALUES))
    error_message = ma.fields.String(allow_none=True)
    started_at = fields.Timestamp()
    completed_at = fields.Timestamp(allow_none=True)


class InstanceWithLogs(InstanceView):
    """An instance with the first 100 entries of its step log."""

    step_logs = ma.fields.List(ma.fields.Nested(StepLogView))
    step_logs_total = ma.fields.Integer(
        **doc("The length of the log; `/step-logs` returns all of it.")
    )


class StepLogArgs(OffsetArgs):
    """Paging of the step log."""


class ResumedInstance(InstanceWithLogs):
    message = ma.fields.String()
    instance_id = fields.Id()


class InstanceArgs(OffsetArgs):
    """Filters of a workflow's instances."""

    status = fields.Choice(STATES, **doc("Only instances in this state."))


def _moment(name: str, description: str) -> object:
    return fields.DateTime(data_key=name, attribute=f"{name}_date", **doc(description))


BY_WORKFLOW = "Only instances of this workflow or hook. By default all workflows, but no hooks."


class AllInstancesArgs(InstanceArgs):
    workflow_id = ma.fields.UUID(**doc(BY_WORKFLOW))
    from_ = _moment("from", "Only instances created since then.")
    to_ = _moment("to", "Only instances created before then.")


class ResumeFilter(Schema):
    """The failed instances to resume; by default those of all workflows of the account."""

    workflow_id = ma.fields.UUID(allow_none=True, **doc(BY_WORKFLOW))
    from_ = _moment("from", "Only instances created since then.")
    to_ = _moment("to", "Only instances created before then.")


class EmptyBody(Schema):
    """An empty body."""


class ResumedCount(Message):
    count = ma.fields.Integer()


@blueprint.route("/<uuid:workflow_id>/instances", methods=["GET"])
@blueprint.arguments(InstanceArgs, location="query")
@blueprint.response(200, page_of(InstanceView))
@account_admin(operator="workflows")
def list_instances_of_workflow(args: JSONObject, workflow_id: str) -> JSONObject:
    """List the instances of a workflow, newest first.

    Without step logs. For the instances of a hook use `GET /hooks/{hook_id}/executions`.
    """
    workflow = service.get(workflow_id, by=principal())
    return _page(InstanceFilter(workflow_id=workflow.id, status=args.get("status")), args)


@all_instances.route("", methods=["GET"])
@all_instances.arguments(AllInstancesArgs, location="query")
@all_instances.response(200, page_of(InstanceView))
@account_admin(operator="workflows")
def list_instances(args: JSONObject) -> JSONObject:
    """List the instances of all workflows of the account, newest first.

    Finished instances are deleted after 30 days by default.
    """
    return _page(_filter(args), args)


@all_instances.route("/<uuid:instance_id>", methods=["GET"])
@all_instances.response(200, InstanceWithLogs)
@account_admin(operator="workflows")
def get_instance(instance_id: str) -> instances.InstanceWithLogs:
    """Get an instance with the log of its first 100 steps.

    Also finds the instances of hooks. `step_logs` is ordered oldest first; `/step-logs` has the
    rest.
    """
    return instances.get(instance_id, by=principal())


@all_instances.route("/<uuid:instance_id>/step-logs", methods=["GET"])
@all_instances.arguments(StepLogArgs, location="query")
@all_instances.response(200, page_of(StepLogView))
@account_admin(operator="workflows")
def list_step_logs(args: JSONObject, instance_id: str) -> JSONObject:
    """List an instance's step log, oldest first.

    One entry for each attempt of a step, and each pass of a loop.
    """
    logs, total = instances.step_logs(instance_id, args["skip"], args["limit"], by=principal())
    return page_body(logs, total, args)


@all_instances.route("/<uuid:instance_id>/cancel", methods=["POST"])
@all_instances.arguments(EmptyBody, example={}, required=False)
@all_instances.response(200, InstanceWithLogs, example={"status": "cancelled"})
@all_instances.fails(409)
@account_admin(operator="workflows")
def cancel_instance(body: JSONObject, instance_id: str) -> instances.InstanceWithLogs:
    """Cancel a pending, running or waiting instance.

    The current step is rolled back unless it has external effects. Returns 409 if it has finished.
    """
    return instances.cancel(instance_id, by=principal())


@all_instances.route("/<uuid:instance_id>/resume", methods=["POST"])
@all_instances.arguments(EmptyBody, example={}, required=False)
@all_instances.response(
    200,
    ResumedInstance,
    example={
        "step_logs_total": 1,
        "message": "The instance is resumed.",
    },
)
@all_instances.fails(409)
@account_admin(operator="workflows")
def resume_instance(body: JSONObject, instance_id: str) -> JSONObject:
    """Resume a failed instance at the failed step.

    Completed steps do not run again. Returns 409 `not_failed` if it has not failed, also for all
    but one of concurrent requests.
    """
    instance = instances.resume(instance_id, by=principal())
    message = "The instance is resumed."
    return {**vars(instance), "message": message, "instance_id": instance.id}


@all_instances.route("/<uuid:instance_id>/rerun", methods=["POST"])
@all_instances.arguments(EmptyBody, example={}, required=False)
@all_instances.response(202, StartedInstance, example=STARTED)
@all_instances.fails(409, 429)
@account_admin(operator="workflows")
def rerun_instance(body: JSONObject, instance_id: str) -> JSONObject:
    """Start a new instance with the trigger data of one that has ended, and the current steps.

    All steps run. Returns 409 `not_repeatable` if it has not ended, or if its trigger data are
    erased or withheld from you, and 409 `disabled` if the workflow is disabled.
    """
    started = instances.rerun(instance_id, by=principal())
    return {"message": "The workflow is started.", "instance_id": started}


@all_instances.route("/resume", methods=["POST"])
@all_instances.arguments(ResumeFilter, example={"from": TIME}, required=False)
@all_instances.response(
    200, ResumedCount, example={"message": "The failed instances are resumed.", "count": 3}
)
@account_admin(operator="workflows")
def resume_instances(body: JSONObject) -> JSONObject:
    """Resume all failed instances that match the filters.

    The filters are those of the list of instances: without a body, all failed instances of
    workflows, but not of hooks. Each continues at its failed step, in the background. `count` is 0
    if none has failed, which is no error.
    """
    count = instances.resume_all(_filter(body), by=principal())
    return {"message": "The failed instances are resumed.", "count": count}


def _filter(args: JSONObject) -> InstanceFilter:
    id = args.get("workflow_id")
    return InstanceFilter(
        # A given id may be a hook's; without one, hooks have their own lists.
        kind=None if id else KIND,
        workflow_id=str(id) if id else None,
        status=args.get("status"),
        from_date=args.get("from_date"),
        to_date=args.get("to_date"),
    )


def _page(where: InstanceFilter, args: JSONObject) -> JSONObject:
    rows, total = instances.page(where, args["skip"], args["limit"], by=principal())
    return page_body(rows, total, args)
