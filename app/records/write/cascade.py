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
from app.collections import definitions, links
from app.collections.definitions import Definition
from app.collections.fields import PEOPLE, entries
from app.collections.schema import ON_DELETE
from app.db import versioned_cache
from app.errors import Conflict
from app.records import store
from app.records.store import Row, references, trash, writes
from app.records.write import changes
from app.records.write.values import Problems

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
            fields = referring.fields
            actions = {
                fields[name].on_delete
                for name in targets
                if not ids[name].isdisjoint(entries(fields[name], row[name]))
            }
            if "cascade" not in actions:
                self.cleared.setdefault(referring.name, {})[row["id"]] = row
            elif row["id"] not in gone:
                gone[row["id"]] = row
                new.append(row["id"])
        return new

    def is_restricted(self) -> bool:
        """Whether a remaining record restricts the delete (`restrict`).

        Within one table the database checks references; over several, its checks are deferred. It
        does not know those in lists.
        """
        gone = {name: list(rows) for name, rows in self.gone.items() if rows}
        for referring in self.known.values():
            targets = _targets(referring, gone, ("restrict", None))
            if len(self.gone) == 1:
                targets = {name: ids for name, ids in targets.items() if name in referring.lists}
            staying = gone.get(referring.name, [])
            if targets and references.is_referenced(referring, self.account_id, targets, staying):
                return True
        return False


def remove(
    definition: Definition,
    rows: Sequence[Row],
    *,
    by: Principal,
    problems: Problems | None = None,
    permanently: bool = False,
) -> None:
    """Delete locked records of one account and their cascade.

    Those of collections with a trash get there, unless they go `permanently`. Raises Conflict,
    Stale, and InvalidValues if a handler refuses one: `problems` has their places.
    """
    if not rows:
        return
    known = {one.name: one for one in definitions.get_all()}
    cascade = Cascade(rows[0]["account_id"], known, {definition.name: {r["id"]: r for r in rows}})
    cascade.spread()
    if changes.before is not None:
        cascade = _handled(cascade, definition, rows, by, problems or Problems())
    restricted = Conflict("Other records refer to this one.")
    if cascade.is_restricted():
        raise restricted
    try:
        _clear_references(cascade, by)
        gone = [(known[name], list(rows)) for name, rows in cascade.gone.items() if rows]
        writes.delete_together(cascade.account_id, gone)
        for one, ids in gone:
            links.forget(one, cascade.account_id, ids)
            if one.trash_days and not permanently:
                trash.put_away(one, cascade.gone[one.name].values(), by.user_id)
    except IntegrityError as error:
        names = {name: [""] for name in cascade.gone}
        if any(_targets(one, names, ("restrict", None)) for one in known.values()):
            raise restricted from error
        # No known reference restricts it: another collection has begun to refer to this one.
        raise versioned_cache.Stale from error
    for name, deleted in cascade.gone.items():
        for row in deleted.values():
            changes.announce(known[name], "delete", None, row, by)


def _handled(
    cascade: Cascade,
    definition: Definition,
    rows: Sequence[Row],
    by: Principal,
    problems: Problems,
) -> Cascade:
    """Call what is called before each record goes; returns the cascade that is left after it.

    Handlers may write, so that others go: it is called for those, too.
    """
    numbers = {row["id"]: number for number, row in enumerate(rows)}
    seen = set[tuple[str, str]]()
    written = -1
    while written != changes.handler_writes():
        if written >= 0:
            left = writes.lock(definition, store.scope(definition, cascade.account_id), [*numbers])
            cascade = Cascade(cascade.account_id, cascade.known, {definition.name: left})
            cascade.spread()
        written = changes.handler_writes()
        for name, gone in cascade.gone.items():
            handlers = changes.before("delete", name) if changes.before else None
            new = [row for id, row in gone.items() if handlers and (name, id) not in seen]
            seen |= {(name, row["id"]) for row in new}
            refusals = handlers.deleting(cascade.known[name], new, by) if handlers else ()
            for row, refused in zip(new, refusals, strict=True):
                if name == definition.name and row["id"] in numbers:
                    problems.add(numbers[row["id"]], refused)
                else:
                    problems.collected.add(refused)
            if written != changes.handler_writes():  # what goes along may be gone
                break
    problems.check()
    return cascade


def _clear_references(cascade: Cascade, by: Principal) -> None:
    """Set references with `set_null` to null, and publish these changes."""
    gone = {name: list(rows) for name, rows in cascade.gone.items()}
    for name, rows in cascade.cleared.items():
        referring = cascade.known[name]
        staying = {id: row for id, row in rows.items() if id not in cascade.gone.get(name, {})}
        _clear(referring, staying, _targets(referring, gone, ("set_null",)), by)


def _clear(
    referring: Definition,
    rows: Mapping[str, Row],
    targets: Mapping[str, Sequence[str]],
    by: Principal,
) -> None:
    """Set references of locked records of one account to null, and publish these changes."""
    if not rows:
        return
    account_id = next(iter(rows.values()))["account_id"]
    values = {"updated_at": clock.now(), "updated_by": by.user_id}
    if referring.lists.keys() & targets.keys():
        after = _without_entries(referring, rows, targets, values)
    else:
        after = references.clear_references(referring, account_id, list(rows), targets, values)
    for row in after:
        changes.announce(referring, "update", row, rows[row["id"]], by)


def _without_entries(
    referring: Definition,
    rows: Mapping[str, Row],
    targets: Mapping[str, Sequence[str]],
    values: Row,
) -> Sequence[Row]:
    """Store records without the targets, which their lists have; returns the stored rows."""
    new_rows = []
    for row in rows.values():
        new_row = dict(values)
        for name, ids in targets.items():
            field = referring.fields[name]
            present = entries(field, row[name])
            if left := [id for id in present if id not in ids]:
                new_row[name] = left if field.multiple else row[name]
            elif present:
                new_row[name] = [] if field.multiple else None
            else:
                new_row[name] = row[name]
        new_rows.append(new_row)
    after = writes.update(referring, list(rows.values()), new_rows)
    links.follow(referring, list(rows.values()), new_rows)
    return after


def places_of_user(account_id: str, user_id: str, most: int) -> tuple[int, list[str]]:
    """The number of records that refer to a user, up to `most`, and the fields that restrict."""
    number, restricting = 0, list[str]()
    for definition in definitions.get_all():
        named = _targets(definition, {PEOPLE: [user_id]}, ON_DELETE)
        if named and number < most:
            number += references.count_referring(definition, account_id, named, most - number)
        for name, ids in _targets(definition, {PEOPLE: [user_id]}, ("restrict",)).items():
            if references.is_referenced(definition, account_id, {name: ids}, ()):
                restricting.append(f"{definition.name}.{name}")
    return number, restricting


def clear_user(account_id: str, user_id: str, *, by: Principal, most: int | None = None) -> int:
    """Apply `on_delete` to the records that refer to a user, at most `most` of a collection.

    Returns the number of records. Raises Conflict if one that would go is referred to.
    """
    number = 0
    for definition in definitions.get_all():
        # Deleted first: that may change those which stay.
        for action in ("cascade", "set_null"):
            targets = _targets(definition, {PEOPLE: [user_id]}, (action,))
            if not targets:
                continue
            rows = references.lock_referring(definition, account_id, targets, most)
            if action == "cascade":
                remove(definition, rows, by=by)
            else:
                _clear(definition, {row["id"]: row for row in rows}, targets, by)
            number += len(rows)
    return number


def _targets(
    referring: Definition, level: Mapping[str, Sequence[str]], actions: Sequence[str | None]
) -> dict[str, Sequence[str]]:
    """Return the ids that each reference with one of the actions may refer to."""
    return {
        name: level[one.leads_to]
        for name, one in referring.fields.items()
        if one.leads_to and level.get(one.leads_to) and one.on_delete in actions
    }
