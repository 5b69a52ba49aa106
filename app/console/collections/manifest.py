"""Definitions as a file: planned and applied by superadmins."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Response, request
from werkzeug.wrappers import Response as BaseResponse

from app.console.shell import forms, guard
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Form, Page
from app.errors import AppError, InvalidValues
from app.http.languages import lazy_gettext
from app.manifest import document, export, service
from app.rest.access import public
from app.types import JSONMapping, JSONObject

MANIFEST = "/console/collections/manifest"
KINDS = {
    "collection": lazy_gettext("Collection"),
    "role": lazy_gettext("Role"),
    "group": lazy_gettext("Group"),
    "webhook": lazy_gettext("Webhook"),
    "workflow": lazy_gettext("Workflow"),
    "hook": lazy_gettext("Hook"),
    "provider": lazy_gettext("Provider"),
}
ACTIONS = {
    "create": lazy_gettext("new"),
    "update": lazy_gettext("changed"),
    "remove": lazy_gettext("removed"),
}


@blueprint.get(MANIFEST)
@public
@guard.superadmins_only
def show_manifest() -> Page:
    """The form for a manifest."""
    return _page(Form())


@blueprint.get(f"{MANIFEST}/export")
@public
@guard.superadmins_only
def export_manifest() -> BaseResponse:
    """The manifest of this instance as a file."""
    headers = {"Content-Disposition": "attachment; filename=atrium.yaml"}
    text = document.dump(export.manifest())
    return Response(text, headers=headers, mimetype="application/yaml")


@blueprint.post(MANIFEST)
@public
@guard.superadmins_only
def plan_manifest() -> Page:
    """The plan of a manifest, or the result of applying it."""
    form, by = forms.submitted("manifest", "plan_hash"), guard.require_caller()
    try:
        form.validated(("manifest",))
        sent = document.parse(form["manifest"])
        if request.form.get("do") == "apply":
            return _page(Form(), result=service.apply(sent, form["plan_hash"], by=by))
        return _page(form, plan=service.plan(sent, by=by))
    except InvalidValues as error:
        form.status = error.status
        return _page(form, problems=error.details)
    except AppError as error:
        return _page(form.with_error(error))


def _page(form: Form, **parts: JSONObject | Sequence[JSONMapping]) -> Page:
    names = {"kinds": KINDS, "actions": ACTIONS}
    shown = {"plan": None, "result": None, "problems": [], **parts}
    return form.render("console/collections/manifest.html", **shown, **names)
