"""Permanently erases users and records.

One transaction deletes the row and enqueues a job for its traces, so that a crash of this process
leaves none behind. The job erases values or actors from the audit log, where a new entry names each
erased one, and from webhook deliveries. It finds them by the log, and by the addresses that it
carries; it is idempotent.
"""

from __future__ import annotations

from typing import Any

import orjson
import sqlalchemy as sa
from cryptography.fernet import InvalidToken

from app import clock, crypto, db, events, jobs
from app.accounts import service as accounts
from app.accounts import users
from app.accounts.models import PII_GROUP, SYSTEM_ACCOUNT_ID, User
from app.audit import erase, sealing
from app.audit.append import CREATE
from app.audit.entries import CHANGES, LOG, is_of
from app.auth.models import Invitation
from app.auth.principal import Principal
from app.collections import definitions, search_words
from app.collections import table as tables
from app.collections.definitions import Definition
from app.collections.fields import PEOPLE
from app.context import tenancy
from app.db import filters, versioned_cache
from app.db.policy import OF_EXTENSIONS
from app.errors import Forbidden, NotFound
from app.records import service as records
from app.records import store
from app.records.history import service
from app.records.store import reads
from app.types import JSONMapping, JSONObject
from app.web import idempotency
from app.webhooks.models import ATTEMPTS, DELIVERIES

BATCH_SIZE = 200
LEAVING_SECONDS = 60  # until the next look whether a row that many records refer to is gone
RECORD_GONE, USER_GONE = "The record is erased.", "The user is erased."
Erased = JSONObject


def record(collection: str, record_id: str, *, by: Principal) -> Erased:
    """Delete a record and erase its traces. Raises Forbidden, NotFound or Conflict.

    For superadmins, and for members of `pii_access` whom the delete rule allows. Also erases
    deleted records, and for superadmins those of deleted collections, even if another has the name
    now.
    """
    table_name, former_tables, present = _find_erasable(collection, record_id, by)
    if not by.is_superadmin and PII_GROUP not in by.groups:
        raise Forbidden("Only members of the group pii_access may erase records.")
    target = {
        "account_id": by.require_account_id(),
        "table_name": table_name,
        "record_id": record_id,
    }
    work = {**target, "former_tables": former_tables}
    with db.transaction():
        _enqueue("records.erase", work)
        if present:
            records.delete(collection, record_id, by=by)
    return {"message": RECORD_GONE, **target, **_erase_traces_of_record(work)}


def _find_erasable(
    collection: str, record_id: str, by: Principal
) -> tuple[str, list[JSONObject], bool]:
    """Return a record's table, the table's former names, and whether the record exists."""
    try:
        definition, present = service.deletable(collection, record_id, by=by)
        former = [
            {"table_name": span.table_name, "until": clock.iso(span.until)}
            for span in definition.spans
            if span.until is not None
        ]
        return definition.table_name, former, present
    except NotFound:
        versioned_cache.verify(by.version_checks)
        sealing.settle(by.require_account_id())
        table_name = tables.table_name_for(collection)
        values = {"account_id": by.require_account_id(), "table_name": table_name}
        conditions = [CHANGES.c[name] == value for name, value in values.items()]
        conditions.append(CHANGES.c.record_id == record_id)
        # Entries with this table name may be of a present collection that was renamed.
        for definition in definitions.get_all():
            if len(definition.spans) > 1:
                is_other = is_of(definition, CHANGES.c.table_name, CHANGES.c.occurred_at)
                conditions.append(sa.not_(is_other))
        exists_query = sa.exists().where(*conditions)
        if not by.is_superadmin or not db.connection().scalar(sa.select(exists_query)):
            raise
        return table_name, [], False


@jobs.job("records.erase")
def finish_record(payload: JSONMapping) -> None:
    """Erase the traces of a deleted record."""
    if not payload.get("again") or not _was_recreated(payload):
        _erase_traces_of_record(payload)
    with db.transaction():
        for definition in definitions.get_all():
            if definition.table_name == payload["table_name"]:
                search_words.forget_deleted(definition.name)


def _was_recreated(target: JSONMapping) -> bool:
    for definition in definitions.get_all():  # the log has no creation if auditing is off
        if definition.table_name == target["table_name"]:
            scoped = store.scope(definition, target["account_id"])
            if reads.existing_ids(definition, scoped, [target["record_id"]]):
                return True
    sealing.settle(target["account_id"])
    # The creation of the erased record was erased, too, so this belongs to a later record.
    conditions = [
        CHANGES.c[name] == target[name] for name in ("account_id", "table_name", "record_id")
    ]
    creations = (*conditions, CHANGES.c.operation == CREATE, CHANGES.c.salts.is_not(None))
    return bool(db.connection().scalar(sa.select(sa.exists().where(*creations))))


def user(user_id: str, *, by: Principal) -> Erased:
    """Delete a user and erase their traces. Raises NotFound, Forbidden, Conflict.

    Also erases deleted users.
    """
    user_id = user_id.lower()
    erase.settle_each()
    here = (User.id == user_id, User.leaving_at.is_(None))
    present = db.db.session.scalar(sa.select(User).where(*here))
    account_id = present.account_id if present else _account_id(user_id)
    target = {"account_id": account_id, "user_id": user_id}
    with db.transaction() as session:
        # With auditing off, the log has no addresses.
        emails = _emails(target) | ({present.email} if present and present.email else set())
        # The job needs them; encrypted until then.
        job_payload = {**target, "emails": crypto.encrypt(orjson.dumps(sorted(emails)).decode())}
        _enqueue("users.erase", job_payload)
        if present is not None:
            same_account = Invitation.account_id == account_id
            key = accounts.email_key(present.email)
            for invitation in session.scalars(
                sa.select(Invitation).where(same_account, Invitation.email_key == key)
            ):
                session.delete(invitation)
            users.delete(None, user_id, by=by.user_id)
    return {"message": USER_GONE, **target, **_erase_traces_of_user(job_payload)}


@jobs.job("users.erase")
def finish_user(payload: JSONMapping) -> None:
    """Erase the traces of a deleted user, once the row is gone."""
    if (
        users.is_leaving(payload["account_id"], payload["user_id"])
        or _erase_traces_of_user(payload)["unfinished_accounts"]
    ):
        jobs.enqueue(
            "users.erase",
            payload,
            account_id=payload["account_id"],
            after=LEAVING_SECONDS,
            on_behalf=True,
        )
    else:
        with db.transaction():
            search_words.forget_deleted(PEOPLE)


def _enqueue(kind: str, target: JSONMapping) -> None:
    # Repeat once all requests and deliveries in flight have ended.
    jobs.enqueue(kind, target, account_id=target["account_id"], on_behalf=True)
    repeated = {**target, "again": True}
    seconds = jobs.IN_FLIGHT_SECONDS
    jobs.enqueue(kind, repeated, account_id=target["account_id"], after=seconds, on_behalf=True)


def _erase_traces_of_record(target: JSONMapping) -> Erased:
    table, account_ids = idempotency.TABLE.c, (target["account_id"], SYSTEM_ACCOUNT_ID)
    sealing.settle(target["account_id"])
    superadmins = sa.select(User.id).where(User.account_id == SYSTEM_ACCOUNT_ID)
    # Superadmins act in other accounts, but their responses are stored in their own.
    is_relevant = sa.or_(table.account_id.in_(account_ids), table.caller.in_(superadmins))
    with tenancy.across_accounts(), db.transaction():
        _delete_stored_responses(target["record_id"], is_relevant)
        deliveries = _erase_record_in_deliveries(target["account_id"], target["record_id"])
        # Before the log, in the lock order of workflow steps.
        events.publish(events.RecordErased(target["account_id"], target["record_id"]))
        row = (target["account_id"], target["record_id"])
        erased = erase.erase_values(row[0], target["table_name"], row[1])
        for former in target.get("former_tables", ()):
            until = clock.parse(former["until"])
            erased += erase.erase_values(row[0], former["table_name"], row[1], until)
    return {"values_erased": erased, "actors_erased": 0, "deliveries_erased": deliveries}


def _erase_traces_of_user(target: JSONMapping) -> Erased:
    account_id, user_id = target["account_id"], target["user_id"]
    with tenancy.across_accounts():
        unsealed = erase.settle_each()  # a job finishes those
    # Across accounts, as superadmins' responses about the user may be stored anywhere.
    with tenancy.across_accounts(), db.transaction():
        emails = _emails(target) | _stored_emails(target)
        acted_in = sa.select(CHANGES.c.account_id).where(CHANGES.c.user_id == user_id).distinct()
        account_ids = sorted({*db.connection().scalars(acted_in), account_id})
        for one in account_ids:
            is_home = one == account_id
            events.publish(events.UserErased(one, user_id, frozenset(emails), is_home))
        invitation_ids = _invitations_to(account_id, emails)
        rows = [
            (table, id)
            for table, column in (("api_keys", "created_by"), *_keys_of_extensions())
            for id in sorted(_rows_of(account_id, table, column, user_id))
        ]
        values = erase.erase_values(account_id, "users", user_id)
        values += sum(
            erase.erase_values(account_id, "invitations", id) for id in sorted(invitation_ids)
        )
        values += sum(erase.erase_values(account_id, table, id) for table, id in rows)
        actors = sum(
            erase.erase_actor(account_id, user_id, email) for email in sorted(emails | {""})
        )
        _delete_stored_responses(user_id)
        idempotency.delete_mentions(emails)
        # The system account has jobs of public forms for all accounts. Unverified addresses appear
        # only beside the user's id.
        names = emails | {accounts.email_key(email) for email in emails} | {user_id}
        jobs.delete_failed(names, (account_id, SYSTEM_ACCOUNT_ID))
        deliveries = sum(_erase_actor_in_deliveries(one, user_id) for one in account_ids)
        for definition in definitions.get_all():
            _disown(definition, account_id, user_id)
    return {
        "values_erased": values,
        "actors_erased": actors,
        "deliveries_erased": deliveries,
        "unfinished_accounts": unsealed,
    }


def _emails(target: JSONMapping) -> set[str]:
    """Return the addresses of a user in the log."""
    mine = _is_of_column(target["account_id"], "users", "email")
    values = sa.select(LOG.c.old_value, LOG.c.new_value).where(*mine)
    rows = db.connection().execute(values.where(LOG.c.record_id == target["user_id"]))
    return {value for row in rows for value in row if value}


def _stored_emails(target: JSONMapping) -> set[str]:
    """Return the addresses in the job, without those that another user or invitation has now."""
    try:
        emails = orjson.loads(crypto.decrypt(target.get("emails", "")))
    except InvalidToken:
        return set()
    email_keys, keys_in_use = {email_: accounts.email_key(email_) for email_ in emails}, set[str]()
    for model in (User, Invitation):
        conditions = (
            model.account_id == target["account_id"],
            model.email_key.in_(email_keys.values()),
        )
        keys_in_use |= set(db.connection().scalars(sa.select(model.email_key).where(*conditions)))
    return {email for email, key in email_keys.items() if key not in keys_in_use}


def _account_id(user_id: str) -> str:
    conditions = (CHANGES.c.table_name == "users", CHANGES.c.record_id == user_id)
    account_id = db.connection().scalar(sa.select(CHANGES.c.account_id).where(*conditions).limit(1))
    if account_id is None:
        raise NotFound("There is no such user.")
    return str(account_id)


def _invitations_to(account_id: str, emails: set[str]) -> set[str]:
    columns, keys = LOG.c, {accounts.email_key(email_) for email_ in emails}
    query = sa.select(columns.record_id, sa.func.coalesce(columns.new_value, columns.old_value, ""))
    rows = db.connection().execute(query.where(*_is_of_column(account_id, "invitations", "email")))
    # Compare normalized: each has its sender's spelling.
    return {id for id, email in rows if accounts.email_key(email) in keys}


def _rows_of(account_id: str, table: str, column: str, user_id: str) -> set[str]:
    is_owned = sa.or_(LOG.c.old_value == user_id, LOG.c.new_value == user_id)
    conditions = (*_is_of_column(account_id, table, column), is_owned)
    return set(db.connection().scalars(sa.select(LOG.c.record_id).where(*conditions)))


def _keys_of_extensions() -> list[tuple[str, str]]:
    """The tables whose rows end with a user, and their columns, of extensions loaded or not."""
    inspector = sa.inspect(db.connection())
    names = [name for name in inspector.get_table_names() if name.startswith(OF_EXTENSIONS)]
    found = inspector.get_multi_foreign_keys(filter_names=names) if names else {}
    return [
        (table, key["constrained_columns"][key["referred_columns"].index("id")])
        for (_, table), keys in sorted(found.items())
        for key in keys
        if key["referred_table"] == User.__tablename__
        and key.get("options", {}).get("ondelete") == "CASCADE"
    ]


def _is_of_column(account_id: str, table: str, column: str) -> tuple[Any, ...]:
    values = {"account_id": account_id, "table_name": table, "column_name": column}
    return tuple(LOG.c[name] == value for name, value in values.items())


def _disown(definition: Definition, account_id: str, user_id: str) -> None:
    table = definition.table
    # Only superadmins write in other accounts.
    conditions = [] if account_id == SYSTEM_ACCOUNT_ID else [table.c.account_id == account_id]
    for column in (table.c.created_by, table.c.updated_by):
        statement = sa.update(table).where(*conditions, column == user_id)
        db.connection().execute(statement.values({column: sa.null()}))


def _delete_stored_responses(id: str, *conditions: Any) -> None:
    # Stored for a day to answer repeated requests.
    table = idempotency.TABLE.c
    erasures = (
        table.answer.startswith(f'{{"message":"{text_}"') for text_ in (RECORD_GONE, USER_GONE)
    )
    contains_id = sa.or_(
        *(filters.contains_ignoring_case(text_, id) for text_ in (table.answer, table.caller))
    )
    # Keep the responses of erasures, which contain only the id.
    is_other = sa.or_(table.answer.is_(None), sa.not_(sa.or_(*erasures)))
    completed = (contains_id, is_other, table.status.is_not(None))
    db.connection().execute(sa.delete(idempotency.TABLE).where(*conditions, *completed))


def _erase_actor_in_deliveries(account_id: str, user_id: str) -> int:
    quoted, same_account = f'"{user_id}"', DELIVERIES.c.account_id == account_id
    has_actor = DELIVERIES.c.payload.contains(quoted, autoescape=True)
    replaced = sa.func.replace(DELIVERIES.c.payload, quoted, "null")
    statement = sa.update(DELIVERIES).where(same_account, has_actor)
    # Their signatures do not fit any more.
    changed = sa.select(DELIVERIES.c.id).where(same_account, has_actor)
    attempts = (ATTEMPTS.c.account_id == account_id, ATTEMPTS.c.delivery_id.in_(changed))
    db.connection().execute(sa.update(ATTEMPTS).where(*attempts).values(request=sa.null()))
    # In bytes; only ASCII is replaced.
    shorter = sa.func.length(DELIVERIES.c.payload) - sa.func.length(replaced)
    size = DELIVERIES.c.size - shorter
    return int(db.connection().execute(statement.values(payload=replaced, size=size)).rowcount)


def _erase_record_in_deliveries(account_id: str, record_id: str) -> int:
    table = DELIVERIES.c
    has_record = table.payload.contains(f'"id":"{record_id}"', autoescape=True)
    query = sa.select(table.id, table.payload).where(table.account_id == account_id, has_record)
    count = 0
    last = ""
    while (
        rows := db.connection()
        .execute(query.where(table.id > last).order_by(table.id).limit(BATCH_SIZE))
        .all()
    ):
        for row in rows:
            count += _erase_in_delivery(account_id, row.id, row.payload, record_id)
        last = rows[-1].id
    return count


def _erase_in_delivery(account_id: str, delivery_id: str, payload: str, record_id: str) -> bool:
    payload_values = orjson.loads(payload)
    parts = [
        name
        for name in ("record", "previous")
        if (payload_values.get(name) or {}).get("id") == record_id
    ]
    if not parts:
        return False
    execute = db.connection().execute
    # The response may echo the payload, and a signature may confirm a guess of it.
    attempts = (ATTEMPTS.c.account_id == account_id, ATTEMPTS.c.delivery_id == delivery_id)
    execute(sa.update(ATTEMPTS).where(*attempts).values(response_body=sa.null(), request=sa.null()))
    if all(payload_values[name] == {"id": record_id} for name in parts):
        return False
    text = orjson.dumps(payload_values | {name: {"id": record_id} for name in parts}).decode()
    same_delivery = (DELIVERIES.c.account_id == account_id, DELIVERIES.c.id == delivery_id)
    execute(
        sa.update(DELIVERIES).where(*same_delivery).values(payload=text, size=len(text.encode()))
    )
    return True
