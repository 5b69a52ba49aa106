"""Roles, groups and choices that the expressions of collections name: rules and computed fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import sqlalchemy as sa

from app import db, events
from app.accounts import names
from app.accounts.names import Name, Use
from app.collections import definitions
from app.collections.changes import IN_USE, Change
from app.collections.definitions import Definition, is_expression
from app.collections.models import Collection
from app.errors import NotFound, problem
from app.rules import OPERATIONS, named
from app.rules.named import BLANK, CHOICE, Mention
from app.types import JSONMapping, JSONObject
from app.web.feature import Finding

RULES = tuple(f"{operation}_rule" for operation in OPERATIONS)
MAX_NAMED = 20  # choices that a message names
MAX_WARNINGS = 5  # that `doctor` shows
UNKNOWN_CHOICE = "unknown_choice"


def problem_in(
    text: str | None,
    of: Definition | None,
    former: str | None = None,
    roots: Sequence[str] = (),
) -> JSONObject:
    """The first name of an expression that stands for nothing, as a problem without a field.

    Empty without one. `former`, the text as it is stored, passes: it goes on to work, and a role
    may have gone since. `roots` are names that stand for the record.
    """
    if not text or text == former:
        return {}
    if of is not None:
        for one in named.mentions(text):
            choices = choices_of(of, one, roots)
            if choices is not None and one.value not in choices:
                shown = ", ".join(choices[:MAX_NAMED]) + (", …" if len(choices) > MAX_NAMED else "")
                message = f"{'.'.join(one.path)} is never {one.value[:80]!r}. It is one of: {shown}"
                return problem(None, UNKNOWN_CHOICE, message, position=one.start)
    return names.role_problem(text) or {}


def computed_problems(
    specs: Iterable[JSONMapping], of: Definition, former: Mapping[str, str | None]
) -> Iterator[JSONObject]:
    """The problems of names in computed fields, but for expressions that are stored so."""
    for spec in specs:
        found = problem_in(spec.get("expression"), of, former.get(spec["name"]))
        if found:
            yield found | {"field": spec["name"]}


def choices_of(of: Definition, mention: Mention, roots: Sequence[str] = ()) -> Sequence[str] | None:
    """The choices of the field that a text is compared with; None if it has none."""
    if mention.kind != CHOICE or BLANK in mention.value or not mention.is_certain:
        return None
    current: Definition | None = of
    *steps, last = mention.path
    for step in steps[1:] if steps and steps[0] in roots else steps:
        try:
            current = current.target(step) if current else None
        except NotFound:
            return None
    field = current.fields.get(last) if current else None
    return field.options.get("choices") if field else None


def warnings(of: Definition) -> list[JSONObject]:
    """The groups that no account has, and the roles that are gone, in the rules of a collection."""
    found = []
    for key in RULES:
        text = of.rules.get(key) or ""
        gone = names.role_problem(text)
        for one in [*([gone] if gone else []), *names.group_warnings(text)]:
            found.append(one | {"field": f"{of.name}.{key}"})
    return found


def check() -> Finding:
    """Look for rules that name roles which do not exist, or groups that no account has."""
    found = [one for each in definitions.get_all() for one in warnings(each)]
    if not found:
        return Finding("ok", "rules name roles and groups that exist")
    shown = "; ".join(f"{one['field']}: {one['message']}" for one in found[:MAX_WARNINGS])
    return Finding("warn", f"{shown} Correct the rules, or create what they name")


def lost_choices(
    changes_: Sequence[Change], rules: Mapping[str, JSONMapping] | None = None
) -> list[JSONObject]:
    """The uses of choices that changes remove, in all accounts; `rules` has new rules, by key."""
    changes_ = [change for change in changes_ if change.removes_choices]
    if not changes_:
        return []
    future = {
        key: replace(change.new, rules={**change.new.rules, **(rules or {}).get(key, {})})
        for change in changes_
        for key in [change.new.name.lower()]
    }
    changed = {change.old.id for change in changes_}
    others = [one for one in definitions.get_all() if one.id not in changed]
    before = {*_unknown_choices([*others, *(change.old for change in changes_)])}
    with definitions.override(future):
        after = [*_unknown_choices([*others, *future.values()])]
    problems = [
        problem(place, IN_USE, f"This names {value} of {path}, which would be removed.")
        for place, path, value in dict.fromkeys(after)
        if (place, path, value) not in before
    ]
    for change in changes_:
        events.publish(events.ChoicesEnd(change.old, change.ended_choices, problems))
    return problems


def _unknown_choices(of: Iterable[Definition]) -> Iterator[tuple[str, str, str]]:
    for one in of:
        texts = {key: one.rules.get(key) for key in RULES}
        texts |= {name: field.expression for name, field in one.declared.items()}
        for key, text in texts.items():
            for mention in named.mentions(text):
                choices = choices_of(one, mention)
                if choices is not None and mention.value not in choices:
                    yield f"{one.name}.{key}", ".".join(mention.path), mention.value


@names.place
def in_rules(name: Name) -> Iterator[Use]:
    """The rules that name a role or group; as they will be, where a definition is overridden."""
    rows = db.db.session.scalars(
        sa.select(Collection)
        .order_by(Collection.name_key)
        .execution_options(populate_existing=True)
    )
    for row in rows.all():
        rules = definitions.overridden(definitions.from_row(row)).rules
        texts = {
            key: rules[key]
            for key in RULES
            if is_expression(rules.get(key) or "")
            and named.names(rules[key], name.kind, name.value)
        }
        if texts:
            yield Use(f"collections.{row.name}", texts, partial(_store, row.id))


def _store(id: str, texts: Mapping[str, str]) -> None:
    query = sa.select(Collection).where(Collection.id == id).with_for_update()
    row = db.db.session.scalars(query.execution_options(populate_existing=True)).one()
    row.rules = {**row.rules, **texts}
    row.version += 1
