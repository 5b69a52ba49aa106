"""`bin/atrium doctor`: checks everything an instance needs, and says how to fix what is wrong."""

from __future__ import annotations

import resource
import smtplib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from app import clock, config, db
from app.audit import verifications
from app.audit.models import AuditChange, AuditHead
from app.collections import definitions, expression_names, revisions
from app.db import citus, disk, postgres_session, reencryption, replica, row_security, sharding
from app.db.errors import error_summary
from app.db.functions import database_now
from app.db.types import UtcDateTime
from app.files import downloads
from app.jobs import workers
from app.ops import backup_runs, readiness
from app.outbound import mail
from app.realtime import limits

OLDEST_SQLITE, OLDEST_POSTGRES = (3, 37), (15,)
OTHER_FILES = 200  # of a process
MAX_DRIFT_SECONDS, MAX_NAMED, MAX_REPLICA_SECONDS = 2, 5, 5


class Finding(NamedTuple):
    """The result of one check: `ok`, `warn` (works, but should be fixed), or `fail`."""

    part: str
    state: Literal["ok", "warn", "fail"]
    message: str


def run_checks() -> Iterator[Finding]:
    """Run all checks; skips those that need the database if it is unavailable."""
    yield from _settings()
    ready = readiness.checks()
    if ready["database"] == "ok":
        yield from _database(ready["migrations"])
    else:
        yield _unusable(ready["database"])
    if "disk" in ready:
        yield _disk(ready["disk"])
    yield _queue(ready.get("queue"))
    yield _streams()
    yield _mail()
    if config.current().otel_exporter_otlp_endpoint:
        yield Finding("traces", "ok", f"go to {config.current().otel_exporter_otlp_endpoint}")


def _streams() -> Finding:
    """Check that a process may open as many streams and downloads as it accepts."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.MAX_STREAMS + 2 * downloads.MAX_DOWNLOADS + OTHER_FILES
    if most != resource.RLIM_INFINITY and most < needed:
        message = f"a process may open {most} files, and needs up to {needed} for its streams"
        return Finding("streams", "warn", f"{message}: raise the hard limit (ulimit -Hn)")
    announced = "Redis" if config.current().redis_url else "the database"
    return Finding("streams", "ok", f"up to {limits.MAX_STREAMS} each process, by {announced}")


def _settings() -> Iterator[Finding]:
    settings = config.current()
    warnings = {
        "mails are only written to files: set SERVICE_MAIL_URL": mail.is_saved_to_files(),
        "no proxy is trusted, so all clients have its address: set SERVICE_TRUSTED_PROXIES": (
            not settings.trusted_proxies
        ),
        "no audit checkpoints are created: set SERVICE_AUDIT_CHECKPOINT_KEY": (
            not settings.audit_checkpoint_key
        ),
        "changes are not audited: SERVICE_AUDIT_LOGGING_ENABLED is off": (
            not settings.audit_logging_enabled
        ),
    }
    active = [text for text, is_warning in warnings.items() if is_warning and settings.production]
    for text in active:
        yield Finding("settings", "warn", text)
    if not active:
        yield Finding("settings", "ok", settings.env)


def _unusable(state: str) -> Finding:
    if state == postgres_session.REFUSAL:
        return Finding("database", "fail", state)
    reason = "but did on the second attempt"
    try:
        db.connection().execute(sa.select(sa.literal(1)))
    except SQLAlchemyError as error:
        reason = error_summary(error)
    return Finding("database", "fail", f"does not answer ({reason}): check SERVICE_DATABASE_URL")


def _database(migrations: str) -> Iterator[Finding]:
    dialect = db.connection().dialect
    version = dialect.server_version_info or ()
    message = f"{dialect.name} {'.'.join(map(str, version))}"
    oldest = OLDEST_SQLITE if dialect.name == "sqlite" else OLDEST_POSTGRES
    if version < oldest:
        needed = ".".join(map(str, oldest))
        yield Finding("database", "fail", f"{message} is too old: {needed} or newer is needed")
    else:
        yield Finding("database", "ok", f"{message}{_logged()}")
    yield _clock()
    yield _accounts_apart()
    if migrations != "ok":
        yield Finding("migrations", "fail", f"{migrations}{_why_unread()}")
        return
    if revisions.applied_core_revision() == revisions.core_head():
        yield Finding("migrations", "ok", "up to date")
    else:
        yield Finding(
            "migrations",
            "warn",
            "the database belongs to a newer version: update and restart this process",
        )
    if citus.is_sharded(db.connection()):
        yield _run_check("shards", _shards)
    for part, check in (
        ("names", _names),
        ("secrets", _secrets),
        ("audit", _chains),
        ("worker", _workers),
        ("backups", _backups),
    ):
        yield _run_check(part, check)
    if config.current().database_replica_url:
        yield _replica()


def _replica() -> Finding:
    primary_only = "; all reads go to the primary"
    try:
        seconds = replica.catch_up(MAX_REPLICA_SECONDS)
    except SQLAlchemyError as error:
        message = f"does not answer ({error_summary(error)}): check SERVICE_DATABASE_REPLICA_URL"
        return Finding("replica", "warn", message + primary_only)
    except replica.NoReplica as error:
        return Finding("replica", "fail", f"SERVICE_DATABASE_REPLICA_URL: {error}{primary_only}")
    except TimeoutError as error:
        return Finding("replica", "warn", f"{error}: look at pg_stat_replication on the primary")
    return Finding("replica", "ok", f"has what the primary has after {seconds * 1000:.0f} ms")


def _logged() -> str:
    # By default the server logs the values of failed statements.
    connection = db.connection()
    if connection.dialect.name != "postgresql":
        return ""
    level = connection.scalar(sa.text("SHOW log_min_error_statement"))
    if level in ("fatal", "panic"):
        return ""
    return "; its log keeps values of failed statements (docs/deployment.md says how to stop that)"


def _why_unread() -> str:
    try:
        revisions.applied_core_revision()
    except SQLAlchemyError as error:
        return f" ({error_summary(error)})"
    return ""


def _run_check(part: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except SQLAlchemyError as error:  # a table is damaged, missing or not readable by the login
        message = f"cannot be read ({error_summary(error)}): check the database and its login"
        return Finding(part, "fail", message)


def _accounts_apart() -> Finding:
    """Check row-level security (docs/scaling.md)."""
    connection = db.connection()
    if connection.dialect.name != "postgresql":
        return Finding(
            "accounts", "ok", "isolated by the application; on PostgreSQL also by the database"
        )
    if not config.current().row_security_enabled:
        message = "isolated by the application alone: SERVICE_ROW_SECURITY_ENABLED is off"
        return Finding("accounts", "warn", message)
    if row_security.is_forced(connection):
        return _accounts_apart_on_shards(connection)
    roles = row_security.active_roles(connection)
    if roles is None:
        return Finding("accounts", "warn", row_security.setup_advice(connection))
    unprotected = row_security.uncovered(connection, roles)
    if unprotected:
        message = f"row-level security is missing for {', '.join(unprotected[:MAX_NAMED])}"
        return Finding("accounts", "warn", f"{message}: run bin/atrium db upgrade")
    unviewed = row_security.unviewed(connection, roles)
    if unviewed:
        message = f"numeric filters use no index in {', '.join(unviewed[:MAX_NAMED])}"
        advice = "let the login create schemas (GRANT CREATE ON DATABASE), and run flask"
        return Finding("accounts", "warn", f"{message}: {advice} --app wsgi db upgrade")
    return Finding("accounts", "ok", "isolated by the database, too")


def _accounts_apart_on_shards(connection: sa.Connection) -> Finding:
    if connection.scalar(row_security.BYPASSES_POLICIES):
        message = "isolated by the application alone: the login is a superuser or has BYPASSRLS"
        return Finding("accounts", "warn", message)
    unforced = row_security.unforced(connection)
    if unforced:
        message = f"row-level security is missing for {', '.join(unforced[:MAX_NAMED])}"
        return Finding("accounts", "warn", f"{message}: run bin/atrium shard")
    return Finding("accounts", "ok", "isolated by the database, too")


def _shards() -> Finding:
    faults = sharding.faults(db.connection())
    if not faults:
        return Finding("shards", "ok", "every tenant table is distributed by its account")
    return Finding("shards", "fail", f"{'; '.join(faults[:MAX_NAMED])}: run bin/atrium shard")


def _clock() -> Finding:
    database_time = db.connection().scalar(sa.select(sa.type_coerce(database_now(), UtcDateTime)))
    drift = abs((clock.now() - database_time).total_seconds()) if database_time else 0.0
    if drift > MAX_DRIFT_SECONDS:
        message = f"differs from the database's by {drift:.0f} s: synchronize both (NTP)"
        return Finding("clock", "fail", message)
    return Finding("clock", "ok", "agrees with the database's")


def _names() -> Finding:
    """Look for rules that name roles which do not exist, or groups that no account has."""
    found = [one for each in definitions.get_all() for one in expression_names.warnings(each)]
    if not found:
        return Finding("names", "ok", "rules name roles and groups that exist")
    shown = "; ".join(f"{one['field']}: {one['message']}" for one in found[:MAX_NAMED])
    return Finding("names", "warn", f"{shown} Correct the rules, or create what they name")


def _secrets() -> Finding:
    unreadable = reencryption.undecryptable()
    if unreadable:
        examples = ", ".join(unreadable[:MAX_NAMED])
        message = (
            f"SERVICE_ENCRYPTION_KEY cannot decrypt {len(unreadable)} (e.g. {examples}):"
            " add the old key"
        )
        return Finding("secrets", "fail", message)
    return Finding("secrets", "ok", "all stored secrets can be decrypted")


def _chains() -> Finding:
    """Check the end of each chain only; `bin/atrium audit verify` checks all of it."""
    mine = AuditChange.account_id == AuditHead.account_id
    newest = sa.select(sa.func.max(AuditChange.first_id)).where(mine).scalar_subquery()
    last = AuditHead.__table__.outerjoin(
        AuditChange, sa.and_(mine, AuditChange.first_id == newest.correlate(AuditHead))
    )
    columns = (AuditHead.account_id, AuditHead.last_id, AuditHead.checksum)
    stored = (AuditChange.last_id.label("stored_id"), AuditChange.checksum.label("stored"))
    rows = db.connection().execute(sa.select(*columns, *stored).select_from(last))
    heads = (
        row.account_id
        for row in rows
        if (row.stored_id, (row.stored or b"").hex()) != (row.last_id, row.checksum)
    )
    broken = list(islice(heads, MAX_NAMED))
    if broken:
        message = f"the chain of {', '.join(broken)} is broken: run bin/atrium audit verify"
        return Finding("audit", "fail", message)
    for found in verifications.broken(1):
        message = (
            f"the {found.log} log of {found.account_id} was broken at entry {found.broken_id}"
            f" when it was verified at {clock.iso(found.verified_at)}: {found.reason}"
        )
        return Finding("audit", "fail", message)
    return Finding("audit", "ok", "every chain matches its head")


def _workers() -> Finding:
    found = workers.find()
    if found.is_late:
        late = f"a job is overdue by {found.overdue_seconds:.0f} s"
        return Finding("worker", "fail", f"{late}: start a worker with bin/atrium worker")
    if not found.has_run:
        message = "none has run yet: start one with bin/atrium worker"
        return Finding("worker", "warn", message)
    return Finding("worker", "ok", "no job is late")


def _backups() -> Finding:
    found = backup_runs.overview()
    made = f"the last proved one is of {found.proved.created_at:%F %R} UTC" if found.proved else ""
    if found.failed and found.has_failed_since:
        message = f"{made or 'none is proved'}, and the last one failed: {found.failed.error}"
        return Finding("backups", "warn", message)
    if found.is_late:
        advice = "start a worker, and see docs/backup.md"
        return Finding("backups", "warn", f"{made or 'none is proved yet'}: {advice}")
    if not found.is_scheduled and not found.proved:
        message = "none is proved, and none are scheduled: set SERVICE_BACKUP_TARGET"
        return Finding("backups", "warn" if config.current().production else "ok", message)
    return Finding("backups", "ok", made)


def _disk(state: str) -> Finding:
    file = str(db.sqlite_file())
    free = disk.free_bytes(file)
    message = f"of {file}" if free is None else f"of {file}: {free // disk.MIB:,} MiB free"
    if state != "ok":
        return Finding("disk", "fail", f"{message}; {state}: free disk space, or writes fail")
    if free is not None and free < disk.WARN_BYTES:
        return Finding("disk", "warn", f"{message}: free disk space soon")
    return Finding("disk", "ok", message)


def _queue(state: str | None) -> Finding:
    if state is None:
        return Finding("queue", "ok", "embedded, without Redis")
    if state == "ok":
        return Finding("queue", "ok", "Redis answers")
    message = (
        "Redis does not answer, so jobs start seconds late: start it, or check SERVICE_REDIS_URL"
    )
    return Finding("queue", "fail", message)


def _mail() -> Finding:
    try:
        mail.check()
    except (OSError, smtplib.SMTPException) as error:
        message = f"cannot be sent ({type(error).__name__}): check SERVICE_MAIL_URL"
        return Finding("mail", "fail", message)
    return Finding("mail", "ok", "can be sent")
