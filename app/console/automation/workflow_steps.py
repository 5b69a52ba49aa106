"""The editor of the steps of workflows and hooks: a form beside the JSON, without scripts."""

from __future__ import annotations

from collections.abc import Sequence

from flask import render_template, request
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.console.automation import step_changes, step_data, step_form, webhook_form, workflows
from app.console.automation.step_changes import Fault
from app.console.automation.step_form import StepList
from app.console.automation.workflows import WORKFLOW
from app.console.shell import completions, forms, scopes
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import AppError
from app.web.languages import gettext
from app.workflows import hooks, service
from app.workflows.language import step_headers
from app.workflows.language.checks import MAX_BRANCHES
from app.workflows.models import HOOK, Workflow

STEPS = f"{WORKFLOW}/steps"


@page(STEPS, role=ADMIN)
def show_workflow_steps(account_id: str, kind: str, workflow_id: str) -> Page:
    """The steps of a workflow, or the actions of a hook, as a form."""
    scope = scopes.account_scope(account_id)
    workflow = service.get(workflow_id, by=scope.by, kind=kind)
    form, is_hook = Form({"seen": clock.iso(workflow.updated_at)}), kind == HOOK
    stored = hooks.list_actions(workflow) if is_hook else step_headers.masked(workflow.steps)
    steps = step_form.from_steps(stored, of_hook=is_hook)
    step_data.resolve(steps, scope.by)
    return _page(scope, workflow, steps, form)


@page(STEPS, "POST", role=ADMIN)
def change_workflow_steps(account_id: str, kind: str, workflow_id: str) -> Page | BaseResponse:
    """Save the steps, or show the form with a step added, moved or removed."""
    scope, form = scopes.account_scope(account_id), forms.submitted("seen", "do")
    workflow = service.get(workflow_id, by=scope.by, kind=kind)
    steps = step_form.submitted(request.form, of_hook=kind == HOOK)
    if step_data.resolve(steps, scope.by, form["do"]):
        return _page(scope, workflow, steps, form)
    target = f"{form['do'].removeprefix('add')}.".removeprefix(".")
    new_kind, before = (forms.text(f"{target}{name}") for name in ("kind", "before"))
    if step_changes.rearranged(steps, form["do"], new_kind, before):
        return _page(scope, workflow, steps, form)
    try:
        found = step_changes.to_steps(steps)
        forms.check_unchanged(form, workflow.updated_at)
        if kind == HOOK:
            hooks.change(workflow_id, {"actions": found}, by=scope.by)
        else:
            service.change(workflow_id, {"steps": found}, by=scope.by)
    except AppError as error:
        faults = step_changes.with_errors(steps, error)
        form.with_error(error)
        form.problem = None if faults else form.problem
        return _page(scope, workflow, steps, form, faults)
    url_args = {**scope.url_args, "kind": kind, "workflow_id": workflow_id}
    notice = gettext("The actions are saved.") if kind == HOOK else gettext("The steps are saved.")
    return redirect_with_notice(notice, "console.show_workflow", **url_args)


def _page(
    scope: AccountScope,
    workflow: Workflow,
    steps: StepList,
    form: Form,
    faults: Sequence[Fault] = (),
) -> Page:
    context = workflows.shown(workflow, scope)
    if not form["do"]:  # the warnings are about the stored steps
        step_changes.note_warnings(steps, context["warnings"])
    page = render_template(
        "console/workflows/steps.html",
        scope=scope,
        workflow=workflow,
        steps=steps,
        form=form,
        faults=faults,
        max_branches=MAX_BRANCHES,
        collections=webhook_form.choices(scope)["collections"],
        completions=completions.plain(step_form.names(steps), caller=False),
        **context,
    )
    return page, form.status
