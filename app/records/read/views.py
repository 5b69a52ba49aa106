"""Records as a caller may view them: which, which of their fields, and masked or not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import masking
from app.collections.access import Access
from app.collections.definition import Definition
from app.collections.fields import SYSTEM_FIELDS, encoders_of
from app.records import store
from app.records.store import references
from app.rest.responses import dumps

SYSTEM_COLUMNS = {name: one.like for name, one in SYSTEM_FIELDS.items()}
SYSTEM_ENCODERS = encoders_of(SYSTEM_COLUMNS)
NOTHING: Mapping[str, Any] = {}
ETAG_BYTES = 16


class Shown(dict[str, Any]):
    """A record as a caller may view it, or some of its fields."""

    def __init__(self, whole: Mapping[str, Any], unsettled: frozenset[str]) -> None:
        super().__init__(whole)
        self._whole, self._unsettled = whole, unsettled

    def keep(self, names: Iterable[str]) -> None:
        """Limit it to these fields."""
        for name in self._whole.keys() - set(names):
            del self[name]

    @property
    def is_settled(self) -> bool:
        """Whether it stays as it is until somebody changes it."""
        return not self._unsettled

    @cached_property
    def etag(self) -> str:
        """The name of the whole view; what changes by itself has no part in it."""
        view, unsettled = self._whole, self._unsettled
        if unsettled:
            view = {name: value for name, value in view.items() if name not in unsettled}
        return f'"{hashlib.blake2b(dumps(view), digest_size=ETAG_BYTES).hexdigest()}"'


def allowed(
    access: Access, rows: Sequence[store.Row], sent: Sequence[Mapping[str, Any]] = ()
) -> list[bool]:
    """For each record whether it meets the rule, given what was sent for it."""
    if access.condition is None:
        return [True] * len(rows)
    followed = references.followed(access.definition, rows, access.follows)
    bodies = sent or [NOTHING] * len(rows)
    return [access.allows(row, body) for row, body in zip(followed, bodies, strict=True)]


def access_to_view(definition: Definition, by: Principal) -> Access | None:
    """What viewing opens to the caller; None where it is closed."""
    return accesses.opened(by, definition, "view")


def seen_masked(
    definition: Definition, rows: Sequence[store.Row], by: Principal
) -> list[frozenset[str]]:
    """For each record the fields that the caller sees masked, where it views or lists it."""
    found = [frozenset[str]()] * len(rows)
    for operation in ("view", "list"):
        access = accesses.opened(by, definition, operation)
        if access is not None and access.masked:
            seen = zip(found, allowed(access, rows), strict=True)
            found = [names | access.masked if open_ else names for names, open_ in seen]
    return found


def seen_plainly(definition: Definition, row: store.Row, by: Principal) -> set[str]:
    """The fields of a record that the caller sees unmasked, viewing or listing it."""
    found: set[str] = set()
    for operation in ("view", "list"):
        access = accesses.opened(by, definition, operation)
        if access is not None and allowed(access, [row])[0]:
            found.update(access.comparable)
    return found


def viewed(definition: Definition, rows: Sequence[store.Row], by: Principal) -> list[Shown]:
    """What the caller sees of records that it has written.

    Whoever may write but not view learns only that it was done: the system's fields.
    """
    access = access_to_view(definition, by)
    seen = allowed(access, rows) if access else [False] * len(rows)
    return [whole(row, access if open_ else None) for row, open_ in zip(rows, seen, strict=True)]


def whole(row: store.Row, access: Access | None) -> Shown:
    """Everything that an access opens of a record; without one, the system's fields."""
    if access is None:
        return Shown(shown(row, list(SYSTEM_FIELDS), None), frozenset())
    unsettled = access.definition.unsettled & access.readable.keys()
    return Shown(shown(row, list(access.readable), access), unsettled)


def shown(row: store.Row, names: Sequence[str], access: Access | None) -> dict[str, Any]:
    """Some fields of a record, as JSON has them, masked where the access says so."""
    return all_shown([row], names, access)[0]


def all_shown(
    rows: Sequence[store.Row], names: Sequence[str], access: Access | None
) -> list[dict[str, Any]]:
    """The same of several records."""
    encoders, masked = SYSTEM_ENCODERS, {}
    if access is not None:
        encoders = access.definition.encoders
        masked = {name: access.readable[name] for name in access.masked.intersection(names)}
    items = []
    for row in rows:
        item = {name: row[name] for name in names}
        for name, encode, json_type in encoders:
            value = item.get(name)
            if value is not None and value.__class__ is not json_type:
                item[name] = encode(value)
        for name, field in masked.items():
            item[name] = masking.masked(field, item[name])
        items.append(item)
    return items
