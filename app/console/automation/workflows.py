"""The workflows and hooks of an account."""

from __future__ import annotations

from collections.abc import Sequence

from flask import redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import config, web
from app.accounts import tenants, users
from app.console.automation import (
    flow_diagram,
    step_changes,
    step_data,
    step_form,
    trigger_form,
    trigger_samples,
    trigger_words,
    version_changes,
    webhook_form,
    workflow_form,
)
from app.console.shell import completions, forms, guard, idempotent_forms, lists, scopes, switcher
from app.console.shell.access import ADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.navigation import AUTOMATION, MenuItem
from app.console.shell.scopes import AccountScope
from app.errors import AppError, NotFound
from app.types import JSONObject
from app.web.languages import gettext, lazy_gettext
from app.workflows import hooks, instances, service, versions
from app.workflows.instances import InstanceFilter
from app.workflows.language import definition, missing, step_headers
from app.workflows.language.definition import ACTION
from app.workflows.models import HOOK, Workflow

HOME = "/console/workflows"
ACCOUNT = f"{HOME}/<uuid:account_id>"
KIND = f"{ACCOUNT}/<any(workflow, hook):kind>"
WORKFLOW = f"{KIND}/<uuid:workflow_id>"
NOTICES = {
    "workflow": {
        "create": lazy_gettext("The workflow is created."),
        "change": lazy_gettext("The workflow is saved."),
        "enable": lazy_gettext("The workflow is enabled."),
        "disable": lazy_gettext("The workflow is disabled."),
        "delete": lazy_gettext("The workflow is deleted."),
    },
    HOOK: {
        "create": lazy_gettext("The hook is created."),
        "change": lazy_gettext("The hook is saved."),
        "enable": lazy_gettext("The hook is enabled."),
        "disable": lazy_gettext("The hook is disabled."),
        "delete": lazy_gettext("The hook is deleted."),
    },
}
MAX_LATEST = 5
"""The instances that a workflow's page shows."""
NEW_PAGE, WORKFLOW_PAGE = "console/workflows/new.html", "console/workflows/one.html"


@page(HOME, role=ADMIN)
def show_workflows_home() -> str | BaseResponse:
    """The page of the current account; superadmins without one, or who ask for all, choose."""
    if account_id := switcher.home_account_id(guard.require_caller()):
        return redirect(url_for("console.show_workflows", account_id=account_id))
    listing = lists.from_request("console.show_workflows_home", view="all")
    listing.with_page(tenants.page({**listing.page_args, "is_active": True}))
    return render_template("console/workflows/accounts.html", listing=listing)


@page(ACCOUNT, role=ADMIN, menu=MenuItem(AUTOMATION, 2, lazy_gettext("Workflows"), "sitemap"))
def show_workflows(account_id: str) -> str:
    scope = scopes.account_scope(account_id)
    listing = lists.from_request("console.show_workflows", **scope.url_args)
    listing.with_page(service.page({}, listing.skip, lists.PAGE_SIZE, by=scope.by))
    of_hooks, _ = service.page(
        {}, 0, config.current().workflows_per_account, by=scope.by, kind=HOOK
    )
    return render_template(
        "console/workflows/list.html",
        scope=scope,
        listing=listing,
        hooks=of_hooks,
        latest=instances.latest([one.id for one in [*listing.items, *of_hooks]], by=scope.by),
        describe=trigger_words.describe,
        most=config.current().workflows_per_account,
    )


@page(f"{KIND}/new", role=ADMIN)
def show_new_workflow(account_id: str, kind: str) -> Page:
    """The form for a new workflow or hook."""
    return _new_page(scopes.account_scope(account_id), kind, workflow_form.blank())


@page(f"{KIND}/new", "POST", role=ADMIN)
def create_workflow(account_id: str, kind: str) -> Page | BaseResponse:
    """Create a workflow or hook, or only check it."""
    scope, form = scopes.account_scope(account_id), workflow_form.submitted()
    create = hooks.create if kind == HOOK else service.create
    id = idempotent_forms.derive_id([kind, form.values])
    try:
        if forms.text("check"):
            return _new_page(scope, kind, form, checked=_preview(form, kind, None, scope))
        create(workflow_form.body(form, kind), by=scope.by, id=id)
    except AppError as error:
        if not idempotent_forms.already_created(
            error, lambda: service.get(id, by=scope.by, kind=kind)
        ):
            faults = workflow_form.step_errors(error, form)
            return _new_page(scope, kind, workflow_form.with_error(form, error), faults)
    if forms.text("form"):
        url_args = {**scope.url_args, "kind": kind, "workflow_id": id}
        return redirect(url_for("console.show_workflow_steps", **url_args), 303)
    return _redirect("create", scope, kind, id)


@page(WORKFLOW, role=ADMIN)
def show_workflow(account_id: str, kind: str, workflow_id: str) -> Page:
    scope = scopes.account_scope(account_id)
    workflow = service.get(workflow_id, by=scope.by, kind=kind)
    return _page(scope, workflow, workflow_form.from_workflow(workflow))


@page(WORKFLOW, "POST", role=ADMIN)
def change_workflow(account_id: str, kind: str, workflow_id: str) -> Page | BaseResponse:
    """Save a workflow or hook, or only check it."""
    scope, form = scopes.account_scope(account_id), workflow_form.submitted()
    workflow = service.get(workflow_id, by=scope.by, kind=kind)
    change = hooks.change if kind == HOOK else service.change
    try:
        if forms.text("check"):
            checked = _preview(form, kind, workflow, scope)
            return _page(scope, workflow, form, checked=checked)
        forms.check_unchanged(form, workflow.updated_at)
        change(workflow_id, workflow_form.body(form, kind), by=scope.by)
    except AppError as error:
        faults = workflow_form.step_errors(error, form)
        return _page(scope, workflow, workflow_form.with_error(form, error), faults)
    return _redirect("change", scope, kind, workflow_id)


@page(f"{WORKFLOW}/<any(enable, disable):action>", "POST", role=ADMIN)
def switch_workflow(
    account_id: str, kind: str, workflow_id: str, action: str
) -> Page | BaseResponse:
    """Enable or disable a workflow or hook."""
    scope = scopes.account_scope(account_id)
    workflow = service.get(workflow_id, by=scope.by, kind=kind)
    form = workflow_form.from_workflow(workflow)
    try:
        service.toggle(workflow_id, action == "enable", by=scope.by, kind=kind)
    except AppError as error:
        return _page(scope, workflow, workflow_form.with_error(form, error))
    return _redirect(action, scope, kind, workflow_id)


@page(f"{WORKFLOW}/trigger", "POST", role=ADMIN)
def trigger_workflow(account_id: str, kind: str, workflow_id: str) -> Page | BaseResponse:
    """Start a workflow by hand, and redirect to its instance."""
    scope = scopes.account_scope(account_id)
    workflow = service.get(workflow_id, by=scope.by, kind=kind)
    form = workflow_form.from_workflow(workflow)
    form.values["given"] = forms.text("given")
    try:
        id = service.trigger(workflow_id, workflow_form.trigger_data(form), by=scope.by, kind=kind)
    except AppError as error:
        return _page(scope, workflow, form.with_error(error))
    return redirect_with_notice(
        gettext("The workflow is started."),
        "console.show_instance",
        **scope.url_args,
        instance_id=id,
    )


@page(f"{WORKFLOW}/versions", role=ADMIN)
def show_workflow_versions(account_id: str, kind: str, workflow_id: str) -> str:
    """What changed between two versions of the steps, by default the newest two."""
    scope = scopes.account_scope(account_id)
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
        changes=version_changes.compare(*steps),
        kinds=version_changes.KIND_NAMES,
    )


@page(f"{WORKFLOW}/versions/<integer:number>/restore", "POST", role=ADMIN)
def restore_workflow_version(
    account_id: str, kind: str, workflow_id: str, number: int
) -> Page | BaseResponse:
    """Save the steps of an earlier version as the newest."""
    scope = scopes.account_scope(account_id)
    workflow = service.get(workflow_id, by=scope.by, kind=kind)
    try:
        service.restore_version(workflow_id, number, by=scope.by, kind=kind)
    except AppError as error:
        form = workflow_form.from_workflow(workflow)
        return _page(scope, workflow, workflow_form.with_error(form, error))
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
def delete_workflow(account_id: str, kind: str, workflow_id: str) -> BaseResponse:
    """Delete a workflow or hook with its instances."""
    scope = scopes.account_scope(account_id)
    with idempotent_forms.ignore_already_deleted(scope.account.id, "workflows", workflow_id):
        service.delete(workflow_id, by=scope.by, kind=kind)
    return redirect_with_notice(
        str(NOTICES[kind]["delete"]), "console.show_workflows", **scope.url_args
    )


def _redirect(action: str, scope: AccountScope, kind: str, workflow_id: str) -> BaseResponse:
    url_args = {**scope.url_args, "kind": kind, "workflow_id": workflow_id}
    return redirect_with_notice(str(NOTICES[kind][action]), "console.show_workflow", **url_args)


def _new_page(
    scope: AccountScope,
    kind: str,
    form: Form,
    faults: Sequence[object] = (),
    checked: Workflow | None = None,
) -> Page:
    context = {"scope": scope, "kind": kind, "step_errors": faults, "checked": checked is not None}
    context |= shown(checked, scope) if checked else {}
    context |= {"completions": completions.plain(), **_trigger_choices(kind, scope)}
    context["example"] = workflow_form.pretty(workflow_form.EXAMPLES[kind])
    return form.render(NEW_PAGE, form_id=idempotent_forms.form_id(), **context)


def _page(
    scope: AccountScope,
    workflow: Workflow,
    form: Form,
    faults: Sequence[object] = (),
    checked: Workflow | None = None,
) -> Page:
    context = {"scope": scope, "workflow": workflow, "kind": workflow.kind, "step_errors": faults}
    context |= {"checked": checked is not None, **shown(checked or workflow, scope)}
    form.values.setdefault(
        "given", workflow_form.pretty(trigger_samples.sample(workflow, scope.by))
    )
    collection = workflow.trigger.get("collection")
    context["completions"] = completions.of_collection(collection, scope)
    context |= _trigger_choices(workflow.kind, scope)
    context["latest"] = instances.page(
        InstanceFilter(workflow_id=workflow.id), 0, MAX_LATEST, by=scope.by, max_total=0
    )[0]
    context["starter"] = trigger_words.phrase(workflow.trigger)
    if token := service.trigger_with_token(workflow).get("token"):
        prefix = f"{config.current().base_url}{web.PREFIX}"
        context["address"] = f"{prefix}/workflow-webhooks/{token}"
    return form.render(WORKFLOW_PAGE, owner=_owner(workflow), **context)


def _trigger_choices(kind: str, scope: AccountScope) -> JSONObject:
    return {
        "trigger_types": trigger_form.types(kind),
        "trigger_events": trigger_form.EVENT_NAMES,
        "collections": webhook_form.choices(scope)["collections"],
    }


def _preview(form: Form, kind: str, current: Workflow | None, scope: AccountScope) -> Workflow:
    preview = hooks.preview if kind == HOOK else service.preview
    return preview(workflow_form.body(form, kind), current, by=scope.by)


def shown(workflow: Workflow, scope: AccountScope) -> JSONObject:
    """The warnings and the diagram of a workflow."""
    found = missing.collection_warnings([workflow])[workflow.id]
    found += missing.field_warnings(workflow, scope.by)
    series = definition.parse_series(workflow.steps)
    is_hook = workflow.kind == HOOK
    steps = hooks.list_actions(workflow) if is_hook else workflow.steps
    rows = step_form.from_steps(steps, of_hook=is_hook)
    step_data.resolve(rows, scope.by)
    warnings = step_changes.warnings(rows, found)
    # Actions of hooks have no names in the form.
    stored = [step["name"] for step in workflow.steps if step["type"] == ACTION]
    warned = {
        stored[int(row.path)] if is_hook else row.name
        for row in step_changes.warned_rows(rows, warnings)
    }
    starter = trigger_words.describe(workflow.trigger)
    return {"warnings": warnings, "diagram": flow_diagram.draw(series, starter, warned=warned)}


def _owner(workflow: Workflow) -> str | None:
    try:
        return users.get(workflow.owner_home, workflow.owner_id).email
    except NotFound:
        return None
