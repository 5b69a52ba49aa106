"""For superadmins: the editor of a collection's rules, and what they would change before saving."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flask import render_template
from werkzeug.wrappers import Response as BaseResponse

from app.collections import population, service, trials
from app.collections.definition import FIELD_LISTS, Definition
from app.collections.models import Collection
from app.console.collections import rule_help, rules_form
from app.console.collections.listing import ONE_COLLECTION, found
from app.console.collections.rules_form import RulesForm, tell_list, tell_rule
from app.console.shell import guard, resubmit
from app.console.shell.blueprint import blueprint
from app.console.shell.excerpts import excerpt
from app.console.shell.forms import Page, told
from app.db import versioned_cache
from app.errors import AppError, Conflict, InvalidValues
from app.rest.access import public
from app.rules import OPERATIONS

RULES = f"{ONE_COLLECTION}/rules"


@dataclass(frozen=True)
class Effect:
    """What proposed rules change: in themselves, and for the records that there are."""

    changes: list[tuple[str, str, str]]
    records: list[dict[str, Any]]


@blueprint.get(RULES)
@public
@guard.for_superadmins
def show_rules(collection_id: str) -> Page:
    """The editor with the rules as they are."""
    row = service.find(collection_id)
    return _editor(row, rules_form.of_rules(row.rules, row.version))


@blueprint.post(f"{RULES}/preview")
@public
@guard.for_superadmins
@resubmit.shows_form
def preview_rules(collection_id: str) -> Page:
    """The editor with what its rules would change."""
    row, form = service.find(collection_id), rules_form.sent()
    try:
        with versioned_cache.reloading():
            present, proposed = _compared(row, form)
            records = population.differences(present, proposed, None)
    except AppError as error:
        return _editor(row, form.refused(error))
    form.values["version"] = str(present.version)  # what it is compared with here is seen
    changed = [one for one in records if one["gained"]["count"] or one["lost"]["count"]]
    return _editor(row, form, Effect(list(_changes(present, proposed)), changed))


@blueprint.post(RULES)
@public
@guard.for_superadmins
def save_rules(collection_id: str) -> Page | BaseResponse:
    """Save the rules, unless they were changed since the editor was opened."""
    row, form = service.find(collection_id), rules_form.sent()
    try:
        with versioned_cache.reloading():
            _compared(row, form)
            service.change_rules(row.id, form.rules(), seen=form["version"])
    except Conflict as error:
        row = service.find(collection_id)
        form.values["version"] = str(row.version)
        return _editor(row, form.refused(error))
    except AppError as error:
        return _editor(row, form.refused(error))
    return told(
        f"The rules of {row.name} are saved.", "console.show_collection", collection_id=row.id
    )


@blueprint.post(f"{RULES}/<any({', '.join(OPERATIONS)}):operation>/check")
@public
@guard.for_superadmins
def check_rule(collection_id: str, operation: str) -> str:
    """Whether a text is a rule: the part of the editor that says so, while it is typed."""
    text, name = rules_form.expression("rule"), f"{operation}_rule"
    with versioned_cache.reloading():
        _, collection = found(collection_id)
        problems = trials.rule_problems(text, collection.scope)
    messages = [one["message"] for one in problems] if text else [rules_form.LACKING]
    shown = excerpt(text, problems[0]["position"]) if problems else None
    return render_template(
        "console/collections/verdict.html", name=name, messages=messages, shown=shown
    )


def _compared(row: Collection, form: RulesForm) -> tuple[Definition, Definition]:
    lacking = form.lacking()
    try:
        compared = service.proposed_rules(row.id, form.rules())
    except InvalidValues as error:
        raise InvalidValues([*lacking, *error.details]) from error
    if lacking:
        raise InvalidValues(lacking)
    return compared


def _changes(present: Definition, proposed: Definition) -> Iterator[tuple[str, str, str]]:
    """What is edited, how it was and how it would be, in words."""
    for operation in OPERATIONS:
        now, then = (tell_rule(one.rule(operation)) for one in (present, proposed))
        if now != then:
            yield f"{operation}: who", now, then
        shown, open_then = (one.field_list(operation) for one in (present, proposed))
        if operation in FIELD_LISTS and _as_set(shown) != _as_set(open_then):
            yield f"{operation}: fields", tell_list(shown), tell_list(open_then)


def _as_set(listed: Any) -> Any:
    return listed if isinstance(listed, str) else set(listed)


def _editor(row: Collection, form: RulesForm, effect: Effect | None = None) -> Page:
    with versioned_cache.reloading():
        _, collection = found(row.id)
        return form.page(
            "console/collections/rules.html",
            collection=collection,
            effect=effect,
            operations=OPERATIONS,
            with_lists=FIELD_LISTS,
            words=rules_form.WORDS,
            offered={one: _offered(collection, one) for one in FIELD_LISTS},
            names=rule_help.names(collection),
            functions=rule_help.functions(),
        )


def _offered(collection: Definition, operation: str) -> list[str]:
    """The names that a field list can hold; those that it holds already, too."""
    fields = collection.fields if operation in ("create", "update") else collection.declared
    listed = collection.field_list(operation)
    return list(dict.fromkeys([*fields, *(listed if isinstance(listed, list) else ())]))
