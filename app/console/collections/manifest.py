"""Definitions as a file: planned and applied by superadmins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
"""The limit of a file: the form that applies the plan sends its text as a value of up to 500 kB."""
KINDS = {
    "collection": lazy_gettext("Collection"),
    "fragment": lazy_gettext("Fragment of rules"),
    "role": lazy_gettext("Role"),
    "attributes": lazy_gettext("Attributes"),
    "directory": lazy_gettext("Directory"),
    "product": lazy_gettext("Product"),
    "plans": lazy_gettext("Plans"),
    "account_templates": lazy_gettext("Account templates"),
    "mail_templates": lazy_gettext("Mail texts"),
    "mail_template": lazy_gettext("Mail text"),
    "settings": lazy_gettext("Settings"),
    "brand": lazy_gettext("Brand"),
    "group": lazy_gettext("Group"),
    "webhook": lazy_gettext("Webhook"),
    "workflow": lazy_gettext("Workflow"),
    "hook": lazy_gettext("Hook"),
    "provider": lazy_gettext("Provider"),
}
DRIFT_KINDS = KINDS | {
    "field": lazy_gettext("Field"),
    "index": lazy_gettext("Index"),
    "rule": lazy_gettext("Rule"),
    "option": lazy_gettext("Option"),
    "tests": lazy_gettext("Tests of rules"),
    "attribute": lazy_gettext("Attribute"),
    "plan": lazy_gettext("Plan"),
    "account_template": lazy_gettext("Account template"),
}
ACTIONS = {
    "create": lazy_gettext("new"),
    "update": lazy_gettext("changed"),
    "remove": lazy_gettext("removed"),
}


@dataclass
class ManifestForm(Form):
    """The text of a manifest, and what is wrong with it."""

    problems: Sequence[JSONMapping] = ()

    def with_error(self, error: AppError) -> ManifestForm:
        """The form with the messages of an error; those about the manifest have a list."""
        if isinstance(error, InvalidValues):
            self.status, self.problems = error.status, error.details
        else:
            super().with_error(error)
        return self


@page(MANIFEST, role=SUPERADMIN)
def show_manifest(
    form: ManifestForm | None = None,
    plan: JSONObject | None = None,
    result: JSONObject | None = None,
) -> Page:
    form = form or ManifestForm()
    return form.render(
        "console/collections/manifest.html",
        plan=plan,
        result=result,
        problems=form.problems,
        kinds=KINDS,
        drift_kinds=DRIFT_KINDS,
        actions=ACTIONS,
    )


@page(f"{MANIFEST}/export", role=SUPERADMIN)
def export_manifest() -> BaseResponse:
    """The manifest of this instance as a file."""
    headers = {"Content-Disposition": "attachment; filename=atrium.yaml"}
    text = document.dump(export.manifest())
    return Response(text, headers=headers, mimetype="application/yaml")


@page(MANIFEST, "POST", role=SUPERADMIN, form_page=show_manifest)
def plan_manifest() -> Page:
    """The plan of a manifest, which may be a file, or the result of applying it."""
    form = forms.submitted("manifest", "plan_hash", "file", "strict", kind=ManifestForm)
    by = guard.require_caller()
    if file := request.files.get("file"):
        form.values["manifest"] = _text(file)
    form.validated(("manifest",))
    sent = document.parse(form["manifest"])
    if request.form.get("do") == "apply":
        return show_manifest(result=service.apply(sent, form["plan_hash"], by=by))
    strict = form["strict"] == "true"
    return show_manifest(form, plan=service.plan(sent, by=by, strict=strict))


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
