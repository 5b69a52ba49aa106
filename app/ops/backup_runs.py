"""Scheduled backups: when one is due, making it, and which ones stay.

A periodic job requests a backup when one is due, and a job of its own makes it: at most one is
pending, whoever requested it. It is published and counted only once it is proved; then older ones
go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Mapped, mapped_column

from app import clock, config, db, jobs
from app.context import tenancy
from app.db import Base, errors
from app.db.errors import error_summary
from app.db.policy import NotAudited, NotBundled, Placement, TablePolicy
from app.db.types import Id, Text, UtcDateTime
from app.errors import AppError, Conflict
from app.ids import new_id
from app.ops import backup_proofs, backup_targets, backups
from app.ops.backup_proofs import Proof
from app.ops.backup_targets import StoredBackup, Target
from app.ops.backups import BackupError
from app.types import JSONMapping
from app.web.feature import Finding

log = structlog.get_logger()
KIND = "backups.make"
LOOK_SECONDS = 60
FIRST_RETRY = timedelta(minutes=10)
LOG_LIFETIME = timedelta(days=90)
UNDER_WAY = "A backup is being made. Wait until it has ended."
INTERRUPTED = "Every worker that made it was stopped or killed."
NO_TARGET = "There is no place for backups. Set SERVICE_BACKUP_TARGET."
TARGET_CHANGED = "SERVICE_BACKUP_TARGET has changed since."


@dataclass(frozen=True)
class Overview:
    """The last proved backup, the last failure, and the one that is being made."""

    proved: BackupRun | None
    failed: BackupRun | None
    pending: BackupRun | None

    @property
    def is_scheduled(self) -> bool:
        """Whether backups are made without anybody's doing."""
        return bool(config.current().backup_target)

    @property
    def age(self) -> timedelta | None:
        """The age of the data in the last proved backup."""
        started = self.proved and self.proved.started_at
        return clock.now() - started if started else None

    @property
    def failure_age(self) -> timedelta | None:
        """The time since a backup failed."""
        finished = self.failed and self.failed.finished_at
        return clock.now() - finished if finished else None

    @property
    def is_late(self) -> bool:
        """Whether two backups in a row are missing."""
        interval = timedelta(hours=config.current().backup_interval_hours)
        return self.is_scheduled and (self.age is None or self.age > 2 * interval)

    @property
    def has_failed_since(self) -> bool:
        """Whether the last backup that ended has failed."""
        if self.failed is None:
            return False
        return self.proved is None or self.failed.created_at > self.proved.created_at


def overview() -> Overview:
    """Return the state of backups, in one statement."""
    newest = (
        sa.select(BackupRun.id)
        .where(BackupRun.status == status)
        .order_by(BackupRun.created_at.desc())
        .limit(1)
        .scalar_subquery()
        for status in RunState
    )
    runs = db.db.session.scalars(
        sa.select(BackupRun).where(sa.or_(*(BackupRun.id == id for id in newest)))
    )
    by_state = {run.status: run for run in runs}
    return Overview(
        proved=by_state.get(RunState.PROVED),
        failed=by_state.get(RunState.FAILED),
        pending=by_state.get(RunState.PENDING),
    )


def check() -> Finding:
    found = overview()
    made = f"the last proved one is of {found.proved.created_at:%F %R} UTC" if found.proved else ""
    if found.failed and found.has_failed_since:
        message = f"{made or 'none is proved'}, and the last one failed: {found.failed.error}"
        return Finding("warn", message)
    if found.is_late:
        advice = "start a worker, and see docs/backup.md"
        return Finding("warn", f"{made or 'none is proved yet'}: {advice}")
    if not found.is_scheduled and not found.proved:
        message = "none is proved, and none are scheduled: set SERVICE_BACKUP_TARGET"
        return Finding("warn" if config.current().production else "ok", message)
    return Finding("ok", made)


def request() -> None:
    """Have a worker make a backup now. Raises Conflict if one is under way, or has no place."""
    if not config.current().backup_target:
        raise Conflict(NO_TARGET)
    target = backup_targets.current()
    clash = errors.conflict_on_unique(BackupRun.__tablename__, "status", "status", UNDER_WAY)
    with clash, db.transaction() as session:
        run = BackupRun(place=target.address)
        session.add(run)
        session.flush()
        jobs.enqueue(KIND, {"run_id": run.id}, account_id=jobs.INSTANCE)


@jobs.periodic(LOOK_SECONDS, "backups.schedule")
def schedule(payload: JSONMapping) -> None:
    """Request a backup if one is due."""
    _close_abandoned()
    if config.current().backup_target and _is_due():
        try:
            request()
        except Conflict:  # somebody else's request was faster
            return


def _close_abandoned() -> None:
    """Close a run that no job will end: too many workers have died with it."""
    pending = RUNS.c.status == RunState.PENDING
    run_id = db.connection().scalar(sa.select(RUNS.c.id).where(pending))
    # Its job was enqueued with it. Looked up apart, as shards take no update by rows of others.
    own = (jobs.TABLE.c.account_id == jobs.INSTANCE, jobs.TABLE.c.kind == KIND)
    job = sa.select(jobs.TABLE.c.id).where(*own, jobs.TABLE.c.status == jobs.JobState.PENDING)
    if run_id is None or db.connection().scalar(job.limit(1)):
        return
    ended = {"status": RunState.FAILED, "error": INTERRUPTED, "finished_at": clock.now()}
    abandoned = sa.update(RUNS).where(RUNS.c.id == run_id, pending).values(ended)
    with db.transaction() as session:
        if session.execute(abandoned.returning(RUNS.c.id)).first():
            log.error("backup failed", error=INTERRUPTED)


def _is_due() -> bool:
    """Whether the interval is over; after failures, ever later until then."""
    interval = timedelta(hours=config.current().backup_interval_hours)
    here = RUNS.c.place == backup_targets.current().address
    made = sa.select(sa.func.max(RUNS.c.created_at)).where(here, RUNS.c.status == RunState.PROVED)
    proved = made.scalar_subquery()
    since = (here, RUNS.c.status == RunState.FAILED)
    later = sa.or_(proved.is_(None), RUNS.c.created_at > proved)
    failed = sa.select(sa.func.count(), sa.func.max(RUNS.c.finished_at), proved)
    failures, failed_at, proved_at = db.connection().execute(failed.where(*since, later)).one()
    # Twice as long after each failure, as long as the interval at most.
    retry_after = min(interval, FIRST_RETRY * (1 << min(max(failures - 1, 0), 12)))
    if failed_at and clock.now() < failed_at + retry_after:
        return False
    return proved_at is None or clock.now() >= proved_at + interval


@jobs.job(KIND, attempts=3, is_long=True)
def make(payload: JSONMapping) -> None:
    """Make, prove and publish the backup of a run; a failure is noted with it."""
    claim = Claim.take(payload["run_id"])
    if claim is None:
        return
    try:
        target = backup_targets.current()
        if target.address != claim.place:
            raise BackupError(TARGET_CHANGED)
        proof = _publish(target, claim)
    except (AppError, OSError, SQLAlchemyError) as error:
        reason, state = _message(error), RunState.FAILED
        claim.change(status=state, proved_at=None, error=reason, finished_at=clock.now())
        log.error("backup failed", error=type(error).__name__, reason=reason)
        return
    if proof is None:
        return
    log.info("backup proved", place=target.address, name=claim.name, rows=proof["rows"])
    if proof["files"] and proof["files"]["missing"]:
        log.warning("uploaded files are missing", files=proof["files"]["missing"])
    try:
        _remove_old(target)
    except (AppError, OSError) as error:  # the next backup tries again
        log.error("old backups remain", error=_message(error))


@dataclass(frozen=True)
class Claim:
    """A run that this worker makes; another one may have taken over since."""

    run_id: str
    attempt: int
    name: str
    place: str

    @classmethod
    def take(cls, run_id: str) -> Claim | None:
        """Take a run that is pending, and name its backup; None if it has ended."""
        name = backup_targets.new_name()
        begun = sa.update(RUNS).where(RUNS.c.id == run_id, RUNS.c.status == RunState.PENDING)
        begun = begun.values(attempt=RUNS.c.attempt + 1, started_at=clock.now(), name=name)
        with db.transaction() as session:
            row = session.execute(begun.returning(RUNS.c.attempt, RUNS.c.place)).first()
        return cls(run_id, row.attempt, name, row.place) if row else None

    def change(self, **values: object) -> bool:
        """Change the run if it is still this worker's; whether it is."""
        mine = (RUNS.c.id == self.run_id, RUNS.c.attempt == self.attempt)
        changed = sa.update(RUNS).where(*mine, RUNS.c.status == RunState.PENDING).values(values)
        with db.transaction() as session:
            return session.execute(changed.returning(RUNS.c.id)).first() is not None


def _publish(target: Target, claim: Claim) -> Proof | None:
    """Make a backup in a work folder, and move it to its place once it is proved."""
    target.remove_unfinished()
    with target.work_folder() as folder:
        path = folder / claim.name
        proof = backup_proofs.prove(path, backups.create(path))
        if not claim.change(proved_at=clock.parse(proof["proved_at"])):
            return None
        target.publish(path, proof)
    is_ours = claim.change(status=RunState.PROVED, finished_at=clock.now(), **_facts(proof))
    return proof if is_ours else None


def _facts(proof: Proof) -> dict[str, object]:
    files = proof["files"]
    return {
        "size": proof["size"] + (files["size"] if files else 0),
        "sha256": proof["sha256"],
        "rows": proof["rows"],
        "files": files["count"] if files else None,
        "audit_entries": proof["audit_entries"],
    }


def _message(error: Exception) -> str:
    if isinstance(error, AppError):
        return error.message
    return error_summary(error) if isinstance(error, SQLAlchemyError) else str(error)


def record(place: str, name: str, started_at: datetime, outcome: Proof | AppError) -> None:
    """Note a backup that a command has made elsewhere and proved, or not."""
    run = BackupRun(place=place, name=name, started_at=started_at, finished_at=clock.now())
    run.created_at = started_at
    if isinstance(outcome, AppError):
        run.status, run.error = RunState.FAILED, outcome.message
    else:
        run.status, run.proved_at = RunState.PROVED, clock.parse(outcome["proved_at"])
        for column, value in _facts(outcome).items():
            setattr(run, column, value)
    try:
        with tenancy.across_accounts(), db.transaction() as session:
            session.add(run)
    except DBAPIError as failure:  # a backup before an upgrade: the table is yet to come
        if not errors.is_stale_schema(failure):
            raise


def _remove_old(target: Target) -> None:
    """Remove the backups of this instance that the settings keep no longer."""
    settings = config.current()
    mine = [one for one in target.backups() if one.proof["instance"] == settings.base_url]
    kept = to_keep(mine, settings.backup_daily, settings.backup_weekly)
    removed = [one.name for one in mine if one.name not in kept]
    for name in removed:
        target.remove(name)
    gone = sa.update(RUNS).where(RUNS.c.place == target.address, RUNS.c.name.in_(removed))
    old = sa.or_(RUNS.c.status == RunState.FAILED, RUNS.c.deleted_at.is_not(None))
    expired = sa.delete(RUNS).where(old, RUNS.c.created_at < clock.now() - LOG_LIFETIME)
    with db.transaction() as session:
        session.execute(gone.values(deleted_at=clock.now()))
        session.execute(expired)


def to_keep(stored: Iterable[StoredBackup], daily: int, weekly: int) -> set[str]:
    """Return the newest backup, and the newest of each of the last days and weeks that have one."""
    newest_first = sorted(stored, key=lambda one: one.made_at, reverse=True)
    periods: tuple[tuple[int, Callable[[datetime], object]], ...] = (
        (daily, lambda moment: moment.date()),
        (weekly, lambda moment: moment.isocalendar()[:2]),
    )
    kept = {one.name for one in newest_first[:1]}
    for count, period in periods:
        newest = dict[object, str]()
        for one in newest_first:
            newest.setdefault(period(one.made_at), one.name)
        kept |= set(list(newest.values())[:count])
    return kept


class RunState(StrEnum):
    """The state of a backup."""

    PENDING = "pending"
    PROVED = "proved"
    FAILED = "failed"


class BackupRun(Base):
    """A backup that is to be made, was made and proved, or failed.

    It belongs to the instance. At most one is pending, from its request to its end.
    """

    __tablename__ = "backup_runs"
    __table_args__ = (
        sa.Index(
            "uq_backup_runs_pending",
            "status",
            unique=True,
            sqlite_where=sa.text("status = 'pending'"),
            postgresql_where=sa.text("status = 'pending'"),
        ),
        sa.Index("ix_backup_runs_created_at", "status", "created_at"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("a log of backups, which the instance has"),
        bundle=NotBundled("backups of the instance"),
        placement=Placement.SHARED,
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    status: Mapped[str] = mapped_column(Text, default=RunState.PENDING)
    place: Mapped[str] = mapped_column(Text)
    """The folder or bucket, without credentials."""
    name: Mapped[str | None] = mapped_column(Text)  # of the file
    attempt: Mapped[int] = mapped_column(default=0)
    """Counts the workers that took it: one that lost its lease changes nothing any more."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    size: Mapped[int | None] = mapped_column(sa.BigInteger)  # with uploaded files
    sha256: Mapped[str | None] = mapped_column(Text)  # of the database's file
    rows: Mapped[int | None] = mapped_column(sa.BigInteger)
    files: Mapped[int | None] = mapped_column(sa.BigInteger)
    audit_entries: Mapped[int | None] = mapped_column(sa.BigInteger)
    proved_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    error: Mapped[str | None] = mapped_column(Text)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # by retention


RUNS = Base.metadata.tables[BackupRun.__tablename__]
