"""What is audited by itself: every change of a tracked table, by whichever way it is written.

Objects that the session writes are compared at its flush; statements that update or delete many
rows at once have these rows read before and after. Rows that the database deletes along with
another (ON DELETE CASCADE) are read before they go. Records of collections come by event, as their
tables are none of the session's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import ORMExecuteState, Session

from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.audit import append
from app.audit.append import CREATE, DELETE, HIDDEN, UPDATE, Value
from app.db import Base
from app.db.types import json_equal

Row = Mapping[str, Any]

# Of every table: whose it is (the chain says it), and what the service keeps for itself.
SYSTEM_COLUMNS = frozenset({"account_id", "created_at", "updated_at", "version"})


@dataclass(frozen=True)
class Tracked:
    """How a table is audited: whose chain (None: the system's), which columns not or as `***`."""

    chain: str | None = "account_id"
    untold: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()

    def tells(self, column: str) -> bool:
        """Whether changes of this column make entries."""
        return column not in SYSTEM_COLUMNS | self.untold

    def text(self, column: str, value: Any) -> str | None:
        """A value as the entry keeps it."""
        return HIDDEN if column in self.hidden and value is not None else append.text(value)


# The key of an address or a name is how it is compared, and says nothing that the name does not.
TRACKED: dict[str, Tracked] = {
    "accounts": Tracked(chain="id"),
    "users": Tracked(
        untold=frozenset({"email_key", "last_login", "tokens_valid_from"}),
        hidden=frozenset({"password_hash"}),
    ),
    "roles": Tracked(chain=None, untold=frozenset({"name_key"})),
    "groups": Tracked(untold=frozenset({"name_key"})),
    "group_members": Tracked(),
    "invitations": Tracked(
        untold=frozenset({"email_key"}), hidden=frozenset({"token_hash", "shown_token_hash"})
    ),
    "api_keys": Tracked(untold=frozenset({"last_used_at"}), hidden=frozenset({"key_hash"})),
    "webhooks": Tracked(
        untold=frozenset({"failing_since"}),
        hidden=frozenset({"secret", "previous_secret", "headers"}),
    ),
    # The headers and addresses in steps may hold others' secrets.
    "workflows": Tracked(hidden=frozenset({"steps", "token", "token_key"})),
    "provider_settings": Tracked(hidden=frozenset({"secrets"})),
    "identities": Tracked(
        untold=frozenset({"groups", "last_used_at"}), hidden=frozenset({"subject"})
    ),
    "collections": Tracked(chain=None, untold=frozenset({"name_key"})),
}

# What is not audited, each with the reason (contract section 7).
EXEMPT: dict[str, str] = {
    "sessions": "tokens",
    "mailed_tokens": "tokens",
    "sso_flows": "tokens: sign-ins that were begun, and their one-time codes",
    "sso_assertions": "tokens: which were used",
    "sso_refusals": "what was refused changed nothing; the account's admins see it listed",
    "rate_limits": "rows of the limiter",
    "jobs": "jobs",
    "idempotency_keys": "answers that are given again; the changes that they tell of are audited",
    "account_origins": "what the settings of accounts say, to be found by",
    "webhook_versions": "a version that caches are checked by",
    "webhook_deliveries": "deliveries; the change that they tell of is audited",
    "webhook_attempts": "attempts",
    "workflow_versions": "the steps of older versions, which the entries of their workflow tell",
    "workflow_schedules": "when what a definition says is due next",
    "workflow_instances": "runs, kept with their logs; what they change is audited",
    "workflow_step_logs": "a log itself",
    "workflow_subscriptions": "what instances wait for",
    "account_code_counter": "how many codes were given out; the account's entries tell its code",
    "collection_revisions": "the DDL of a change that the entries of its collection tell",
    "audit_changes": "where in the log what is told; kept by the log itself",
    "audit_log": "the log itself; erasures write entries of their own",
    "audit_heads": "the log itself",
    "audit_checkpoints": "the log itself",
}


def note_row(table: sa.Table, operation: str, old: Row, new: Row) -> None:
    """Have a row's change audited, from what it was (empty: nothing) to what it is."""
    tracked = TRACKED[table.name]
    row = new or old
    chain = row[tracked.chain] if tracked.chain else SYSTEM_ACCOUNT_ID
    key = "/".join(str(row[c.name]) for c in table.primary_key if c.name != "account_id")
    append.note(chain, operation, table.name, key, list(_values(tracked, table, old, new)))


def _values(tracked: Tracked, table: sa.Table, old: Row, new: Row) -> Iterator[Value]:
    for column in table.columns:
        name, is_json = column.name, isinstance(column.type, sa.JSON)
        before, after = old.get(name), new.get(name)
        changed = not json_equal(before, after) if is_json else before != after
        if changed and tracked.tells(name):
            yield name, tracked.text(name, before), tracked.text(name, after)


@sa.event.listens_for(Session, "before_flush")
def _look_before(session: Session, context: Any, instances: Any) -> None:
    changed = [one for one in session.dirty if one.__tablename__ in TRACKED]
    session.info["audited"] = [(one, _row_before(session, one)) for one in changed]
    for one in session.deleted:
        if one.__tablename__ in TRACKED:
            _note_deleted(session, one.__table__, _row_of(one))


@sa.event.listens_for(Session, "after_flush")
def _note_written(session: Session, context: Any) -> None:
    # Only now are there ids and defaults, and keys that follow from relationships.
    for one, before in session.info.pop("audited", ()):
        note_row(one.__table__, UPDATE, before, _row_of(one))
    for one in session.new:
        if one.__tablename__ in TRACKED:
            note_row(one.__table__, CREATE, {}, _row_of(one))


@sa.event.listens_for(Session, "do_orm_execute")
def _note_bulk_changes(state: ORMExecuteState) -> Any:
    statement: Any = state.statement
    if not (state.is_update or state.is_delete or state.is_insert) or _is_untold(statement):
        return None
    if state.execution_options.get("audited_as_one"):
        return None  # whoever says so writes one entry for all
    if state.is_insert:
        raise RuntimeError(f"{statement.table.name} is written through the session")
    # The plain table: the mapped one would bring along what its relationships join.
    table = Base.metadata.tables[statement.table.name]
    connection = state.session.connection()
    chosen = sa.select(table).where(*statement._where_criteria).with_for_update()
    before = [dict(row) for row in connection.execute(chosen).mappings()]
    if state.is_delete:
        for row in before:
            _note_deleted(state.session, table, row)
        return None
    result = state.invoke_statement()
    for row in before:
        note_row(table, UPDATE, row, _stored(state.session, table, row))
    return result


def _is_untold(statement: Any) -> bool:
    table = getattr(statement, "table", None)
    tracked = TRACKED.get(getattr(table, "name", ""))
    if tracked is None:
        return True
    changed = getattr(statement, "_values", None) if statement.is_update else None
    return changed is not None and not any(
        tracked.tells(getattr(column, "name", column)) for column in changed
    )


def _row_before(session: Session, one: Any) -> dict[str, Any]:
    table, state, row = one.__table__, sa.inspect(one), {}
    for name in (column.name for column in table.columns):
        history = state.attrs[name].history
        known = history.deleted or history.unchanged
        if not known:  # what was there had never been loaded
            return _stored(
                session, table, {c.name: getattr(one, c.name) for c in table.primary_key}
            )
        row[name] = known[0]
    return row


def _note_deleted(session: Session, table: sa.Table, row: Row) -> None:
    note_row(table, DELETE, row, {})
    for child, key in _cascades(table):
        mine = [column == row[target] for column, target in key]
        for lost in session.connection().execute(sa.select(child).where(*mine)).mappings():
            _note_deleted(session, child, dict(lost))


def _cascades(table: sa.Table) -> Iterable[tuple[sa.Table, Sequence[tuple[Any, str]]]]:
    for name in TRACKED:
        child = Base.metadata.tables[name]
        for constraint in child.foreign_key_constraints:
            if constraint.referred_table is table and constraint.ondelete == "CASCADE":
                parts = constraint.elements
                yield child, [(part.parent, part.column.name) for part in parts]


def _stored(session: Session, table: sa.Table, row: Row) -> dict[str, Any]:
    key = [column == row[column.name] for column in table.primary_key]
    found = session.connection().execute(sa.select(table).where(*key)).mappings().one()
    return dict(found)


def _row_of(one: Any) -> dict[str, Any]:
    return {column.name: getattr(one, column.name) for column in one.__table__.columns}
