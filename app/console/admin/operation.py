"""Schema revisions, health, extensions and the development outbox, for superadmins."""

from __future__ import annotations

import re
import smtplib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from flask import Response, render_template
from werkzeug.wrappers import Response as BaseResponse

from app import clock, config, db, jobs, web
from app.audit import append
from app.collections import revisions
from app.console.shell import lists
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import redirect_with_notice
from app.console.shell.lists import PAGE_SIZE
from app.db import disk
from app.errors import NotFound
from app.extensions import loading, registry, running
from app.extensions.jobs import PREFIX, RUN_LATER, kind_of
from app.extensions.registry import Kind
from app.jobs import JobState, queue
from app.ops import backup_runs, health, metrics
from app.ops.backup_runs import Overview
from app.outbound import mail
from app.web.languages import gettext, lazy_gettext

LINK = re.compile(r"(https?://[^\s<>\"]+)")
DATABASES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
CHECKS = {
    "database": lazy_gettext("Database"),
    "migrations": lazy_gettext("Migrations"),
    "disk": lazy_gettext("Disk"),
    "queue": lazy_gettext("Queue"),
}
MAIL_TIMEOUT_SECONDS = 3
NOT_CALLED = (Kind.SETTING, Kind.TABLE)
ELSEWHERE = (Kind.WORKFLOW_STEP, Kind.COMMAND)
"""Called by other processes, whose calls this server does not count."""


@dataclass(frozen=True)
class Check:
    """A dependency, its fault if it has one, and its details."""

    id: str
    """The id of its element on the page."""
    name: str
    fault: str = ""
    details: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.fault


@page("/console/migrations", role=SUPERADMIN)
def show_migrations() -> str:
    """The schema revisions of the service and of collections."""
    listing, revision_list = lists.from_request("console.show_migrations"), revisions.listing()
    part = revision_list["revisions"][listing.skip : listing.skip + PAGE_SIZE]
    listing.with_page((part, revision_list["total"]))
    return render_template(
        "console/operation/migrations.html",
        listing=listing,
        current=revision_list["current_revision"],
        pending=sum(not one["is_applied"] for one in revision_list["revisions"]),
    )


@dataclass
class Figures:
    """What the processes of this server have counted of a handler."""

    calls: int = 0
    failures: int = 0
    slow: int = 0
    """Calls that took longer than `running.SLOW_SECONDS`."""
    seconds: float = 0.0

    @property
    def mean_milliseconds(self) -> int | None:
        """How long a call takes; None without any."""
        return round(self.seconds / self.calls * 1000) if self.calls else None


@page("/console/extensions", role=SUPERADMIN)
def show_extensions() -> str:
    """The loaded extensions, what they handle, and how that went."""
    handlers = {
        name: [one for one in registry.handlers(name) if one.kind not in NOT_CALLED]
        for name in registry.EXTENSIONS
    }
    kind, failed = jobs.TABLE.c.kind, jobs.TABLE.c.status == JobState.FAILED
    own = sa.select(kind, sa.func.count().label("failed")).where(failed, kind.startswith(PREFIX))
    return render_template(
        "console/operation/extensions.html",
        extensions=registry.EXTENSIONS.values(),
        handlers=handlers,
        figures=_handler_figures(),
        kind_of=kind_of,
        in_jobs=RUN_LATER,
        elsewhere=ELSEWHERE,
        failed_jobs={row.kind: row.failed for row in db.connection().execute(own.group_by(kind))},
        problems=list(loading.warnings()),
    )


def _handler_figures() -> Mapping[str, Figures]:
    found = defaultdict[str, Figures](Figures)
    for sample in (one for metric in metrics.counted().collect() for one in metric.samples):
        figures = found[sample.labels.get("handler", "")]
        match sample.name.removeprefix("atrium_extension_"):
            case "seconds_count":
                if sample.labels["result"] == "failed":
                    figures.failures += int(sample.value)
                figures.calls += int(sample.value)
                figures.slow += int(sample.value)
            case "seconds_bucket" if float(sample.labels["le"]) == running.SLOW_SECONDS:
                figures.slow -= int(sample.value)
            case "seconds_sum":
                figures.seconds += sample.value
    return found


@page("/console/health", role=SUPERADMIN)
def show_health() -> str:
    """The health of this instance and its main settings."""
    found, worker = [*_dependencies(), _mail()], queue.find_workers()
    backups = backup_runs.overview()
    faults = list(_faults(found, worker, backups))
    is_backed_up = not backups.is_late and not backups.has_failed_since
    return render_template(
        "console/operation/health.html",
        checks=found,
        workers=worker,
        backups=backups,
        is_backed_up=is_backed_up,
        faults=faults,
        is_broken=worker.is_late or not is_backed_up or not all(one.is_ok for one in found),
        checked_at=clock.now(),
        facts=_facts(),
    )


@page("/console/health/back-up", "POST", role=SUPERADMIN)
def back_up() -> BaseResponse:
    """Have a worker make a backup now."""
    backup_runs.request()
    return redirect_with_notice(gettext("A worker makes the backup."), "console.show_health")


def _faults(
    checks: Sequence[Check], worker: queue.Workers, backups: Overview
) -> Iterator[tuple[str, str]]:
    """The anchor and the name of each part that needs attention."""
    yield from ((one.id, one.name) for one in checks if one.fault)
    if not worker.are_running:
        yield "worker", gettext("Worker")
    if backups.is_late or backups.has_failed_since or not backups.is_scheduled:
        yield "backups", gettext("Backups")


def _dependencies() -> Iterator[Check]:
    details = {
        "database": DATABASES[db.connection().dialect.name],
        "migrations": gettext("revision %(revision)s", revision=revisions.applied_core_revision()),
    }
    file = db.sqlite_file()
    space = disk.space(file) if file else None
    if space is not None:
        sizes = {name: lists.format_size(size) for name, size in space._asdict().items()}
        details["disk"] = gettext("%(free)s of %(total)s free", **sizes)
    for name, state in health.checks().items():
        fault, _, advice = ("" if state == "ok" else state).partition(":")
        shown = "; ".join(filter(None, (advice.strip(), details.get(name))))
        yield Check(name, CHECKS[name], fault, shown)


def _mail() -> Check:
    if mail.is_saved_to_files():
        return Check("mail", gettext("Mail"), details=gettext("written to files"))
    try:
        mail.check(MAIL_TIMEOUT_SECONDS)
    except (OSError, smtplib.SMTPException) as error:
        advice = gettext("%(error)s: check SERVICE_MAIL_URL", error=type(error).__name__)
        return Check("mail", gettext("Mail"), gettext("unreachable"), advice)
    return Check("mail", gettext("Mail"), details=gettext("sent by SMTP"))


def _facts() -> dict[str, str]:
    settings = config.current()
    return {
        gettext("Version"): web.VERSION,
        gettext("Environment"): settings.env,
        gettext("Address"): settings.base_url,
        gettext("Queue"): gettext("Redis notifies the workers")
        if settings.redis_url
        else gettext("workers poll every second"),
        gettext("Audit log"): gettext("on") if append.enabled() else gettext("off"),
    }


@page("/console/outbox", role=SUPERADMIN)
def show_outbox() -> str:
    """The mails that development writes to files."""
    listing, names = lists.from_request("console.show_outbox"), _names()
    part = [mail.load_saved(name) for name in names[listing.skip : listing.skip + PAGE_SIZE]]
    listing.with_page((part, len(names)))
    return render_template("console/operation/outbox.html", listing=listing)


@page("/console/outbox/<name>", role=SUPERADMIN)
def show_mail(name: str) -> str | Response:
    """One such mail and its links to this service."""
    if name not in _names():
        raise NotFound(gettext("No mail with this name."))
    message, home = mail.load_saved(name), config.current().base_url
    parts = [
        {"text": part, "is_link": part.startswith(f"{home}/")} for part in LINK.split(message.text)
    ]
    return render_template("console/operation/mail.html", mail=message, parts=parts)


def _names() -> list[str]:
    # Mailed links give access to accounts, so production never shows them.
    if config.current().production or not mail.is_saved_to_files():
        raise NotFound(gettext("The outbox exists in development only."))
    return mail.saved_names()
