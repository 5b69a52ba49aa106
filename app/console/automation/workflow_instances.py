"""The instances of workflows, with the input and output of each step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

from flask import redirect, render_template, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.console.automation import flow_diagram, step_form, workflow_form
from app.console.automation.flow_diagram import Diagram
from app.console.automation.triggers import STARTED_BY
from app.console.automation.workflows import ACCOUNT
from app.console.shell import forms, lists, names
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import redirect_with_notice
from app.console.shell.lists import Listing
from app.console.shell.scopes import AccountScope
from app.errors import Conflict, NotFound
from app.web.languages import gettext, lazy_gettext
from app.workflows import instances, service, versions
from app.workflows.instances import Instance, InstanceFilter, StepLog
from app.workflows.language import missing
from app.workflows.models import ACTIVE, HOOK, STATES, InstanceState, Trigger, Workflow
from app.workflows.triggers.start_limits import LimitReached
from app.workflows.versions import Version

INSTANCES = f"{ACCOUNT}/instances"
INSTANCE = f"{INSTANCES}/<uuid:instance_id>"
MAX_WORKFLOWS = 1000
DONE = {
    "resume": lazy_gettext("The instance resumes at the failed step."),
    "cancel": lazy_gettext("The instance is cancelled."),
    "again": lazy_gettext("The new instance is started."),
}
ITERATION = re.compile(r"\[([0-9]+)\]")


@page(INSTANCES, role=ADMIN)
def show_instances(scope: AccountScope) -> str:
    """The matching instances, newest first."""
    known = _workflows(scope)
    choices: lists.Choices = {
        "workflow": {id: workflow.name for id, workflow in known.items()},
        "status": names.states(STATES),
    }
    listing = lists.from_request("console.show_instances", choices, **scope.url_args)
    filters = listing.filters
    where = InstanceFilter(workflow_id=filters.get("workflow"), status=filters.get("status"))
    listing.with_page(
        instances.page(
            where, listing.skip, lists.PAGE_SIZE, by=scope.by, max_total=listing.count_limit
        )
    )
    return render_template(
        "console/workflows/instances.html",
        scope=scope,
        listing=listing,
        failed=_failed_count(listing, scope),
        known=known,
    )


def _workflows(scope: AccountScope) -> dict[str, Workflow]:
    """The workflows of an account, by id."""
    found = service.page({}, 0, MAX_WORKFLOWS, by=scope.by, kind=None)[0]
    return {workflow.id: workflow for workflow in found}


def _failed_count(listing: Listing, scope: AccountScope) -> Listing:
    where = InstanceFilter(workflow_id=listing.filters.get("workflow"), status=InstanceState.FAILED)
    result = instances.page(where, 0, 1, by=scope.by, max_total=lists.MAX_COUNTED)
    return Listing(listing.endpoint, listing.url_args).with_page(result)


@page(f"{INSTANCES}/resume", "POST", role=ADMIN)
def resume_instances(scope: AccountScope) -> BaseResponse:
    workflow = forms.text("workflow")[: lists.MAX_INPUT_LENGTH]
    where, now = InstanceFilter(workflow_id=workflow.lower() or None), clock.now()
    if instances.resume_all(where, by=scope.by, resumed_at=now):
        url_args = {**scope.url_args, "moment": clock.iso(now)}
        return redirect(url_for("console.show_resumed", **url_args), 303)
    url_args = {**scope.url_args, "workflow": workflow or None}
    notice = gettext("No instance has failed.")
    return redirect_with_notice(notice, "console.show_instances", **url_args)


@page(f"{INSTANCES}/resumed/<moment>", role=ADMIN)
def show_resumed(scope: AccountScope, moment: str) -> str:
    """The progress of instances that were resumed together."""
    try:
        resumed_at = clock.parse(moment)
    except ValueError:
        raise NotFound from None
    states = instances.resumed_counts(resumed_at, by=scope.by)
    listing = lists.from_request("console.show_resumed", **scope.url_args, moment=moment)
    where, limit = InstanceFilter(resumed_at=resumed_at), listing.count_limit
    listing.with_page(
        instances.page(where, listing.skip, lists.PAGE_SIZE, by=scope.by, max_total=limit)
    )
    in_progress = sum(states[status] for status in ACTIVE)
    return render_template(
        "console/workflows/resumed.html",
        scope=scope,
        resumed_at=resumed_at,
        listing=listing,
        known=_workflows(scope),
        states=states,
        going=in_progress,
    )


@page(INSTANCE, role=ADMIN)
def show_instance(scope: AccountScope, instance_id: str) -> str:
    listing = lists.from_request("console.show_instance", **scope.url_args, instance_id=instance_id)
    instance = instances.get(instance_id, by=scope.by, skip=listing.skip, limit=lists.PAGE_SIZE)
    listing.items, listing.total = list(instance.step_logs), instance.step_logs_total
    version = versions.get(scope.account.id, instance.workflow_id, instance.version)
    steps = version.series.walk() if version else ()
    workflow = _workflow(instance, scope)
    return render_template(
        "console/workflows/instance.html",
        scope=scope,
        instance=instance,
        listing=listing,
        workflow=workflow,
        warnings=missing.collection_warnings([workflow])[workflow.id] if workflow else (),
        anchor=_anchor(workflow, instance.current_step) if workflow else None,
        may_run_again=bool(workflow and workflow.enabled) and instance.is_repeatable,
        is_long=_is_long(instance.step_logs),
        spans=_timeline(instance.step_logs),
        diagram=_diagram(instance, version, scope),
        step_name=_step_name,
        does={step.name: flow_diagram.describe(step) for step in steps},
        pretty=workflow_form.pretty_shortened,
    )


def _diagram(instance: Instance, version: Version | None, scope: AccountScope) -> Diagram | None:
    if version is None:  # removed with its workflow
        return None
    states = flow_diagram.step_states(instance, version.series, scope.by)
    return flow_diagram.draw(
        version.series, str(STARTED_BY[Trigger(instance.trigger_type)]), states
    )


def _step_name(log: StepLog) -> str:
    """The name of a step, with the numbers of the items that the loops around it are at."""
    around = log.place.partition("#")[0].rpartition("/")[0]
    numbers = [str(int(index) + 1) for index in ITERATION.findall(around)]
    if not numbers:
        return log.step_name
    item = ".".join(numbers)
    return gettext("%(step)s, item %(number)s", step=log.step_name, number=item)


def _workflow(instance: Instance, scope: AccountScope) -> Workflow | None:
    try:
        return service.get(instance.workflow_id, by=scope.by, kind=instance.kind)
    except NotFound:  # deleted; a job removes its instances
        return None


def _anchor(workflow: Workflow, step_name: str | None) -> str | None:
    """The element of a step in the form of the workflow's present steps."""
    if workflow.kind == HOOK:
        return None
    rows = (row for steps in step_form.from_steps(workflow.steps).walk() for row in steps.rows)
    return next((f"i-{row.path}" for row in rows if row.name == step_name), None)


def _is_long(logs: Sequence[StepLog]) -> bool:
    """Whether the times of day alone would leave open on which day a step began."""
    times = [log.started_at for log in logs]
    return bool(times) and max(times) - min(times) > timedelta(hours=12)


def _timeline(logs: Sequence[StepLog]) -> list[tuple[float, float]]:
    """The start and length of each step, in percent of the instance's time."""
    if not logs:
        return []
    ends = [log.completed_at or clock.now() for log in logs]
    start = min(log.started_at for log in logs)
    duration = max(ends) - start + timedelta(microseconds=1)
    return [
        ((log.started_at - start) / duration * 100, (end - log.started_at) / duration * 100)
        for log, end in zip(logs, ends, strict=True)
    ]


@page(f"{INSTANCE}/<any(resume, cancel, again):action>", "POST", role=ADMIN)
def act_on_instance(scope: AccountScope, instance_id: str, action: str) -> BaseResponse:
    """Resume or cancel an instance, or start another one with its trigger data."""
    try:
        if action == "again":
            instance_id = instances.rerun(instance_id, by=scope.by)
        else:
            (instances.resume if action == "resume" else instances.cancel)(instance_id, by=scope.by)
        notice = str(DONE[action])
    except (Conflict, LimitReached) as error:  # such as a status that has changed meanwhile
        notice = error.message
    return redirect_with_notice(
        notice, "console.show_instance", **scope.url_args, instance_id=instance_id
    )
