"""The form of views: what they read, and how."""

from __future__ import annotations

from werkzeug.wrappers import Response as BaseResponse

from app.collections import service, view_service
from app.collections.models import Collection
from app.console.shell import forms
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.errors import NotFound
from app.types import JSONObject
from app.web.languages import gettext

NEW_VIEW = "/console/collections/new-view"
VIEW = "/console/collections/<uuid:definition_id>/view"
LISTS = ("fields", "group_by", "aggregates")
INPUTS = ("name", "from", "where", *LISTS)


@page(NEW_VIEW, role=SUPERADMIN)
def show_new_view(form: Form | None = None) -> Page:
    return _editor(None, form or Form(dict.fromkeys(INPUTS, "")))


@page(NEW_VIEW, "POST", role=SUPERADMIN, form_page=show_new_view)
def make_view() -> BaseResponse:
    form = forms.submitted(*INPUTS)
    row = view_service.create(form["name"], _body(form))
    notice = gettext(
        "%(name)s is created. Only superadmins can access it until you edit its rules.",
        name=row.name,
    )
    return redirect_with_notice(notice, "console.show_collection", collection_id=row.id)


@page(VIEW, role=SUPERADMIN)
def show_view(definition_id: str, form: Form | None = None) -> Page:
    row = _find(definition_id)
    stored = {**(row.view or {}), "name": row.name}
    texts = {name: "\n".join(stored[name]) for name in LISTS}
    values = {name: str(stored[name] or "") for name in ("name", "from", "where")}
    return _editor(row, form or Form({**values, **texts}))


@page(VIEW, "POST", role=SUPERADMIN, form_page=show_view)
def change_view(definition_id: str) -> BaseResponse:
    form = forms.submitted(*INPUTS)
    row = view_service.update(
        _find(definition_id).id, {**_body(form), "name": form["name"]}, partial=True
    )
    notice = gettext("The view %(name)s is saved.", name=row.name)
    return redirect_with_notice(notice, "console.show_collection", collection_id=row.id)


def _find(definition_id: str) -> Collection:
    row = service.find(definition_id)
    if row.view is None:
        raise NotFound
    return row


def _body(form: Form) -> JSONObject:
    """What a body of the API says: names stand in lines, or between commas."""
    lists = {name: form[name].replace(",", "\n").split("\n") for name in LISTS}
    parts = {name: [one.strip() for one in lines if one.strip()] for name, lines in lists.items()}
    return {"from": form["from"], "where": form["where"].strip() or None, **parts}


def _editor(row: Collection | None, form: Form) -> Page:
    return form.render(
        "console/collections/view.html",
        collection=row,
        names=service.names(with_views=False),
    )
