"""The names that a collection and its fields had: stored changes keep them (docs/adr/0034).

Each change of names adds an entry to `former_names` of the collection: when the names ended, the
next name of each field that was renamed, or null for one that was removed, and the collection's own
name if that ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from app import clock
from app.types import JSONMapping, JSONObject


@dataclass(frozen=True)
class Era:
    """The time between two changes of names."""

    since: datetime
    collection: str
    """The name that the collection had."""
    until: datetime | None = None
    """Exclusive; None for the present."""
    renamed: Mapping[str, str | None] = field(default_factory=dict)
    """The present name of each field that had another one; None if it was removed."""

    def present_name(self, name: str) -> str | None:
        """The present name of a field; None if it was removed."""
        return self.renamed.get(name, name)

    def former_name(self, name: str) -> str | None:
        """The name that a present field had; None if another field had its name."""
        for former, present in self.renamed.items():
            if present == name:
                return former
        return None if name in self.renamed else name


def parse(former_names: Sequence[JSONMapping], created_at: datetime, name: str) -> list[Era]:
    """The eras of a collection with this name, oldest first."""
    starts = [created_at, *(clock.parse(entry["until"]) for entry in former_names)]
    eras = [Era(starts[-1], name)]
    for number in reversed(range(len(former_names))):
        fields, later = former_names[number]["fields"], eras[0]
        collection = former_names[number].get("collection", later.collection)
        kept = {name: later.renamed[name] for name in later.renamed.keys() - fields.values()}
        ended = {
            former: None if name is None else later.present_name(name)
            for former, name in fields.items()
        }
        eras.insert(0, Era(starts[number], collection, starts[number + 1], kept | ended))
    return eras


def entry(fields: Mapping[str, str | None], collection: str | None = None) -> JSONObject:
    """The entry of `former_names` for a change of names that is being made.

    With the name of the collection, if that ends.
    """
    own = {} if collection is None else {"collection": collection}
    return {"until": clock.iso(clock.now()), "fields": dict(fields), **own}
