"""The editor of the steps of workflows: a form beside the JSON, without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flask import render_template, request
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.console.automation import step_changes, step_data, step_form, webhook_form, workflows
from app.console.automation.step_changes import Fault
from app.console.automation.step_form import StepList
from app.console.automation.workflows import WORKFLOW
from app.console.shell import completions, forms
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import AppError
from app.web.languages import gettext
from app.workflows import hooks, service
from app.workflows.language import step_headers
from app.workflows.language.checks import MAX_BRANCHES
from app.workflows.models import HOOK

STEPS = f"{WORKFLOW}/steps"


@dataclass
class StepsForm(Form):
    """A form with a row of inputs per step, and its errors in words."""

    steps: StepList = field(default_factory=StepList)
    faults: Sequence[Fault] = ()

    def with_error(self, error: AppError) -> StepsForm:
        """The form with the messages of an error beside the inputs of the steps."""
        self.faults = step_changes.with_errors(self.steps, error)
        super().with_error(error)
        if self.faults:  # they say it beside their inputs
            self.problem = None
        return self


@page(STEPS, role=ADMIN)
def show_workflow_steps(
    scope: AccountScope, kind: str, workflow_id: str, form: StepsForm | None = None
) -> Page:
    """The steps of a workflow, or the actions of one in its short form, as a form."""
    workflow = service.get(workflow_id, by=scope.by, kind=kind)
    if form is None:
        form = StepsForm({"seen": clock.iso(workflow.updated_at)})
        if kind == HOOK:
            form.steps = step_form.from_steps(hooks.list_actions(workflow), of_hook=True)
        else:
            masked_steps = step_headers.masked(workflow.steps)
            form.steps = step_form.from_steps(masked_steps, of_hook=False)
        step_data.show_fields(form.steps, scope.by)
    context = workflows.shown(workflow, scope)
    if not form["do"]:  # the warnings are about the stored steps
        step_changes.note_warnings(form.steps, context["warnings"])
    html = render_template(
        "console/workflows/steps.html",
        scope=scope,
        workflow=workflow,
        steps=form.steps,
        form=form,
        faults=form.faults,
        max_branches=MAX_BRANCHES,
        collections=webhook_form.choices(scope)["collections"],
        completions=completions.plain(step_form.names(form.steps), caller=False),
        **context,
    )
    return html, form.status


@page(STEPS, "POST", role=ADMIN, form_page=show_workflow_steps)
def change_workflow_steps(scope: AccountScope, kind: str, workflow_id: str) -> Page | BaseResponse:
    """Save the steps, or show the form with a step added, moved or removed."""
    form = forms.submitted("seen", "do", kind=StepsForm)  # `do` names the pressed button
    workflow = service.get(workflow_id, by=scope.by, kind=kind)
    form.steps = step_form.submitted(request.form, of_hook=kind == HOOK)
    switch = step_data.parse_switch(form["do"])
    step_data.show_fields(form.steps, scope.by, switch)
    button = step_changes.parse_button(form["do"])
    if button:
        step_changes.rearrange(form.steps, button)
    if switch or button:
        return show_workflow_steps(scope, kind, workflow_id, form)
    steps = step_changes.to_steps(form.steps)
    forms.check_unchanged(form, workflow.updated_at)
    if kind == HOOK:
        hooks.change(workflow_id, {"actions": steps}, by=scope.by)
        notice = gettext("The actions are saved.")
    else:
        service.change(workflow_id, {"steps": steps}, by=scope.by)
        notice = gettext("The steps are saved.")
    url_args = {**scope.url_args, "kind": kind, "workflow_id": workflow_id}
    return redirect_with_notice(notice, "console.show_workflow", **url_args)
