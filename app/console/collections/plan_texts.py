"""The changes of a plan, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import orjson

from app.console.collections import schema_form
from app.console.collections.rules_form import describe_fields, describe_rule
from app.console.collections.schema_form import LABELS, MASK_NAMES, ON_DELETE_NAMES
from app.console.shell import names
from app.console.shell.names import OPERATION_NAMES
from app.types import JSONMapping
from app.web.languages import gettext, lazy_gettext

OPERATIONS = {
    "add_field": lazy_gettext("new field"),
    "remove_field": lazy_gettext("removed field"),
    "rename_field": lazy_gettext("renamed"),
    "rename_collection": lazy_gettext("renamed"),
    "reorder_fields": lazy_gettext("new order"),
    "add_index": lazy_gettext("new index"),
    "remove_index": lazy_gettext("removed index"),
    "discard_trash": lazy_gettext("no trash any more"),
}
RULE_KEYS = ("_rule", "_fields")
VIEW_LABELS = {
    "from": lazy_gettext("Collection that it reads"),
    "fields": lazy_gettext("Fields"),
    "where": lazy_gettext("Condition"),
    "group_by": lazy_gettext("Grouped by"),
    "aggregates": lazy_gettext("Aggregates"),
}
NAMES = {"mask_type": MASK_NAMES, "on_delete": ON_DELETE_NAMES}


@dataclass(frozen=True)
class Change:
    """A row of the table of changes."""

    what: str
    change: str
    before: str
    after: str


def changes(operations: Iterable[JSONMapping], specs: Sequence[JSONMapping]) -> Iterator[Change]:
    """The changes of a plan; `specs` has the new fields."""
    fields = {spec["name"]: spec for spec in specs}
    for one in operations:
        name, key = one["operation"], one["property"]
        what = one["field"] or gettext("This collection")
        if "index" in one:
            yield Change(schema_form.render_index(one["index"]), str(OPERATIONS[name]), "", "")
        elif name == "add_field":
            yield Change(what, str(OPERATIONS[name]), "", _describe(fields.get(what, {})))
        elif name == "change_view" and key == "schema":
            yield Change(what, gettext("follows"), "", "")
        elif name == "change_rule" or (name == "change_view" and key.endswith(RULE_KEYS)):
            yield Change(what, _rule_label(key), _rule(one["before"]), _rule(one["after"]))
        elif key == "options":
            yield from _option_changes(what, one["before"] or {}, one["after"] or {})
        elif key is None:
            yield Change(what, str(OPERATIONS[name]), "", "")
        else:
            texts = (_text(key, one.get("before")), _text(key, one.get("after")))
            label = VIEW_LABELS.get(key) if name == "change_view" else OPERATIONS.get(name)
            yield Change(what, str(label or LABELS.get(key, key)), *texts)


def _describe(spec: JSONMapping) -> str:
    kind = names.of_type(spec.get("return_type") or spec.get("type") or "")
    if spec.get("collection"):
        kind = gettext("%(type)s to %(collection)s", type=kind, collection=spec["collection"])
    elif spec.get("return_type"):
        kind = gettext("%(type)s, computed", type=kind)
    flags = [str(LABELS[key]) for key in ("required", "unique", "pii") if spec.get(key)]
    return ", ".join(filter(None, [kind, *flags]))


def _option_changes(what: str, before: JSONMapping, after: JSONMapping) -> Iterator[Change]:
    for key in dict.fromkeys([*before, *after]):
        texts = (_text(key, before.get(key)), _text(key, after.get(key)))
        if texts[0] != texts[1]:
            yield Change(what, str(LABELS.get(key, key)), *texts)


def _rule_label(key: str) -> str:
    operation, _, part = key.rpartition("_")
    name = OPERATION_NAMES[operation]
    if part == "rule":
        return gettext("%(operation)s: who", operation=name)
    return gettext("%(operation)s: fields", operation=name)


def _rule(value: list[str] | str | None) -> str:
    return describe_fields(value) if isinstance(value, list) else describe_rule(value)


def _text(key: str, value: object) -> str:
    if value is None or value == []:
        return gettext("none")
    if isinstance(value, bool):
        return gettext("yes") if value else gettext("no")
    if key == "trash" and isinstance(value, dict):
        return str(value["days"])
    if key in NAMES:
        return str(NAMES[key][str(value)])
    if key == "default" and isinstance(value, dict) and [*value] == ["expression"]:
        return str(value["expression"])
    if isinstance(value, list) and key != "default":
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else orjson.dumps(value).decode()
