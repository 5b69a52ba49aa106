"""Reading entries: serialized for responses, in chain order, masked for the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, db, events
from app.accounts.models import PII_GROUP
from app.audit.append import HIDDEN
from app.audit.chain import digest
from app.audit.chain.log import BrokenRow
from app.audit.models import AuditChange, AuditHead, AuditStart
from app.audit.visibility import RecordVisibility
from app.auth.principal import Principal
from app.collections import definitions, masking
from app.collections import table as tables
from app.collections.definitions import ByFormerName, Definition
from app.collections.fields import Field
from app.context import shown_accounts
from app.db import Base
from app.db.types import Id, Text, UtcDateTime
from app.rules import Type
from app.types import JSONObject, cached_property

Entry = JSONObject
BATCH_SIZE = 1000
CHANGES = Base.metadata.tables[AuditChange.__tablename__]
HEADS = Base.metadata.tables[AuditHead.__tablename__]
STARTS = Base.metadata.tables[AuditStart.__tablename__]
# A view (migration 0030), so that SQL reads single values. It has no digests.
LOG = sa.table(
    "audit_log",
    sa.column("account_id", Id),
    sa.column("first_id", sa.BigInteger),
    sa.column("last_id", sa.BigInteger),
    sa.column("id", sa.BigInteger),
    *(sa.column(name, Text) for name in ("operation", "table_name", "record_id", "column_name")),
    *(sa.column(name, Text) for name in ("old_value", "new_value", "user_id", "user_email")),
    *(sa.column(name, Text) for name in ("user_name", "es_username", "es_reason")),
    sa.column("es_timestamp", UtcDateTime),
    *(sa.column(name, Text) for name in ("ip_address", "user_agent", "request_id")),
    sa.column("occurred_at", UtcDateTime),
    sa.column("extra_metadata", Text),
    sa.column("salt", Text),
    sa.column("actor_salt", Text),
    sa.column("digest_version", sa.BigInteger),
    *(sa.column(name, Text) for name in digest.NAMING),
)
PERSONAL = {("users", "email"), ("users", "name"), ("invitations", "email")}
TEXTS: frozenset[type] = frozenset({str, type(None)})
# What is left out of a broken change, as little as possible.
NO_VALUES: Mapping[str, Any] = dict.fromkeys(
    ("old_values", "new_values", "salts", "ids", "erased_digests", "extra_metadata")
)
NO_COLUMNS = {**NO_VALUES, "columns": '[""]'}


def is_of(
    definition: Definition, table_name: sa.ColumnElement[str], occurred_at: sa.ColumnElement[Any]
) -> sa.ColumnElement[bool]:
    """Whether a change is of a collection, by the name that it had then.

    A deleted collection may have had the same name, with other types, rules and masks.
    """
    spans = []
    for span in definition.spans:
        until = () if span.until is None else (occurred_at < span.until,)
        since = occurred_at >= span.since
        spans.append(sa.and_(table_name == span.table_name, since, *until))
    return sa.or_(*spans)


def columns(
    changes: sa.FromClause = CHANGES,
    place: sa.FromClause | None = None,
    account_id: str | None = None,
) -> list[sa.ColumnElement[Any]]:
    """The columns of changes that `of_change` needs.

    `place` has the same account and first id; on Citus it is a table, and no part of one. Rows that
    are locked there need their account as a value.
    """
    earlier, place = CHANGES.alias("earlier"), changes if place is None else place
    account: Any = place.c.account_id if account_id is None else account_id
    is_before = (earlier.c.account_id == account, earlier.c.first_id < place.c.first_id)
    before = sa.select(earlier.c.checksum).where(*is_before).order_by(earlier.c.first_id.desc())
    start = sa.select(STARTS.c.checksum).where(STARTS.c.account_id == account)
    previous = sa.func.coalesce(before.limit(1).scalar_subquery(), start.scalar_subquery())
    return [*changes.c, previous.label("previous")]


def of_change(change: Mapping[str, Any]) -> list[Entry]:
    """The entries of a change, as in responses, exports and verification.

    `change` has the columns of `columns()`. The last entry has the stored checksum. Raises
    BrokenRow.
    """
    try:
        return _entries(change)
    except (TypeError, ValueError) as error:
        raise BrokenRow from error


def readable(change: Mapping[str, Any]) -> list[Entry]:
    """The entries of a change; of a broken one, without what cannot be read.

    Its values are null then, or it is one entry without a column. Verification names it.
    """
    for unreadable in ({}, NO_VALUES):
        with suppress(BrokenRow):
            return of_change({**change, **unreadable} if unreadable else change)
    return of_change({**change, **NO_COLUMNS})


def _entries(change: Mapping[str, Any]) -> list[Entry]:
    names = _array(orjson.loads(change["columns"]), {str})
    count, first = len(names), change["first_id"]
    ids = change["ids"]  # null if they are consecutive
    erased = _object(change["erased_digests"]) or {}
    parts = zip(
        range(first, first + count) if ids is None else _array(orjson.loads(ids), {int}),
        names,
        _values(change["old_values"], count),
        _values(change["new_values"], count),
        _salts(change["salts"], count),
        _salts(change["actor_salts"], count),
        _array(erased.get("values") or [None] * count, TEXTS),
        _array(erased.get("actor") or [None] * count, TEXTS),
        strict=True,
    )
    occurred_at, metadata = clock.iso(change["occurred_at"]), _object(change["extra_metadata"])
    signed_at = clock.iso(change["es_timestamp"]) if change["es_timestamp"] else None
    previous = (change["previous"] or b"").hex() or digest.FIRST_PREVIOUS
    version, actor = digest.version_of(change), named(change)
    found = []
    for id, name, old, new, salt, actor_salt, values_digest, actor_digest in parts:
        entry: Entry = {
            "account_id": change["account_id"],
            "id": id,
            "operation": change["operation"],
            "table_name": change["table_name"],
            "record_id": change["record_id"],
            "column_name": name,
            "old_value": old,
            "new_value": new,
            "user_id": change["user_id"],
            "actor": actor,
            "actor_kind": change["actor_kind"],
            "actor_id": change["actor_id"],
            "actor_name": change["actor_name"],
            "user_email": change["user_email"],
            "user_name": change["user_name"],
            "es_username": change["es_username"],
            "es_reason": change["es_reason"],
            "es_timestamp": signed_at,
            "ip_address": change["ip_address"],
            "user_agent": change["user_agent"],
            "request_id": change["request_id"],
            "occurred_at": occurred_at,
            "extra_metadata": metadata,
            "digest_version": version,
            "salt": salt,
            "values_digest": values_digest or digest.values_digest(str(salt), old, new),
            "actor_salt": actor_salt,
            "actor_digest": actor_digest or digest.actor_digest(str(actor_salt), change),
        }
        entry["entry_digest"] = digest.entry_digest(entry)
        checksum = digest.checksum(previous, id, entry["entry_digest"])
        found.append(entry | {"previous_hash": previous, "checksum": checksum, "masked": False})
        previous = checksum
    found[-1]["checksum"] = change["checksum"].hex()
    return found


def named(row: Mapping[str, Any]) -> JSONObject | None:
    """The actor of an entry or a change; None if it does not say."""
    if row["actor_kind"] is None:
        return None
    return {"kind": row["actor_kind"], "id": row["actor_id"], "name": row["actor_name"]}


def _values(array: str | None, count: int) -> Sequence[str | None]:
    return [None] * count if array is None else _array(orjson.loads(array), TEXTS)


def _array(array: object, types: Set[type]) -> list[Any]:
    if not isinstance(array, list) or not array or not types >= set(map(type, array)):
        raise ValueError("not an array of these types")
    return array


def _object(text: str | None) -> JSONObject | None:
    if text is None:
        return None
    found = orjson.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _salts(salts: bytes | None, count: int) -> Sequence[str | None]:
    if salts is None:
        return [None] * count
    size = digest.SALT_BYTES
    if len(salts) == size:
        return [salts.hex()] * count
    return [salts[size * place : size * (place + 1)].hex() for place in range(count)]


def iter_changes(
    conditions: Sequence[sa.ColumnElement[bool]] = (), after: tuple[str, int] = ("", 0)
) -> Iterator[JSONObject]:
    """Changes chain by chain in order of their ids, read in batches."""
    key = sa.tuple_(CHANGES.c.account_id, CHANGES.c.first_id)
    while True:
        query = sa.select(*columns()).where(*conditions, key > after)
        query = query.order_by(CHANGES.c.account_id, CHANGES.c.first_id).limit(BATCH_SIZE)
        rows = db.connection().execute(query).all()
        yield from (row._asdict() for row in rows)
        if len(rows) < BATCH_SIZE:
            return
        after = (rows[-1].account_id, rows[-1].first_id)


def iter_entries(conditions: Sequence[sa.ColumnElement[bool]] = ()) -> Iterator[Entry]:
    """Entries chain by chain in order of their ids, unmasked."""
    for change in iter_changes(conditions):
        yield from readable(change)


class Mask:
    """Masks personal values for callers outside the group `pii_access`.

    For callers who are no superadmins, also values of records that they may not see.
    """

    def __init__(self, by: Principal, *, is_noted: bool = True) -> None:
        """With `is_noted`, what is shown is published as a read."""
        self._is_noted = is_noted
        self._by, self._off = by, PII_GROUP in by.groups
        self._visibility: RecordVisibility | None = None
        self._shown: dict[tuple[str, Definition], tuple[dict[str, None], set[str]]] = {}

    def entries(self, changes: Iterable[Mapping[str, Any]]) -> Iterator[Entry]:
        """The masked entries of changes, which are read in batches."""
        remaining = iter(changes)
        while batch := list(islice(remaining, BATCH_SIZE)):
            self.load(batch)
            found = [self(entry) for change in batch for entry in readable(change)]
            self.publish()
            yield from found

    def load(self, changes: Iterable[Mapping[str, Any]]) -> None:
        """Find out which records of these changes the caller may see."""
        if not self._by.is_superadmin:
            self._visibility = RecordVisibility(self._by, changes, self._by_former_name)

    def __call__(self, entry: Entry) -> Entry:
        """The entry with hidden values masked, without the salt that could confirm a guess."""
        shown_accounts.note(entry["account_id"])
        if entry["salt"] is None:
            return entry
        place = (entry["table_name"], entry["column_name"], entry["occurred_at"])
        mask = _hide if self._is_hidden(entry) else self._mask_of(*place)
        if mask is None:
            self._note(entry)
            return entry
        for name in ("old_value", "new_value"):
            entry[name] = None if entry[name] is None else mask(entry[name])
        entry["salt"], entry["masked"] = None, True
        return entry

    def publish(self) -> None:
        """Publish which personal values of records the entries so far show."""
        for (account_id, definition), (ids, fields) in self._shown.items():
            shown = (definition, account_id, tuple(ids), frozenset(fields))
            events.publish(events.PersonalDataShown(*shown, self._by))
        self._shown.clear()

    def _note(self, entry: Entry) -> None:
        if not self._off or not self._is_noted or not entry["table_name"].startswith(tables.PREFIX):
            return
        moment = _moment(entry["occurred_at"])
        definition = self._by_former_name.find(entry["table_name"], moment)
        name = definition and definition.era_at(moment).present_name(entry["column_name"])
        if definition is not None and name in definition.personal:
            key = (entry["account_id"], definition)
            ids, fields = self._shown.setdefault(key, ({}, set()))
            ids[entry["record_id"]] = None
            fields.add(name)

    def _is_hidden(self, entry: Entry) -> bool:
        if self._by.is_superadmin:
            return False
        place = (entry["table_name"], entry["record_id"], entry["column_name"])
        visibility = self._visibility
        return visibility is None or visibility.hides(*place, _moment(entry["occurred_at"]))

    @property
    def depends_on_time(self) -> bool:
        """Whether masked columns differ between entries, as the names of fields changed."""
        return not self._off and any(one.former_names for one in self._collections)

    @cached_property
    def _collections(self) -> list[Definition]:
        return definitions.get_all()

    @cached_property
    def _by_former_name(self) -> ByFormerName:
        return ByFormerName(self._collections)

    def hides(self, table_name: str, column: str, occurred_at: str) -> bool:
        """Whether the values of a column at that time are masked for the caller."""
        return self._mask_of(table_name, column, occurred_at) is not None

    def _mask_of(
        self, table_name: str, column: str, occurred_at: str
    ) -> Callable[[str], str] | None:
        if self._off:
            return None
        if not table_name.startswith(tables.PREFIX):
            is_attribute = table_name == "users" and column.startswith("attributes.")
            return _hide if is_attribute or (table_name, column) in PERSONAL else None
        if column == "id":
            return None
        moment = _moment(occurred_at)
        definition = self._by_former_name.find(table_name, moment)
        if definition is None:
            return _hide  # a deleted, perhaps recreated, collection may have held personal data
        name = definition.era_at(moment).present_name(column)
        field = definition.fields.get(name or "")
        if field is None:
            return _hide
        return partial(_masked, field) if field.pii else None


_moment = lru_cache(clock.parse)  # the entries of a change have the same


def _masked(field: Field, text: str) -> str:
    # Values other than strings are stored as JSON and masked completely.
    is_text = field.rule_type not in (Type.NUMBER, Type.BOOLEAN, Type.JSON, Type.LIST)
    masked: str = masking.masked(field, text) if is_text else masking.FULL
    return masked


def _hide(text: str) -> str:
    return HIDDEN
