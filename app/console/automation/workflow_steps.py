"""The editor of a workflow's steps: a form beside the JSON, which needs no script."""

from __future__ import annotations

from collections.abc import Sequence

from flask import render_template, request
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.console.automation import step_form
from app.console.automation.step_form import Row
from app.console.automation.workflows import ACCOUNT
from app.console.shell import completions, forms, guard, scopes
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import AppError
from app.http.languages import gettext
from app.rest.access import public
from app.workflows import service
from app.workflows.language import step_headers
from app.workflows.models import Workflow

STEPS = f"{ACCOUNT}/workflow/<uuid:workflow_id>/steps"


@blueprint.get(STEPS)
@public
@guard.admins_only
def show_workflow_steps(account_id: str, workflow_id: str) -> Page:
    """The steps as a form."""
    scope = scopes.account_scope(account_id)
    workflow = service.get(workflow_id, by=scope.by)
    form = Form({"seen": clock.iso(workflow.updated_at)})
    return _page(scope, workflow, step_form.rows(step_headers.masked(workflow.steps)), form)


@blueprint.post(STEPS)
@public
@guard.admins_only
def change_workflow_steps(account_id: str, workflow_id: str) -> Page | BaseResponse:
    """Save the steps, or show the form with a step added, moved or removed."""
    scope, form = scopes.account_scope(account_id), forms.submitted("seen", "do", "kind")
    workflow = service.get(workflow_id, by=scope.by)
    rows = step_form.submitted_rows(request.form)
    rearranged = step_form.rearranged(rows, form["do"], form["kind"])
    if rearranged is not None:
        return _page(scope, workflow, rearranged, form)
    try:
        steps = step_form.submitted(request.form)
        forms.check_unchanged(form, workflow.updated_at)
        service.change(workflow_id, {"steps": steps}, by=scope.by)
    except AppError as error:
        rows = step_form.with_errors(rows, error)
        return _page(scope, workflow, rows, form.with_error(error))
    url_args = {**scope.url_args, "kind": workflow.kind, "workflow_id": workflow_id}
    return redirect_with_notice(
        gettext("The steps are saved."), "console.show_workflow", **url_args
    )


def _page(scope: AccountScope, workflow: Workflow, rows: Sequence[Row], form: Form) -> Page:
    page = render_template(
        "console/workflows/steps.html",
        scope=scope,
        workflow=workflow,
        rows=rows,
        form=form,
        kinds=step_form.LABELS,
        completions=completions.plain(step_form.names(rows), caller=False),
    )
    return page, form.status
