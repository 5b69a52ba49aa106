"""What an account's workflows and hooks did: instances with each step's input and output."""

from __future__ import annotations

from flask import render_template
from werkzeug.wrappers import Response as BaseResponse

from app.console import guard, lists, places, workflow_form
from app.console.blueprint import blueprint
from app.console.forms import told
from app.console.workflows import ACCOUNT
from app.errors import Conflict
from app.rest import public
from app.workflows import instances, service
from app.workflows.models import HOOK, STATES

INSTANCES = f"{ACCOUNT}/instances"
INSTANCE = f"{INSTANCES}/<uuid:instance_id>"
MOST = 1000


@blueprint.get(INSTANCES)
@public
@guard.for_admins
def show_instances(account_id: str) -> str:
    """The instances that match, the newest first."""
    place = places.found(account_id)
    known = service.page({}, 0, MOST, by=place.by)[0]
    known += service.page({}, 0, MOST, by=place.by, kind=HOOK)[0]
    choices = {"workflow": [one.id for one in known], "status": STATES}
    listing = lists.asked_for("console.show_instances", choices, **place.at)
    chosen = listing.filters
    wanted = {"workflow_id": chosen.get("workflow"), "status": chosen.get("status")}
    listing.holding(instances.page(wanted, listing.skip, lists.SIZE, by=place.by))
    return render_template(
        "console/workflows/instances.html",
        place=place,
        listing=listing,
        known={one.id: one for one in known},
    )


@blueprint.get(INSTANCE)
@public
@guard.for_admins
def show_instance(account_id: str, instance_id: str) -> str:
    """One instance, step by step."""
    place = places.found(account_id)
    instance = instances.get(instance_id, by=place.by)
    return render_template(
        "console/workflows/instance.html",
        place=place,
        instance=instance,
        pretty=workflow_form.pretty_kept,
    )


@blueprint.post(f"{INSTANCE}/<any(resume, cancel):action>")
@public
@guard.for_admins
def act_on_instance(account_id: str, instance_id: str, action: str) -> BaseResponse:
    """Have an instance go on, or end it."""
    place = places.found(account_id)
    try:
        (instances.resume if action == "resume" else instances.cancel)(instance_id, by=place.by)
        notice = "It goes on at the step that failed." if action == "resume" else "It is cancelled."
    except Conflict as error:  # it has moved on since the page was shown
        notice = error.message
    return told(notice, "console.show_instance", **place.at, instance_id=instance_id)
