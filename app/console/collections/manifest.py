"""Definitions as a file: planned and applied by superadmins."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Response, request
from werkzeug.datastructures import FileStorage
from werkzeug.wrappers import Response as BaseResponse

from app.console.shell import forms, guard, lists
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page
from app.errors import AppError, InvalidValues, problem
from app.manifest import document, export, service
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext, lazy_gettext

MANIFEST = "/console/collections/manifest"
MAX_BYTES = 400 * 2**10
"""Of a file: the form that applies the plan sends its text as a value, of at most 500 kB."""
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


@page(MANIFEST, role=SUPERADMIN)
def show_manifest() -> Page:
    return _page(Form())


@page(f"{MANIFEST}/export", role=SUPERADMIN)
def export_manifest() -> BaseResponse:
    """The manifest of this instance as a file."""
    headers = {"Content-Disposition": "attachment; filename=atrium.yaml"}
    text = document.dump(export.manifest())
    return Response(text, headers=headers, mimetype="application/yaml")


@page(MANIFEST, "POST", role=SUPERADMIN)
def plan_manifest() -> Page:
    """The plan of a manifest, which may be a file, or the result of applying it."""
    form, by = forms.submitted("manifest", "plan_hash", "file"), guard.require_caller()
    try:
        if file := request.files.get("file"):
            form.values["manifest"] = _text(file)
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


def _text(file: FileStorage) -> str:
    """The text of a file. Raises InvalidValues."""
    content = file.stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        size = lists.format_size(MAX_BYTES)
        message = gettext("The file is larger than %(size)s.", size=size)
        raise InvalidValues([problem("file", "too_long", message)])
    try:
        return content.decode("utf-8-sig").replace("\0", "").strip()
    except UnicodeDecodeError as error:
        message = gettext("Choose a text file encoded in UTF-8.")
        raise InvalidValues([problem("file", "invalid_type", message)]) from error


def _page(form: Form, **parts: JSONObject | Sequence[JSONMapping]) -> Page:
    names = {"kinds": KINDS, "actions": ACTIONS}
    shown = {"plan": None, "result": None, "problems": [], **parts}
    return form.render("console/collections/manifest.html", **shown, **names)
