"""The digests of entries and changes, as pure functions; docs/audit.md explains them.

H is SHA-256 in lower-case hex. J is JSON in UTF-8 with sorted keys, separators `,` and `:`, and
non-ASCII characters unescaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from orjson import OPT_SORT_KEYS, dumps

FIRST_PREVIOUS = "0" * 64
SALT_BYTES = 16
DIGITS = 2 * SALT_BYTES  # of a salt in hexadecimal
VERSION = 2
"""That of new entries, which also name the actor beside the user."""
ACTOR_COLUMNS = (
    *("user_email", "user_name", "ip_address", "user_agent", "es_username", "es_reason"),
    "actor_name",
)
_OLDER = (
    *("account_id", "actor_digest", "column_name", "es_timestamp", "extra_metadata"),
    *("occurred_at", "operation", "record_id", "request_id", "table_name", "user_id"),
    "values_digest",
)
_CHAINED = tuple(sorted((*_OLDER, "actor_id", "actor_kind", "digest_version")))
NAMING = ("actor_kind", "actor_id", "actor_name")
"""Columns that entries of version 1 do not have."""
Value = tuple[str, str | None, str | None]  # column, old, new


def version_of(entry: Mapping[str, Any]) -> int:
    """The version of an entry's or change's digests; what was stored before has none."""
    version = entry.get("digest_version")
    return 1 if version is None else version


def chained(entry: Mapping[str, Any]) -> Sequence[str]:
    """The keys that an entry's `entry_digest` covers, in their order; also a wrong version."""
    return _OLDER if version_of(entry) == 1 else _CHAINED


def actor_columns(entry: Mapping[str, Any]) -> Sequence[str]:
    """The columns that an entry's or change's `actor_digest` covers."""
    return ACTOR_COLUMNS[:-1] if version_of(entry) == 1 else ACTOR_COLUMNS


def canonical(value: object) -> bytes:
    """J of a value."""
    return dumps(value, option=OPT_SORT_KEYS)


def salted(salt: str, values: Sequence[str | None]) -> str:
    """H of a salt, a line feed, and J of the values."""
    return sha256(b"%b\n%b" % (salt.encode(), canonical(values))).hexdigest()


def values_digest(salt: str, old_value: str | None, new_value: str | None) -> str:
    """The digest of a column's old and new value."""
    return salted(salt, (old_value, new_value))


def actor_digest(salt: str, actor: Mapping[str, str | None]) -> str:
    """The digest of an entry's actor columns."""
    return salted(salt, [actor[name] for name in actor_columns(actor)])


def entry_digest(entry: Mapping[str, object]) -> str:
    """The digest of an entry without its position in the chain."""
    return sha256(canonical({name: entry[name] for name in chained(entry)})).hexdigest()


class EntryDigester:
    """Computes the digests of one change's entries; serializes their common part once."""

    def __init__(self, account_id: str, shared: Mapping[str, object]) -> None:
        """`shared` holds everything except column_name and the values."""
        names = chained(shared)
        column = names.index("column_name")
        self._actor = b"\n" + canonical([shared[name] for name in actor_columns(shared)])
        self._begin = b'{"account_id":%b,"actor_digest":"' % canonical(account_id)
        # The keys between actor_digest, column_name and values_digest in their order.
        before = canonical({name: shared[name] for name in names[2:column]})[1:-1]
        self._before = b'",%b%b"column_name":' % (before, b"," if before else b"")
        middle = canonical({name: shared[name] for name in names[column + 1 : -1]})[1:-1]
        self._middle = b',%b,"values_digest":"' % middle

    def digests(self, values: Sequence[Value], salts: bytes, actor_salt: bytes) -> list[str]:
        """The `entry_digest` of each entry, all with the same salt for the actor."""
        actor = sha256(actor_salt.hex().encode() + self._actor).hexdigest().encode()
        found, hexadecimal = [], salts.hex().encode()
        for place, (column, old, new) in enumerate(values):
            salt = hexadecimal[DIGITS * place : DIGITS * (place + 1)]
            values_digest = sha256(salt + b"\n" + dumps((old, new))).hexdigest()
            text = b'%b%b%b%b%b%b"}' % (
                self._begin,
                actor,
                self._before,
                dumps(column),
                self._middle,
                values_digest.encode(),
            )
            found.append(sha256(text).hexdigest())
        return found


def checksum(previous_hash: str, id: int, entry_digest: str) -> str:
    """The checksum that links an entry to the previous one."""
    return sha256(f"{previous_hash}:{id}:{entry_digest}".encode()).hexdigest()


def checksums(
    previous_hash: str, ids: Iterable[int], entry_digests: Iterable[str]
) -> Iterator[str]:
    """The checksums of further entries of a chain."""
    for id, entry_digest in zip(ids, entry_digests, strict=True):
        previous_hash = checksum(previous_hash, id, entry_digest)
        yield previous_hash
