"""The rule editor, with a preview of its effect, and fragments of rules, for superadmins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flask import request
from werkzeug.wrappers import Response as BaseResponse

from app.collections import access, definitions, fragments, population, service, trials
from app.collections.definitions import FIELD_LISTS, Definition
from app.collections.models import Collection
from app.collections.population import Difference
from app.console.collections import rules_form
from app.console.collections.listing import COLLECTION, load
from app.console.collections.rules_form import RulesForm, describe_fields, describe_rule
from app.console.shell import checks, completions, forms, guard
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.names import OPERATION_NAMES
from app.db import versioned_cache
from app.errors import AppError, Conflict, InvalidValues, problem
from app.rules import OPERATIONS
from app.types import JSONObject
from app.web.languages import gettext

RULES = f"{COLLECTION}/rules"
FRAGMENTS = "/console/collections/fragments"
MAX_FRAGMENT_ROWS = fragments.MAX_FRAGMENTS + 1


@dataclass(frozen=True)
class Effect:
    """The changes of proposed rules: their texts, and who may access existing records."""

    changes: list[tuple[str, str, str]]
    records: list[Difference]
    warnings: Sequence[JSONObject] = ()


@page(RULES, role=SUPERADMIN)
def show_rules(
    collection_id: str, form: RulesForm | None = None, effect: Effect | None = None
) -> Page:
    """The editor with the current rules."""
    row = service.find(collection_id)
    form = form or rules_form.from_rules(row.rules, row.version)
    if form.status == Conflict.status:
        form.values["version"] = str(row.version)  # saving again overwrites it
    with versioned_cache.reloading():
        _, collection = load(row.id)
        return form.render(
            "console/collections/rules.html",
            collection=collection,
            effect=effect,
            operations=OPERATIONS,
            with_lists=FIELD_LISTS,
            operation_names=OPERATION_NAMES,
            operation_texts=rules_form.OPERATION_TEXTS,
            words=rules_form.LABELS,
            offered={operation: _field_choices(collection, operation) for operation in FIELD_LISTS},
            names=completions.names(collection),
            functions=completions.functions() | completions.RULE_FUNCTIONS,
            completions=completions.of_rules(
                [
                    access.for_operation(guard.require_caller(), one, "view")
                    for one in (collection, *definitions.get_all(with_views=True))
                ]
            ),
        )


@page(f"{RULES}/preview", "POST", role=SUPERADMIN, renders_form=True, form_page=show_rules)
def preview_rules(collection_id: str) -> Page:
    row, form = service.find(collection_id), rules_form.submitted()
    with versioned_cache.reloading():
        current, proposed = _compare(row, form)
        records = population.differences(current, proposed, None)
        warnings = trials.all_warnings(proposed)
    form.values["version"] = str(current.version)  # the user sees the comparison with this version
    changed = [change for change in records if change.gained.count or change.lost.count]
    effect = Effect(list(_changes(current, proposed)), changed, warnings)
    return show_rules(collection_id, form, effect)


@page(RULES, "POST", role=SUPERADMIN, form_page=show_rules)
def save_rules(collection_id: str) -> BaseResponse:
    """Save the rules unless they changed since the editor was opened."""
    row, form = service.find(collection_id), rules_form.submitted()
    with versioned_cache.reloading():
        _compare(row, form)
        service.change_rules(row.id, form.rules(), expected_version=form["version"])
    return redirect_with_notice(
        gettext("The rules of %(collection)s are saved.", collection=row.name),
        "console.show_collection",
        collection_id=row.id,
    )


@page(f"{RULES}/<any({', '.join(OPERATIONS)}):operation>/check", "POST", role=SUPERADMIN)
def check_rule(collection_id: str, operation: str) -> str:
    """Validate a rule while it is typed: the HTML fragment for the editor."""
    text = checks.submitted()
    with versioned_cache.reloading():
        _, collection = load(collection_id)
        scope = trials.scope_for(collection.name, (), operation)
        problems = trials.rule_problems(text, scope)
        odd = [] if problems else trials.warnings_of_rule(text, scope, operation, collection)
    if not text:
        problems = [problem("rule", "required", str(rules_form.EXPRESSION_REQUIRED))]
    valid = gettext("Valid rule.")
    return checks.verdict_of_expression(text, problems, valid, f"{operation}_rule", odd)


def _compare(row: Collection, form: RulesForm) -> tuple[Definition, Definition]:
    missing = form.missing()
    try:
        compared = service.proposed_rules(row.id, form.rules())
    except InvalidValues as error:
        raise InvalidValues([*missing, *error.details]) from error
    if missing:
        raise InvalidValues(missing)
    return compared


def _changes(current: Definition, proposed: Definition) -> Iterator[tuple[str, str, str]]:
    """Each changed rule or field list, with its description before and after."""
    for operation in OPERATIONS:
        name = OPERATION_NAMES[operation]
        before, after = (
            describe_rule(definition.rule(operation)) for definition in (current, proposed)
        )
        if before != after:
            yield gettext("%(operation)s: who", operation=name), before, after
        fields_before, fields_after = (
            definition.field_list(operation) for definition in (current, proposed)
        )
        if operation in FIELD_LISTS and _as_set(fields_before) != _as_set(fields_after):
            yield (
                gettext("%(operation)s: fields", operation=name),
                describe_fields(fields_before),
                describe_fields(fields_after),
            )


def _as_set(fields: Any) -> Any:
    return fields if isinstance(fields, str) else set(fields)


def _field_choices(collection: Definition, operation: str) -> list[str]:
    """The names that a field list may have, and those that it has."""
    fields = collection.fields if operation in ("create", "update") else collection.declared
    selected = collection.field_list(operation)
    return list(dict.fromkeys([*fields, *(selected if isinstance(selected, list) else ())]))


@page(FRAGMENTS, role=SUPERADMIN)
def show_fragments(form: Form | None = None, effect: list[JSONObject] | None = None) -> Page:
    """All fragments, and a row for a new one."""
    if form is None:
        form = Form()
        for n, (name, text) in enumerate(fragments.load().items()):
            form.values |= {f"name_{n}": name, f"text_{n}": text}
    rows = sum(name.startswith("name_") for name in form.values)
    places = {
        form[f"name_{n}"]: [
            *fragments.places_of(form[f"name_{n}"], definitions.get_all(with_views=True))
        ]
        for n in range(rows)
        if form[f"name_{n}"]
    }
    return form.render(
        "console/collections/fragments.html",
        rows=min(rows + (not rows or bool(form[f"name_{rows - 1}"])), MAX_FRAGMENT_ROWS),
        places=places,
        effect=effect,
        operation_names=OPERATION_NAMES,
        completions=completions.of_rules([]),
    )


@page(f"{FRAGMENTS}/preview", "POST", role=SUPERADMIN, renders_form=True, form_page=show_fragments)
def preview_fragments() -> Page:
    """The effect of changed fragments on the rules that use them."""
    form = _submitted_fragments()
    try:
        return show_fragments(form, fragments.plan(_fragment_texts(form))["effect"])
    except AppError as error:
        return show_fragments(_with_places(form, error))


@page(FRAGMENTS, "POST", role=SUPERADMIN, renders_form=True, form_page=show_fragments)
def save_fragments() -> Page | BaseResponse:
    """Replace all fragments; those without a condition are removed."""
    form = _submitted_fragments()
    try:
        fragments.change(_fragment_texts(form))
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


def _submitted_fragments() -> Form:
    rows = sum(name.startswith("name_") for name in request.form)
    keys = (f"{key}_{n}" for n in range(min(rows, MAX_FRAGMENT_ROWS)) for key in ("name", "text"))
    return forms.submitted(*keys)


def _fragment_texts(form: Form) -> dict[str, str]:
    rows = [(form[key], form[f"text_{key[5:]}"]) for key in form.values if key.startswith("name_")]
    return {name.strip(): text for name, text in rows if name.strip() and text.strip()}


def _with_places(form: Form, error: AppError) -> Form:
    """The form with errors of fragments at their rows."""
    rows = {form[key].strip(): f"text_{key[5:]}" for key in form.values if key.startswith("name_")}
    for detail in error.extra.get("details") or ():
        detail["field"] = rows.get(detail["field"], detail["field"])
    return form.with_error(error)
