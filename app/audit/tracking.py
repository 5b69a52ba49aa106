"""Automatic auditing of every change to tracked tables, by SQLAlchemy session events.

ORM objects are compared at flush; for bulk UPDATE and DELETE the rows are read before and
after. Rows deleted by ON DELETE CASCADE are read before. Records of collections are audited by
event instead, as their tables are not mapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import ORMExecuteState, Session

from app import events
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.audit import append
from app.audit.append import CREATE, DELETE, HIDDEN, UPDATE
from app.audit.chain.digest import Value
from app.db import Base
from app.db.types import json_equal
from app.types import JSONObject

Row = Mapping[str, Any]

# Audited in no table: the account, which the chain implies, and internal columns.
SYSTEM_COLUMNS = frozenset({"account_id", "created_at", "updated_at", "version"})


@dataclass(frozen=True)
class Tracked:
    """How a table is audited.

    `chain` is the column of the account (None: the system account's chain); `ignored` columns are
    not audited, `hidden` ones as `***`.
    """

    chain: str | None = "account_id"
    ignored: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()

    def includes(self, column: str) -> bool:
        """Whether changes of this column are audited."""
        return column not in SYSTEM_COLUMNS | self.ignored

    def text(self, column: str, value: object) -> str | None:
        """A value as stored in entries."""
        return HIDDEN if column in self.hidden and value is not None else append.text(value)


# Keys of addresses and names are derived from audited columns.
TRACKED: dict[str, Tracked] = {
    "accounts": Tracked(chain="id"),
    "users": Tracked(
        ignored=frozenset({"email_key", "last_login", "tokens_valid_from"}),
        hidden=frozenset({"password_hash"}),
    ),
    "roles": Tracked(chain=None, ignored=frozenset({"name_key"})),
    "groups": Tracked(ignored=frozenset({"name_key"})),
    "group_members": Tracked(),
    "invitations": Tracked(
        ignored=frozenset({"email_key"}), hidden=frozenset({"token_hash", "shown_token_hash"})
    ),
    "api_keys": Tracked(
        ignored=frozenset({"last_used_at"}), hidden=frozenset({"key_hash", "hint", "previous_hash"})
    ),
    "second_factors": Tracked(
        ignored=frozenset({"last_step", "sign_count", "last_used_at", "on_verified_address"}),
        hidden=frozenset({"secret", "credential_id", "public_key"}),
    ),
    "scim_tokens": Tracked(
        ignored=frozenset({"last_used_at"}), hidden=frozenset({"token_hash", "hint"})
    ),
    "setup_links": Tracked(hidden=frozenset({"email", "token_hash"})),
    # Names of people, which erasing a user could not find here.
    "directory_users": Tracked(
        ignored=frozenset({"user_name_key"}),
        hidden=frozenset({"user_name", "external_id", "attributes"}),
    ),
    "directory_groups": Tracked(),
    "account_exports": Tracked(
        ignored=frozenset(
            {"status", "lines", "size", "sha256", "error", "finished_at", "expires_at"}
        )
    ),
    "webhooks": Tracked(
        ignored=frozenset({"failing_since"}),
        hidden=frozenset({"secret", "previous_secret", "headers"}),
    ),
    "security_streams": Tracked(
        ignored=frozenset(
            ("sent_number", "attempts", "due_at", "failing_since", "last_error", "last_sent_at")
        ),
        hidden=frozenset({"secret"}),
    ),
    # Headers and URLs in steps may contain secrets.
    "workflows": Tracked(hidden=frozenset({"steps", "token", "token_key"})),
    "account_domains": Tracked(
        ignored=frozenset({"last_checked_at", "failed_checks"}), hidden=frozenset({"token"})
    ),
    "provider_settings": Tracked(hidden=frozenset({"secrets"})),
    "saml_keys": Tracked(ignored=frozenset({"slot"}), hidden=frozenset({"private_key"})),
    "identities": Tracked(
        ignored=frozenset({"groups", "last_used_at"}), hidden=frozenset({"subject"})
    ),
    "collections": Tracked(chain=None, ignored=frozenset({"name_key", "former_names"})),
}

# Tables that are not audited, each with the reason (contract section 7).
EXEMPT: dict[str, str] = {
    "sessions": "tokens",
    "mailed_tokens": "tokens",
    "recovery_codes": "tokens",
    "used_mfa_tokens": "tokens",
    "realtime_tickets": "tokens",
    "sso_flows": "tokens: started sign-ins and their one-time codes",
    "sso_assertions": "tokens: used assertions",
    "saml_sessions": "tokens: names of sessions at the identity provider",
    "saml_metadata_reads": "reads of metadata; what they change is in the provider's entries",
    "issuer_documents": "what issuers publish",
    "deleted_addresses": "hashes of addresses, whose users' deletion is audited",
    "sso_refusals": "refusals change nothing; the account's admins see them listed",
    "rate_limits": "counters of the rate limiter",
    "jobs": "jobs",
    "idempotency_keys": "stored responses; their changes are audited",
    "verified_domains": "an index of the domains of accounts",
    "account_origins": "an index of the settings of accounts",
    "webhook_versions": "versions for checking caches",
    "webhook_deliveries": "deliveries; the changes they announce are audited",
    "webhook_attempts": "attempts",
    "workflow_versions": "steps of older versions, which are in their workflow's entries",
    "workflow_schedules": "next run times, derived from definitions",
    "workflow_instances": "runs with their logs; their changes are audited",
    "workflow_step_logs": "a log itself",
    "workflow_subscriptions": "events that instances wait for",
    "feed_generations": "what restores and failovers leave behind, which the instance has",
    "backup_runs": "a log of backups, which the instance has",
    "deletion_certificates": "signed themselves; the deletion is in the account's entries",
    "files": "values of records, whose changes are audited",
    "saved_views": "settings of the console's lists, which change no data",
    "record_counts": "numbers of records, whose changes are audited",
    "usage_counts": "counts of what is logged or audited elsewhere",
    "usage_notices": "mails about quotas; the quotas are in the account's entries",
    "account_code_counter": "a counter; the account's entries contain its code",
    "collection_revisions": "the DDL of changes that are in their collection's entries",
    "audit_changes": "the log itself; erasures write entries of their own",
    "audit_heads": "the log itself",
    "feed_changes": "changes of records while auditing is off",
    "audit_checkpoints": "the log itself",
    "audit_starts": "the log itself; cutting it writes an entry",
    "security_pending": "a log itself",
    "security_events": "a log itself",
    "security_heads": "a log itself",
    "chain_verifications": "about the logs",
    "security_starts": "a log itself; cutting it writes an event",
}


def record_row(table: sa.Table, operation: str, old: Row, new: Row) -> None:
    """Record a row's change from `old` to `new` (empty for a created or deleted row)."""
    tracked = TRACKED[table.name]
    row = new or old
    chain = row[tracked.chain] if tracked.chain else SYSTEM_ACCOUNT_ID
    key = "/".join(str(row[c.name]) for c in table.primary_key if c.name != "account_id")
    values = list(_values(tracked, table, old, new))
    append.record(chain, operation, table.name, key, values)
    if values:
        columns = frozenset(column for column, *_ in values)
        events.publish(events.RowChanged(chain, operation, table.name, key, columns))


def _values(tracked: Tracked, table: sa.Table, old: Row, new: Row) -> Iterator[Value]:
    for column in table.columns:
        name, is_json = column.name, isinstance(column.type, sa.JSON)
        before, after = old.get(name), new.get(name)
        changed = not json_equal(before, after) if is_json else before != after
        if changed and tracked.includes(name):
            yield name, tracked.text(name, before), tracked.text(name, after)


@sa.event.listens_for(Session, "before_flush")
def _capture_changes(session: Session, context: object, instances: object) -> None:
    changed = [instance for instance in session.dirty if instance.__tablename__ in TRACKED]
    session.info["audited"] = [(instance, _row_before(session, instance)) for instance in changed]
    for instance in session.deleted:
        if instance.__tablename__ in TRACKED:
            _record_deleted(session, instance.__table__, _row_of(instance))


@sa.event.listens_for(Session, "after_flush")
def _record_written(session: Session, context: object) -> None:
    # After the flush: ids, defaults and foreign keys are set.
    for instance, before in session.info.pop("audited", ()):
        record_row(instance.__table__, UPDATE, before, _row_of(instance))
    for instance in session.new:
        if instance.__tablename__ in TRACKED:
            record_row(instance.__table__, CREATE, {}, _row_of(instance))


@sa.event.listens_for(Session, "do_orm_execute")
def _record_bulk_changes(state: ORMExecuteState) -> object:
    statement: Any = state.statement
    if not (state.is_update or state.is_delete or state.is_insert) or _is_ignored(statement):
        return None
    if state.execution_options.get("audited_as_one"):
        return None  # the caller records one entry for all rows
    if state.is_insert:
        raise RuntimeError(f"Insert into {statement.table.name} through the ORM session")
    # The plain table, without the eager joins of the mapped class.
    table = Base.metadata.tables[statement.table.name]
    connection = state.session.connection()
    query = sa.select(table).where(*statement._where_criteria).with_for_update()
    before = [dict(row) for row in connection.execute(query).mappings()]
    if state.is_delete:
        for row in before:
            _record_deleted(state.session, table, row)
        return None
    result = state.invoke_statement()
    for row in before:
        record_row(table, UPDATE, row, _stored(state.session, table, row))
    return result


def _is_ignored(statement: Any) -> bool:
    table = getattr(statement, "table", None)
    tracked = TRACKED.get(getattr(table, "name", ""))
    if tracked is None:
        return True
    changed = getattr(statement, "_values", None) if statement.is_update else None
    return changed is not None and not any(
        tracked.includes(getattr(column, "name", column)) for column in changed
    )


def _row_before(session: Session, instance: Any) -> JSONObject:
    table, state, row = instance.__table__, sa.inspect(instance), {}
    for name in (column.name for column in table.columns):
        history = state.attrs[name].history
        values = history.deleted or history.unchanged
        if not values:  # the old value was never loaded
            return _stored(
                session, table, {c.name: getattr(instance, c.name) for c in table.primary_key}
            )
        row[name] = values[0]
    return row


def _record_deleted(session: Session, table: sa.Table, row: Row) -> None:
    record_row(table, DELETE, row, {})
    for child, key in _cascades(table):
        conditions = [column == row[target] for column, target in key]
        for row_deleted in (
            session.connection().execute(sa.select(child).where(*conditions)).mappings()
        ):
            _record_deleted(session, child, dict(row_deleted))


def _cascades(table: sa.Table) -> Iterable[tuple[sa.Table, Sequence[tuple[object, str]]]]:
    for name in TRACKED:
        child = Base.metadata.tables[name]
        for constraint in child.foreign_key_constraints:
            if constraint.referred_table is table and constraint.ondelete == "CASCADE":
                parts = constraint.elements
                yield child, [(part.parent, part.column.name) for part in parts]


def _stored(session: Session, table: sa.Table, row: Row) -> JSONObject:
    key = [column == row[column.name] for column in table.primary_key]
    stored = session.connection().execute(sa.select(table).where(*key)).mappings().one()
    return dict(stored)


def _row_of(instance: Any) -> JSONObject:
    return {column.name: getattr(instance, column.name) for column in instance.__table__.columns}


@events.subscribe(events.RefreshTokenReused)
def record_token_reuse(event: events.RefreshTokenReused) -> None:
    """One entry for the session that ended because of a reused refresh token."""
    value = ("revoked_at", None, append.text(event.moment))
    reason = {"reason": "refresh_token_reused"}
    append.record(event.account_id, UPDATE, "sessions", event.session_id, [value], reason)
