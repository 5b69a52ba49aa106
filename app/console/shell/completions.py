"""The completions of the expression editor, and the reference beside it: names, functions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definitions, people
from app.collections.access import Access
from app.collections.definitions import Definition
from app.collections.fields import Field, UserField
from app.collections.people import People
from app.console.shell.scopes import AccountScope
from app.errors import NotFound
from app.rules.functions import PLAIN, Function
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext, lazy_gettext

CONTAINS = "@contains(multi_select, text)"
# Functions without a fixed signature.
SPECIAL_FUNCTIONS = {
    "@owns_record()": lazy_gettext("the caller created the record"),
    "@has_role(editor)": lazy_gettext("the caller has this role"),
    "@has_any_role(editor, admin)": lazy_gettext("the caller has one of these roles"),
    "@has_group(finance)": lazy_gettext("the caller is in this group of the account"),
    "@flag(name)": lazy_gettext("the account has this flag"),
    "@is_superadmin()": lazy_gettext("the caller is a superadmin, to whom no rule applies"),
    CONTAINS: lazy_gettext("the field has this choice"),
    "concat(value, …)": lazy_gettext("text; nothing for null"),
    "if(condition, value, value)": lazy_gettext(
        "the first value where the condition holds, else the second"
    ),
    "coalesce(value, …)": lazy_gettext("the first value that is not null"),
    "nullif(value, value)": lazy_gettext("the first value, or null where both are equal"),
    "decimal(value)": "decimal",
    "now()": "datetime",
}

# What only rules have.
RULE_FUNCTIONS = {
    "@any(collection, condition)": lazy_gettext("a record of this collection meets the condition"),
    "@count(collection, condition)": lazy_gettext("how many records of it meet the condition"),
    "@changed(field)": lazy_gettext("an update gives the field another value"),
    "@rule(name)": lazy_gettext("the fragment of this name holds"),
}

# Limits for all collections together; the nearest come first.
MAX_FIELDS, MAX_CHOICE_CHARACTERS = 1_000, 20_000


def plain(names: JSONMapping | None = None, *, caller: bool = True) -> JSONObject:
    """Completions of the language, with names; `caller` offers what is about the caller."""
    calls = {
        call: str(gives)
        for call, gives in functions().items()
        if caller or call == CONTAINS or not call.startswith("@")
    }
    return {"calls": calls, "caller": caller, "start": "", "collections": {"": names or {}}}


def of_rules(accesses_: Sequence[Access]) -> JSONObject:
    """Completions of the rules of the first collection, if any, which may look at the others."""
    described = of_access(accesses_[0], others=accesses_[1:]) if accesses_ else plain()
    calls = {call: str(gives) for call, gives in RULE_FUNCTIONS.items()}
    return described | {"calls": described["calls"] | calls}


def of_access(
    access: Access | None, *, follow: bool = True, others: Sequence[Access] = ()
) -> JSONObject:
    """Completions of the fields that a caller may compare, and of what it may view by reference."""
    if access is None:
        return plain()
    room, found = _Room(), dict[str, JSONObject]()
    waiting = deque([access, *others])
    while waiting and room.fields:
        one = waiting.popleft()
        if one.definition.name in found:
            continue
        found[one.definition.name] = fields = dict(_described(one.comparable, access.caller, room))
        for name, described in fields.items() if follow else ():
            target = one.definition.target(name)
            view = accesses.if_open(one.caller, target, "view") if target else None
            if view:
                described["to"] = view.definition.name
                waiting.append(view)
    return plain() | {"start": access.definition.name, "collections": found}


def of_collection(name: str | None, scope: AccountScope) -> JSONObject:
    """Completions of the fields of a collection's records; the collection need not exist."""
    try:
        found = definitions.get_current(name or "")
    except NotFound:
        return plain()
    return of_access(scope.access(found, "view"), follow=False)


class _Room:
    """The fields and characters that may still be listed."""

    def __init__(self) -> None:
        self.fields, self.characters = MAX_FIELDS, MAX_CHOICE_CHARACTERS


def _described(
    fields: Mapping[str, Field], caller: Principal, room: _Room
) -> Iterator[tuple[str, JSONObject]]:
    for name, field in islice(fields.items(), room.fields):
        room.fields -= 1
        described: JSONObject = {"type": field.like.type}
        choices = [one for one in field.options.get("choices", ()) if _fits(one, room)]
        if choices:
            described["choices"] = choices
        if field.properties:
            parts = field.properties.items()
            described["parts"] = {name: {"type": type_.value} for name, type_ in parts}
        if field.type == UserField.type:
            shown = people.shown_fields(caller)
            described["parts"] = {
                one: {"type": people.FIELDS[one].value} for one in shown if one in people.FIELDS
            }
        yield name, described


def _fits(choice: str, room: _Room) -> bool:
    room.characters -= len(choice)
    return room.characters >= 0


@dataclass(frozen=True)
class KnownName:
    """A name that the collection's rules may use."""

    name: str
    type: str
    leads_to: str | None
    note: str | None


def names(collection: Definition) -> list[KnownName]:
    """The names of a collection, its own fields first."""
    return [*_declared_names(collection), *_system_names(collection)]


@cache
def functions() -> dict[str, str]:
    """The syntax and the result of each function."""
    return SPECIAL_FUNCTIONS | {
        _call_syntax(name, function): function.result.value for name, function in PLAIN.items()
    }


def _declared_names(collection: Definition) -> Iterator[KnownName]:
    for name in collection.declared:
        if name in collection.computed:
            yield KnownName(name, collection.computed[name].type.value, None, gettext("computed"))
        else:
            target = collection.followed(name)
            is_person = isinstance(target, People)
            names = (*people.FIELDS, *people.attribute_names()) if is_person else ()
            parts = ", ".join(f"{name}.{part}" for part in names) or None
            target_name = target.name if isinstance(target, Definition) else None
            yield KnownName(name, collection.scope.fields[name].value, target_name, parts)


def _system_names(collection: Definition) -> Iterator[KnownName]:
    for name in collection.system:
        yield KnownName(name, collection.scope.fields[name].value, None, gettext("of every record"))


def _call_syntax(name: str, function: Function) -> str:
    words = [parameter.value for parameter in function.parameters]
    if function.unit:
        words[-1] = "'days'"
    required = len(words) - function.optional
    optional = "".join(f"[, {word}]" for word in words[required:])
    return f"{name}({', '.join(words[:required])}{optional})"
