"""The fragments of rules, for superadmins."""

from __future__ import annotations

from flask import request
from werkzeug.wrappers import Response as BaseResponse

from app.collections import definitions, fragments, trials
from app.console.shell import checks, completions, forms
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.names import OPERATION_NAMES
from app.db import versioned_cache
from app.errors import AppError
from app.types import JSONObject
from app.web.languages import gettext

FRAGMENTS = "/console/collections/fragments"
MAX_ROWS = fragments.MAX_FRAGMENTS + 1


@page(FRAGMENTS, role=SUPERADMIN)
def show_fragments(form: Form | None = None, effect: list[JSONObject] | None = None) -> Page:
    """All fragments, and a row for a new one."""
    if form is None:
        form = Form()
        for n, (name, text) in enumerate(fragments.load().items()):
            form.values |= {f"name_{n}": name, f"text_{n}": text}
    rows = sum(name.startswith("name_") for name in form.values)
    places = {
        form[f"name_{n}"]: [*fragments.places_of(form[f"name_{n}"], definitions.get_all())]
        for n in range(rows)
        if form[f"name_{n}"]
    }
    return form.render(
        "console/collections/fragments.html",
        rows=min(rows + (not rows or bool(form[f"name_{rows - 1}"])), MAX_ROWS),
        places=places,
        effect=effect,
        operation_names=OPERATION_NAMES,
        completions=completions.of_rules([]),
    )


@page(f"{FRAGMENTS}/preview", "POST", role=SUPERADMIN, renders_form=True, form_page=show_fragments)
def preview_fragments() -> Page:
    """The effect of changed fragments on the rules that use them."""
    form = _submitted()
    try:
        return show_fragments(form, fragments.plan(_texts(form))["effect"])
    except AppError as error:
        return show_fragments(_with_places(form, error))


@page(FRAGMENTS, "POST", role=SUPERADMIN, renders_form=True, form_page=show_fragments)
def save_fragments() -> Page | BaseResponse:
    """Replace all fragments; those without a condition are removed."""
    form = _submitted()
    try:
        fragments.change(_texts(form))
    except AppError as error:
        return show_fragments(_with_places(form, error))
    return redirect_with_notice(gettext("The fragments are saved."), "console.show_fragments")


@page(f"{FRAGMENTS}/check", "POST", role=SUPERADMIN)
def check_fragment() -> str:
    """Validate a fragment while it is typed: the HTML fragment for the editor."""
    text = checks.submitted()
    with versioned_cache.reloading():
        problems = trials.rule_problems(text, trials.ANY_NAME) if text else []
    return checks.verdict_of_expression(text, problems, gettext("Valid condition."), "text_0")


def _submitted() -> Form:
    rows = sum(name.startswith("name_") for name in request.form)
    keys = (f"{key}_{n}" for n in range(min(rows, MAX_ROWS)) for key in ("name", "text"))
    return forms.submitted(*keys)


def _texts(form: Form) -> dict[str, str]:
    rows = [(form[key], form[f"text_{key[5:]}"]) for key in form.values if key.startswith("name_")]
    return {name.strip(): text for name, text in rows if name.strip() and text.strip()}


def _with_places(form: Form, error: AppError) -> Form:
    """The form with errors of fragments at their rows."""
    rows = {form[key].strip(): f"text_{key[5:]}" for key in form.values if key.startswith("name_")}
    for detail in error.extra.get("details") or ():
        detail["field"] = rows.get(detail["field"], detail["field"])
    return form.with_error(error)
