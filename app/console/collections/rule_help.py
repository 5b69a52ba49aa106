"""What a rule may be made of, told beside the editor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.collections.definition import Definition
from app.collections.fields import SYSTEM_FIELDS
from app.rules.functions import PLAIN, Function

# Those that are listed by name alone, since they look at the caller or at null.
OTHERS = {
    "@owns_record()": "the caller made the record",
    "@has_role(editor)": "the caller has this role",
    "@has_any_role(editor, admin)": "the caller has one of these roles",
    "@has_group(finance)": "the caller is in this group of the account",
    "@is_superadmin()": "the caller is a superadmin, who passes every rule anyway",
    "concat(value, …)": "text; nothing for null",
    "if(condition, value, value)": "the first value where the condition holds, else the second",
    "coalesce(value, …)": "the first value that is not null",
    "nullif(value, value)": "the first value, or null where both are equal",
    "now()": "datetime",
}


@dataclass(frozen=True)
class KnownName:
    """A name that rules of a collection may use."""

    name: str
    type: str
    leads_to: str | None
    note: str | None


def names(collection: Definition) -> list[KnownName]:
    """The names of a collection, its own fields first."""
    return [*_declared(collection), *_system(collection)]


def functions() -> dict[str, str]:
    """How each function is called, and what it gives."""
    return OTHERS | {_call(name, one): one.result.value for name, one in PLAIN.items()}


def _declared(collection: Definition) -> Iterator[KnownName]:
    for name in collection.declared:
        if name in collection.computed:
            yield KnownName(name, collection.computed[name].type.value, None, "computed")
        else:
            target = collection.target(name)
            led_to = target.name if target else None
            yield KnownName(name, collection.scope.fields[name].value, led_to, None)


def _system(collection: Definition) -> Iterator[KnownName]:
    for name in SYSTEM_FIELDS:
        yield KnownName(name, collection.scope.fields[name].value, None, "of every record")


def _call(name: str, function: Function) -> str:
    words = [one.value for one in function.parameters]
    if function.unit:
        words[-1] = "'days'"
    needed = len(words) - function.optional
    optional = "".join(f"[, {word}]" for word in words[needed:])
    return f"{name}({', '.join(words[:needed])}{optional})"
