"""The reference beside the rule editor: names and functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from app.collections.definitions import Definition
from app.collections.fields import SYSTEM_FIELDS
from app.rules.functions import PLAIN, Function
from app.web.languages import gettext, lazy_gettext

CONTAINS = "@contains(multi_select, text)"
# Functions without a fixed signature.
SPECIAL_FUNCTIONS = {
    "@owns_record()": lazy_gettext("the caller created the record"),
    "@has_role(editor)": lazy_gettext("the caller has this role"),
    "@has_any_role(editor, admin)": lazy_gettext("the caller has one of these roles"),
    "@has_group(finance)": lazy_gettext("the caller is in this group of the account"),
    "@is_superadmin()": lazy_gettext("the caller is a superadmin, to whom no rule applies"),
    CONTAINS: lazy_gettext("the field has this choice"),
    "concat(value, …)": lazy_gettext("text; nothing for null"),
    "if(condition, value, value)": lazy_gettext(
        "the first value where the condition holds, else the second"
    ),
    "coalesce(value, …)": lazy_gettext("the first value that is not null"),
    "nullif(value, value)": lazy_gettext("the first value, or null where both are equal"),
    "now()": "datetime",
}


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
            target = collection.target(name)
            target_name = target.name if target else None
            yield KnownName(name, collection.scope.fields[name].value, target_name, None)


def _system_names(collection: Definition) -> Iterator[KnownName]:
    for name in SYSTEM_FIELDS:
        yield KnownName(name, collection.scope.fields[name].value, None, gettext("of every record"))


def _call_syntax(name: str, function: Function) -> str:
    words = [parameter.value for parameter in function.parameters]
    if function.unit:
        words[-1] = "'days'"
    required = len(words) - function.optional
    optional = "".join(f"[, {word}]" for word in words[required:])
    return f"{name}({', '.join(words[:required])}{optional})"
