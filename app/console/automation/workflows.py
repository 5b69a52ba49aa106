"""The workflows and hooks of an account: listed, made, changed, started, deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flask import redirect, render_template, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import config
from app.accounts import tenants, users
from app.console.automation import workflow_form
from app.console.shell import forms, guard, idempotent_forms, lists, scopes
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Form, Page, told
from app.console.shell.scopes import Place
from app.errors import AppError, NotFound
from app.rest.access import public
from app.workflows import hooks, service
from app.workflows.language import missing_collections
from app.workflows.models import HOOK, Workflow

HOME = "/console/workflows"
ACCOUNT = f"{HOME}/<uuid:account_id>"
KIND = f"{ACCOUNT}/<any(workflow, hook):kind>"
ONE = f"{KIND}/<uuid:workflow_id>"
NEW_PAGE, ONE_PAGE = "console/workflows/new.html", "console/workflows/one.html"


@blueprint.get(HOME)
@public
@guard.for_admins
def show_workflows_home() -> str | BaseResponse:
    """For superadmins a choice of the account; admins have one only."""
    if not guard.known_caller().is_superadmin:
        return redirect(url_for("console.show_workflows", account_id=guard.own_account()))
    listing = lists.asked_for("console.show_workflows_home")
    listing.holding(tenants.page({**listing.asked, "is_active": True}))
    return render_template("console/workflows/accounts.html", listing=listing)


@blueprint.get(ACCOUNT)
@public
@guard.for_admins
def show_workflows(account_id: str) -> str:
    """The workflows of an account, and its hooks."""
    place = scopes.found(account_id)
    listing = lists.asked_for("console.show_workflows", **place.at)
    listing.holding(service.page({}, listing.skip, lists.SIZE, by=place.by))
    of_hooks, _ = service.page(
        {}, 0, config.current().workflows_per_account, by=place.by, kind=HOOK
    )
    return render_template(
        "console/workflows/list.html",
        place=place,
        listing=listing,
        hooks=of_hooks,
        most=config.current().workflows_per_account,
    )


@blueprint.get(f"{KIND}/new")
@public
@guard.for_admins
def show_new_workflow(account_id: str, kind: str) -> Page:
    """The form for a new workflow or hook."""
    return _new_page(scopes.found(account_id), kind, workflow_form.empty(kind))


@blueprint.post(f"{KIND}/new")
@public
@guard.for_admins
def create_workflow(account_id: str, kind: str) -> Page | BaseResponse:
    """Make one, and go on to its page."""
    place, form = scopes.found(account_id), workflow_form.sent()
    create = hooks.create if kind == HOOK else service.create
    id = idempotent_forms.id_of([kind, form.values])
    try:
        create(workflow_form.body(form, kind), by=place.by, id=id)
    except AppError as error:
        if not idempotent_forms.is_made(error, lambda: service.get(id, by=place.by, kind=kind)):
            faults = workflow_form.faults(error, form)
            return _new_page(place, kind, workflow_form.refused(form, error), faults)
    return _told(f"The {kind} is made.", place, kind, id)


@blueprint.get(ONE)
@public
@guard.for_admins
def show_workflow(account_id: str, kind: str, workflow_id: str) -> Page:
    """One workflow or hook."""
    place = scopes.found(account_id)
    workflow = service.get(workflow_id, by=place.by, kind=kind)
    return _page(place, workflow, workflow_form.of_workflow(workflow))


@blueprint.post(ONE)
@public
@guard.for_admins
def change_workflow(account_id: str, kind: str, workflow_id: str) -> Page | BaseResponse:
    """Change what starts it, and what it does."""
    place, form = scopes.found(account_id), workflow_form.sent()
    workflow = service.get(workflow_id, by=place.by, kind=kind)
    change = hooks.change if kind == HOOK else service.change
    try:
        forms.check_seen(form, workflow.updated_at)
        change(workflow_id, workflow_form.body(form, kind), by=place.by)
    except AppError as error:
        faults = workflow_form.faults(error, form)
        return _page(place, workflow, workflow_form.refused(form, error), faults)
    return _told(f"The {kind} is saved.", place, kind, workflow_id)


@blueprint.post(f"{ONE}/<any(enable, disable):action>")
@public
@guard.for_admins
def switch_workflow(account_id: str, kind: str, workflow_id: str, action: str) -> BaseResponse:
    """Enable or disable one."""
    place = scopes.found(account_id)
    service.toggle(workflow_id, action == "enable", by=place.by, kind=kind)
    return _told(f"The {kind} is {action}d.", place, kind, workflow_id)


@blueprint.post(f"{ONE}/trigger")
@public
@guard.for_admins
def trigger_workflow(account_id: str, kind: str, workflow_id: str) -> Page | BaseResponse:
    """Start one by hand, and go on to what it does."""
    place = scopes.found(account_id)
    workflow = service.get(workflow_id, by=place.by, kind=kind)
    form = workflow_form.of_workflow(workflow)
    form.values["given"] = forms.text("given")
    try:
        id = service.trigger(workflow_id, workflow_form.given(form), by=place.by, kind=kind)
    except AppError as error:
        return _page(place, workflow, form.refused(error))
    return told("It is started.", "console.show_instance", **place.at, instance_id=id)


@blueprint.post(f"{ONE}/delete")
@public
@guard.for_admins
def delete_workflow(account_id: str, kind: str, workflow_id: str) -> BaseResponse:
    """Delete one with its instances."""
    place = scopes.found(account_id)
    with idempotent_forms.deleting(place.account.id, "workflows", workflow_id):
        service.delete(workflow_id, by=place.by, kind=kind)
    return told(f"The {kind} is deleted.", "console.show_workflows", **place.at)


def _told(notice: str, place: Place, kind: str, workflow_id: str) -> BaseResponse:
    at = {**place.at, "kind": kind, "workflow_id": workflow_id}
    return told(notice, "console.show_workflow", **at)


def _new_page(place: Place, kind: str, form: Form, faults: Sequence[Any] = ()) -> Page:
    return form.page(
        NEW_PAGE, place=place, kind=kind, faults=faults, drawn=idempotent_forms.drawn()
    )


def _page(place: Place, workflow: Workflow, form: Form, faults: Sequence[Any] = ()) -> Page:
    about = {"place": place, "workflow": workflow, "kind": workflow.kind, "faults": faults}
    about["warnings"] = missing_collections.warnings([workflow])[workflow.id]
    return form.page(ONE_PAGE, owner=_owner(workflow), **about)


def _owner(workflow: Workflow) -> str | None:
    try:
        return users.get(workflow.owner_home, workflow.owner_id).email
    except NotFound:
        return None
