"""Background jobs: waiting, running and failed, for superadmins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from flask import render_template, url_for
from werkzeug.wrappers import Response as BaseResponse

from app import config, db, jobs
from app.accounts.models import Account
from app.console.admin import audit_names
from app.console.admin.audit_names import Names, Subject
from app.console.shell import charts, guard, lists, names
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.charts import Figure
from app.console.shell.forms import redirect_with_notice
from app.console.shell.lists import Listing
from app.console.shell.navigation import INSTANCE, MenuItem
from app.context import shown_accounts
from app.db import counts
from app.db.functions import database_now
from app.errors import NotFound
from app.extensions.jobs import PREFIX
from app.jobs import TABLE, JobState, queue
from app.web.languages import gettext, lazy_gettext
from app.webhooks.models import DELIVERIES

NAMES = {
    "audit.checkpoint": lazy_gettext("Checkpoint of the audit log"),
    "audit.mail_checkpoint": lazy_gettext("Mail with an audit checkpoint"),
    "accounts.certify_deletion": lazy_gettext("Certificate of the deletion of an account"),
    "accounts.expire_exports": lazy_gettext("Removal of expired exports"),
    "accounts.export": lazy_gettext("Export of an account"),
    "auth.forgot_password": lazy_gettext("Request for a new password"),
    "auth.known_already": lazy_gettext("Mail about a repeated registration"),
    "auth.notify_setup_completed": lazy_gettext("Mail about a completed set-up"),
    "auth.purge": lazy_gettext("Removal of expired sessions and links"),
    "auth.resend_verification": lazy_gettext("Request for another verification mail"),
    "auth.send_email_change": lazy_gettext("Verification mail for a new address"),
    "auth.send_email_changed": lazy_gettext("Mail about a changed address"),
    "auth.send_email_restored": lazy_gettext("Mail about a restored address"),
    "auth.send_email_undo_waits": lazy_gettext("Mail about an address to be restored"),
    "auth.send_join_link": lazy_gettext("Mail with a link to join"),
    "auth.send_invitation": lazy_gettext("Invitation mail"),
    "auth.send_magic_link": lazy_gettext("Mail with a link to sign in"),
    "auth.send_new_device": lazy_gettext("Mail about a new device"),
    "auth.send_reset": lazy_gettext("Password reset mail"),
    "auth.send_setup_link": lazy_gettext("Mail with a setup link"),
    "auth.send_verification": lazy_gettext("Verification mail"),
    "auth.tell_mfa_change": lazy_gettext("Mail about a change of second factors"),
    "auth.tell_pii_expulsion": lazy_gettext("Mail about lost access to personal data"),
    "auth.tell_pii_refusal": lazy_gettext("Mail about refused access to personal data"),
    "auth.undo_email_change": lazy_gettext("Undoing of a change of address"),
    "backups.make": lazy_gettext("Backup"),
    "backups.schedule": lazy_gettext("Look for a backup that is due"),
    "collections.drop_unfinished_indexes": lazy_gettext("Removal of unfinished indexes"),
    "collections.index_words": lazy_gettext("Storage of the words of a collection"),
    "collections.measure": lazy_gettext("Measurement of the rows of a collection"),
    "collections.rebuild_index": lazy_gettext("Removal of erased words from an index"),
    "domains.check": lazy_gettext("Check of the DNS record of a domain"),
    "domains.check_due": lazy_gettext("Search for domains to check"),
    "domains.notify_admin": lazy_gettext("Mail about a domain"),
    "feed.purge": lazy_gettext("Removal of old changes of the feed"),
    "files.expire": lazy_gettext("Removal of unused uploads"),
    "files.remove": lazy_gettext("Removal of files"),
    "files.remove_account": lazy_gettext("Removal of the files of an account"),
    "files.sweep": lazy_gettext("Search for files without records"),
    "idempotency.purge": lazy_gettext("Removal of old idempotency keys"),
    "jobs.purge": lazy_gettext("Removal of old jobs"),
    "product.test_mail": lazy_gettext("Example of a mail"),
    "records.clear_user": lazy_gettext("Removal of a deleted user from records"),
    "records.erase": lazy_gettext("Erasure of the history of a record"),
    "records.remove_account": lazy_gettext("Removal of the records of an account"),
    "security.checkpoint": lazy_gettext("Checkpoint of the security logs"),
    "security.erase_user": lazy_gettext("Erasure of a user from the security logs"),
    "security.record_suppressed": lazy_gettext("Count of failed sign-ins that were not recorded"),
    "security.verify": lazy_gettext("Daily verification of the logs"),
    "security.seal": lazy_gettext("Numbering of security events"),
    "retention.apply": lazy_gettext("Search for accounts with a retention policy"),
    "retention.apply_account": lazy_gettext("Deletion by the retention policy of an account"),
    "sso.purge": lazy_gettext("Removal of unfinished single sign-ons"),
    "sso.purge_documents": lazy_gettext("Removal of unused documents of issuers"),
    "sso.renew_documents": lazy_gettext("Renewal of documents of issuers"),
    "sso.read_metadata": lazy_gettext("Read of the metadata of identity providers"),
    "templates.upgrade": lazy_gettext("Bring accounts to a version of their template"),
    "trash.purge": lazy_gettext("Removal of records from the trash"),
    "usage.check_quotas": lazy_gettext("Check of quotas"),
    "usage.fold": lazy_gettext("Addition of past usage"),
    "usage.notify_admin": lazy_gettext("Mail about a quota"),
    "usage.record_levels": lazy_gettext("Daily levels of usage"),
    "usage.remove_account": lazy_gettext("Removal of the usage of an account"),
    "users.erase": lazy_gettext("Erasure of the personal data of a user"),
    "webhooks.bound": lazy_gettext("Limit of the delivery log"),
    "operator.purge": lazy_gettext("Removal of old events"),
    "webhooks.purge": lazy_gettext("Removal of old deliveries"),
    "webhooks.redeliver": lazy_gettext("Redelivery to a webhook"),
    "webhooks.remove": lazy_gettext("Removal of the deliveries of a webhook"),
    "webhooks.send_security_log": lazy_gettext("Security log sent to its receiver"),
    "webhooks.start_security_streams": lazy_gettext("Search for security logs to send"),
    "webhooks.tell_disabled": lazy_gettext("Mail about a disabled webhook"),
    "webhooks.tell_left": lazy_gettext("Mail about what a former admin left"),
    "workflows.purge": lazy_gettext("Removal of old instances"),
    "workflows.remove": lazy_gettext("Removal of the instances of a workflow"),
}

JOBS = "/console/jobs"
JOB = f"{JOBS}/<uuid:account_id>/<uuid:job_id>"
STATES = ("waiting", "running", "failed", "done")


@page(
    JOBS,
    role=SUPERADMIN,
    menu=MenuItem(
        INSTANCE,
        6,
        lazy_gettext("Jobs and health"),
        "activity",
        below=(
            *("/console/extensions", "/console/health", "/console/migrations"),
            "/console/outbox",
        ),
    ),
)
def show_jobs() -> str:
    """The jobs, the queues and the state of Redis."""
    listing = lists.from_request(
        "console.show_jobs", {"status": names.states(STATES), "kind": _kinds()}
    )
    listing.with_page(_jobs(listing))
    uses_redis = bool(config.current().redis_url)
    return render_template(
        "console/jobs/list.html",
        listing=listing,
        workers=queue.find_workers(),
        figures=_figures(),
        name_of=name_of_kind,
        uses_redis=uses_redis,
        redis_answers=uses_redis and jobs.is_redis_up(),
    )


@page(JOB, role=SUPERADMIN)
def show_job(account_id: str, job_id: str) -> str:
    """One job: what it is about, its attempts and its last error."""
    query = sa.select(TABLE, _state().label("state"), Account.name)
    query = query.outerjoin(Account, Account.id == TABLE.c.account_id)
    key = (TABLE.c.account_id == account_id.lower(), TABLE.c.id == job_id.lower())
    job = db.connection().execute(query.where(*key)).first()
    if job is None:
        raise NotFound(gettext("No such job. Jobs are removed seven days after their end."))
    return render_template(
        "console/jobs/one.html",
        job=job,
        title=name_of_kind(job.kind),
        # Ids only: other values may be secrets or personal data.
        about={name: value for name, value in job.payload.items() if name.endswith("_id")},
        subjects=_subjects(job),
        sends_mail=job.kind in jobs.KINDS and jobs.KINDS[job.kind].mails,
        attempts=jobs.KINDS[job.kind].attempts if job.kind in jobs.KINDS else None,
    )


def tables_by_id() -> dict[str, str]:
    """The tables of the ids in payloads, but for the account's, which the page shows anyway."""
    return {
        id_name: name
        for name, policy in db.policies().items()
        if policy.noun and name != "accounts"
        for id_name in policy.id_names
    }


def _subjects(job: Any) -> dict[str, Subject]:
    """The rows that the payload names, by the key of their id."""
    tables = {key: table for key, table in tables_by_id().items() if job.payload.get(key)}
    account_id = job.payload.get("account_id") or job.account_id
    rows = {
        key: audit_names.of_row(account_id, table, str(job.payload[key]))
        for key, table in tables.items()
    }
    names = Names(list(rows.values()), guard.require_caller())
    return {key: names.subject(row) for key, row in rows.items()}


@page(f"{JOB}/retry", "POST", role=SUPERADMIN)
def retry_job(account_id: str, job_id: str) -> BaseResponse:
    """Enqueue a failed job again."""
    jobs.retry(account_id.lower(), job_id.lower())
    return redirect_with_notice(gettext("The job is queued again."), "console.show_jobs")


def _kinds() -> dict[str, str]:
    kinds = {kind: name_of_kind(kind) for kind in jobs.kinds()}
    return dict(sorted(kinds.items(), key=lambda item: item[1].casefold()))


def _state() -> Any:
    untold = sa.and_(TABLE.c.last_error.is_(None), TABLE.c.finished_at.is_(None))
    taken = sa.and_(TABLE.c.attempts > 0, untold, TABLE.c.due_at > database_now())
    return sa.case(
        (TABLE.c.status != JobState.PENDING, TABLE.c.status), (taken, "running"), else_="waiting"
    )


def _jobs(listing: Listing) -> tuple[list[sa.Row[Any]], int]:
    status, kind = listing.filters.get("status"), listing.filters.get("kind")
    ended = (JobState.FAILED, JobState.DONE)
    stored = [status] if status in ended else [JobState.PENDING] if status else list(JobState)
    where = [_state() == status] if status and status not in ended else []
    where += [TABLE.c.kind == kind] if kind else []
    if not where:
        return _page(_newest(stored, listing.skip + lists.PAGE_SIZE), listing), _count(
            stored, listing
        )
    listing.scan_newest(lambda newer: _cutoff(stored, newer))
    query = _newest(stored, listing.scanned).where(*where)
    return _page(query, listing), counts.count_up_to(query.subquery(), (), listing.count_limit)


def _newest(stored: Sequence[str], most: int | None) -> sa.Select[Any]:
    """The newest jobs of each status, as its index finds them."""
    keys = (TABLE.c.account_id, TABLE.c.id)
    selects = (
        sa.select(*keys).where(TABLE.c.status == status).order_by(TABLE.c.due_at.desc()).limit(most)
        for status in stored
    )
    newest = sa.union_all(*(sa.select(status.subquery()) for status in selects)).subquery()
    same_job = sa.and_(TABLE.c.account_id == newest.c.account_id, TABLE.c.id == newest.c.id)
    query = sa.select(TABLE, _state().label("state"), Account.name).join_from(
        newest, TABLE, same_job
    )
    return query.outerjoin(Account, Account.id == TABLE.c.account_id)


def _page(query: sa.Select[Any], listing: Listing) -> list[sa.Row[Any]]:
    page = query.order_by(TABLE.c.due_at.desc(), TABLE.c.id)
    found = db.connection().execute(page.offset(listing.skip).limit(lists.PAGE_SIZE)).all()
    for job in found:
        shown_accounts.note(job.account_id)
    return list(found)


def _count(stored: Sequence[str], listing: Listing) -> int:
    return sum(
        counts.count_up_to(TABLE, [TABLE.c.status == status], listing.count_limit)
        for status in stored
    )


def _cutoff(stored: Sequence[str], newer: int) -> object:
    cutoffs = (
        counts.value_at_offset(TABLE.c.due_at, [TABLE.c.status == status], newer)
        for status in stored
    )
    return next((scope for scope in cutoffs if scope is not None), None)


def _figures() -> list[Figure]:
    return [*_job_figures(), *_delivery_figures()]


def _job_figures() -> Iterator[Figure]:
    pending = sa.select(_state().label("state")).where(TABLE.c.status == JobState.PENDING)
    counted_rows = pending.limit(lists.MAX_COUNTED + 1).subquery()
    counted = sa.select(counted_rows.c.state, sa.func.count()).group_by(counted_rows.c.state)
    numbers = {row[0]: row[1] for row in db.connection().execute(counted)}
    failed = [TABLE.c.status == JobState.FAILED]
    numbers[JobState.FAILED] = counts.count_up_to(TABLE, failed, lists.MAX_COUNTED)
    titles = {
        "waiting": gettext("Jobs waiting"),
        "running": gettext("Jobs running"),
        "failed": gettext("Jobs failed"),
    }
    for state, name in titles.items():
        number, url = numbers.get(state, 0), url_for("console.show_jobs", status=state)
        is_bad = state == JobState.FAILED and number > 0
        yield Figure(name, lists.format_count(number), url, is_bad=is_bad)


def _delivery_figures() -> Iterator[Figure]:
    now, table = database_now(), DELIVERIES.c
    due, claimed = table.due_at <= now, table.claim > sa.func.coalesce(table.last_claim, 0)
    conditions = {
        gettext("Deliveries due"): [due],
        gettext("Deliveries being sent"): [table.due_at > now, claimed],
        gettext("Deliveries to retry"): [table.due_at > now, ~claimed],
    }
    for name, where in conditions.items():
        yield Figure(name, charts.format_count(DELIVERIES, *where))


def name_of_kind(kind: str) -> str:
    """The name of a kind of job; a kind that another release defines is its own name."""
    if kind.startswith(PREFIX):
        return gettext("Extension: %(name)s", name=kind.removeprefix(PREFIX))
    return str(NAMES.get(kind, kind))
