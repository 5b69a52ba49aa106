"""What an account's workflows and hooks did: instances with each step's input and output."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from flask import redirect, render_template, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.console.automation import workflow_form
from app.console.automation.workflows import ACCOUNT
from app.console.shell import forms, guard, lists, scopes
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import told
from app.console.shell.lists import Listing
from app.console.shell.scopes import Place
from app.errors import Conflict, NotFound
from app.rest.access import public
from app.workflows import instances, service
from app.workflows.models import ACTIVE, FAILED, HOOK, STATES

INSTANCES = f"{ACCOUNT}/instances"
INSTANCE = f"{INSTANCES}/<uuid:instance_id>"
MOST = 1000


@blueprint.get(INSTANCES)
@public
@guard.for_admins
def show_instances(account_id: str) -> str:
    """The instances that match, the newest first."""
    place = scopes.found(account_id)
    known = service.page({}, 0, MOST, by=place.by)[0]
    known += service.page({}, 0, MOST, by=place.by, kind=HOOK)[0]
    choices: lists.Choices = {"workflow": {one.id: one.name for one in known}, "status": STATES}
    listing = lists.asked_for("console.show_instances", choices, **place.at)
    chosen = listing.filters
    wanted = {"workflow_id": chosen.get("workflow"), "status": chosen.get("status")}
    listing.holding(
        instances.page(wanted, listing.skip, lists.SIZE, by=place.by, most=listing.most)
    )
    return render_template(
        "console/workflows/instances.html",
        place=place,
        listing=listing,
        failed=_failed(listing, place),
        known={one.id: one for one in known},
    )


def _failed(listing: Listing, place: Place) -> Listing:
    """How many have failed, of the workflow that is chosen or of all."""
    wanted = {"workflow_id": listing.filters.get("workflow"), "status": FAILED}
    found = instances.page(wanted, 0, 1, by=place.by, most=lists.MOST_COUNTED)
    return Listing(listing.endpoint, listing.at).holding(found)


@blueprint.post(f"{INSTANCES}/resume")
@public
@guard.for_admins
def resume_instances(account_id: str) -> BaseResponse:
    """Let all that failed go on, of one workflow or of all, and show how far they are."""
    place, workflow = scopes.found(account_id), forms.text("workflow")[: lists.LONGEST]
    wanted, moment = {"workflow_id": workflow.lower() or None}, clock.now()
    if instances.resume_all(wanted, by=place.by, at=moment):
        at = {**place.at, "moment": clock.iso(moment)}
        return redirect(url_for("console.show_resumed", **at), 303)
    at = {**place.at, "workflow": workflow or None}
    return told("None had failed.", "console.show_instances", **at)


@blueprint.get(f"{INSTANCES}/resumed/<moment>")
@public
@guard.for_admins
def show_resumed(account_id: str, moment: str) -> str:
    """How far the instances are that were resumed together."""
    place = scopes.found(account_id)
    try:
        at = clock.parse(moment)
    except ValueError:
        raise NotFound from None
    states = instances.after_resuming(at, by=place.by)
    going = sum(states[one] for one in ACTIVE)
    return render_template(
        "console/workflows/resumed.html", place=place, at=at, states=states, going=going
    )


@blueprint.get(INSTANCE)
@public
@guard.for_admins
def show_instance(account_id: str, instance_id: str) -> str:
    """One instance, step by step."""
    place = scopes.found(account_id)
    listing = lists.asked_for("console.show_instance", **place.at, instance_id=instance_id)
    instance = instances.get(instance_id, by=place.by, skip=listing.skip, limit=lists.SIZE)
    listing.items, listing.total = instance["step_logs"], instance["step_logs_total"]
    return render_template(
        "console/workflows/instance.html",
        place=place,
        instance=instance,
        listing=listing,
        name=_name(instance, place),
        spans=_spans(instance["step_logs"]),
        pretty=workflow_form.pretty_kept,
    )


def _name(instance: dict[str, Any], place: Place) -> str | None:
    try:
        return service.get(instance["workflow_id"], by=place.by, kind=instance["kind"]).name
    except NotFound:  # deleted, as its instances will soon be
        return None


def _spans(logs: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """Where each step begins on a line of 100, and how long it is there."""
    ends = [log["completed_at"] or clock.now() for log in logs]
    begun = min((log["started_at"] for log in logs), default=None)
    whole = max(ends, default=begun) - begun + timedelta(microseconds=1) if begun else None
    return [
        ((log["started_at"] - begun) / whole * 100, (end - log["started_at"]) / whole * 100)
        for log, end in zip(logs, ends, strict=True)
    ]


@blueprint.post(f"{INSTANCE}/<any(resume, cancel):action>")
@public
@guard.for_admins
def act_on_instance(account_id: str, instance_id: str, action: str) -> BaseResponse:
    """Have an instance go on, or end it."""
    place = scopes.found(account_id)
    try:
        (instances.resume if action == "resume" else instances.cancel)(instance_id, by=place.by)
        notice = "It goes on at the step that failed." if action == "resume" else "It is cancelled."
    except Conflict as error:  # it has moved on since the page was shown
        notice = error.message
    return told(notice, "console.show_instance", **place.at, instance_id=instance_id)
