"""The workflows of an account, hooks among them, and what changed between two versions."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson
from flask import redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import config, web
from app.accounts import tenants, users
from app.console.automation import (
    flow_diagram,
    step_changes,
    step_data,
    step_form,
    triggers,
    webhook_form,
    workflow_form,
)
from app.console.automation.workflow_form import WorkflowForm
from app.console.shell import completions, forms, guard, lists, navigation, owner_form
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Page, redirect_with_notice
from app.console.shell.navigation import AUTOMATION, MenuItem
from app.console.shell.scopes import AccountScope
from app.errors import NotFound
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext
from app.workflows import hooks, instances, service, versions
from app.workflows.instances import InstanceFilter
from app.workflows.language import definition, missing, step_headers
from app.workflows.language.definition import ACTION, LOOPS, Written, lists_in
from app.workflows.models import HOOK, Workflow
from app.workflows.models import WORKFLOW as WORKFLOW_KIND

HOME = "/console/workflows"
ACCOUNT = f"{HOME}/<uuid:account_id>"
KIND = f"{ACCOUNT}/<any(workflow, hook):kind>"
WORKFLOW = f"{KIND}/<uuid:workflow_id>"
NOTICES = {
    "create": lazy_gettext("The workflow is created."),
    "change": lazy_gettext("The workflow is saved."),
    "enable": lazy_gettext("The workflow is enabled."),
    "disable": lazy_gettext("The workflow is disabled."),
    "delete": lazy_gettext("The workflow is deleted."),
}
MAX_LATEST = 5
"""The instances that a workflow's page shows."""
MAX_LINES_OF_STEP, MAX_LINES = 300, 3000  # compared; longer steps are only named
ADDED, REMOVED, CHANGED, MOVED = "added", "removed", "changed", "moved"
KIND_NAMES = {
    ADDED: lazy_gettext("added"),
    REMOVED: lazy_gettext("removed"),
    CHANGED: lazy_gettext("changed"),
    MOVED: lazy_gettext("moved"),
}


@page(HOME, role=ADMIN)
def show_workflows_home() -> str | BaseResponse:
    """The page of the current account; superadmins without one, or who ask for all, choose."""
    if account_id := navigation.home_account_id(guard.require_caller()):
        return redirect(url_for("console.show_workflows", account_id=account_id))
    listing = lists.from_request("console.show_workflows_home", view="all")
    listing.with_page(tenants.page({**listing.page_args, "is_active": True}))
    return render_template("console/workflows/accounts.html", listing=listing)


@page(ACCOUNT, role=ADMIN, menu=MenuItem(AUTOMATION, 2, lazy_gettext("Workflows"), "sitemap"))
def show_workflows(scope: AccountScope) -> str:
    listing = lists.from_request("console.show_workflows", **scope.url_args)
    listing.with_page(service.page({}, listing.skip, lists.PAGE_SIZE, by=scope.by, kind=None))
    return render_template(
        "console/workflows/list.html",
        scope=scope,
        listing=listing,
        latest=instances.latest([one.id for one in listing.items], by=scope.by),
        describe=triggers.describe,
        most=config.current().workflows_per_account,
    )


@page(f"{KIND}/new", role=ADMIN)
def show_new_workflow(
    scope: AccountScope,
    kind: str,
    form: WorkflowForm | None = None,
    checked: Workflow | None = None,
) -> Page:
    """The form for a new workflow, or its short form: a list of actions."""
    form = form or workflow_form.blank()
    return form.render(
        "console/workflows/new.html",
        scope=scope,
        kind=kind,
        step_errors=form.step_errors,
        checked=checked is not None,
        completions=completions.plain(),
        example=workflow_form.pretty(workflow_form.EXAMPLES[kind]),
        form_id=forms.form_id(),
        **(shown(checked, scope) if checked else {}),
        **_trigger_choices(kind, scope),
    )


@page(f"{KIND}/new", "POST", role=ADMIN, form_page=show_new_workflow)
def create_workflow(scope: AccountScope, kind: str) -> Page | BaseResponse:
    """Create a workflow, also from its short form, or only check it."""
    form = workflow_form.submitted()
    id = forms.derive_id([kind, form.values])
    body = workflow_form.body(form, kind)
    body = hooks.as_workflow(body) if kind == HOOK else body
    if forms.text("check"):
        return show_new_workflow(scope, kind, form, service.preview(body, None, by=scope.by))
    with forms.ignore_already_created(lambda: service.get(id, by=scope.by)):
        service.create(body, by=scope.by, id=id)
    if forms.text("form"):
        url_args = {**scope.url_args, "kind": WORKFLOW_KIND, "workflow_id": id}
        return redirect(url_for("console.show_workflow_steps", **url_args), 303)
    return _redirect("create", scope, WORKFLOW_KIND, id)


@page(WORKFLOW, role=ADMIN)
def show_workflow(
    scope: AccountScope,
    kind: str,
    workflow_id: str,
    form: WorkflowForm | None = None,
    checked: Workflow | None = None,
) -> Page:
    workflow = service.get(workflow_id, by=scope.by, kind=kind)
    form = form or workflow_form.from_workflow(workflow)
    sample = triggers.sample(workflow, scope.by)
    form.values.setdefault("given", workflow_form.pretty(sample))
    context = {**shown(checked or workflow, scope), **_trigger_choices(workflow.kind, scope)}
    if token := service.trigger_with_token(workflow).get("token"):
        prefix = f"{config.current().base_url}{web.PREFIX}"
        context["address"] = f"{prefix}/workflow-webhooks/{token}"
    try:
        owner = users.get(workflow.owner_home, workflow.owner_id).label
    except NotFound:
        owner = None
    latest = InstanceFilter(workflow_id=workflow.id)
    return form.render(
        "console/workflows/one.html",
        scope=scope,
        workflow=workflow,
        kind=workflow.kind,
        step_errors=form.step_errors,
        checked=checked is not None,
        completions=completions.of_collection(workflow.trigger.get("collection"), scope),
        latest=instances.page(latest, 0, MAX_LATEST, by=scope.by, max_total=0)[0],
        starter=triggers.phrase(workflow.trigger),
        next_times=triggers.next_times(workflow.trigger),
        owner=owner,
        owners=owner_form.choices(scope, workflow.owner_id),
        **context,
    )


@page(WORKFLOW, "POST", role=ADMIN, form_page=show_workflow)
def change_workflow(scope: AccountScope, kind: str, workflow_id: str) -> Page | BaseResponse:
    """Save a workflow, or only check it."""
    form = workflow_form.submitted()
    workflow = service.get(workflow_id, by=scope.by, kind=kind)
    if forms.text("check"):
        preview = hooks.preview if kind == HOOK else service.preview
        checked = preview(workflow_form.body(form, kind), workflow, by=scope.by)
        return show_workflow(scope, kind, workflow_id, form, checked)
    forms.check_unchanged(form, workflow.updated_at)
    change = hooks.change if kind == HOOK else service.change
    change(workflow_id, workflow_form.body(form, kind), by=scope.by)
    return _redirect("change", scope, kind, workflow_id)


@page(f"{WORKFLOW}/owner", "POST", role=ADMIN, form_page=show_workflow)
def change_workflow_owner(scope: AccountScope, kind: str, workflow_id: str) -> BaseResponse:
    """Let a workflow belong to the caller or a service user."""
    form = _show_errors_as_stored(scope, kind, workflow_id)
    form.values["owner_id"] = forms.text("owner_id")
    service.change(workflow_id, {"owner_id": form["owner_id"]}, by=scope.by, kind=kind)
    return _redirect("change", scope, kind, workflow_id)


@page(f"{WORKFLOW}/<any(enable, disable):action>", "POST", role=ADMIN, form_page=show_workflow)
def switch_workflow(scope: AccountScope, kind: str, workflow_id: str, action: str) -> BaseResponse:
    """Enable or disable a workflow."""
    _show_errors_as_stored(scope, kind, workflow_id)
    service.toggle(workflow_id, action == "enable", by=scope.by, kind=kind)
    return _redirect(action, scope, kind, workflow_id)


@page(f"{WORKFLOW}/trigger", "POST", role=ADMIN, form_page=show_workflow)
def trigger_workflow(scope: AccountScope, kind: str, workflow_id: str) -> BaseResponse:
    """Start a workflow by hand, and redirect to its instance."""
    form = _show_errors_as_stored(scope, kind, workflow_id)
    form.values["given"] = forms.text("given")
    id = service.trigger(workflow_id, workflow_form.trigger_data(form), by=scope.by, kind=kind)
    return redirect_with_notice(
        gettext("The workflow is started."),
        "console.show_instance",
        **scope.url_args,
        instance_id=id,
    )


@page(f"{WORKFLOW}/versions", role=ADMIN)
def show_workflow_versions(scope: AccountScope, kind: str, workflow_id: str) -> str:
    """The changes between two versions of the steps, by default the newest two."""
    workflow = service.get(workflow_id, by=scope.by, kind=kind)
    saved = versions.saved(workflow.account_id, workflow.id)
    numbers = list(saved)
    new = _version_number("new", numbers) or max(numbers, default=0)
    old = _version_number("old", numbers) or max((n for n in numbers if n < new), default=new)
    steps = [_steps_of(workflow, number) for number in (old, new)]
    return render_template(
        "console/workflows/versions.html",
        scope=scope,
        workflow=workflow,
        kind=kind,
        saved=saved,
        emails=users.emails(workflow.account_id, {row.owner_id for row in saved.values()}),
        uses=versions.uses(workflow.account_id, workflow.id, lists.MAX_COUNTED),
        numbers=numbers,
        old=old,
        new=new,
        changes=compare_versions(*steps),
        kinds=KIND_NAMES,
    )


@page(f"{WORKFLOW}/versions/<integer:number>/restore", "POST", role=ADMIN, form_page=show_workflow)
def restore_workflow_version(
    scope: AccountScope, kind: str, workflow_id: str, number: int
) -> BaseResponse:
    """Save the steps of an earlier version as the newest."""
    _show_errors_as_stored(scope, kind, workflow_id)
    service.restore_version(workflow_id, number, by=scope.by, kind=kind)
    url_args = {**scope.url_args, "kind": kind, "workflow_id": workflow_id}
    notice = gettext("The steps of version %(number)s are restored.", number=number)
    return redirect_with_notice(notice, "console.show_workflow_versions", **url_args)


def _version_number(name: str, numbers: Sequence[int]) -> int | None:
    text = request.args.get(name, "")
    return next((number for number in numbers if str(number) == text), None)


def _steps_of(workflow: Workflow, number: int) -> list[JSONObject]:
    version = versions.get(workflow.account_id, workflow.id, number)
    return step_headers.masked(version.steps) if version else []


@page(f"{WORKFLOW}/delete", "POST", role=ADMIN)
def delete_workflow(scope: AccountScope, kind: str, workflow_id: str) -> BaseResponse:
    """Delete a workflow with its instances."""
    with forms.ignore_already_deleted(scope.account.id, "workflows", workflow_id):
        service.delete(workflow_id, by=scope.by, kind=kind)
    return redirect_with_notice(str(NOTICES["delete"]), "console.show_workflows", **scope.url_args)


def _redirect(action: str, scope: AccountScope, kind: str, workflow_id: str) -> BaseResponse:
    url_args = {**scope.url_args, "kind": kind, "workflow_id": workflow_id}
    return redirect_with_notice(str(NOTICES[action]), "console.show_workflow", **url_args)


def _show_errors_as_stored(scope: AccountScope, kind: str, workflow_id: str) -> WorkflowForm:
    """Let the errors of a button show beside the inputs of the stored workflow."""
    workflow = service.get(workflow_id, by=scope.by, kind=kind)
    return forms.show_errors_in(workflow_form.from_workflow(workflow))


def _trigger_choices(kind: str, scope: AccountScope) -> JSONObject:
    return {
        "trigger_types": triggers.types_of(kind),
        "trigger_events": triggers.EVENT_NAMES,
        "collections": webhook_form.choices(scope)["collections"],
    }


def shown(workflow: Workflow, scope: AccountScope) -> JSONObject:
    """The warnings and the diagram of a workflow."""
    found = missing.collection_warnings([workflow])[workflow.id]
    found += missing.field_warnings(workflow, scope.by)
    series = definition.parse_series(workflow.steps)
    is_hook = workflow.kind == HOOK
    steps = hooks.list_actions(workflow) if is_hook else workflow.steps
    rows = step_form.from_steps(steps, of_hook=is_hook)
    step_data.show_fields(rows, scope.by)
    warnings = step_changes.warnings(rows, found)
    # Actions of hooks have no names in the form.
    stored = [step["name"] for step in workflow.steps if step["type"] == ACTION]
    warned = {
        stored[int(row.path)] if is_hook else row.name
        for row in step_changes.warned_rows(rows, warnings)
    }
    starter = triggers.describe(workflow.trigger)
    return {"warnings": warnings, "diagram": flow_diagram.draw(series, starter, warned=warned)}


@dataclass(frozen=True)
class Line:
    """A line of a step's JSON; `kind` is added, removed or empty."""

    kind: str
    text: str


@dataclass(frozen=True)
class StepChange:
    """A step that differs; without lines if it is too long to compare."""

    name: str
    kind: str
    lines: Sequence[Line]


def compare_versions(old: Sequence[Written], new: Sequence[Written]) -> list[StepChange]:
    """The steps that differ, in the new order; removed ones last."""
    before, after = dict(_own_settings(old, "")), dict(_own_settings(new, ""))
    common = [name for name in after if name in before]
    reordered = common != [name for name in before if name in after]
    changes, remaining = list[StepChange](), MAX_LINES
    for name in [*after, *(name for name in before if name not in after)]:
        kind = ADDED if name not in before else REMOVED if name not in after else CHANGED
        if before.get(name) == after.get(name):
            continue
        texts = _setting_lines(before.get(name)), _setting_lines(after.get(name))
        length = sum(map(len, texts))
        fits = length <= min(MAX_LINES_OF_STEP, remaining)
        remaining -= length if fits else 0
        changes.append(StepChange(name, kind, list(_line_diff(*texts)) if fits else ()))
    if reordered:
        order = Line("", ", ".join(after))
        changes.insert(0, StepChange(gettext("Order of steps"), MOVED, [order]))
    return changes


def _own_settings(steps: Sequence[Written], place: str) -> Iterator[tuple[str, JSONObject]]:
    """The settings of each step without inner steps, and where it is."""
    for step in steps:
        settings = {
            name: value for name, value in step.items() if name not in ("steps", "branches")
        }
        yield step["name"], {**({"in": place} if place else {}), **settings}
        for number, inner in enumerate(lists_in(step)):
            branch = "" if step["type"] in LOOPS else f", branch {number + 1}"
            yield from _own_settings(inner, f"{step['name']}{branch}")


def _setting_lines(settings: Mapping[str, object] | None) -> list[str]:
    if settings is None:
        return []
    return orjson.dumps(settings, option=orjson.OPT_INDENT_2).decode().split("\n")


def _line_diff(old: Sequence[str], new: Sequence[str]) -> Iterator[Line]:
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, from_old, to_old, from_new, to_new in matcher.get_opcodes():
        if tag == "equal":
            yield from (Line("", text) for text in old[from_old:to_old])
        else:
            yield from (Line(REMOVED, text) for text in old[from_old:to_old])
            yield from (Line(ADDED, text) for text in new[from_new:to_new])
