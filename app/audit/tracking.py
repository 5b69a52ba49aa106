"""Automatic auditing of every change to tables whose policy says so, by SQLAlchemy session events.

ORM objects are compared at flush; for bulk UPDATE and DELETE the rows are read before and
after. Rows deleted by ON DELETE CASCADE are read before. Records of collections are audited by
event instead, as their tables are not mapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import ORMExecuteState, Session

from app import events
from app.accounts import attributes
from app.accounts.attributes import Kind
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.audit import append
from app.audit.append import CREATE, DELETE, HIDDEN, UPDATE, Change
from app.audit.chain.digest import Value
from app.db import Base, policy_of
from app.db.policy import Audited, Bundled
from app.db.types import json_equal
from app.types import JSONObject

Row = Mapping[str, Any]
WITH_ATTRIBUTES = frozenset(kind.value for kind in Kind)


def record_row(table: sa.Table, operation: str, old: Row, new: Row) -> None:
    """Record a row's change from `old` to `new` (empty for a created or deleted row)."""
    audited = _audited(table.name)
    if audited is None:
        raise ValueError(f"{table.name} is not audited")
    row = new or old
    chain = row[audited.chain] if audited.chain else SYSTEM_ACCOUNT_ID
    key = "/".join(str(row[c.name]) for c in table.primary_key if c.name != "account_id")
    values = list(_values(audited, table, old, new))
    append.record(Change(chain, (operation, table.name, key), values))
    if values:
        columns = frozenset(column for column, *_ in values)
        events.publish(events.RowChanged(chain, operation, table.name, key, columns, old, new))


def _audited(table: str) -> Audited | None:
    policy = policy_of(table)
    return policy.audit if policy and isinstance(policy.audit, Audited) else None


def _values(audited: Audited, table: sa.Table, old: Row, new: Row) -> Iterator[Value]:
    for column in table.columns:
        name, is_json = column.name, isinstance(column.type, sa.JSON)
        before, after = old.get(name), new.get(name)
        if name == "attributes" and table.name in WITH_ATTRIBUTES:
            yield from _attributes(table.name, before or {}, after or {})
            continue
        changed = not json_equal(before, after) if is_json else before != after
        if changed and audited.includes(name):
            if name in audited.digested:
                before, after = _with_digests(before), _with_digests(after)
            old_text, new_text = (
                HIDDEN if name in audited.hidden and value is not None else append.text(value)
                for value in (before, after)
            )
            yield name, old_text, new_text


def _with_digests(value: Any) -> Any:
    """A value with the digests of its images, which are too long for a log."""
    if isinstance(value, dict):
        return {name: _with_digests(one) for name, one in value.items()}
    if isinstance(value, str) and value.startswith("data:"):
        return f"sha256:{sha256(value.encode()).hexdigest()}"
    return value


def _attributes(table: str, before: Row, after: Row) -> Iterator[Value]:
    """An entry for each attribute that differs; what only superadmins see is hidden."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    secret = attributes.secret(Kind(table), names) if names else frozenset()
    for name in names:
        old, new = (
            HIDDEN if name in secret and value is not None else append.text(value)
            for value in (before.get(name), after.get(name))
        )
        yield f"attributes.{name}", old, new


@sa.event.listens_for(Session, "before_flush")
def _capture_changes(session: Session, context: object, instances: object) -> None:
    changed = [instance for instance in session.dirty if _audited(instance.__tablename__)]
    session.info["audited"] = [(instance, _row_before(session, instance)) for instance in changed]
    for instance in session.deleted:
        if _audited(instance.__tablename__):
            _record_deleted(session, instance.__table__, _row_of(instance))


@sa.event.listens_for(Session, "after_flush")
def _record_written(session: Session, context: object) -> None:
    # After the flush: ids, defaults and foreign keys are set.
    for instance, before in session.info.pop("audited", ()):
        record_row(instance.__table__, UPDATE, before, _row_of(instance))
    for instance in session.new:
        if _audited(instance.__tablename__):
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
    audited = _audited(getattr(table, "name", ""))
    if audited is None:
        return True
    changed = getattr(statement, "_values", None) if statement.is_update else None
    return changed is not None and not any(
        audited.includes(getattr(column, "name", column)) for column in changed
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
    # In the order of a bundle, which no import of a module changes.
    for name in sorted(Base.metadata.tables, key=_order):
        child = Base.metadata.tables[name]
        for constraint in child.foreign_key_constraints if _audited(name) else ():
            if constraint.referred_table is table and constraint.ondelete == "CASCADE":
                parts = constraint.elements
                yield child, [(part.parent, part.column.name) for part in parts]


def _order(table: str) -> int:
    policy = policy_of(table)
    return policy.bundle.order if policy and isinstance(policy.bundle, Bundled) else 0


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
    target = (UPDATE, "sessions", event.session_id)
    append.record(Change(event.account_id, target, [value], reason))
