"""Marks in the feed: from where on readers may see other things, though no record has changed.

What an account changes (roles, groups and attributes of its users, its own attributes, its plan and
flags, scopes of keys) is marked in its feed by the transaction that changes it. What the instance
changes (rules, field lists, fields, fragments, roles, plans) is noted once, and each account's feed
gets its mark when it is next read: before any number that could be handed out under the new rights.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from app import clock, db, events
from app.accounts.models import Account
from app.accounts.plans import stored as plans
from app.audit import append, sealing
from app.audit.append import CREATE, DELETE, UPDATE, Change
from app.audit.entries import HEADS
from app.audit.models import FeedChange, RightsChange
from app.collections.definitions import fragment_names
from app.collections.models import Collection
from app.context import tenancy
from app.db import Base
from app.jobs import wakeups
from app.types import JSONObject

FEED = Base.metadata.tables[FeedChange.__tablename__]
RIGHTS = Base.metadata.tables[RightsChange.__tablename__]
OF_COLLECTIONS, OF_CALLERS = "rights.collections", "rights.callers"
TABLES = (OF_COLLECTIONS, OF_CALLERS)
EVERYBODY = ANYTHING = "*"
ROLES = "@role"
"""Stands for the collections whose rules ask for roles."""
PLANS = "@plan"
"""Stands for those whose rules ask for plans or flags."""
VALUES_OF = "@values:"
"""Before the id of a collection: stands for those whose rules read its records."""
_SKEW = timedelta(minutes=1)  # of the clocks of machines
_NEWEST = sa.select(sa.func.max(RIGHTS.c.number)).scalar_subquery()
_SHOWN = ("list_rule", "view_rule", "list_fields", "view_fields")
_OF_USERS = frozenset({"role_id", "email", "name", "is_active", "leaving_at"})


class Mark(NamedTuple):
    """A place in the feed at which rights changed."""

    change: int
    collections: frozenset[str] | None
    """The collections of which others see something else now, by name; None: see `subject`."""
    subject: str
    """Whose rights changed, where it is no change of collections: a user, a key, or EVERYBODY."""
    facets: frozenset[str]
    """What changed of them, as expressions name it; empty: anything."""


def read(row: sa.Row[Any]) -> Mark | None:
    """The mark of a stored change; None if it is one of a record."""
    if row.table_name not in TABLES:
        return None
    named = frozenset(orjson.loads(row.columns))
    if row.table_name == OF_COLLECTIONS:
        return Mark(row.change, named, "", frozenset())
    return Mark(row.change, None, row.record_id, frozenset() if ANYTHING in named else named)


def is_behind(head: Any) -> sa.ColumnElement[bool]:
    """Whether the feed of an account, whose number of its head this is, lacks a mark."""
    return sa.func.coalesce(_NEWEST, 0) > sa.func.coalesce(head, 0)


def settle(account_id: str) -> None:
    """Give the account's feed its mark of what the instance changed. Raises Unavailable."""
    with tenancy.in_account(account_id):
        mine = HEADS.c.account_id == account_id
        head = sa.select(HEADS.c.rights_number).where(mine).scalar_subquery()
        if db.connection().scalar(sa.select(is_behind(head))):
            with sealing.transaction():
                _settle(account_id)


def _settle(account_id: str) -> None:
    newest = sealing.lock_head(account_id).number
    mine = HEADS.c.account_id == account_id
    done = sa.select(HEADS.c.rights_number).where(mine).scalar_subquery()
    begun = sa.select(Account.created_at).where(Account.id == account_id).scalar_subquery()
    seen, created_at, last = db.connection().execute(sa.select(done, begun, _NEWEST)).one()
    # An account that is new has nothing of the time before it.
    later = RIGHTS.c.changed_at >= (created_at or clock.now()) - _SKEW
    named = sa.select(RIGHTS.c.collection).where(
        RIGHTS.c.number > (seen or 0), *([] if seen is not None else [later])
    )
    names = db.connection().scalars(named.order_by(RIGHTS.c.collection)).all()
    if names:
        columns = orjson.dumps(names).decode()
        row: JSONObject = {"operation": UPDATE, "table_name": OF_COLLECTIONS}
        row["record_id"] = EVERYBODY
        row |= {"account_id": account_id, "change": sealing.numbers(newest, 1)[0]}
        row |= {"user_id": "system", "occurred_at": clock.now()}
        row |= {"columns": columns, "size": len(columns)}
        db.connection().execute(sa.insert(FEED), row)
    db.connection().execute(sa.update(HEADS).where(mine).values(rights_number=last or 0))


@sa.event.listens_for(Collection, "before_update")
def _on_change(mapper: object, connection: object, row: Collection) -> None:
    names = {row.name, *sa.inspect(row).attrs.name.history.deleted}
    if len(names) > 1 or _what_shows(row, old=True) != _what_shows(row, old=False):
        if _computed(row, old=True) != _computed(row, old=False):
            names.add(f"{VALUES_OF}{row.id}")
        db.before_commit(_note, *names, last=True)


@sa.event.listens_for(Collection, "before_delete")
def _on_delete(mapper: object, connection: object, row: Collection) -> None:
    db.before_commit(_note, row.name, last=True)


def _what_shows(row: Collection, *, old: bool) -> Any:
    """All of a collection that decides what its readers see."""
    rules, fragments = _value(row, "rules", old=old), _value(row, "fragments", old=old) or {}
    used = fragment_names(rules.get("list_rule")) | fragment_names(rules.get("view_rule"))
    texts = {name: fragments.get(name) for name in used}
    return _value(row, "schema", old=old), [rules.get(key) for key in _SHOWN], texts


def _computed(row: Collection, *, old: bool) -> Any:
    """What computes values of its records, which change with it though no record does."""
    schema = _value(row, "schema", old=old)
    return {one["name"]: one["expression"] for one in schema if one["type"] == "computed"}


def _value(row: Collection, name: str, *, old: bool) -> Any:
    history = sa.inspect(row).attrs[name].history
    return history.deleted[0] if old and history.deleted else getattr(row, name)


def _note(names: Sequence[str]) -> None:
    """Note what the instance changes, under a number in the order of commits."""
    if not db.has_one_writer():
        db.db.session.execute(sa.text("LOCK TABLE rights_changes IN EXCLUSIVE MODE"))
    number, now = (db.connection().scalar(sa.select(_NEWEST)) or 0) + 1, clock.now()
    unique = sorted(set(names))
    db.connection().execute(sa.delete(RIGHTS).where(RIGHTS.c.collection.in_(unique)))
    rows = [{"collection": name, "number": number, "changed_at": now} for name in unique]
    db.connection().execute(sa.insert(RIGHTS), rows)
    db.on_commit(wakeups.News(append.NEWS, EVERYBODY))


@events.subscribe(events.RowChanged)
def _on_row(event: events.RowChanged) -> None:
    if event.table_name == "roles" and event.operation == UPDATE:
        if "name" in event.columns:
            db.before_commit(_note, ROLES, last=True)
        return
    if (event.table_name, event.row_id) == ("instance_settings", plans.NAME):
        db.before_commit(_note, PLANS, last=True)
        return
    subject, facets = _changed(event)
    if subject:
        values = [(name, None, None) for name in sorted(facets)]
        target = (UPDATE, OF_CALLERS, subject)
        mark = Change(event.account_id, target, values, is_audited=False)
        append.record(mark, always=True)


def _changed(event: events.RowChanged) -> tuple[str, Sequence[str]]:
    """Whose rights a change of a row concerns (nobody's: empty), and what of them."""
    columns, is_update = event.columns, event.operation == UPDATE
    attributes = [name for name in columns if name.startswith("attributes.")]
    match event.table_name:
        case "users" if event.operation != CREATE:
            if event.operation == DELETE or "leaving_at" in columns:
                return event.row_id, [ANYTHING]
            own = columns & _OF_USERS
            facets = ["role" if name == "role_id" else name for name in own]
            return (event.row_id, facets + attributes) if own or attributes else ("", ())
        case "group_members":
            return event.row_id.rpartition("/")[2], ["groups"]
        case "groups" if is_update:
            return EVERYBODY, ["groups"]
        case "accounts" if is_update:
            facets = [f"account.{name.partition('.')[2]}" for name in attributes]
            facets += ["plan", "flags"] if "plan" in columns else columns & {"flags"}
            return (EVERYBODY, facets) if facets else ("", ())
        case "api_keys" if is_update and "scopes" in columns:
            return event.row_id, ["scopes"]
    return "", ()
