"""Hooks, the earlier form of workflows: lists of actions, kept for their callers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import marshmallow as ma
from flask import Response

from app import web
from app.auth.guard import principal
from app.types import JSONObject
from app.web import fields
from app.web.access import account_admin
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import OffsetArgs, page_body, page_of
from app.web.schemas import View, example
from app.workflows import hooks, service
from app.workflows.language import missing
from app.workflows.models import HOOK, Workflow
from app.workflows.routes import described
from app.workflows.routes.workflows import (
    TIME,
    ChangedDefinition,
    DefinitionArgs,
    DefinitionView,
    NewDefinition,
    StartedInstance,
    ToggleBody,
    TriggerBody,
    trigger_field,
)

blueprint = Blueprint(
    "Hooks",
    __name__,
    url_prefix=f"{web.PREFIX}/hooks",
    description="The earlier form of workflows, for those made here: use `/workflows`.",
    deprecated=True,
)

ACTIONS = [{"type": "send_webhook", "config": {"url": "https://hooks.example.com/nightly"}}]
TRIGGER = {"type": "schedule", "cron": "0 4 * * *"}
NEW = {"name": "Nightly", "trigger": TRIGGER, "actions": ACTIONS}


@example(
    name="Nightly",
    trigger={"type": "schedule", "cron": "0 4 * * *"},
    actions=[{"type": "send_webhook", "config": {"url": "https://hooks.example.com/nightly"}}],
    warnings=[],
    cron="0 4 * * *",
    next_run_at=TIME,
)
class HookView(DefinitionView):
    trigger = ma.fields.Dict(metadata=described.STARTED_BY)
    condition = ma.fields.String(allow_none=True)
    actions = ma.fields.List(ma.fields.Dict(metadata=described.ACTION))
    cron = ma.fields.String(allow_none=True)
    last_run_at = fields.Timestamp(allow_none=True, **doc("The last scheduled run."))
    next_run_at = fields.Timestamp(allow_none=True)


class HookArgs(DefinitionArgs):
    """Filters of the list of hooks."""

    trigger_type = fields.Choice(hooks.TRIGGERS, **doc("Only hooks with this trigger."))


class ExecutionArgs(OffsetArgs):
    """Paging of executions."""


def _actions(**options: Any) -> object:
    metadata = {
        "description": "`{type, config}`, as in a workflow's actions.",
        "maxItems": hooks.MAX_ACTIONS,
    }
    action = ma.fields.Dict(metadata=described.ACTION)
    return ma.fields.List(action, metadata=metadata, **options)


class ChangedHook(ChangedDefinition):
    trigger = trigger_field(hooks.TRIGGERS)
    condition = fields.Text(
        longest=2000, allow_none=True, **doc("An expression; the actions run only if it holds.")
    )
    actions = _actions()


class NewHook(NewDefinition, ChangedHook):
    trigger = trigger_field(hooks.TRIGGERS, required=True)
    actions = _actions(load_default=list)


@example(
    trigger_type="schedule",
    status="success",
    execution_context={"trigger": {"scheduled_for": TIME, "cron": "0 4 * * *"}},
)
class ExecutionView(View):
    id = fields.Id()
    hook_id = fields.Id()
    trigger_type = fields.Choice(hooks.TRIGGERS)
    status = fields.Choice(hooks.ExecutionState)
    actions_executed = ma.fields.Integer()
    error_message = ma.fields.String(allow_none=True)
    duration_ms = ma.fields.Integer(allow_none=True)
    execution_context = ma.fields.Dict(allow_none=True)
    executed_at = fields.Timestamp()


@blueprint.route("", methods=["GET"])
@blueprint.arguments(HookArgs, location="query")
@blueprint.response(200, page_of(HookView))
@account_admin(operator="workflows")
def list_hooks(args: JSONObject) -> JSONObject:
    """List the hooks of the own account, oldest first.

    Without workflows, which are a list of their own (`/workflows`). Header values are `***`. With
    `X-Account-ID: *` superadmins get those of all accounts.
    """
    hooks_, total = service.page(args, args["skip"], args["limit"], by=principal(), kind=HOOK)
    return page_body(_views(hooks_), total, args)


@blueprint.route("", methods=["POST"])
@blueprint.arguments(NewHook, example=NEW)
@blueprint.response(201, HookView)
@blueprint.fails(409)
@account_admin(api_keys=False, operator="workflows")
def create_hook(body: JSONObject) -> JSONObject:
    """Create a hook.

    Actions run like a workflow's steps: in order, with templates, with the rights of the user who
    last sent them, each completely or not at all. The condition on an event may use
    `trigger.record`, `record`, `previous` and the record's fields. An account has at most 50 hooks
    (409 `limit_reached`). Missing collections are only `warnings`.
    """
    return _view(hooks.create(body, by=principal()))


@blueprint.route("/<uuid:hook_id>", methods=["GET"])
@blueprint.response(200, HookView)
@account_admin(operator="workflows")
def get_hook(hook_id: str) -> JSONObject:
    """Get a hook.

    Header values are `***`. The id of a workflow is a 404.
    """
    return _view(service.get(hook_id, by=principal(), kind=HOOK))


@blueprint.route("/<uuid:hook_id>", methods=["PATCH", "PUT"])
@blueprint.arguments(ChangedHook, example={"enabled": False})
@blueprint.response(200, HookView)
@account_admin(api_keys=False, operator="workflows")
def update_hook(body: JSONObject, hook_id: str) -> JSONObject:
    """Change a hook; omitted properties keep their values.

    Only sending `actions` makes the caller their owner (`owner_id`). Actions see events as their
    owner does, so callers who see less cannot change trigger or condition without sending the
    actions (403).
    """
    return _view(hooks.change(hook_id, body, by=principal()))


@blueprint.route("/<uuid:hook_id>", methods=["DELETE"])
@blueprint.response(204)
@account_admin(operator="workflows")
def delete_hook(hook_id: str) -> Response:
    """Delete a hook with its executions.

    A background job deletes the executions with their logs, including active ones. This cannot be
    undone.
    """
    service.delete(hook_id, by=principal(), kind=HOOK)
    return Response(status=204)


@blueprint.route("/<uuid:hook_id>/toggle", methods=["PATCH"])
@blueprint.arguments(ToggleBody, example={"enabled": False}, required=False)
@blueprint.response(200, HookView)
@account_admin(operator="workflows")
def toggle_hook(body: JSONObject, hook_id: str) -> JSONObject:
    """Enable or disable a hook.

    A disabled hook cannot be started; executions that have started continue. `enabled` sets the
    state, so that a repeated request changes nothing.
    """
    return _view(service.toggle(hook_id, body.get("enabled"), by=principal(), kind=HOOK))


@blueprint.route("/<uuid:hook_id>/trigger", methods=["POST"])
@blueprint.arguments(TriggerBody, example={"order": 7}, required=False)
@blueprint.response(202, StartedInstance, example={"message": "The hook is started."})
@blueprint.fails(409)
@account_admin(operator="workflows")
def trigger_hook(body: JSONObject, hook_id: str) -> JSONObject:
    """Start a hook manually, whatever its trigger; actions see the body as `trigger`.

    The condition of an event trigger is not checked. Runs in the background: `instance_id` is that
    of the execution. Returns 409 `disabled` for a disabled hook, and 429 `limit_reached` if the
    account has 10,000 pending instances.
    """
    id = service.trigger(hook_id, body, by=principal(), kind=HOOK)
    return {"message": "The hook is started.", "instance_id": id}


@blueprint.route("/<uuid:hook_id>/executions", methods=["GET"])
@blueprint.arguments(ExecutionArgs, location="query")
@blueprint.response(200, page_of(ExecutionView))
@account_admin(operator="workflows")
def list_executions(args: JSONObject, hook_id: str) -> JSONObject:
    """List the executions of a hook, newest first.

    Each is an instance (`/workflow-instances/{id}`) with a log of its actions, where failed ones
    can be resumed.
    """
    executions, total = hooks.executions(hook_id, args["skip"], args["limit"], by=principal())
    return page_body(executions, total, args)


def _view(hook: Workflow) -> JSONObject:
    shown = _views([hook])[0]
    return {**shown, "warnings": shown["warnings"] + missing.field_warnings(hook, principal())}


def _views(hooks_: Sequence[Workflow]) -> list[JSONObject]:
    times = hooks.times(hooks_)
    warnings = missing.collection_warnings(hooks_)
    return [
        {**_with_times(hook, *times.get(hook.id, (None, None))), "warnings": warnings[hook.id]}
        for hook in hooks_
    ]


def _with_times(hook: Workflow, last_time: object, next_time: object) -> JSONObject:
    computed = {"actions", "warnings", "cron", "last_run_at", "next_run_at"}
    view = {name: getattr(hook, name) for name in HookView().fields.keys() - computed}
    times = {"cron": hook.trigger.get("cron"), "last_run_at": last_time, "next_run_at": next_time}
    return {**view, **times, "actions": hooks.list_actions(hook)}
