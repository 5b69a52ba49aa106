"""Changing plans and giving them to accounts; expressions that name a plan follow a new name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from app import db
from app.accounts import names
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, InstanceSetting
from app.accounts.names import Name, Use
from app.accounts.plans import stored
from app.accounts.plans.stored import Plan, Plans
from app.accounts.usage import quotas
from app.db import citus
from app.errors import Conflict, InvalidValues, problem
from app.rules.named import FLAG
from app.rules.nodes import PLAN
from app.types import JSONMapping, JSONObject

PLAN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
FLAG_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
RESERVED = ("removed", "rename_from")
MAX_PLANS, MAX_FLAGS = 100, 200
NO = stored.NO_PLAN
SYSTEM = "The system account has no plan and no quotas."


@dataclass
class Change:
    """Plans before and after a change, with its problems."""

    before: Plans
    after: dict[str, Plan]
    renamed: dict[str, str] = field(default_factory=dict)
    """The new names by the former ones."""
    problems: list[JSONObject] = field(default_factory=list)

    @property
    def removed(self) -> list[str]:
        return [name for name in self.before if name not in self.after and name not in self.renamed]

    @property
    def removed_flags(self) -> list[str]:
        return sorted(stored.all_flags(self.before) - stored.all_flags(self.after))

    @property
    def changed(self) -> list[str]:
        """The plans, by their new names, whose accounts have something else."""
        former = {new: old for old, new in self.renamed.items()}
        return [
            name
            for name, plan in self.after.items()
            if self.before.get(former.get(name, name)) != plan or name in former
        ]


def compare(body: JSONMapping, before: Plans, *, whole: bool) -> Change:
    """Compare plans with those there are, by name.

    As a whole they replace these; else what is left out stays, and a plan goes with `removed`.
    """
    change = Change(before, {} if whole else dict(before))
    if len(body) > MAX_PLANS:
        message = f"There are at most {MAX_PLANS} plans."
        change.problems.append(problem(None, "too_many_items", message))
        return change
    for name, entry in body.items():
        former, kept = entry.get("rename_from"), NO if whole else before.get(name, NO)
        if not PLAN_NAME.fullmatch(name) or name in RESERVED:
            message = "A name of letters, digits, _ and -, which begins with a letter."
            change.problems.append(problem(name[:80], "name_invalid", message))
        elif entry.get("removed"):
            change.after.pop(name, None)
            continue
        elif former in before and name not in before:
            if former in change.renamed or (former in body and not body[former].get("removed")):
                message = f"{former} goes on under another name."
                change.problems.append(problem(f"{name}.rename_from", "name_duplicate", message))
            change.renamed[former] = name
            change.after.pop(former, None)
            kept = NO if whole else before[former]
        flags = tuple(dict.fromkeys(entry.get("flags", kept.flags)))
        limits = entry.get("quotas", kept.quotas)
        change.after[name] = Plan({m: one for m, one in limits.items() if one}, flags)
        change.problems += quotas.wrong_limits(limits, f"{name}.quotas")
        change.problems += _flag_problems(name, flags)
    return change


def _flag_problems(name: str, flags: Sequence[str]) -> Iterator[JSONObject]:
    if len(flags) > MAX_FLAGS:
        yield problem(f"{name}.flags", "too_many_items", f"A plan has at most {MAX_FLAGS} flags.")
    for index, flag in enumerate(flags):
        if not FLAG_NAME.fullmatch(flag):
            message = "A name of letters, digits and _, which begins with no digit."
            yield problem(f"{name}.flags[{index}]", "name_invalid", message)


def change(body: JSONMapping, *, whole: bool = False) -> Plans:
    """Change the plans, as `compare` says; it holds on the next request of every process.

    Raises InvalidValues with all problems, and Conflict with the places that name a plan or a flag
    that would be gone, or that cannot follow a new name.
    """
    with db.transaction() as session:
        # Names are looked for in all shards before accounts, a shared table, are changed.
        citus.use_one_connection_per_node(db.connection())
        # First: what follows a new name is locked in the order of changes of collections.
        db.lock_schema()
        query = sa.select(InstanceSetting).where(InstanceSetting.id == stored.NAME)
        locked = query.with_for_update().execution_options(populate_existing=True)
        row = session.scalars(locked).one()
        compared = compare(body, stored.of(row.value), whole=whole)
        if compared.problems:
            raise InvalidValues(compared.problems)
        for name in compared.removed:
            names.refuse_deletion(Name(PLAN, name))
        for flag in compared.removed_flags:
            names.refuse_deletion(Name(FLAG, flag))
        if compared.changed or compared.removed:
            row.value = {name: plan.body for name, plan in compared.after.items()}
            row.version += 1
            session.flush()
        for former, name in compared.renamed.items():
            # Accounts at once, else one by one.
            of_plan = sa.update(Account).where(Account.plan == former)
            session.execute(of_plan.values(plan=name))
            names.follow(Name(PLAN, former), name)
        holders = sa.update(Account).where(Account.plan.in_(compared.changed))
        newer = {"version": Account.version + 1, "updated_at": Account.updated_at}
        session.execute(holders.values(**newer))
        session.flush()
        return compared.after


def problems_of(body: JSONMapping, known: Plans) -> list[JSONObject]:
    """The problems of an account's plan and overrides."""
    found = list[JSONObject]()
    plan, overrides = body.get("plan"), body.get("overrides", {})
    if plan is not None and plan not in known:
        found.append(problem("plan", "unknown_plan", f"There is no plan {plan[:80]}."))
    flags = stored.all_flags(known)
    for name, has in overrides.get("flags", {}).items():
        if has is not None and name not in flags:
            message = f"No plan has a flag {name[:80]}."
            found.append(problem(f"overrides.flags.{name[:80]}", "unknown_flag", message))
    return found + quotas.wrong_limits(overrides.get("quotas", {}), "overrides.quotas")


def assign(account: Account, body: JSONMapping) -> None:
    """Give a locked account its plan and overrides; null takes one away. Raises Conflict."""
    if account.id == SYSTEM_ACCOUNT_ID:
        raise Conflict(SYSTEM)
    account.plan = body.get("plan", account.plan)
    overrides = body.get("overrides", {})
    flags = {**account.flags, **overrides.get("flags", {})}
    account.flags = {name: has for name, has in flags.items() if has is not None}
    account.settings = quotas.merged(account.settings, overrides.get("quotas", {}))


def overrides(account: Account) -> JSONObject:
    """What an account has beside its plan, as `assign` takes it."""
    return {"quotas": account.settings.get(quotas.SETTING, {}), "flags": dict(account.flags)}


@names.place
def in_accounts(name: Name) -> Iterator[Use]:
    """The accounts that have a plan, or a flag given or taken."""
    if name.kind not in (PLAN, FLAG):
        return
    of_flag = Account.flags[name.value].as_string().is_not(None)
    where = Account.plan == name.value if name.kind == PLAN else of_flag
    rows = names.pages(sa.select(Account.id, Account.slug).where(where), Account.id)
    place = "plan" if name.kind == PLAN else f"overrides.flags.{name.value}"
    for row in rows:
        yield Use(f"accounts.{row.slug}", {place: name.value}, None, row.id, are_names=True)
