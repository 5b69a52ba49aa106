"""The audit log as revision 0030 stores it: changes in one row, entries computed from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import orjson

from migrations.support.types import iso

NAMES = (
    *("account_id", "id", "operation", "table_name", "record_id", "column_name", "old_value"),
    *("new_value", "user_id", "user_email", "user_name", "es_username", "es_reason"),
    *("es_timestamp", "ip_address", "user_agent", "request_id", "occurred_at", "extra_metadata"),
    *("salt", "values_digest", "actor_salt", "actor_digest", "entry_digest", "previous_hash"),
    *("checksum", "masked"),
)
ACTOR = ("user_email", "user_name", "ip_address", "user_agent", "es_username", "es_reason")
DIGESTED = (
    *("account_id", "actor_digest", "column_name", "es_timestamp", "extra_metadata"),
    *("occurred_at", "operation", "record_id", "request_id", "table_name", "user_id"),
    "values_digest",
)
SHARED = (
    *("account_id", "operation", "table_name", "record_id", "user_id", "user_email", "user_name"),
    *("es_username", "es_reason", "ip_address", "user_agent", "request_id"),
)
FIRST_PREVIOUS = "0" * 64
SALT_BYTES = 16


def canonical(value: object) -> bytes:
    """JSON with sorted keys, of which digests are taken."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def stored_values(
    values: Sequence[tuple[str, str | None, str | None]],
) -> tuple[str, str | None, str | None]:
    """The JSON arrays of column names, old values and new values; null for values that all are."""
    names, *texts = zip(*values, strict=True)
    old, new = (
        orjson.dumps(one).decode() if any(text is not None for text in one) else None
        for one in texts
    )
    return orjson.dumps(names).decode(), old, new


def stored_ids(ids: Sequence[int]) -> str | None:
    """The ids of a change's entries; null if they are consecutive."""
    return None if ids[-1] - ids[0] == len(ids) - 1 else orjson.dumps(list(ids)).decode()


def entries_of(change: Mapping[str, Any], previous: bytes) -> list[dict[str, Any]]:
    """The entries of a change; `previous` is the checksum before it, empty for the first.

    The last entry has the stored checksum.
    """
    names = orjson.loads(change["columns"])
    first, count = change["first_id"], len(names)
    erased = orjson.loads(change["erased_digests"] or "{}")
    nothing = [None] * count
    parts = (
        range(first, first + count) if change["ids"] is None else orjson.loads(change["ids"]),
        names,
        *(orjson.loads(change[name] or "null") or nothing for name in ("old_values", "new_values")),
        *(_salts(change[name], count) for name in ("salts", "actor_salts")),
        *(erased.get(name) or nothing for name in ("values", "actor")),
    )
    signed_at, metadata = change["es_timestamp"], change["extra_metadata"]
    shared = {name: change[name] for name in SHARED} | {
        "es_timestamp": iso(signed_at) if signed_at else None,
        "occurred_at": iso(change["occurred_at"]),
        "extra_metadata": None if metadata is None else orjson.loads(metadata),
    }
    link, found = previous.hex() or FIRST_PREVIOUS, []
    actor = [change[name] for name in ACTOR]
    for id, name, old, new, salt, actor_salt, of_values, of_actor in zip(*parts, strict=True):
        entry: dict[str, Any] = shared | {
            "id": id,
            "column_name": name,
            "old_value": old,
            "new_value": new,
            "salt": salt,
            "values_digest": of_values or _salted(salt, [old, new]),
            "actor_salt": actor_salt,
            "actor_digest": of_actor or _salted(actor_salt, actor),
        }
        digested = canonical({key: entry[key] for key in DIGESTED})
        entry["entry_digest"] = sha256(digested).hexdigest()
        entry["previous_hash"] = link
        link = sha256(f"{link}:{id}:{entry['entry_digest']}".encode()).hexdigest()
        found.append(entry | {"checksum": link, "masked": False})
    found[-1]["checksum"] = change["checksum"].hex()
    return found


def _salts(salts: bytes | None, count: int) -> Sequence[str | None]:
    if salts is None:
        return [None] * count
    pieces = [salts[n : n + SALT_BYTES].hex() for n in range(0, len(salts), SALT_BYTES)]
    return pieces * count if len(pieces) == 1 else pieces


def _salted(salt: str | None, values: Sequence[str | None]) -> str:
    return sha256(b"%b\n%b" % (str(salt).encode(), canonical(values))).hexdigest()
