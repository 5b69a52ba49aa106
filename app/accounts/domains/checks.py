"""Proving a domain by its DNS record, and checking daily that the record is still there."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from app import clock, db, jobs
from app.accounts import users
from app.accounts.domains import senders, service
from app.accounts.domains.models import (
    FAILING_AFTER,
    LOST_AFTER,
    AccountDomain,
    VerifiedDomain,
    record_value,
)
from app.accounts.models import Account, User
from app.accounts.product import mails
from app.db import errors
from app.errors import Conflict, Unavailable
from app.outbound import web_waits
from app.types import JSONMapping
from app.web import rate_limits
from app.web.rate_limits import Limit

VERIFICATIONS = Limit("domain-verifications", 60, 3600)
CHECK_EVERY = timedelta(days=1)
MAX_CHECKS = 1000
"""Checks that are enqueued at once, each hour."""
TAKEN = (
    "Another account has proved this domain, and its DNS record is still there. Remove it first."
)
NOTICES = {"lost": "domain_lost", "failing": "domain_failing", "sender": "sender_lapsed"}
NO_ANSWER = "The DNS servers gave no answer. Try again in a minute."


def verify(account_id: str, domain_id: str) -> AccountDomain:
    """Prove a domain by its DNS record, which takes it over from an account without a record.

    Raises NotFound, TooManyRequests, Unavailable without an answer, or Conflict without the record
    or if the domain is another account's.
    """
    name = service.get(account_id, domain_id).record_name
    rate_limits.consume(VERIFICATIONS.of(account_id))
    db.db.session.remove()  # hold no connection during the look-up
    from app.outbound import dns_client  # imported on use: large

    try:
        with web_waits.place_or_429(account_id):
            records = dns_client.txt_records(name)
    except dns_client.LookupFailed:
        raise Unavailable(NO_ANSWER) from None
    with db.transaction() as session:
        row = service.get_for_update(account_id, domain_id)
        if row.record_value not in records:
            raise Conflict(
                f"There is no TXT record {row.record_name} with the value {row.record_value}."
                " A new record may need an hour to be seen."
            )
        _claim(row, records)
        row.verified_at = row.verified_at or clock.now()
        row.last_checked_at, row.failed_checks = clock.now(), 0
        session.flush()
        return row


def _claim(row: AccountDomain, records: list[str]) -> None:
    session = db.db.session
    owner = session.get(VerifiedDomain, row.domain, with_for_update=True, populate_existing=True)
    if owner is None:
        claimed = VerifiedDomain(
            domain=row.domain, owner_account_id=row.account_id, token=row.token
        )
        with errors.conflict_on_unique("verified_domains", "domain", "domain", TAKEN):
            session.add(claimed)
            session.flush()
        return
    if owner.owner_account_id != row.account_id:
        if record_value(owner.token) in records:
            raise Conflict(TAKEN)
        payload = {"domain": owner.domain}
        jobs.enqueue("domains.check", payload, account_id=owner.owner_account_id)
    owner.owner_account_id, owner.token = row.account_id, row.token


@jobs.periodic(3600, "domains.check_due")
def enqueue_checks(payload: JSONMapping) -> None:
    """Enqueue a check of each verified domain that had none for a day."""
    due = sa.select(AccountDomain.account_id, AccountDomain.domain).where(
        AccountDomain.verified_at.is_not(None),
        AccountDomain.last_checked_at <= clock.now() - CHECK_EVERY,
    )
    order = (AccountDomain.last_checked_at, AccountDomain.account_id)
    with db.transaction() as session:
        for account_id, domain in session.execute(due.order_by(*order).limit(MAX_CHECKS)).all():
            jobs.enqueue("domains.check", {"domain": domain}, account_id=account_id)


@jobs.job("domains.check")
def _check(payload: JSONMapping) -> None:
    own = (
        AccountDomain.account_id == payload["account_id"],
        AccountDomain.domain == payload["domain"],
    )
    row = db.db.session.scalar(sa.select(AccountDomain).where(*own))
    if row is None or row.verified_at is None:
        return
    if not _is_owner(row):
        _save_check(row.account_id, row.id, found=False)
    elif row.last_checked_at is None or row.last_checked_at <= clock.now() - CHECK_EVERY:
        key, name, value = (row.account_id, row.id), row.record_name, row.record_value
        domain, sends = row.domain, senders.is_domain_of_sender(row.account_id, row)
        db.db.session.remove()
        _save_check(*key, found=_has_record(name, value))
        if sends:
            _check_sender(*key, domain)


def _has_record(name: str, value: str) -> bool | None:
    from app.outbound import dns_client  # imported on use: large

    try:
        return value in dns_client.txt_records(name)
    except dns_client.LookupFailed:
        return None


def _check_sender(account_id: str, domain_id: str, domain: str) -> None:
    """Note whether the domain still names this service; without an answer all stays."""
    from app.outbound import dns_client  # imported on use: large

    try:
        records = senders.look_up(domain)
    except dns_client.LookupFailed:
        return
    with db.transaction() as session:
        row = service.get_for_update(account_id, domain_id)
        if row.sender_proof and records.proof is None:
            _notify(row, "sender")
        senders.save(row, records)
        session.flush()


def _is_owner(row: AccountDomain) -> bool:
    owner = db.db.session.get(VerifiedDomain, row.domain)
    return owner is not None and owner.owner_account_id == row.account_id


def _save_check(account_id: str, domain_id: str, *, found: bool | None) -> None:
    with db.transaction() as session:
        row = service.get_for_update(account_id, domain_id)
        if row.verified_at is None:
            return
        row.last_checked_at = clock.now()
        # Without an answer (None) admins are warned, but our own servers may be at fault.
        most = LOST_AFTER if found is False else LOST_AFTER - 1
        row.failed_checks = 0 if found else min(row.failed_checks + 1, most)
        if row.failed_checks >= LOST_AFTER or not _is_owner(row):
            row.verified_at = None
            service.release(row)
            _notify(row, "lost")
        elif row.failed_checks == FAILING_AFTER:
            _notify(row, "failing")
        session.flush()


def _notify(row: AccountDomain, notice: str) -> None:
    for user_id in users.verified_admins(row.account_id):
        payload = {"user_id": user_id, "domain": row.domain, "notice": notice}
        jobs.enqueue("domains.notify_admin", payload, account_id=row.account_id)


@jobs.job("domains.notify_admin", mails=True)
def _mail_notice(payload: JSONMapping) -> None:
    account = db.db.session.get(Account, payload["account_id"])
    user = db.db.session.get(User, (payload["account_id"], payload["user_id"]))
    if account and user and user.may_sign_in:
        kind = NOTICES[payload["notice"]]
        details = {"domain": payload["domain"], "days": LOST_AFTER - FAILING_AFTER}
        mails.send(kind, user.email, account.id, account=account.name, user=user, **details)
