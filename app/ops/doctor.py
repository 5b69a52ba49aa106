"""`bin/atrium doctor`: checks everything an instance needs, and says how to fix what is wrong."""

from __future__ import annotations

import smtplib
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from app import clock, config, db
from app.collections import revisions
from app.db import citus, disk, postgres_driver, reencryption, replica, row_security, sharding
from app.db.errors import error_summary
from app.db.functions import database_now
from app.db.types import UtcDateTime
from app.extensions import loading as extensions
from app.extensions import migrations, registry
from app.jobs import queue
from app.ops import health
from app.outbound import mail
from app.web.feature import Check, Finding

OLDEST_SQLITE, OLDEST_POSTGRES = (3, 37), (15,)
MAX_DRIFT_SECONDS, MAX_NAMED, MAX_REPLICA_SECONDS = 2, 5, 5
# Of the lines behind that of migrations; checks that are not named here come last.
ORDER = (
    *("shards", "names", "types", "search", "secrets", "audit", "worker", "backups", "replica"),
    *("disk", "queue", "streams", "mail", "traces", "extensions", "tables"),
)


def run_checks() -> Iterator[tuple[str, Finding]]:
    """Run the checks of the platform and of all features; yields the part and the finding of each.

    Skips those that need the database if it is unavailable.
    """
    for finding in _settings():
        yield "settings", finding
    ready, settings = health.checks(), config.current()
    has_database = ready["database"] == "ok"
    if has_database:
        yield "database", _database()
        yield "clock", _clock()
        yield "accounts", _accounts_apart()
        yield "migrations", _migrations(ready["migrations"])
    else:
        yield "database", _unusable(ready["database"])
    has_tables = has_database and ready["migrations"] == "ok"
    checks: list[Check] = [
        *config.running().extensions["atrium.checks"],
        Check("secrets", _secrets),
        Check("worker", _workers),
        Check("queue", lambda: _queue(ready.get("queue")), reads_tables=False),
        Check("mail", _mail, reads_tables=False),
    ]
    if has_tables and citus.is_sharded(db.connection()):
        checks.append(Check("shards", _shards))
    if has_tables and (registry.of(registry.Kind.TABLE) or migrations.has_tables()):
        checks.append(Check("tables", migrations.check))
    if settings.database_replica_url:
        checks.append(Check("replica", _replica))
    if settings.extensions:
        checks.append(Check("extensions", extensions.check))
    if "disk" in ready:
        checks.append(Check("disk", lambda: _disk(ready["disk"]), reads_tables=False))
    if endpoint := settings.otel_exporter_otlp_endpoint:
        traces = Finding("ok", f"go to {endpoint}")
        checks.append(Check("traces", lambda: traces, reads_tables=False))
    for check in sorted(checks, key=lambda one: [*ORDER, one.part].index(one.part)):
        if has_tables or not check.reads_tables:
            try:
                found = check.run()
            except SQLAlchemyError as error:  # a table is damaged, missing, or not readable
                message = f"cannot be read ({error_summary(error)})"
                found = Finding("fail", f"{message}: check the database and its login")
            yield check.part, found


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
        yield Finding("warn", text)
    if not active:
        yield Finding("ok", settings.env)


def _unusable(state: str) -> Finding:
    if state == postgres_driver.REFUSAL:
        return Finding("fail", state)
    reason = "but did on the second attempt"
    try:
        db.connection().execute(sa.select(sa.literal(1)))
    except SQLAlchemyError as error:
        reason = error_summary(error)
    return Finding("fail", f"does not answer ({reason}): check SERVICE_DATABASE_URL")


def _database() -> Finding:
    dialect = db.connection().dialect
    version = dialect.server_version_info or ()
    message = f"{dialect.name} {'.'.join(map(str, version))}"
    oldest = OLDEST_SQLITE if dialect.name == "sqlite" else OLDEST_POSTGRES
    if version < oldest:
        needed = ".".join(map(str, oldest))
        return Finding("fail", f"{message} is too old: {needed} or newer is needed")
    if dialect.name == "postgresql":
        # By default the server logs the values of failed statements.
        level = db.connection().scalar(sa.text("SHOW log_min_error_statement"))
        if level not in ("fatal", "panic"):
            message += "; its log keeps values of failed statements (docs/deployment.md says how"
            message += " to stop that)"
    return Finding("ok", message)


def _migrations(state: str) -> Finding:
    if state != "ok":
        try:
            revisions.applied_core_revision()
        except SQLAlchemyError as error:
            state = f"{state} ({error_summary(error)})"
        return Finding("fail", state)
    if revisions.applied_core_revision() == revisions.core_head():
        return Finding("ok", "up to date")
    message = "the database belongs to a newer version: update and restart this process"
    return Finding("warn", message)


def _replica() -> Finding:
    primary_only = "; all reads go to the primary"
    try:
        seconds = replica.catch_up(MAX_REPLICA_SECONDS)
    except SQLAlchemyError as error:
        message = f"does not answer ({error_summary(error)}): check SERVICE_DATABASE_REPLICA_URL"
        return Finding("warn", message + primary_only)
    except replica.NoReplica as error:
        return Finding("fail", f"SERVICE_DATABASE_REPLICA_URL: {error}{primary_only}")
    except TimeoutError as error:
        return Finding("warn", f"{error}: look at pg_stat_replication on the primary")
    return Finding("ok", f"has what the primary has after {seconds * 1000:.0f} ms")


def _accounts_apart() -> Finding:
    """Check row-level security (docs/scaling.md)."""
    connection = db.connection()
    if connection.dialect.name != "postgresql":
        return Finding("ok", "isolated by the application; on PostgreSQL also by the database")
    if not config.current().row_security_enabled:
        message = "isolated by the application alone: SERVICE_ROW_SECURITY_ENABLED is off"
        return Finding("warn", message)
    if row_security.is_forced(connection):
        return _accounts_apart_on_shards(connection)
    roles = row_security.active_roles(connection)
    if roles is None:
        return Finding("warn", row_security.setup_advice(connection))
    unprotected = row_security.uncovered(connection, roles)
    if unprotected:
        message = f"row-level security is missing for {', '.join(unprotected[:MAX_NAMED])}"
        return Finding("warn", f"{message}: run bin/atrium db upgrade")
    unviewed = row_security.unviewed(connection, roles)
    if unviewed:
        message = f"numeric filters use no index in {', '.join(unviewed[:MAX_NAMED])}"
        advice = "let the login create schemas (GRANT CREATE ON DATABASE), and run flask"
        return Finding("warn", f"{message}: {advice} --app wsgi db upgrade")
    return Finding("ok", "isolated by the database, too")


def _accounts_apart_on_shards(connection: sa.Connection) -> Finding:
    if connection.scalar(row_security.BYPASSES_POLICIES):
        message = "isolated by the application alone: the login is a superuser or has BYPASSRLS"
        return Finding("warn", message)
    unforced = row_security.unforced(connection)
    if unforced:
        message = f"row-level security is missing for {', '.join(unforced[:MAX_NAMED])}"
        return Finding("warn", f"{message}: run bin/atrium shard")
    return Finding("ok", "isolated by the database, too")


def _shards() -> Finding:
    faults = sharding.faults(db.connection())
    if not faults:
        return Finding("ok", "every tenant table is distributed by its account")
    return Finding("fail", f"{'; '.join(faults[:MAX_NAMED])}: run bin/atrium shard")


def _clock() -> Finding:
    database_time = db.connection().scalar(sa.select(sa.type_coerce(database_now(), UtcDateTime)))
    drift = abs((clock.now() - database_time).total_seconds()) if database_time else 0.0
    if drift > MAX_DRIFT_SECONDS:
        message = f"differs from the database's by {drift:.0f} s: synchronize both (NTP)"
        return Finding("fail", message)
    return Finding("ok", "agrees with the database's")


def _secrets() -> Finding:
    unreadable = reencryption.undecryptable()
    if unreadable:
        examples = ", ".join(unreadable[:MAX_NAMED])
        message = (
            f"SERVICE_ENCRYPTION_KEY cannot decrypt {len(unreadable)} (e.g. {examples}):"
            " add the old key"
        )
        return Finding("fail", message)
    return Finding("ok", "all stored secrets can be decrypted")


def _workers() -> Finding:
    found = queue.find_workers()
    if found.is_late:
        late = f"a job is overdue by {found.overdue_seconds:.0f} s"
        return Finding("fail", f"{late}: start a worker with bin/atrium worker")
    if not found.has_run:
        message = "none has run yet: start one with bin/atrium worker"
        return Finding("warn", message)
    return Finding("ok", "no job is late")


def _disk(state: str) -> Finding:
    file = str(db.sqlite_file())
    free = disk.free_bytes(file)
    message = f"of {file}" if free is None else f"of {file}: {free // disk.MIB:,} MiB free"
    if state != "ok":
        return Finding("fail", f"{message}; {state}: free disk space, or writes fail")
    if free is not None and free < disk.WARN_BYTES:
        return Finding("warn", f"{message}: free disk space soon")
    return Finding("ok", message)


def _queue(state: str | None) -> Finding:
    if state is None:
        return Finding("ok", "embedded, without Redis")
    if state == "ok":
        return Finding("ok", "Redis answers")
    message = (
        "Redis does not answer, so jobs start seconds late: start it, or check SERVICE_REDIS_URL"
    )
    return Finding("fail", message)


def _mail() -> Finding:
    try:
        mail.check()
    except (OSError, smtplib.SMTPException) as error:
        message = f"cannot be sent ({type(error).__name__}): check SERVICE_MAIL_URL"
        return Finding("fail", message)
    return Finding("ok", "can be sent")
