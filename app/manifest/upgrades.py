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
from functools import partial

import orjson
import sqlalchemy as sa
import structlog

from app import db, jobs
from app.accounts import sign_in_settings, tenants
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account
from app.accounts.product import settings as product
from app.auth import account_settings
from app.auth import principal as principals
from app.auth.principal import Principal
from app.context import tenancy
from app.db.types import json_equal
from app.errors import AppError, Conflict, InvalidValues, NotFound, problem
from app.manifest import templates
from app.manifest.kind import Kind
from app.manifest.kinds import Brand
from app.manifest.templates import KINDS
from app.types import JSONMapping, JSONObject

log = structlog.get_logger()
UPGRADE = "templates.upgrade"
Step = Callable[[], object]
ALL, PIECE, MAX_SHOWN = "all", 50, 100
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
    template = _template(name)
    behind = Account.template_version < template["version"]
    if accounts == ALL:
        where = sa.and_(Account.template == name, behind)
    else:
        other = sa.or_(Account.template.is_(None), Account.template != name)
        where = sa.and_(Account.slug.in_(accounts), sa.or_(other, behind))
    query = sa.select(Account).where(where, Account.closed_at.is_(None), Account.id > after)
    query = query.where(Account.id != SYSTEM_ACCOUNT_ID).order_by(Account.id)
    return list(db.db.session.scalars(query.limit(MAX_SHOWN + 1)))


def _template(name: str) -> JSONObject:
    template = templates.load().get(name)
    if template is None:
        raise NotFound("There is no such account template.")
    return template


def plan(name: str, accounts: str | Sequence[str], *, force: bool, by: Principal) -> JSONObject:
    """Return what an upgrade would do to the first accounts, with the hash of all of it."""
    _check(accounts)
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


def _check(accounts: str | Sequence[str]) -> None:
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


def start(
    name: str, accounts: str | Sequence[str], plan_hash: str, *, force: bool, by: Principal
) -> JSONObject:
    """Have a job bring accounts up. Raises Conflict `plan_stale` for another plan."""
    _check(accounts)
    template = _template(name)
    if plan_hash != _hash(name, template, accounts, force=force):
        raise Conflict(PLAN_STALE, error="plan_stale")
    payload = {"name": name, "accounts": accounts, "force": force, "by": by.require_user_id()}
    with db.transaction():
        first = {**payload, "after": ""}
        jobs.enqueue(UPGRADE, first, account_id=jobs.INSTANCE, on_behalf=True)
    return {"version": template["version"]}


@jobs.job(UPGRADE)
def upgrade_piece(payload: JSONMapping) -> None:
    """Bring some accounts up, and leave the others to a job that follows."""
    by = templates.operator(payload["by"])
    accounts = chosen(payload["name"], payload["accounts"], payload["after"])[:PIECE]
    last = payload["after"]
    for account in accounts:
        last = account.id
        upgrade(account.id, payload["name"], force=payload["force"], by=by)
    if len(accounts) == PIECE:
        with db.transaction():
            following = {**payload, "after": last}
            jobs.enqueue(UPGRADE, following, account_id=jobs.INSTANCE, on_behalf=True)


def run(
    name: str, accounts: str | Sequence[str], *, force: bool, by: Principal
) -> Iterator[JSONObject]:
    """Bring accounts up here and now; yields what was done to each.

    Whoever is killed goes on by running it again.
    """
    _check(accounts)
    after, owner = "", templates.operator(by.user_id)
    while found := chosen(name, accounts, after):
        for account in found:
            slug, after = account.slug, account.id
            done = upgrade(after, name, force=force, by=owner)
            shown = done.shown if done else {"account": slug, "changes": [], "kept": []}
            yield shown | {"failed": "" if done else "failed"}


def upgrade(account_id: str, name: str, *, force: bool, by: Principal) -> Upgrade | None:
    """Bring an account up, all or nothing; None if it could not be, which is logged."""
    try:
        with tenancy.across_accounts(), db.transaction():
            account = tenants.get_for_update(account_id)
            done, steps = _compare(account, _template(name), force=force, by=by)
            for step in steps:
                step()
            account.template, account.template_version = name, _template(name)["version"]
            db.db.session.flush()
            return done
    except AppError as error:
        details = error.details if isinstance(error, InvalidValues) else error.message
        log.error("account not upgraded", account=account_id, template=name, details=details)
        return None


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
                steps.append(partial(kind.create, item, by=acting))
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
