"""Sends an account's security log to its receiver: in order, signed, and without gaps.

A batch states its first and last number and the checksums before and after, so the receiver can
prove that nothing is missing. The stream moves on once the receiver has confirmed a batch: after an
outage or a killed worker the same events are sent again, with the same numbers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

import orjson
import sqlalchemy as sa
from cryptography.fernet import InvalidToken

from app import clock, config, crypto, db, events, jobs
from app.audit.chain.signing import start_of
from app.audit.security_log import entries, sealing
from app.audit.security_log.entries import HEADS
from app.audit.security_log.log import SECURITY
from app.audit.security_log.models import SecurityStream
from app.auth import owners
from app.auth.principal import Principal
from app.context import tenancy
from app.db import Base
from app.errors import InvalidValues, NotFound, problem
from app.ids import new_id
from app.outbound import address_policy, client, web_waits
from app.types import JSONMapping, JSONObject
from app.webhooks import delivery, signing

EVERY_SECONDS = 30  # each run that sends something leaves a job in the list
MAX_EVENTS, MAX_BYTES = 500, 1_000_000  # of a batch; a larger event is a batch of its own
RUN_SECONDS, LEASE_SECONDS = 10, 180
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 10, 3600
USER_AGENT = "Atrium-Security-Log/1"
STREAMS = Base.metadata.tables[SecurityStream.__tablename__]
NO_STREAM = "The security log is not sent anywhere."


@dataclass(frozen=True)
class Revealed:
    """A stream with its secret, for the response that shows it."""

    stream: SecurityStream
    secret: str | None


@dataclass(frozen=True)
class Attempt:
    """One request to the receiver: what failed, if it has not confirmed, and its response."""

    error: str | None
    body: str = ""


def get(account_id: str) -> SecurityStream:
    """The account's stream. Raises NotFound."""
    found = _find(account_id)
    if found is None:
        raise NotFound(NO_STREAM)
    return found


def put(account_id: str, body: JSONMapping, *, by: Principal) -> Revealed:
    """Set the receiver; a new one gets a secret.

    Without an `owner_id` it stays that of a service user whom the caller may name, else it becomes
    the caller's. Raises InvalidValues, Forbidden, RecentSignInRequired.
    """
    by.require_recent_sign_in()
    wrong = client.url_problem(body["url"], delivery.rules(config.current()))
    if wrong:
        raise InvalidValues([problem("url", "invalid_url", wrong)])
    secret = None
    with db.transaction() as session:
        stream = _find(account_id)
        present = stream.created_by if stream else None
        owner_id = owners.choose_admin(account_id, body.get("owner_id"), by=by, present=present)
        if stream is None:
            secret = signing.new_secret()
            encrypted = crypto.encrypt(secret)
            stream = SecurityStream(account_id=account_id, url="", secret=encrypted)
            stream.sent_number = body.get("after", 0)
            session.add(stream)
        stream.created_by, stream.paused_at = owner_id, None
        stream.url = body["url"]
        stream.is_enabled = body.get("is_enabled", True)
        stream.updated_at = clock.now()
        stream.due_at = clock.now()
        session.flush()
    return Revealed(stream, secret)


def take_over(account_id: str, *, by: Principal) -> SecurityStream:
    """Make the caller the owner; a paused stream goes on. Raises NotFound, RecentSignInRequired."""
    by.require_recent_sign_in()
    with db.transaction():
        stream = get(account_id)
        stream.created_by, stream.paused_at = by.user_id, None
        stream.due_at = stream.updated_at = clock.now()
    return stream


def rotate_secret(account_id: str, *, by: Principal) -> Revealed:
    """Replace the secret at once. Raises NotFound, RecentSignInRequired."""
    by.require_recent_sign_in()
    with db.transaction():
        stream, secret = get(account_id), signing.new_secret()
        stream.secret, stream.updated_at = crypto.encrypt(secret), clock.now()
    return Revealed(stream, secret)


def delete(account_id: str, *, by: Principal) -> None:
    """Stop sending. Raises NotFound, RecentSignInRequired."""
    by.require_recent_sign_in()
    with db.transaction() as session:
        session.delete(get(account_id))


def send_test(account_id: str) -> Attempt:
    """Send a batch without events now. Raises NotFound, TooManyRequests."""
    stream = get(account_id)
    url, secret = stream.url, stream.secret
    # Hold no database connection while waiting for the receiver.
    db.db.session.remove()
    batch = {"account_id": account_id, "is_test": True, "entries": []}
    with web_waits.place_or_429(account_id):
        return _attempt(url, secret, batch, f"{account_id}-test-{new_id()}")


def _find(account_id: str) -> SecurityStream | None:
    return db.db.session.scalar(sa.select(SecurityStream).where(_of(account_id)))


@jobs.periodic(EVERY_SECONDS, "webhooks.start_security_streams")
def start_due(payload: JSONMapping) -> None:
    """Enqueue a job for each stream that has something to send."""
    has_more = HEADS.c.number > STREAMS.c.sent_number
    joined = STREAMS.join(HEADS, HEADS.c.account_id == STREAMS.c.account_id)
    due = sa.select(STREAMS.c.account_id).select_from(joined).where(*_is_due(), has_more)
    for account_id in db.connection().scalars(due).all():
        with tenancy.in_account(account_id), db.transaction() as session:
            # The lease keeps others off, and ends by itself if the worker is killed.
            own = (STREAMS.c.account_id == account_id, *_is_due())
            lease = clock.now() + timedelta(seconds=LEASE_SECONDS)
            claimed = sa.update(STREAMS).where(*own).values(due_at=lease)
            if session.execute(claimed.returning(STREAMS.c.account_id)).first():
                jobs.enqueue("webhooks.send_security_log", {}, account_id=account_id)


def _is_due() -> tuple[sa.ColumnElement[bool], ...]:
    return STREAMS.c.is_enabled, STREAMS.c.paused_at.is_(None), STREAMS.c.due_at <= clock.now()


@jobs.job("webhooks.send_security_log", attempts=1, is_long=True)
def send_log(payload: JSONMapping) -> None:
    """Send an account's sealed events until none are left, or for a moment: others wait."""
    account_id, end = payload["account_id"], time.monotonic() + RUN_SECONDS
    while send_batch(account_id):
        if time.monotonic() > end:
            go_on = sa.update(STREAMS).where(STREAMS.c.account_id == account_id)
            with db.transaction() as session:
                session.execute(go_on.values(due_at=clock.now()))
            return


def send_batch(account_id: str) -> bool:
    """Send the next events. Returns whether there may be more."""
    sealing.seal(account_id)
    query = sa.select(STREAMS).where(STREAMS.c.account_id == account_id)
    stream = db.connection().execute(query).mappings().first()
    if stream is None or not stream["is_enabled"] or stream["paused_at"]:
        return False
    batch = _next_batch(account_id, stream["sent_number"])
    if batch is None:
        _move(account_id, stream["sent_number"], due_at=clock.now())
        return False
    id = f"{batch['account_id']}-{batch['first_number']}-{batch['last_number']}"
    error = _attempt(stream["url"], stream["secret"], batch, id).error
    now = clock.now()
    if error is None:
        sent = {"attempts": 0, "failing_since": None, "last_error": None, "last_sent_at": now}
        lease = now + timedelta(seconds=LEASE_SECONDS)
        number = batch["last_number"]
        return _move(account_id, stream["sent_number"], sent_number=number, due_at=lease, **sent)
    attempts = stream["attempts"] + 1
    wait = min(FIRST_RETRY_SECONDS * 2 ** min(attempts - 1, 20), LAST_RETRY_SECONDS)
    failed = {"attempts": attempts, "failing_since": stream["failing_since"] or now}
    due_at = now + timedelta(seconds=wait)
    _move(account_id, stream["sent_number"], last_error=error, due_at=due_at, **failed)
    return False


def _next_batch(account_id: str, after: int) -> JSONObject | None:
    found, size = list[JSONObject](), 0
    for event in entries.read(account_id, after=after, limit=MAX_EVENTS):
        entry = entries.to_entry(event, event["previous"])
        size += len(orjson.dumps(entry))
        if found and size > MAX_BYTES:
            break
        found.append(entry)
    if not found:
        return None
    # What was cut before it was sent: the receiver proves the gap by the signed start.
    has_gap = found[0]["id"] > after + 1
    return {
        **({"start": start_of(SECURITY, account_id)} if has_gap else {}),
        "account_id": account_id,
        "first_number": found[0]["id"],
        "last_number": found[-1]["id"],
        "previous_checksum": found[0]["previous_hash"],
        "checksum": found[-1]["checksum"],
        "entries": found,
    }


def _attempt(url: str, secret: str, batch: JSONObject, id: str) -> Attempt:
    try:
        key = crypto.decrypt(secret)
    except InvalidToken:
        return Attempt("The secret cannot be decrypted with the configured keys.")
    body = orjson.dumps(batch)
    timestamp = int(clock.now().timestamp())
    signed = signing.headers([key], delivery_id=id, timestamp=timestamp, body=body)
    headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT, **signed}
    try:
        request = client.Request("POST", url, headers, body)
        response = client.send(request, delivery.rules(config.current()))
    except (address_policy.RequestRefused, address_policy.RequestFailed) as error:
        return Attempt(str(error))
    if not 200 <= response.status < 300:
        return Attempt(f"The receiver responded with {response.status}.", response.body)
    return Attempt(None, response.body)


def _move(account_id: str, from_number: int, **values: object) -> bool:
    """Change the stream unless another worker has moved it on. Returns whether it did."""
    same = (STREAMS.c.account_id == account_id, STREAMS.c.sent_number == from_number)
    moved = sa.update(STREAMS).where(*same).values(**values).returning(STREAMS.c.account_id)
    with db.transaction() as session:
        return session.execute(moved).first() is not None


@events.subscribe(events.AccountClosed)
def _stop(event: events.AccountClosed) -> None:
    db.db.session.execute(sa.delete(SecurityStream).where(_of(event.account_id)))


def _of(account_id: str) -> sa.ColumnElement[bool]:
    return SecurityStream.account_id == account_id
