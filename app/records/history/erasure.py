"""Erasing a person or a record for good (contract section 7).

First the thing itself is deleted, in one transaction with the job that does the rest: so the rest
is done whatever becomes of this process. The rest takes values or actors out of the audit log,
where each erased entry is named by a new one, and out of what webhooks were told. It finds what to
erase by the log, and by the addresses that its job keeps; where nothing is left, it does nothing.
"""

from __future__ import annotations

from typing import Any

import orjson
import sqlalchemy as sa
from cryptography.fernet import InvalidToken

from app import crypto, db, events, jobs
from app.accounts import service as accounts
from app.accounts import users
from app.accounts.models import PII_GROUP, SYSTEM_ACCOUNT_ID, User
from app.audit import erase
from app.audit.append import CREATE
from app.audit.entries import CHANGES, LOG, join_entries
from app.auth.models import Invitation
from app.auth.principal import Principal
from app.collections import definition as definitions
from app.collections import table as tables
from app.collections.definition import Definition
from app.context import tenancy
from app.db import like, versioned_cache
from app.errors import Forbidden, NotFound
from app.http import idempotency
from app.records import service as records
from app.records import store
from app.records.history import service
from app.records.store import reads
from app.types import JSONMapping, JSONObject
from app.webhooks.models import ATTEMPTS, DELIVERIES

PIECE = 200
RECORD_GONE, USER_GONE = "The record is erased.", "The user is erased."
Erased = JSONObject


def record(collection: str, record_id: str, *, by: Principal) -> Erased:
    """Delete a record, and erase what was kept of it. Raises Forbidden, NotFound or Conflict.

    For superadmins, and for members of `pii_access` whom the delete rule lets. A record that is
    deleted already is erased all the same; for superadmins, also one of a deleted collection,
    whether or not another has its name now.
    """
    table_name, present = _erasable(collection, record_id, by)
    if not by.is_superadmin and PII_GROUP not in by.groups:
        raise Forbidden("Only members of the group pii_access may erase.")
    what = {
        "account_id": by.require_account_id(),
        "table_name": table_name,
        "record_id": record_id,
    }
    with db.transaction():
        _enqueue("records.erase", what)
        if present:
            records.delete(collection, record_id, by=by)
    return {"message": RECORD_GONE, **what, **_rest_of_record(what)}


def _erasable(collection: str, record_id: str, by: Principal) -> tuple[str, bool]:
    try:
        definition, present = service.deletable(collection, record_id, by=by)
        return definition.table_name, present
    except NotFound:
        versioned_cache.verify(by.version_checks)
        table_name = tables.name_of(collection)
        told = {"account_id": by.require_account_id(), "table_name": table_name}
        which = (CHANGES.c[name] == value for name, value in told.items())
        asked = sa.exists().where(*which, CHANGES.c.record_id == record_id)
        if not by.is_superadmin or not db.connection().scalar(sa.select(asked)):
            raise
        return table_name, False


@jobs.job("records.erase")
def finish_record(payload: JSONMapping) -> None:
    """Erase what is left of a deleted record."""
    if not payload.get("again") or not _was_made_anew(payload):
        _rest_of_record(payload)


def _was_made_anew(what: JSONMapping) -> bool:
    if _is_present(what):  # which nothing told of where auditing is off
        return True
    # What told of its making was erased with it, so this is another's, which may be gone as well.
    mine = [CHANGES.c[name] == what[name] for name in ("account_id", "table_name", "record_id")]
    made = join_entries(*mine, CHANGES.c.operation == CREATE, LOG.c.salt.is_not(None))
    return db.connection().scalar(sa.select(LOG.c.id).select_from(made).limit(1)) is not None


def _is_present(what: JSONMapping) -> bool:
    for one in definitions.get_all():
        if one.table_name == what["table_name"]:
            scoped = store.scope(one, what["account_id"])
            return bool(reads.existing_ids(one, scoped, [what["record_id"]]))
    return False


def user(user_id: str, *, by: Principal) -> Erased:
    """Delete a user, and erase what was kept of the person. Raises NotFound, Forbidden, Conflict.

    A user who is deleted already is erased all the same.
    """
    user_id = user_id.lower()
    found = db.db.session.scalar(sa.select(User).where(User.id == user_id))
    account_id = found.account_id if found else _account_of(user_id)
    what = {"account_id": account_id, "user_id": user_id}
    with db.transaction() as session:
        # The log tells of no address while auditing is off.
        emails = _emails(what) | ({found.email} if found else set())
        # Nothing else tells them then, and nobody is to read them in the meantime.
        kept = {**what, "emails": crypto.encrypt(orjson.dumps(sorted(emails)).decode())}
        _enqueue("users.erase", kept)
        if found is not None:
            mine = Invitation.account_id == account_id
            key = accounts.email_key(found.email)
            for one in session.scalars(
                sa.select(Invitation).where(mine, Invitation.email_key == key)
            ):
                session.delete(one)
            users.delete(None, user_id, by=by.user_id)
    return {"message": USER_GONE, **what, **_rest_of_user(kept)}


@jobs.job("users.erase")
def finish_user(payload: JSONMapping) -> None:
    """Erase what is left of a deleted user."""
    _rest_of_user(payload)


def _enqueue(kind: str, what: JSONMapping) -> None:
    # Once more when all is over that was under way: what a user writes, or a receiver answers.
    jobs.enqueue(kind, what, account_id=what["account_id"])
    again = {**what, "again": True}
    jobs.enqueue(kind, again, account_id=what["account_id"], after=jobs.IN_FLIGHT_SECONDS)


def _rest_of_record(what: JSONMapping) -> Erased:
    table, here = idempotency.TABLE.c, (what["account_id"], SYSTEM_ACCOUNT_ID)
    superadmins = sa.select(User.id).where(User.account_id == SYSTEM_ACCOUNT_ID)
    # They may name the account in the record, and are answered where they act.
    of_account = sa.or_(table.account_id.in_(here), table.caller.in_(superadmins))
    with tenancy.across_accounts(), db.transaction():
        _forget_answers(what["record_id"], of_account)
        deliveries = _forget_record(what["account_id"], what["record_id"])
        # Before the log, in the order in which steps of workflows lock what they change.
        events.publish(events.RecordErased(what["account_id"], what["record_id"]))
        erased = erase.erase_values(what["account_id"], what["table_name"], what["record_id"])
    return {"values_erased": erased, "actors_erased": 0, "deliveries_erased": deliveries}


def _rest_of_user(what: JSONMapping) -> Erased:
    account_id, user_id = what["account_id"], what["user_id"]
    # Superadmins act in all accounts, and what they are answered of a user is kept where they act.
    with tenancy.across_accounts(), db.transaction():
        emails = _emails(what) | _kept_emails(what)
        places = sorted(_acted_in(user_id) | {account_id})
        for place in places:
            events.publish(events.UserErased(place, user_id, frozenset(emails)))
        invited = _invitations_to(account_id, emails)
        keys = _keys_of(account_id, user_id)
        values = erase.erase_values(account_id, "users", user_id)
        values += sum(erase.erase_values(account_id, "invitations", id) for id in sorted(invited))
        values += sum(erase.erase_values(account_id, "api_keys", id) for id in sorted(keys))
        actors = sum(
            erase.erase_actor(account_id, user_id, email) for email in sorted(emails | {""})
        )
        _forget_answers(user_id)
        idempotency.delete_mentions(emails)
        # The system account's are those of forms that anybody may send, for whichever account.
        # An address that the user asked for, and never proved, is told beside the user's id alone.
        named = emails | {accounts.email_key(email) for email in emails} | {user_id}
        jobs.delete_failed(named, (account_id, SYSTEM_ACCOUNT_ID))
        told = sum(_forget_actor(place, user_id) for place in places)
        for definition in definitions.get_all():
            _disown(definition, account_id, user_id)
    return {"values_erased": values, "actors_erased": actors, "deliveries_erased": told}


def _emails(what: JSONMapping) -> set[str]:
    mine = [CHANGES.c.record_id == what["user_id"]]
    return _told(what["account_id"], "users", "email", mine) - {""}


def _kept_emails(what: JSONMapping) -> set[str]:
    # Who has the address now, or is invited by it, is another user.
    try:
        emails = orjson.loads(crypto.decrypt(what.get("emails", "")))
    except InvalidToken:
        return set()
    keys, taken = {one: accounts.email_key(one) for one in emails}, set[str]()
    for model in (User, Invitation):
        mine = (model.account_id == what["account_id"], model.email_key.in_(keys.values()))
        taken |= set(db.connection().scalars(sa.select(model.email_key).where(*mine)))
    return {email for email, key in keys.items() if key not in taken}


def _account_of(user_id: str) -> str:
    theirs = (CHANGES.c.table_name == "users", CHANGES.c.record_id == user_id)
    found = db.connection().scalar(sa.select(CHANGES.c.account_id).where(*theirs).limit(1))
    if found is None:
        raise NotFound("There is no such user.")
    return str(found)


def _acted_in(user_id: str) -> set[str]:
    chosen = sa.select(CHANGES.c.account_id).where(CHANGES.c.user_id == user_id)
    return set(db.connection().scalars(chosen.distinct()))


def _told(account_id: str, table: str, column: str, which: list[object]) -> set[str]:
    told = _of_column(account_id, table, column, *which)
    rows = db.connection().execute(sa.select(LOG.c.old_value, LOG.c.new_value).select_from(told))
    return {value for row in rows for value in row if value is not None}


def _invitations_to(account_id: str, emails: set[str]) -> set[str]:
    told, keys = LOG.c, {accounts.email_key(one) for one in emails}
    chosen = sa.select(told.record_id, sa.func.coalesce(told.new_value, told.old_value, ""))
    rows = db.connection().execute(
        chosen.select_from(_of_column(account_id, "invitations", "email"))
    )
    # Each has the address as its sender spelt it.
    return {id for id, email in rows if accounts.email_key(email) in keys}


def _keys_of(account_id: str, user_id: str) -> set[str]:
    theirs = sa.or_(LOG.c.old_value == user_id, LOG.c.new_value == user_id)
    told = _of_column(account_id, "api_keys", "created_by", theirs)
    return set(db.connection().scalars(sa.select(LOG.c.record_id).select_from(told)))


def _of_column(account_id: str, table: str, column: str, *which: Any) -> Any:
    of_table = (CHANGES.c.account_id == account_id, CHANGES.c.table_name == table)
    return join_entries(*of_table, LOG.c.column_name == column, *which)


def _disown(definition: Definition, account_id: str, user_id: str) -> None:
    table = definition.table
    # Only superadmins write in accounts that are not their own.
    where = [] if account_id == SYSTEM_ACCOUNT_ID else [table.c.account_id == account_id]
    for column in (table.c.created_by, table.c.updated_by):
        theirs = sa.update(table).where(*where, column == user_id)
        db.connection().execute(theirs.values({column: sa.null()}))


def _forget_answers(id: str, *where: Any) -> None:
    # Kept for a day, to be given again to whoever repeats a request.
    table = idempotency.TABLE.c
    erasures = (table.answer.startswith(f'{{"message":"{one}"') for one in (RECORD_GONE, USER_GONE))
    told = sa.or_(*(like.contains_ignoring_case(one, id) for one in (table.answer, table.caller)))
    # What erasures answer names nobody but by the id, and is wanted by who repeats one.
    is_other = sa.or_(table.answer.is_(None), sa.not_(sa.or_(*erasures)))
    done = (told, is_other, table.status.is_not(None))
    db.connection().execute(sa.delete(idempotency.TABLE).where(*where, *done))


def _forget_actor(account_id: str, user_id: str) -> int:
    quoted, mine = f'"{user_id}"', DELIVERIES.c.account_id == account_id
    told = DELIVERIES.c.payload.contains(quoted, autoescape=True)
    without = sa.func.replace(DELIVERIES.c.payload, quoted, "null")
    change = sa.update(DELIVERIES).where(mine, told)
    # Of bytes; what is replaced has as many characters.
    shorter = sa.func.length(DELIVERIES.c.payload) - sa.func.length(without)
    size = DELIVERIES.c.size - shorter
    return int(db.connection().execute(change.values(payload=without, size=size)).rowcount)


def _forget_record(account_id: str, record_id: str) -> int:
    table = DELIVERIES.c
    told = table.payload.contains(f'"id":"{record_id}"', autoescape=True)
    chosen = sa.select(table.id, table.payload).where(table.account_id == account_id, told)
    count = 0
    last = ""
    while (
        rows := db.connection()
        .execute(chosen.where(table.id > last).order_by(table.id).limit(PIECE))
        .all()
    ):
        for row in rows:
            count += _forget_delivery(account_id, row.id, row.payload, record_id)
        last = rows[-1].id
    return count


def _forget_delivery(account_id: str, delivery_id: str, payload: str, record_id: str) -> bool:
    told = orjson.loads(payload)
    about = [one for one in ("record", "previous") if (told.get(one) or {}).get("id") == record_id]
    if not about:
        return False
    run = db.connection().execute
    # A receiver may have answered with what it was sent.
    tries = (ATTEMPTS.c.account_id == account_id, ATTEMPTS.c.delivery_id == delivery_id)
    run(sa.update(ATTEMPTS).where(*tries).values(response_body=sa.null()))
    if all(told[one] == {"id": record_id} for one in about):
        return False
    text = orjson.dumps(told | {one: {"id": record_id} for one in about}).decode()
    mine = (DELIVERIES.c.account_id == account_id, DELIVERIES.c.id == delivery_id)
    run(sa.update(DELIVERIES).where(*mine).values(payload=text, size=len(text.encode())))
    return True
