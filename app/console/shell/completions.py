"""What the editor of expressions completes: fields, those behind references, choices, functions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice

from app.collections import access as accesses
from app.collections import definitions
from app.collections.access import Access
from app.collections.fields import Field
from app.console.shell import rule_help
from app.console.shell.scopes import AccountScope
from app.errors import NotFound
from app.types import JSONMapping, JSONObject

# Of all collections together, the nearest first.
MAX_FIELDS, MAX_CHOICE_CHARACTERS = 1_000, 20_000


def plain(names: JSONMapping | None = None, *, caller: bool = True) -> JSONObject:
    """Completions of the language, with names; `caller` offers what is about the caller."""
    calls = {
        call: str(gives)
        for call, gives in rule_help.functions().items()
        if caller or call == rule_help.CONTAINS or not call.startswith("@")
    }
    return {"calls": calls, "caller": caller, "start": "", "collections": {"": names or {}}}


def of_access(access: Access | None, *, follow: bool = True) -> JSONObject:
    """Completions of the fields that a caller may compare, and of what it may view by reference."""
    if access is None:
        return plain()
    room, found = _Room(), dict[str, JSONObject]()
    waiting = deque([access])
    while waiting and room.fields:
        one = waiting.popleft()
        if one.definition.name in found:
            continue
        found[one.definition.name] = fields = dict(_described(one.comparable, room))
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
    """How much more may be listed."""

    def __init__(self) -> None:
        self.fields, self.characters = MAX_FIELDS, MAX_CHOICE_CHARACTERS


def _described(fields: Mapping[str, Field], room: _Room) -> Iterator[tuple[str, JSONObject]]:
    for name, field in islice(fields.items(), room.fields):
        room.fields -= 1
        described: JSONObject = {"type": field.like.type}
        choices = [one for one in field.options.get("choices", ()) if _fits(one, room)]
        if choices:
            described["choices"] = choices
        if field.properties:
            parts = field.properties.items()
            described["parts"] = {name: {"type": type_.value} for name, type_ in parts}
        yield name, described


def _fits(choice: str, room: _Room) -> bool:
    room.characters -= len(choice)
    return room.characters >= 0
