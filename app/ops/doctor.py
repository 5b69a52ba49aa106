"""`flask doctor`: whether all that an instance needs is there, and what to do where it is not."""

from __future__ import annotations

import smtplib
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from app import clock, config, db, jobs
from app.audit.models import AuditEntry, AuditHead
from app.collections import revisions
from app.db import disk, reencryption, row_security
from app.db.errors import error_summary
from app.db.functions import database_now
from app.db.types import UtcDateTime
from app.jobs import leases
from app.ops import readiness
from app.outbound import mail

OLDEST_SQLITE, OLDEST_POSTGRES = (3, 37), (15,)
MOST_SECONDS_APART, MOST_SECONDS_DUE, MOST_NAMED = 2, 60, 5


class Finding(NamedTuple):
    """What is found of one part: `ok`, `warn` where it works but should not stay, or `fail`."""

    part: str
    state: Literal["ok", "warn", "fail"]
    told: str


def run_checks() -> Iterator[Finding]:
    """Look at everything; what needs a database is passed over without one."""
    yield from _settings()
    ready = readiness.checks()
    if ready["database"] == "ok":
        yield from _database(ready["migrations"])
    else:
        yield _unusable()
    if "disk" in ready:
        yield _disk(ready["disk"])
    yield _queue(ready.get("queue"))
    yield _mail()


def _settings() -> Iterator[Finding]:
    settings = config.current()
    doubts = {
        "mails are only written to files: set SERVICE_MAIL_URL": mail.is_saved_to_files(),
        "nobody's proxy is trusted, so all callers have its address: set SERVICE_TRUSTED_PROXIES": (
            not settings.trusted_proxies
        ),
        "no checkpoints are made: set SERVICE_AUDIT_CHECKPOINT_KEY": (
            not settings.audit_checkpoint_key
        ),
        "changes are not audited: SERVICE_AUDIT_LOGGING_ENABLED is off": (
            not settings.audit_logging_enabled
        ),
    }
    found = [text for text, doubtful in doubts.items() if doubtful and settings.production]
    for text in found:
        yield Finding("settings", "warn", text)
    if not found:
        yield Finding("settings", "ok", settings.env)


def _unusable() -> Finding:
    why = "but did when asked again"
    try:
        db.connection().execute(sa.select(sa.literal(1)))
    except SQLAlchemyError as error:
        why = error_summary(error)
    return Finding("database", "fail", f"does not answer ({why}): see SERVICE_DATABASE_URL")


def _database(migrations: str) -> Iterator[Finding]:
    dialect = db.connection().dialect
    version = dialect.server_version_info or ()
    told = f"{dialect.name} {'.'.join(map(str, version))}"
    oldest = OLDEST_SQLITE if dialect.name == "sqlite" else OLDEST_POSTGRES
    if version < oldest:
        needed = ".".join(map(str, oldest))
        yield Finding("database", "fail", f"{told} is too old: {needed} or newer is needed")
    else:
        yield Finding("database", "ok", f"{told}{_logged()}")
    yield _clock()
    yield _accounts_apart()
    if migrations != "ok":
        yield Finding("migrations", "fail", f"{migrations}{_why_unread()}")
        return
    if revisions.applied_core_revision() == revisions.core_head():
        yield Finding("migrations", "ok", "all are applied")
    else:
        yield Finding("migrations", "warn", "are a newer version's: restart this one as that")
    for part, look in (("secrets", _secrets), ("audit", _chains), ("worker", _workers)):
        yield _looked_at(part, look)


def _logged() -> str:
    # By default the server writes down what a statement that fails was to store.
    through = db.connection()
    if through.dialect.name != "postgresql":
        return ""
    level = through.scalar(sa.text("SHOW log_min_error_statement"))
    if level in ("fatal", "panic"):
        return ""
    return (
        "; its log keeps the values of failed statements (docs/deployment.md says how to stop that)"
    )


def _why_unread() -> str:
    try:
        revisions.applied_core_revision()
    except SQLAlchemyError as error:
        return f" ({error_summary(error)})"
    return ""


def _looked_at(part: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except SQLAlchemyError as error:  # a table is damaged, lost or closed to the login
        told = f"cannot be looked at ({error_summary(error)}): see the database and its login"
        return Finding(part, "fail", told)


def _accounts_apart() -> Finding:
    """Whether the database keeps accounts apart by itself, too (docs/scaling.md)."""
    through = db.connection()
    if through.dialect.name != "postgresql":
        return Finding("accounts", "ok", "are kept apart by the application; PostgreSQL does, too")
    if not config.current().row_security_enabled:
        told = "are kept apart by the application alone: SERVICE_ROW_SECURITY_ENABLED is off"
        return Finding("accounts", "warn", told)
    roles = row_security.active_roles(through)
    if roles is None:
        return Finding("accounts", "warn", row_security.setup_advice(through))
    bare = row_security.uncovered(through, roles)
    if bare:
        told = f"are not kept apart by the database in {', '.join(bare[:MOST_NAMED])}"
        return Finding("accounts", "warn", f"{told}: run flask --app wsgi db upgrade")
    return Finding("accounts", "ok", f"are kept apart by the database, too; {_numbers(through)}")


def _numbers(through: Connection) -> str:
    if row_security.comparisons_are_leakproof(through):
        return "numbers are found by index"
    return "numbers are compared without index (docs/scaling.md says what a superuser can do)"


def _clock() -> Finding:
    there = db.connection().scalar(sa.select(sa.type_coerce(database_now(), UtcDateTime)))
    apart = abs((clock.now() - there).total_seconds()) if there else 0.0
    if apart > MOST_SECONDS_APART:
        told = f"{apart:.0f} s from the database's: set both by a time server (NTP)"
        return Finding("clock", "fail", told)
    return Finding("clock", "ok", "agrees with the database's")


def _secrets() -> Finding:
    unreadable = reencryption.undecryptable()
    if unreadable:
        some = ", ".join(unreadable[:MOST_NAMED])
        told = (
            f"no key of SERVICE_ENCRYPTION_KEY reads {len(unreadable)}, as {some}: add the former"
        )
        return Finding("secrets", "fail", told)
    return Finding("secrets", "ok", "stored secrets can be read")


def _chains() -> Finding:
    """Each chain's end only; `flask audit verify` looks at all of it."""
    its = AuditEntry.account_id == AuditHead.account_id
    newest = sa.select(sa.func.max(AuditEntry.id)).where(its).scalar_subquery()
    kept = sa.select(AuditEntry.checksum).where(its, AuditEntry.id == AuditHead.last_id)
    differs = sa.or_(
        newest.is_distinct_from(AuditHead.last_id),
        kept.scalar_subquery().is_distinct_from(AuditHead.checksum),
    )
    wrong = db.db.session.scalars(
        sa.select(AuditHead.account_id).where(differs).limit(MOST_NAMED)
    ).all()
    if wrong:
        told = f"the chain of {', '.join(wrong)} is broken: run flask --app wsgi audit verify"
        return Finding("audit", "fail", told)
    return Finding("audit", "ok", "every chain ends where its head says")


def _workers() -> Finding:
    _, waiting = leases.backlog(jobs.QUEUE)
    if waiting > MOST_SECONDS_DUE:
        told = f"a job is due for {waiting:.0f} s: start one with flask --app wsgi worker"
        return Finding("worker", "fail", told)
    if not jobs.has_had_worker():
        told = "none has run yet, and nothing is done without: flask --app wsgi worker"
        return Finding("worker", "warn", told)
    return Finding("worker", "ok", "no job is late")


def _disk(state: str) -> Finding:
    file = str(db.sqlite_file())
    left = disk.free_bytes(file)
    told = f"of {file}" if left is None else f"of {file}: {left // disk.MIB:,} MiB are free"
    if state != "ok":
        return Finding("disk", "fail", f"{told}; {state}: free some, or nothing can be written")
    if left is not None and left < disk.WARN_BYTES:
        return Finding("disk", "warn", f"{told}: free some before it is full")
    return Finding("disk", "ok", told)


def _queue(answers: str | None) -> Finding:
    if answers is None:
        return Finding("queue", "ok", "the embedded one, without Redis")
    if answers == "ok":
        return Finding("queue", "ok", "Redis answers")
    told = "Redis does not answer: start it, or correct SERVICE_REDIS_URL; work waits up to seconds"
    return Finding("queue", "fail", told)


def _mail() -> Finding:
    try:
        mail.check()
    except (OSError, smtplib.SMTPException) as error:
        told = f"cannot be sent ({type(error).__name__}): see SERVICE_MAIL_URL"
        return Finding("mail", "fail", told)
    return Finding("mail", "ok", "can be sent")
