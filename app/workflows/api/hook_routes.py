"""Hooks: actions that an event, a time or somebody sets off (contract section 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import marshmallow as ma
from flask import Response

from app import rest
from app.accounts.schemas import ACCOUNT, USER
from app.auth.guard import principal
from app.rest import fields
from app.rest.access import account_admin
from app.rest.blueprint import Blueprint
from app.rest.paging import OffsetArgs, Page, items_field, page_body
from app.rest.schemas import Schema
from app.workflows import hooks, service
from app.workflows.api.routes import (
    INSTANCE_ID,
    TIME,
    ChangedDefinition,
    DefinitionArgs,
    DefinitionView,
    StartedInstance,
    Toggle,
    TriggerBody,
)
from app.workflows.language import missing_collections
from app.workflows.models import EVENT, HOOK, MANUAL, SCHEDULE, Workflow

blueprint = Blueprint(
    "Hooks",
    __name__,
    url_prefix=f"{rest.PREFIX}/hooks",
    description="Actions without more ado: workflows in their shortest form.",
)

ACTIONS = [{"type": "send_webhook", "config": {"url": "https://hooks.example.com/nightly"}}]
TRIGGER = {"type": "schedule", "cron": "0 4 * * *"}
NEW = {"name": "Nightly", "trigger": TRIGGER, "actions": ACTIONS}
HOOK_EXAMPLE = {
    "id": "019a9f00-0000-7000-8000-0000000000d1",
    "account_id": ACCOUNT["id"],
    **NEW,
    "description": None,
    "condition": None,
    "enabled": True,
    "warnings": [],
    "cron": "0 4 * * *",
    "last_run_at": None,
    "next_run_at": TIME,
    "owner_id": USER["id"],
    "created_at": TIME,
    "updated_at": TIME,
    "created_by": USER["id"],
}
EXECUTION = {
    "id": INSTANCE_ID,
    "hook_id": HOOK_EXAMPLE["id"],
    "trigger_type": "schedule",
    "status": "success",
    "actions_executed": 1,
    "error_message": None,
    "duration_ms": 87,
    "execution_context": {"trigger": {"scheduled_for": TIME, "cron": "0 4 * * *"}},
    "executed_at": TIME,
}


class HookView(DefinitionView):
    """A hook."""

    trigger = ma.fields.Dict(required=True)
    condition = ma.fields.String(required=True, allow_none=True)
    actions = ma.fields.List(ma.fields.Dict(), required=True)
    cron = ma.fields.String(required=True, allow_none=True)
    last_run_at = fields.Timestamp(
        required=True, allow_none=True, metadata={"description": "Of what a schedule sets off."}
    )
    next_run_at = fields.Timestamp(required=True, allow_none=True)


class HookPage(Page):
    """A page of hooks."""

    items = items_field(HookView)


class HookArgs(DefinitionArgs):
    """Which hooks to list."""

    trigger_type = ma.fields.String(
        validate=ma.validate.OneOf((EVENT, SCHEDULE, MANUAL)),
        metadata={"description": "Only those that this sets off."},
    )


class ExecutionArgs(OffsetArgs):
    """Where in the list of executions to start."""


class ChangedHook(ChangedDefinition):
    """What to change of a hook."""

    trigger = ma.fields.Dict(
        keys=fields.Text(longest=100),
        metadata={
            "description": "`{type: event, event, collection?}`, `{type: schedule, cron}` (UTC) or"
            " `{type: manual}`."
        },
    )
    condition = fields.Text(
        longest=2000,
        allow_none=True,
        metadata={"description": "An expression; only where it holds anything is done."},
    )
    actions = ma.fields.List(
        ma.fields.Dict(),
        metadata={"description": "`{type, config}`, types and configs as of a workflow's actions."},
    )


class NewHook(ChangedHook):
    """A hook to make."""

    name = fields.Text(shortest=1, longest=200, required=True)
    trigger = ma.fields.Dict(keys=fields.Text(longest=100), required=True)
    actions = ma.fields.List(ma.fields.Dict(), load_default=list)


class ExecutionView(Schema):
    """What a hook did once."""

    id = ma.fields.String(required=True)
    hook_id = ma.fields.String(required=True)
    trigger_type = ma.fields.String(required=True)
    status = ma.fields.String(
        required=True,
        metadata={"description": "success, partial, failed; before that pending or running"},
    )
    actions_executed = ma.fields.Integer(required=True)
    error_message = ma.fields.String(required=True, allow_none=True)
    duration_ms = ma.fields.Integer(required=True, allow_none=True)
    execution_context = ma.fields.Dict(required=True, allow_none=True)
    executed_at = fields.Timestamp(required=True)


class ExecutionPage(Page):
    """A page of executions."""

    items = items_field(ExecutionView)


@blueprint.route("", methods=["GET"])
@blueprint.arguments(HookArgs, location="query")
@blueprint.response(200, HookPage, example=page_body([HOOK_EXAMPLE], 1, {"skip": 0, "limit": 50}))
@account_admin
def list_hooks(args: dict[str, Any]) -> dict[str, Any]:
    """List the hooks of the own account, oldest first."""
    found, total = service.page(args, args["skip"], args["limit"], by=principal(), kind=HOOK)
    return page_body(_all_shown(found), total, args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(NewHook, example=NEW)
@blueprint.response(201, HookView, example=HOOK_EXAMPLE)
@blueprint.fails(400, 409)
@account_admin
def create_hook(body: dict[str, Any]) -> dict[str, Any]:
    """Create a hook.

    Its actions are carried out as steps of a workflow are: in order, with templates, with the
    rights of whoever last sent them, each in full or not at all. Of an event the condition knows
    `trigger.record`, `record`, `previous` and the record's fields by their names. An account has at
    most 50 hooks (409 `limit_reached`). API keys cannot make or change hooks (403).
    A collection that does not exist may be named: `warnings` says so.
    """
    return _shown(hooks.create(body, by=principal()))


@blueprint.route("/<uuid:hook_id>", methods=["GET"])
@blueprint.response(200, HookView, example=HOOK_EXAMPLE)
@account_admin
def get_hook(hook_id: str) -> dict[str, Any]:
    """Get a hook."""
    return _shown(service.get(hook_id, by=principal(), kind=HOOK))


@blueprint.route("/<uuid:hook_id>", methods=["PATCH", "PUT"])
@blueprint.arguments(ChangedHook, example={"enabled": False})
@blueprint.response(200, HookView, example=HOOK_EXAMPLE)
@blueprint.fails(400)
@account_admin
def change_hook(body: dict[str, Any], hook_id: str) -> dict[str, Any]:
    """Change what is sent of a hook, and keep the rest.

    Whoever sends `actions` takes them over (`owner_id`), and nobody else. An event is shown to the
    actions as their owner sees it: whoever sees less changes nothing of when they are set off
    without them (403).
    """
    return _shown(hooks.change(hook_id, body, by=principal()))


@blueprint.route("/<uuid:hook_id>", methods=["DELETE"])
@blueprint.response(204)
@account_admin
def delete_hook(hook_id: str) -> Response:
    """Delete a hook with its executions."""
    service.delete(hook_id, by=principal(), kind=HOOK)
    return Response(status=204)


@blueprint.route("/<uuid:hook_id>/toggle", methods=["PATCH"])
@blueprint.arguments(Toggle, example={"enabled": False}, required=False)
@blueprint.response(200, HookView, example=HOOK_EXAMPLE)
@account_admin
def toggle_hook(body: dict[str, Any], hook_id: str) -> dict[str, Any]:
    """Disable a hook that is enabled, and enable one that is not."""
    return _shown(service.toggle(hook_id, body.get("enabled"), by=principal(), kind=HOOK))


@blueprint.route("/<uuid:hook_id>/trigger", methods=["POST"])
@blueprint.arguments(TriggerBody, example={"order": 7}, required=False)
@blueprint.response(
    202, StartedInstance, example={"message": "The hook is started.", "instance_id": INSTANCE_ID}
)
@blueprint.fails(400, 409)
@account_admin
def trigger_hook(body: dict[str, Any], hook_id: str) -> dict[str, Any]:
    """Set a hook off by hand, whatever else sets it off; its actions know the body as `trigger`."""
    id = service.trigger(hook_id, body, by=principal(), kind=HOOK)
    return {"message": "The hook is started.", "instance_id": id}


@blueprint.route("/<uuid:hook_id>/executions", methods=["GET"])
@blueprint.arguments(ExecutionArgs, location="query")
@blueprint.response(200, ExecutionPage, example=page_body([EXECUTION], 1, {"skip": 0, "limit": 50}))
@account_admin
def list_executions(args: dict[str, Any], hook_id: str) -> dict[str, Any]:
    """List what a hook did, newest first.

    Each is an instance, too (`/workflow-instances/{id}`), with the log of its actions; one that
    failed is resumed there.
    """
    found, total = hooks.executions(hook_id, args["skip"], args["limit"], by=principal())
    return page_body(found, total, args)


def _shown(hook: Workflow) -> dict[str, Any]:
    return _all_shown([hook])[0]


def _all_shown(found: Sequence[Workflow]) -> list[dict[str, Any]]:
    times = hooks.times(found)
    warnings = missing_collections.warnings(found)
    return [
        {**_with_times(hook, *times.get(hook.id, (None, None))), "warnings": warnings[hook.id]}
        for hook in found
    ]


def _with_times(hook: Workflow, last: Any, following: Any) -> dict[str, Any]:
    ours = {"actions", "warnings", "cron", "last_run_at", "next_run_at"}
    about = {name: getattr(hook, name) for name in HookView().fields.keys() - ours}
    times = {"cron": hook.trigger.get("cron"), "last_run_at": last, "next_run_at": following}
    return {**about, **times, "actions": hooks.list_actions(hook)}
