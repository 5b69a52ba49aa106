"""Renders records for a caller: visible rows, visible fields, masks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from app.audit.security_log import reads
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import masking
from app.collections.access import Access
from app.collections.definitions import Definition
from app.collections.fields import SYSTEM_FIELDS, encoders_of
from app.records import store
from app.records.store import Row, references
from app.types import JSONMapping, JSONObject
from app.web.serialization import dumps

SYSTEM_COLUMNS = {name: one.like for name, one in SYSTEM_FIELDS.items()}
SYSTEM_ENCODERS = encoders_of(SYSTEM_COLUMNS)
EMPTY: JSONMapping = {}
ETAG_BYTES = 16


class RecordView(JSONObject):
    """A record as one caller sees it, or some of its fields."""

    def __init__(self, whole: JSONMapping, unsettled: frozenset[str]) -> None:
        super().__init__(whole)
        self._whole, self._unsettled = whole, unsettled
        self._etag: str | None = None

    def keep(self, names: Iterable[str]) -> None:
        """Remove all other fields."""
        for name in self._whole.keys() - set(names):
            del self[name]

    @property
    def is_settled(self) -> bool:
        """Whether only a write can change it; a field computed from the time is not settled."""
        return not self._unsettled

    @property
    def etag(self) -> str:
        """The ETag of the whole view, without fields that change with time."""
        if self._etag is None:
            view, unsettled = self._whole, self._unsettled
            if unsettled:
                view = {name: value for name, value in view.items() if name not in unsettled}
            digest = hashlib.blake2b(dumps(view), digest_size=ETAG_BYTES)
            self._etag = f'"{digest.hexdigest()}"'
        return self._etag


def rule_matches(
    access: Access, rows: Sequence[store.Row], sent: Sequence[JSONMapping] = ()
) -> list[bool]:
    """Whether each record meets the rule, given the body sent for it."""
    if access.condition is None:
        return [True] * len(rows)
    followed = references.resolve(access.definition, rows, access.follows)
    followed = references.judged(access, followed, sent)
    bodies = sent or [EMPTY] * len(rows)
    return [access.allows(row, body) for row, body in zip(followed, bodies, strict=True)]


def view_access(definition: Definition, by: Principal) -> Access | None:
    """The caller's access for `view`; None if it is closed."""
    return accesses.if_open(by, definition, "view")


def masked_fields(
    definition: Definition, rows: Sequence[store.Row], by: Principal
) -> list[frozenset[str]]:
    """The fields of each record that the caller sees masked when viewing or listing it."""
    result = [frozenset[str]()] * len(rows)
    for operation in ("view", "list"):
        access = accesses.if_open(by, definition, operation)
        if access is not None and access.masked:
            matches = zip(result, rule_matches(access, rows), strict=True)
            result = [
                names | access.masked if is_visible else names for names, is_visible in matches
            ]
    return result


def unmasked_fields(definition: Definition, row: store.Row, by: Principal) -> set[str]:
    """The fields of a record that the caller sees unmasked when viewing or listing it."""
    result: set[str] = set()
    for operation in ("view", "list"):
        access = accesses.if_open(by, definition, operation)
        if access is not None and rule_matches(access, [row])[0]:
            result.update(access.comparable)
    return result


def render_written(
    definition: Definition, rows: Sequence[store.Row], by: Principal
) -> list[RecordView]:
    """Records that the caller has written, as it may view them.

    A caller who may not view them gets the system fields only.
    """
    access = view_access(definition, by)
    matches = rule_matches(access, rows) if access else [False] * len(rows)
    return [
        render_full(row, access if is_visible else None)
        for row, is_visible in zip(rows, matches, strict=True)
    ]


def render_full(row: store.Row, access: Access | None) -> RecordView:
    """All readable fields of a record; without an access, the system fields."""
    if access is None:
        return RecordView(render(row, list(SYSTEM_FIELDS), None), frozenset())
    unsettled = access.definition.unsettled & access.readable.keys()
    return RecordView(render(row, list(access.readable), access), unsettled)


def render(row: store.Row, names: Sequence[str], access: Access | None) -> JSONObject:
    """Some fields of a record as JSON values, masked as the access requires."""
    return render_all([row], names, access)[0]


def render_all(
    rows: Sequence[store.Row], names: Sequence[str], access: Access | None
) -> list[JSONObject]:
    """Some fields of several records as JSON values, masked as the access requires."""
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
    if access is not None and (access.exposed or access.caller.is_superadmin):
        reads.note_rows(access, rows, names)
    return items


def access_of_row(definition: Definition, row: Row | None, by: Principal | None) -> Access | None:
    """The user's access to view a row, stored or not; None if it is not visible."""
    access = view_access(definition, by) if by else None
    if access is None or row is None:
        return None
    return access if references.allows(access, row) else None
