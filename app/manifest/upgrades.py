"""Brings accounts to a template's version: what it has changed since, but for changes by hand.

Of each property three states are compared: what the account's version of the template made, what
the account has, and what the template says now. What the account has changed is told and stays,
unless it is forced. Accounts are brought up one by one, each in a transaction; whoever goes on
after a kill skips those that are done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import orjson
import sqlalchemy as sa
import structlog

from app import clock, db, jobs
from app.accounts import sign_in_settings, tenants
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account
from app.accounts.product import settings as product
from app.accounts.types import Query
from app.auth import account_settings
from app.auth import principal as principals
from app.auth.principal import Principal
from app.context import tenancy
from app.db.types import json_equal
from app.errors import AppError, Conflict, InvalidValues, NotFound, problem
from app.manifest import templates
from app.manifest.account_kinds import Brand
from app.manifest.kind import Kind
from app.manifest.models import TemplateJob, TemplateJobState
from app.manifest.templates import KINDS
from app.types import JSONMapping, JSONObject

log = structlog.get_logger()
UPGRADE = "templates.upgrade"
LEFT_TO_WORKERS = 300
"""Seconds after which workers join in with what a command does, or was killed at."""
Step = Callable[[], object]
ALL, PIECE, MAX_SHOWN = "all", 50, 100
MAX_FAILURES, MAX_DETAILS = 100, 10
LISTED = timedelta(days=90)
"""The time that a job stays in the list after its end."""
CHANGED = "The template has changed since. Plan again: accounts that are done stay so."
LEFT = "Whoever ordered it is no superadmin any more. Plan again: accounts that are done stay so."
PLAN_STALE = "The template or the choice of accounts differs from the plan. Plan again."


@dataclass
class Upgrade:
    """What an account gets, and what stays as it was changed by hand."""

    account: Account
    changes: list[JSONObject] = field(default_factory=list)
    kept: list[JSONObject] = field(default_factory=list)

    @property
    def shown(self) -> JSONObject:
        return {
            "account": self.account.slug,
            "from_version": self.account.template_version,
            "changes": self.changes,
            "kept": self.kept,
        }

    def note(self, place: str, action: str, properties: Sequence[str], *, kept: bool) -> None:
        entry = {"place": place, "action": action, "properties": sorted(properties)}
        (self.kept if kept else self.changes).append(entry)


def chosen(name: str, accounts: str | Sequence[str], after: str = "") -> list[Account]:
    """The next accounts that are behind, by id: all of the template's, or those with a slug.

    Raises NotFound for an unknown template.
    """
    query = sa.select(Account).where(*_behind(name, accounts), Account.id > after)
    return list(db.db.session.scalars(query.order_by(Account.id).limit(MAX_SHOWN + 1)))


def _behind(name: str, accounts: str | Sequence[str]) -> tuple[sa.ColumnElement[bool], ...]:
    template = _template(name)
    behind = Account.template_version < template["version"]
    if accounts == ALL:
        where = sa.and_(Account.template == name, behind)
    else:
        other = sa.or_(Account.template.is_(None), Account.template != name)
        where = sa.and_(Account.slug.in_(accounts), sa.or_(other, behind))
    return where, Account.closed_at.is_(None), Account.id != SYSTEM_ACCOUNT_ID


def _template(name: str) -> JSONObject:
    template = templates.load().get(name)
    if template is None:
        raise NotFound("There is no such account template.")
    return template


def plan(name: str, accounts: str | Sequence[str], *, force: bool, by: Principal) -> JSONObject:
    """Return what an upgrade would do to the first accounts, with the hash of all of it."""
    check(accounts)
    template, found = _template(name), chosen(name, accounts)
    items = []
    for account in found[:MAX_SHOWN]:
        with tenancy.across_accounts():
            items.append(_compare(account, template, force=force, by=by)[0].shown)
    return {
        "plan_hash": _hash(name, template, accounts, force=force),
        "version": template["version"],
        "items": items,
        "has_more": len(found) > MAX_SHOWN,
    }


def check(accounts: str | Sequence[str]) -> None:
    """Raise InvalidValues for a slug that no account has."""
    if accounts == ALL:
        return
    known = db.db.session.scalars(
        sa.select(Account.slug).where(Account.slug.in_(accounts), Account.closed_at.is_(None))
    ).all()
    missing = sorted({*accounts} - {*known})
    if missing:
        message = f"There is no account {missing[0][:80]}."
        raise InvalidValues([problem("accounts", "invalid_reference", message)])


def _hash(name: str, template: JSONMapping, accounts: str | Sequence[str], *, force: bool) -> str:
    listed = accounts if isinstance(accounts, str) else sorted(accounts)
    text = orjson.dumps((name, template, listed, force), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()


@dataclass(frozen=True)
class Started:
    """A job that was ordered, and the version that it brings accounts to."""

    version: int
    job: TemplateJob


def start(
    name: str, accounts: str | Sequence[str], plan_hash: str, *, force: bool, by: Principal
) -> Started:
    """Have a job bring accounts up. Raises Conflict `plan_stale` for another plan."""
    check(accounts)
    template = _template(name)
    if plan_hash != _hash(name, template, accounts, force=force):
        raise Conflict(PLAN_STALE, error="plan_stale")
    job = order(name, accounts, force=force, by=by)
    return Started(template["version"], job)


def order(
    name: str, accounts: str | Sequence[str], *, force: bool, by: Principal, after: int = 0
) -> TemplateJob:
    """Order a job that brings accounts up, and that a worker takes after so many seconds."""
    count = sa.select(sa.func.count()).select_from(Account).where(*_behind(name, accounts))
    with db.transaction() as session:
        session.execute(
            sa.delete(TemplateJob).where(TemplateJob.finished_at < clock.now() - LISTED)
        )
        job = TemplateJob(
            template=name,
            template_version=_template(name)["version"],
            accounts=accounts,
            force=force,
            requested_by=by.require_user_id(),
            total=session.scalar(count) or 0,
        )
        session.add(job)
        session.flush()
        payload = {"job_id": job.id}
        jobs.enqueue(UPGRADE, payload, account_id=jobs.INSTANCE, after=after, on_behalf=True)
    return job


def job_page(name: str, args: Query) -> tuple[list[TemplateJob], int]:
    """Return the jobs of a template, the newest first, and how many there are."""
    mine = TemplateJob.template == name
    total = db.db.session.scalar(sa.select(sa.func.count(TemplateJob.id)).where(mine)) or 0
    query = sa.select(TemplateJob).where(mine).order_by(TemplateJob.id.desc())
    found = db.db.session.scalars(query.offset(args["skip"]).limit(args["limit"]))
    return list(found), total


def get_job(name: str, job_id: str) -> TemplateJob:
    """Return a job of a template. Raises NotFound."""
    job = db.db.session.get(TemplateJob, job_id.lower())
    if job is None or job.template != name:
        raise NotFound("There is no such job.")
    return job


@jobs.job(UPGRADE, is_long=True)
def upgrade_piece(payload: JSONMapping) -> None:
    """Bring some accounts up, and leave the others to a job that follows."""
    for _ in piece(payload["job_id"]):
        pass
    with db.transaction():
        job = _locked(payload["job_id"])
        if job is not None and job.finished_at is None:
            jobs.enqueue(UPGRADE, payload, account_id=jobs.INSTANCE, on_behalf=True)


def piece(job_id: str) -> Iterator[Upgrade]:
    """Bring the next accounts of a job up, and end it after the last; yields those that are.

    The row says how far it is: whoever goes on after a kill looks at no account twice.
    """
    with db.transaction():
        job = _locked(job_id)
        if job is None or job.finished_at is not None:
            return
        template = templates.load().get(job.template)
        is_current = template is not None and template["version"] == job.template_version
        # Whoever ordered it owns what it makes, which nobody else has asked for.
        by = principals.for_user_verified(SYSTEM_ACCOUNT_ID, job.requested_by)
        if by is None or not is_current:
            job.status, job.error = TemplateJobState.FAILED, LEFT if is_current else CHANGED
            job.finished_at = clock.now()
            return
        job.status, name, force = TemplateJobState.RUNNING, job.template, job.force
        found = chosen(name, job.accounts, job.after_id)[:PIECE]
        ids = [account.id for account in found]
    for account_id in ids:
        if done := upgrade(account_id, name, job_id, force=force, by=by):
            yield done
    if len(ids) < PIECE:
        with db.transaction():
            job = _locked(job_id)
            if job is not None and job.finished_at is None:
                job.status, job.finished_at = TemplateJobState.DONE, clock.now()


def _locked(job_id: str) -> TemplateJob | None:
    query = sa.select(TemplateJob).where(TemplateJob.id == job_id).with_for_update()
    return db.db.session.scalar(query.execution_options(populate_existing=True))


def run(job: TemplateJob) -> Iterator[Upgrade]:
    """Do a job here and now; yields what was done to each account."""
    while get_job(job.template, job.id).finished_at is None:
        yield from piece(job.id)


def upgrade(
    account_id: str, name: str, job_id: str, *, force: bool, by: Principal
) -> Upgrade | None:
    """Bring an account up, all or nothing; None if it could not be, which is logged and noted.

    Its job counts it in the same transaction, and leaves an account that it has counted.
    """
    try:
        with tenancy.across_accounts(), db.transaction():
            job = _locked(job_id)
            if job is None or job.after_id >= account_id:
                return None  # another worker has gone on with it meanwhile
            account = tenants.get_for_update(account_id)
            done, steps = _compare(account, _template(name), force=force, by=by)
            for step in steps:
                step()
            account.template, account.template_version = name, _template(name)["version"]
            job.after_id = account_id
            job.done, job.kept = job.done + 1, job.kept + bool(done.kept)
            db.db.session.flush()
            return done
    except AppError as error:
        details = error.details if isinstance(error, InvalidValues) else []
        log.error(
            "account not upgraded",
            account=account_id,
            template=name,
            details=details or error.message,
        )
        _note_failure(job_id, account_id, error.message, details)
        return None


def _note_failure(
    job_id: str, account_id: str, message: str, details: Sequence[JSONMapping]
) -> None:
    slug = db.db.session.scalar(sa.select(Account.slug).where(Account.id == account_id))
    with db.transaction():
        job = _locked(job_id)
        if job is not None and job.after_id < account_id:
            job.after_id, job.failed = account_id, job.failed + 1
            entry = {"account": slug, "message": message, "details": list(details[:MAX_DETAILS])}
            job.failures = [*job.failures, entry][:MAX_FAILURES]


def _compare(
    account: Account, template: JSONMapping, *, force: bool, by: Principal
) -> tuple[Upgrade, list[Step]]:
    facts = {"id": account.id, "slug": account.slug, "code": account.account_code}
    facts["name"] = account.name
    former = templates.former(account.template, account.template_version)
    base, target = templates.filled(former, facts), templates.filled(template, facts)
    result, steps = Upgrade(account), list[Step]()
    acting = principals.in_new_account(by, account)
    _compare_values(result, steps, base, target, force=force, acting=acting)
    for kind in KINDS:
        _compare_items(result, steps, kind, base, target, force=force, acting=acting)
    return result, steps


def _compare_values(
    result: Upgrade,
    steps: list[Step],
    base: JSONMapping,
    target: JSONMapping,
    *,
    force: bool,
    acting: Principal,
) -> None:
    """Compare the plan, attributes, settings and the brand."""
    account = result.account
    present: JSONObject = {
        "": {"plan": account.plan},
        "attributes": account.attributes,
        "settings": {**sign_in_settings.DEFAULTS, **account.settings},
        "brand": Brand().rows([account.id])[0].values,
    }
    former = {**base, "": {"plan": base.get("plan")}}
    wanted = {**target, "": {"plan": target["plan"]} if "plan" in target else {}}
    changed = dict[str, JSONObject]()
    for part, has in present.items():
        for name, value in (wanted.get(part) or {}).items():
            now, before = has.get(name) or None, (former.get(part) or {}).get(name) or None
            if json_equal(now, value or None):
                continue
            is_kept = not force and not json_equal(now, before)
            result.note(part or name, "update", [name], kept=is_kept)
            if not is_kept:
                changed.setdefault(part, {})[name] = value
    if "settings" in changed:
        settings = changed.pop("settings")
        steps.append(partial(account_settings.change, account.id, settings, by=acting))
    if "brand" in changed:
        brand = changed.pop("brand")
        steps.append(partial(product.change_brand, account.id, brand, by_operator=True))
    if changed:
        values = {"attributes": changed["attributes"]} if "attributes" in changed else {}
        steps.append(partial(tenants.change, account.id, {**changed.get("", {}), **values}))


def _compare_items(
    result: Upgrade,
    steps: list[Step],
    kind: Kind,
    base: JSONMapping,
    target: JSONMapping,
    *,
    force: bool,
    acting: Principal,
) -> None:
    """Compare items of a kind; what the template does not have any more stays."""
    if not target.get(kind.section):
        return
    rows = {kind.key(kind.export(row)): row for row in kind.rows([result.account.id])}
    bases = {kind.key(item): item for item in base.get(kind.section, ())}
    for item in target[kind.section]:
        key = kind.key(item)
        place, row, former = f"{kind.section}.{' '.join(key)}", rows.get(key), bases.get(key)
        if row is None:
            is_kept = former is not None and not force  # removed by hand
            result.note(place, "create", (), kept=is_kept)
            if not is_kept:
                steps.append(partial(templates.create, kind, item, target, by=acting))
            continue
        wanted = kind.changed(row, item, acting)
        by_hand = {*kind.changed(row, former, acting)} if former else {*item}
        kept = [name for name in wanted if name in by_hand and not force]
        free = {name: item[name] for name in wanted if name not in kept}
        if kept:
            result.note(place, "update", kept, kept=True)
        if free:
            result.note(place, "update", [*free], kept=False)
            steps.append(partial(kind.change, row, free, by=acting))
