"""The fragments of rules in a manifest: compared, checked, stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from app.collections import definitions, fragments
from app.manifest.definitions import Comparison
from app.manifest.document import Document
from app.types import JSONMapping, JSONObject


@dataclass(frozen=True)
class FragmentChanges:
    """The fragments before and after a manifest."""

    present: Mapping[str, str]
    resulting: Mapping[str, str]
    operations: list[JSONObject] = field(default_factory=list)
    problems: list[JSONObject] = field(default_factory=list)

    @property
    def reverse(self) -> JSONObject:
        """The part of a manifest that undoes the changes."""
        former = {one["name"]: self.present.get(one["name"]) for one in self.operations}
        return {"fragments": former} if former else {}

    @contextmanager
    def stored(self) -> Iterator[None]:
        """Store new texts before the block, in which rules change, and removals after it."""
        if self.operations:
            fragments.store({**self.present, **self.resulting})
        yield
        if self.operations:
            fragments.store(self.resulting)
            fragments.store_copies(self.resulting)


def resulting(content: JSONMapping) -> dict[str, str]:
    """The fragments that there are once a manifest is applied."""
    merged = {**fragments.load(), **content.get("fragments", {})}
    return {name: text for name, text in merged.items() if text is not None}


def compare(document: Document, content: JSONMapping, own: Comparison) -> FragmentChanges:
    """Compare the fragments of a manifest with those there are, inside `fragments.override`."""
    given, after = content.get("fragments", {}), fragments.load()
    present = fragments.stored_texts()
    changes = FragmentChanges(present, after)
    for name in given:
        before, now = present.get(name), after.get(name)
        if before != now:
            action = "create" if before is None else "remove" if now is None else "update"
            values = {"property": "text", "before": before, "after": now}
            changed = {"operation": "change_fragment", "field": None, **values}
            changes.operations.append(
                {
                    "kind": "fragment",
                    "account": None,
                    "name": name,
                    "action": action,
                    "changes": [changed] if action == "update" else [],
                    "line": document.line(("fragments", name)),
                }
            )
    if changes.operations and not own.problems:
        remaining = {one.name.lower(): one for one in definitions.get_all(with_views=True)}
        for change in own.changes:
            remaining.pop(change.old.name.lower(), None)
        for _, row in own.removed:
            remaining.pop(row.name_key, None)
        future = [*(remaining | own.definitions()).values()]
        for found in fragments.problems_with(present, after, future):
            name = str(found["field"]).removeprefix("fragments.")
            line = document.line(("fragments", name)) if name in given else None
            changes.problems.append(found | ({"line": line} if line else {}))
    return changes
