"""Roles, groups and choices that the expressions of collections name: rules and computed fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import dropwhile

import sqlalchemy as sa

from app import db, events
from app.accounts import names
from app.accounts.names import Name, Use
from app.collections import definitions, people, views
from app.collections.changes import IN_USE, Change
from app.collections.definitions import RIGHTS, Definition, is_expression
from app.collections.fields import Field
from app.collections.models import Collection
from app.collections.people import People
from app.errors import NotFound, problem
from app.rules import OPERATIONS, named
from app.rules.named import BLANK, CHOICE, Mention, NamesRole
from app.types import JSONMapping, JSONObject
from app.web.feature import Finding

RULES = tuple(f"{operation}_rule" for operation in OPERATIONS)
MAX_NAMED = 20  # choices that a message names
MAX_WARNINGS = 5  # that `doctor` shows
WHERE = "where"
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
    return names.unknown_problem(text, role_test(of, roots)) or {}


def field_problems(
    specs: Iterable[JSONMapping], of: Definition, former: Mapping[str, Field]
) -> Iterator[JSONObject]:
    """The problems of names in expressions of fields, but for those of the `former` ones."""
    for spec in specs:
        texts = {key: spec.get(key) for key in ("expression", *RIGHTS)}
        texts["default_expression"] = definitions.default_expression(spec)
        for key, text in texts.items():
            found = problem_in(text, of, getattr(former.get(spec["name"]), key, None))
            if found:
                yield found | {"field": spec["name"]}


def rules_and_rights(of: Definition) -> dict[str, str]:
    """The rules by their places, and of fields rights and defaults as `salary.readable_if`."""
    texts = {key: of.rules.get(key) for key in RULES}
    texts |= {f"{spec['name']}.default": definitions.default_expression(spec) for spec in of.schema}
    texts |= {f"{spec['name']}.{right}": spec.get(right) for spec in of.schema for right in RIGHTS}
    return {place: text for place, text in texts.items() if text and is_expression(text)}


def with_texts(of: Definition, texts: Mapping[str, str]) -> Definition:
    """The definition with other texts in places of `rules_and_rights`."""
    rights = {place: text for place, text in texts.items() if "." in place}
    schema = [dict(spec) for spec in of.schema]
    for spec in schema:
        places = {right: f"{spec['name']}.{right}" for right in RIGHTS}
        spec |= {right: rights[place] for right, place in places.items() if place in rights}
        if (place := f"{spec['name']}.default") in rights:
            spec["default"] = {"expression": rights[place]}
    rules = {place: text for place, text in texts.items() if place not in (*rights, WHERE)}
    view = {**of.view, WHERE: texts[WHERE]} if of.view and WHERE in texts else of.view
    return replace(of, rules={**of.rules, **rules}, schema=tuple(schema), view=view)


def of_view(of: Definition) -> tuple[Definition, str] | None:
    """What the condition of a view is about, and its text; None without one."""
    text = of.view[WHERE] if of.view else None
    return (definitions.get(of.view["from"]), text) if of.view and text else None


def choices_of(of: Definition, mention: Mention, roots: Sequence[str] = ()) -> Sequence[str] | None:
    """The choices of the field that a text is compared with; None if it has none."""
    if mention.kind != CHOICE or BLANK in mention.value or not mention.is_certain:
        return None
    current = _owner(of, mention, roots)
    field = current.fields.get(mention.path[-1]) if isinstance(current, Definition) else None
    return field.options.get("choices") if field else None


def role_test(of: Definition | None, roots: Sequence[str] = ()) -> NamesRole:
    """Whether a path in a collection's expressions leads to a role or attribute of a person."""

    def names_role(mention: Mention) -> bool:
        is_attribute = people.ATTRIBUTES in mention.path[-2:-1]
        is_role = mention.kind == CHOICE and mention.path[-1] == people.ROLE
        if len(mention.path) < 2 or not (is_role or is_attribute):
            return False
        owned = replace(mention, path=mention.path[:-1]) if is_attribute else mention
        return isinstance(_owner(of, owned, roots), People)

    return names_role


def role_test_of(candidates: Sequence[Definition], roots: Sequence[str] = ()) -> NamesRole:
    """The same for expressions that may be about any of some collections."""
    tests = [role_test(one, roots) for one in candidates]
    return lambda mention: any(test(mention) for test in tests)


def is_of(of: Definition, mention: Mention, about: Definition | None) -> bool:
    """Whether the field that a text is compared with is one of a collection."""
    owner = _owner(about, mention, ())
    return isinstance(owner, Definition) and owner.id == of.id


def _owner(
    of: Definition | None, mention: Mention, roots: Sequence[str]
) -> Definition | People | None:
    """What has the field that a text is compared with."""
    current: Definition | People | None = of
    steps = mention.path[:-1]
    try:
        if mention.collection:
            current = of.related(mention.collection) if of else definitions.get(mention.collection)
        for step in dropwhile(lambda step: step in roots, steps):
            current = current.followed(step) if current else None
    except NotFound:
        return None
    return current


def warnings(of: Definition) -> list[JSONObject]:
    """The groups and roles that are gone, in the rules of a collection and rights of its fields.

    And attributes that users write themselves.
    """
    found = []
    for key, text in rules_and_rights(of).items():
        gone = names.unknown_problem(text, role_test(of))
        unsound = () if key.endswith(".default") else names.warnings(text, role_test(of))
        for one in [*([gone] if gone else []), *unsound]:
            found.append(one | {"field": f"{of.name}.{key}"})
    if about := of_view(of):
        base, text = about
        gone = names.unknown_problem(text, role_test(base))
        for one in [*([gone] if gone else []), *names.warnings(text, role_test(base))]:
            found.append(one | {"field": f"{of.name}.{WHERE}"})
    return found


def check() -> Finding:
    """Look for rules that name roles which do not exist, or groups that no account has."""
    found = [one for each in definitions.get_all(with_views=True) for one in warnings(each)]
    found = [one for one in found if one["code"] != names.SELF_WRITTEN]
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
    every = definitions.get_all(with_views=True)
    others = [one for one in every if one.id not in changed]
    before = {*_unknown_choices([*others, *(change.old for change in changes_)])}
    followed = {new.id: new for _, new in views.after(changes_, [])}
    others = [followed.get(one.id, one) for one in others]
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
        texts |= {f"@rule({name})": text for name, text in one.fragments.items()}
        abouts = [(key, one, text) for key, text in texts.items()]
        if about := of_view(one):
            abouts.append((WHERE, *about))
        for key, of_, text in abouts:
            for mention in named.mentions(text):
                choices = choices_of(of_, mention)
                if choices is not None and mention.value not in choices:
                    yield f"{one.name}.{key}", ".".join(mention.path), mention.value


@names.place
def in_rules(name: Name) -> Iterator[Use]:
    """The rules and rights of fields that name a role or group, as they will be."""
    rows = db.db.session.scalars(
        sa.select(Collection)
        .order_by(Collection.name_key)
        .execution_options(populate_existing=True)
    )
    for row in rows.all():
        definition = definitions.overridden(definitions.from_row(row))
        names_role = role_test(definition)
        texts = {
            place: text
            for place, text in rules_and_rights(definition).items()
            if named.names(text, name.kind, name.value, names_role)
        }
        tests = dict.fromkeys(texts, names_role)
        if about := of_view(definition):
            base, where = about
            tests_where = role_test(base)
            if named.names(where, name.kind, name.value, tests_where):
                texts[WHERE], tests[WHERE] = where, tests_where
        if texts:
            place, follow = f"collections.{row.name}", partial(_store, row.id)
            yield Use(place, texts, follow, role_tests=tests)


def _store(id: str, texts: Mapping[str, str]) -> None:
    query = sa.select(Collection).where(Collection.id == id).with_for_update()
    row = db.db.session.scalars(query.execution_options(populate_existing=True)).one()
    new = with_texts(definitions.from_row(row), texts)
    row.rules, row.schema = dict(new.rules), [dict(spec) for spec in new.schema]
    row.view = dict(new.view) if new.view else None
    row.version += 1
