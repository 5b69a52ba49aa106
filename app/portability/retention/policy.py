"""An account's retention policy, stored in its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import sqlalchemy as sa

from app import clock, config, db
from app.accounts import tenants
from app.accounts.models import Account
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definitions
from app.collections.definitions import Definition
from app.errors import InvalidValues, NotFound, problem
from app.rules import Type
from app.types import JSONMapping, JSONObject
from app.webhooks.purge import RETENTION_DAYS as MAX_DELIVERY_DAYS

SETTING = "retention"
MAX_DAYS, MAX_RULES = 36_500, 100
CREATED = "created_at"
DATE_TYPES = (Type.DATE, Type.DATETIME)
SYSTEM_DATES = (CREATED, "updated_at")


class Log(StrEnum):
    """A log that stays for a number of days, by the name of the policy's property."""

    AUDIT = "audit_days"
    SECURITY = "security_days"
    DELIVERIES = "deliveries_days"
    INSTANCES = "instances_days"

    @property
    def is_chain(self) -> bool:
        """Whether its entries verify one another, so that a signed start has to follow a cut."""
        return self in (Log.AUDIT, Log.SECURITY)


@dataclass(frozen=True)
class RecordRule:
    """Records of a collection that go this many days after the date in a field."""

    collection_id: str
    days: int
    field: str = CREATED

    @property
    def cutoff(self) -> datetime:
        """The moment before which records go."""
        return clock.now() - timedelta(days=self.days)

    def find_collection(self) -> Definition | None:
        """The collection; None if it is gone or no longer has the field."""
        for definition in definitions.get_all():
            if definition.id == self.collection_id and self.field in date_fields(definition):
                return definition
        return None


@dataclass(frozen=True)
class Policy:
    """The days that things stay; None: as long as the service keeps them."""

    audit_days: int | None = None
    security_days: int | None = None
    deliveries_days: int | None = None
    instances_days: int | None = None
    records: tuple[RecordRule, ...] = ()
    saved_by: str | None = None
    """The admin with whose rights records are deleted."""

    @property
    def log_days(self) -> dict[str, int | None]:
        """The days of each log."""
        return {log.value: getattr(self, log) for log in Log}


def date_fields(definition: Definition) -> list[str]:
    """The fields by which records may expire."""
    dates = (name for name, spec in definition.fields.items() if spec.rule_type in DATE_TYPES)
    return [*SYSTEM_DATES, *dates]


def bounds() -> dict[Log, tuple[int, int]]:
    """The fewest and most days of each log."""
    settings = config.current()
    return {
        Log.AUDIT: (settings.audit_retention_min_days, MAX_DAYS),
        Log.SECURITY: (settings.security_retention_min_days, MAX_DAYS),
        Log.DELIVERIES: (1, MAX_DELIVERY_DAYS),
        Log.INSTANCES: (1, settings.workflow_retention_days),
    }


def load(settings: Mapping[str, object]) -> Policy:
    """The policy in an account's settings."""
    stored = settings.get(SETTING)
    if not isinstance(stored, dict):
        return Policy()
    records = tuple(RecordRule(**rule) for rule in stored.get("records", ()))
    logs = {log.value: stored.get(log) for log in Log}
    return Policy(**logs, records=records, saved_by=stored.get("saved_by"))


def of_account(account_id: str) -> Policy:
    """The policy of an account."""
    return load(tenants.get(account_id).settings)


def accounts_with_policy() -> list[str]:
    """The ids of the active accounts that have a policy."""
    has_policy = Account.settings[SETTING].as_string().is_not(None)
    query = sa.select(Account.id).where(Account.is_active, has_policy).order_by(Account.id)
    return list(db.db.session.scalars(query))


def parse(body: JSONMapping, *, by: Principal) -> Policy:
    """The policy of a request body, if `by` may save it. Raises InvalidValues."""
    problems: list[JSONObject] = []
    for log, (least, most) in bounds().items():
        days = body.get(log)
        if days is not None and not least <= days <= most:
            message = f"Must be between {least} and {most} days here."
            problems.append(problem(log.value, "number_out_of_range", message))
    if not config.current().audit_checkpoint_key:
        message = "The operator has to set SERVICE_AUDIT_CHECKPOINT_KEY first."
        chains = [log for log in Log if log.is_chain and body.get(log)]
        problems += [problem(log.value, "invalid_option", message) for log in chains]
    rules, rule_problems = _record_rules(body, by)
    problems += rule_problems
    if problems:
        raise InvalidValues(problems)
    logs = {log.value: body.get(log) for log in Log}
    return Policy(**logs, records=tuple(rules), saved_by=by.require_user_id())


def _record_rules(
    body: JSONMapping, by: Principal
) -> tuple[Iterable[RecordRule], list[JSONObject]]:
    """The rules of a body, and what is wrong with them."""
    problems: list[JSONObject] = []
    rules: dict[str, RecordRule] = {}
    for index, given in enumerate(body.get("records") or ()):
        place, name = f"records[{index}]", str(given["collection"])
        try:
            definition = definitions.get_current(name)
            if definition.view is not None:  # whose records are those that it reads
                raise NotFound
        except NotFound:
            message = f"There is no collection {name[:60]}."
            problems.append(problem(f"{place}.collection", "invalid_reference", message))
            continue
        rule = RecordRule(definition.id, int(given["days"]), str(given.get("field") or CREATED))
        if rule.collection_id in rules:
            message = "This collection is listed twice."
            problems.append(problem(f"{place}.collection", "duplicate", message))
        elif rule_problem := _rule_problem(place, definition, rule.field, by):
            problems.append(rule_problem)
        rules[rule.collection_id] = rule
    return rules.values(), problems


def _rule_problem(
    place: str, definition: Definition, field: str, by: Principal
) -> JSONObject | None:
    if not accesses.is_open(by, definition, "delete"):
        message = "You may not delete records of this collection."
        return problem(f"{place}.collection", "forbidden", message)
    if definition.options.get("require_signature"):
        message = "Records of this collection are deleted with an electronic signature only."
        return problem(f"{place}.collection", "invalid_option", message)
    dates = _visible_dates(definition, by)
    if field not in dates:
        message = f"Choose one of {', '.join(dates)[:300]}."
        return problem(f"{place}.field", "invalid_option", message)
    return None


def save(policy: Policy, *, by: Principal) -> Policy:
    """Store a policy, which takes effect within the hour. Raises Forbidden."""
    by.require_recent_sign_in()
    account_id = by.require_account_id()
    records = [asdict(rule) for rule in policy.records]
    stored = {**policy.log_days, "records": records, "saved_by": policy.saved_by}
    with db.transaction() as session:
        account = tenants.get_for_update(account_id)
        settings = {name: value for name, value in account.settings.items() if name != SETTING}
        if records or any(policy.log_days.values()):
            settings[SETTING] = stored
        account.settings = settings
        account.version += 1
        session.flush()
    return policy


def choices(*, by: Principal) -> Mapping[str, Sequence[str]]:
    """The collections with records that a caller may let expire, each with its dates."""
    return {
        definition.name: _visible_dates(definition, by)
        for definition in definitions.get_all()
        if accesses.is_open(by, definition, "delete")
        and not definition.options.get("require_signature")
    }


def _visible_dates(definition: Definition, by: Principal) -> Sequence[str]:
    """The fields whose dates the caller may see: counting by others would reveal them."""
    access = accesses.if_open(by, definition, "view")
    if access is None:
        return []
    visible = access.readable.keys() - access.masked
    return [name for name in date_fields(definition) if name in visible]
