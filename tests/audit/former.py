"""Audit entries as version 0.2.0 writes them on PostgreSQL: a row for each, with all its hashes."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import Any

import pytest
import sqlalchemy as sa

from app import db
from app.audit import append
from app.audit.chain import digest
from app.context import tenancy


def write_version_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write entries without what acted, as releases up to 0.2.0 did."""
    monkeypatch.setattr(digest, "VERSION", None)
    monkeypatch.setattr(append, "_named", lambda *by: (None, None, None))


def append_as_before(
    account_id: str,
    values: Sequence[digest.Value],
    table_name: str = "col_posts",
    record_id: str = "1",
) -> None:
    """Append the entries of an update as 0.2.0 does."""
    shared, rows = former_entries(account_id, values, table_name, record_id)
    hashes = ",".join(",".join(column) for column in zip(*rows, strict=True))
    fields, olds, news = (list(column) for column in zip(*values, strict=True))
    call = sa.text("SELECT append_audit_change(:account, :shared, :hashes, :fields, :olds, :news)")
    given = {"account": account_id, "shared": list(shared.values()), "hashes": hashes}
    given |= {"fields": fields, "olds": olds, "news": news}
    with db.transaction() as session:
        session.execute(call, given)


def copy_as_before(account_id: str, values: Sequence[digest.Value]) -> None:
    """Append the entries of a change as 0.2.0 does if there are many."""
    shared, rows = former_entries(account_id, values)
    names = ("salt", "values_digest", "actor_salt", "actor_digest", "entry_digest")
    with tenancy.as_owner(), db.transaction() as session, db.driver() as driver:
        lock = sa.text("SELECT lock_audit_head(:account, :moment)")
        previous = session.scalar(lock, {"account": account_id, "moment": shared["occurred_at"]})
        ids = [session.scalar(sa.text("SELECT nextval('audit_log_ids')")) for _ in values]
        checksums = [previous, *digest.checksums(previous, ids, [row[-1] for row in rows])]
        lines = []
        for place, (value, row) in enumerate(zip(values, rows, strict=True)):
            entry = {**shared, "account_id": account_id, "id": ids[place]}
            entry |= dict(zip(("column_name", "old_value", "new_value"), value, strict=True))
            entry |= dict(zip(names, row, strict=True))
            entry |= {"previous_hash": checksums[place], "checksum": checksums[place + 1]}
            lines.append(entry)
        change = {name: shared[name] for name in ("operation", "table_name", "record_id")}
        change |= {"account_id": account_id, "first_id": ids[0], "last_id": ids[-1]}
        change |= {"entries": len(ids), "user_id": shared["user_id"]}
        change |= {"occurred_at": shared["occurred_at"]}
        with driver.cursor() as cursor:
            for table, copied in (("audit_log", lines), ("audit_changes", [change])):
                text = "".join(map(copy_line, copied))
                cursor.copy_expert(
                    f"COPY {table} ({', '.join(copied[0])}) FROM STDIN", StringIO(text)
                )
        moved = "UPDATE audit_heads SET last_id = :id, listed_id = :id, checksum = :checksum"
        head = {"id": ids[-1], "checksum": checksums[-1], "account": account_id}
        session.execute(sa.text(f"{moved} WHERE account_id = :account"), head)


def copy_line(row: dict[str, Any]) -> str:
    """A line of COPY."""
    escaped = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n"})
    texts = ("\\N" if value is None else str(value).translate(escaped) for value in row.values())
    return "\t".join(texts) + "\n"


def former_entries(
    account_id: str,
    values: Sequence[digest.Value],
    table_name: str = "col_posts",
    record_id: str = "1",
) -> tuple[dict[str, Any], list[tuple[str, ...]]]:
    """What all entries of a change share, and the hashes of each, with salts of their own."""
    shared: dict[str, Any] = {"operation": "UPDATE", "table_name": table_name}
    shared |= {"record_id": record_id}
    shared |= {"extra_metadata": None, "occurred_at": "2026-11-24T12:00:00.000000Z", "user_id": "u"}
    shared |= dict.fromkeys(("user_email", "user_name", "ip_address", "user_agent", "request_id"))
    shared |= dict.fromkeys(("es_username", "es_reason", "es_timestamp"))
    rows = []
    for place, (column, old, new) in enumerate(values):
        salt, actor_salt = (f"{place}{part}" * 16 for part in "ab")
        values_digest = digest.values_digest(salt, old, new)
        actor_digest = digest.actor_digest(actor_salt, shared)
        entry = {**shared, "account_id": account_id, "column_name": column}
        entry |= {"values_digest": values_digest, "actor_digest": actor_digest}
        rows.append((salt, values_digest, actor_salt, actor_digest, digest.entry_digest(entry)))
    return shared, rows
