"""Applies `on_delete` to references when a record is deleted.

Works level by level, with one statement per referring collection and level, inside the delete's
transaction and regardless of rules. Rows are locked before their referrers are searched, so no new
reference can appear meanwhile. Each row is visited once, so cycles end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy.exc import IntegrityError

from app import clock
from app.auth.principal import Principal
from app.collections import definitions
from app.collections.definitions import Definition
from app.db import versioned_cache
from app.errors import Conflict
from app.records.store import Row, references, writes
from app.records.write import changes

Rows = dict[str, Row]  # by id


@dataclass
class Cascade:
    """The records that a delete affects, by collection name."""

    account_id: str
    known: Mapping[str, Definition]
    gone: dict[str, Rows] = field(default_factory=dict)
    cleared: dict[str, Rows] = field(default_factory=dict)

    def spread(self) -> None:
        """Find all records to delete, and those whose references become null."""
        level = {name: list(rows) for name, rows in self.gone.items()}
        while level:
            following: dict[str, list[str]] = {}
            for referring in self.known.values():
                targets = _targets(referring, level, ("cascade", "set_null"))
                if targets:
                    found = references.lock_referring(referring, self.account_id, targets)
                    following[referring.name] = self._add(referring, found, targets)
            level = {name: ids for name, ids in following.items() if ids}

    def _add(
        self, referring: Definition, rows: Sequence[Row], targets: Mapping[str, Sequence[str]]
    ) -> list[str]:
        """Add referring records; returns the ids of those that are newly to be deleted."""
        gone = self.gone.setdefault(referring.name, {})
        ids = {name: set(ids) for name, ids in targets.items()}
        new = []
        for row in rows:
            actions = {
                referring.fields[name].on_delete for name in targets if row[name] in ids[name]
            }
            if "cascade" not in actions:
                self.cleared.setdefault(referring.name, {})[row["id"]] = row
            elif row["id"] not in gone:
                gone[row["id"]] = row
                new.append(row["id"])
        return new

    def is_restricted(self) -> bool:
        """Whether a remaining record restricts the delete (`restrict`)."""
        gone = {name: list(rows) for name, rows in self.gone.items() if rows}
        for referring in self.known.values():
            targets = _targets(referring, gone, ("restrict", None))
            staying = gone.get(referring.name, [])
            if targets and references.is_referenced(referring, self.account_id, targets, staying):
                return True
        return False


def remove(definition: Definition, rows: Sequence[Row], *, by: Principal) -> None:
    """Delete locked records of one account and their cascade. Raises Conflict, Stale."""
    if not rows:
        return
    known = {one.name: one for one in definitions.get_all()}
    cascade = Cascade(rows[0]["account_id"], known, {definition.name: {r["id"]: r for r in rows}})
    cascade.spread()
    # Within one table the database checks `restrict`; over several, checks are deferred.
    restricted = Conflict("Other records refer to this one.")
    if len(cascade.gone) > 1 and cascade.is_restricted():
        raise restricted
    try:
        _clear_references(cascade, by)
        gone = [(known[name], list(rows)) for name, rows in cascade.gone.items() if rows]
        writes.delete_together(cascade.account_id, gone)
    except IntegrityError as error:
        names = {name: [""] for name in cascade.gone}
        if any(_targets(one, names, ("restrict", None)) for one in known.values()):
            raise restricted from error
        # No known reference restricts it: another collection has begun to refer to this one.
        raise versioned_cache.Stale from error
    for name, deleted in cascade.gone.items():
        for row in deleted.values():
            changes.announce(known[name], "delete", None, row, by)


def _clear_references(cascade: Cascade, by: Principal) -> None:
    """Set references with `set_null` to null, and publish these changes."""
    values = {"updated_at": clock.now(), "updated_by": by.user_id}
    gone = {name: list(rows) for name, rows in cascade.gone.items()}
    for name, rows in cascade.cleared.items():
        referring = cascade.known[name]
        staying = {id: row for id, row in rows.items() if id not in cascade.gone.get(name, {})}
        targets = _targets(referring, gone, ("set_null",))
        after = references.clear_references(
            referring, cascade.account_id, list(staying), targets, values
        )
        for row in after:
            changes.announce(referring, "update", row, staying[row["id"]], by)


def _targets(
    referring: Definition, level: Mapping[str, Sequence[str]], actions: Sequence[str | None]
) -> dict[str, Sequence[str]]:
    """Return the ids that each reference with one of the actions may refer to."""
    return {
        name: level[one.collection]
        for name, one in referring.fields.items()
        if one.collection and level.get(one.collection) and one.on_delete in actions
    }
