"""Account templates: what a new account has from the start, however it is made.

A template is stamped by the services that serve the API, in the transaction that creates the
account: an account is never seen half filled. What it makes belongs to the superadmin who applied
it, workflows and webhooks to the service user that it names as their `owner`. It is announced as
everything else: the first records come last, so that webhooks and workflows of the template hear of
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import sqlalchemy as sa
import structlog

from app import db, events
from app.accounts import names, service_users, tenants
from app.accounts import service as accounts
from app.accounts.attributes import Kind as AttributesOf
from app.accounts.attributes import Level
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account, InstanceSetting
from app.accounts.names import Name, Use
from app.accounts.product import settings as product
from app.auth import account_settings
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections import attribute_values, definitions
from app.context import tenancy
from app.errors import AppError, Conflict, InvalidValues, NotFound, problem
from app.manifest.account_kinds import Groups, Providers
from app.manifest.automation_kinds import Webhooks, Workflows
from app.manifest.document import Document, path_of
from app.manifest.kind import Key, Kind
from app.manifest.models import TemplateJob
from app.records import service as records
from app.records.write import values
from app.rules import named
from app.rules.named import ROLE
from app.rules.nodes import PLAN
from app.sso import service as sso
from app.types import JSONMapping, JSONObject

log = structlog.get_logger()
NAME, DEFAULT = "account_templates", "default"
VERSIONS = "account_templates.versions"
MAX_VERSIONS = 50
TEMPLATE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
RESERVED = ("removed", "rename_from")
MAX_TEMPLATES, MAX_RECORDS = 100, 500
PLACEHOLDER = re.compile(r"\{\{\s*account\.(\w+)\s*\}\}")
SAFE = ("id", "slug", "code")
"""Placeholders that stand anywhere. Names are free texts, which would change expressions."""
KINDS: Sequence[Kind] = (Groups(), Webhooks(), Workflows(), Providers())
SECRETS = {"webhooks": ("secret", "headers")}
SAMPLE = {"id": SYSTEM_ACCOUNT_ID, "slug": "sample", "code": "AA0000", "name": "Sample"}
FAULT = "The account template {} has a fault: nothing is created."
RECIPIENT = re.compile(r"workflows\[.*\.to(\[\d+\])?\.role")
"""The role that a workflow's mail goes to."""
EXPRESSIONS = OWNED = ("webhooks", "workflows")

Templates = Mapping[str, JSONObject]


def load(*, lock: bool = False) -> Templates:
    """Return the templates by name, each with who applied it (`by`)."""
    query = sa.select(InstanceSetting.value).where(InstanceSetting.id == NAME)
    if lock:
        query = query.with_for_update()
    stored: Templates = db.db.session.scalar(query) or {}
    return dict(sorted(stored.items()))


def shown(template: JSONMapping) -> JSONObject:
    """Return a template as a manifest has it."""
    return {name: value for name, value in template.items() if name != "by"}


def compare(body: JSONMapping, before: Templates) -> tuple[dict[str, JSONObject], list[JSONObject]]:
    """Return the templates after a change, and its problems; a template is replaced as a whole."""
    after, problems = dict(before), list[JSONObject]()
    for name, given in body.items():
        if not TEMPLATE_NAME.fullmatch(name) or name in RESERVED:
            message = "A name of letters, digits, _ and -, which begins with a letter."
            problems.append(problem(name[:80], "name_invalid", message))
        elif given.get("removed"):
            after.pop(name, None)
        else:
            new = orjson.loads(orjson.dumps(given))
            old = before.get(name)
            if "version" not in new:
                message = "A template needs a version."
                problems.append(problem(f"{name}.version", "required", message))
            elif old is not None and shown(old) != new and new["version"] <= old["version"]:
                message = f"This template has changed: its version must be above {old['version']}."
                problems.append(problem(f"{name}.version", "version_required", message))
            after[name] = new | {"by": old["by"] if old is not None else None}
    if len(after) > MAX_TEMPLATES:
        message = f"There are at most {MAX_TEMPLATES} templates."
        problems.append(problem(None, "too_many_items", message))
    return after, problems


def change(body: JSONMapping, *, by: Principal) -> None:
    """Store templates, in the open transaction; `by` owns what they make. Raises InvalidValues."""
    before = load(lock=True)
    after, problems = compare(body, before)
    changed = [name for name in after if name in body and after[name] != before.get(name)]
    for name in changed:
        for one in _faults(after[name], by):
            place = ".".join(filter(None, (name, one.get("field"))))
            problems.append({**one, "field": place})
    if problems:
        raise InvalidValues(problems)
    if any("providers" in after[name] or "settings" in after[name] for name in changed):
        by.require_recent_sign_in()
    _store(after | {name: after[name] | {"by": by.require_user_id()} for name in changed})
    _remember({name: after[name] for name in changed})


def _remember(changed: JSONMapping) -> None:
    """Keep what each version says: upgrades tell by it what was changed by hand."""
    row = db.db.session.get_one(InstanceSetting, VERSIONS, populate_existing=True)
    value = dict(row.value)
    for name, template in changed.items():
        known = {**value.get(name, {}), str(template["version"]): shown(template)}
        newest = sorted(known, key=int)[-MAX_VERSIONS:]
        value[name] = {version: known[version] for version in newest}
    row.value, row.version = value, row.version + 1
    db.db.session.flush()


def former(name: str | None, version: int | None) -> JSONObject:
    """Return what a version of a template says; empty if nothing is known of it."""
    query = sa.select(InstanceSetting.value).where(InstanceSetting.id == VERSIONS)
    stored = db.db.session.scalar(query) or {}
    found: JSONObject = stored.get(str(name), {}).get(str(version), {})
    return found


def _store(value: JSONObject) -> None:
    row = db.db.session.get_one(InstanceSetting, NAME, populate_existing=True)
    row.value, row.version = value, row.version + 1
    db.db.session.flush()


def _faults(template: JSONMapping, by: Principal) -> Iterator[JSONObject]:
    """The problems of a template, each with its place; nothing is written."""
    yield from _wrong_placeholders(template, "")
    ready = filled(template, SAMPLE)
    if ready.get("plan") is not None and names.unknown(PLAN, {ready["plan"]}):
        yield problem("plan", "unknown_plan", f"There is no plan {ready['plan'][:80]}.")
    if "owner" in ready:
        if names.unknown(ROLE, {name := ready["owner"]["role"]}):
            yield problem("owner.role", "invalid_reference", f"There is no role {name[:80]}.")
        if wrong := accounts.label_problem(ready["owner"]["name"].strip()):
            yield {**wrong, "field": "owner.name"}
    with _named("attributes") as found:
        if "attributes" in ready:
            body = {"attributes": ready["attributes"]}
            attribute_values.replaced(AttributesOf.ACCOUNTS, body, Level.SUPERADMIN)
    yield from found
    with _named("settings") as found:
        if "settings" in ready:
            tenants.check_own(ready["settings"])
    yield from found
    with _named("brand") as found:
        listed = ready.get("settings", {}).get("allowed_redirect_uris", ())
        product.check_brand(ready.get("brand", {}), listed)
    yield from found
    system = by.acting_in(by.home)
    for kind in KINDS:
        keys = set[Key]()
        for index, item in enumerate(ready.get(kind.section, ())):
            place = f"{kind.section}[{index}]"
            for secret in SECRETS.get(kind.section, ()):
                if item.get(secret):
                    message = "A template has no secrets: set this in each account."
                    yield problem(f"{place}.{secret}", "secret_in_template", message)
            if item.keys() & {"removed", "rename_from"}:
                message = "A template only has what a new account gets."
                yield problem(place, "invalid_option", message)
            else:
                with _named(place) as found:
                    if isinstance(kind, Providers):
                        sso.check(item)
                    else:
                        kind.check(item, system)
                yield from found
            if (key := kind.key(item)) in keys:
                message = "The template has another one that is found by the same."
                yield problem(place, "name_duplicate", message)
            keys.add(key)
    yield from _wrong_records(ready.get("records", {}))


def _wrong_records(given: Mapping[str, Sequence[JSONMapping]]) -> Iterator[JSONObject]:
    if sum(map(len, given.values())) > MAX_RECORDS:
        message = f"A template has at most {MAX_RECORDS} records."
        yield problem("records", "too_many_items", message)
        return
    for collection, rows in given.items():
        try:
            definition = definitions.get(collection)
        except NotFound:
            message = f"There is no collection {collection[:63]}."
            yield problem(f"records.{collection}", "invalid_reference", message)
            continue
        for index, row in enumerate(rows):
            with _named(f"records.{collection}[{index}]") as found:
                wrong = list[Any]()
                values.clean_create(definition, row, {"account_id": SYSTEM_ACCOUNT_ID}, wrong)
                unset = definition.default_nodes.keys() - row.keys()  # the new account decides
                wrong = [one for one in wrong if one["field"] not in unset]
                if wrong:
                    raise InvalidValues(wrong)
            yield from found


@contextmanager
def _named(place: str) -> Iterator[list[JSONObject]]:
    """Collect the problems that a service finds in a part, each with its place."""
    found = list[JSONObject]()
    try:
        yield found
    except InvalidValues as error:
        for one in error.details:
            inner = str(one.get("field") or "")
            is_there = inner == place or inner.startswith(f"{place}.")
            whole = inner if is_there else ".".join(filter(None, (place, inner)))
            found.append({**one, "field": whole})
    except AppError as error:
        found.append(problem(place, error.error, error.message))


def _place(content: JSONMapping, place: str) -> str:
    """A place with the names of what lists have in it, as a manifest's problems have it."""
    return Document(content).place(path_of(place))


def _wrong_placeholders(value: object, place: str) -> Iterator[JSONObject]:
    for path, text in _texts(value, place):
        allowed = (*SAFE, "name") if path.startswith("records.") else SAFE
        for name in PLACEHOLDER.findall(text):
            if name not in allowed:
                message = f"Here, account.{name[:40]} is none of: {', '.join(allowed)}."
                yield problem(path, "placeholder_invalid", message)


def _texts(value: object, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _texts(inner, f"{place}[{index}]")


def _mapped(value: Any, change: Callable[[str, str], str], place: str = "") -> Any:
    """The value with each of its texts changed, by its place and itself."""
    if isinstance(value, str):
        return change(place, value)
    if isinstance(value, Mapping):
        return {
            name: _mapped(inner, change, f"{place}.{name}" if place else str(name))
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mapped(one, change, f"{place}[{n}]") for n, one in enumerate(value)]
    return value


def filled(template: JSONMapping, account: Mapping[str, str]) -> JSONObject:
    """Return a template with an account's values in the place of placeholders."""

    def fill(place: str, text: str) -> str:
        return PLACEHOLDER.sub(lambda match: account.get(match[1], match[0]), text)

    found: JSONObject = _mapped(template, fill)
    return found


@events.subscribe(events.AccountCreated)
def stamp(event: events.AccountCreated) -> None:
    """Fill a new account by its template. Raises Conflict `template_fault`, or InvalidValues."""
    known = load()
    name = event.template or DEFAULT
    template = known.get(name)
    if template is None:
        if event.template is not None:
            message = f"There is no account template {name[:80]}."
            raise InvalidValues([problem("template", "invalid_reference", message)])
        return
    with tenancy.across_accounts(), _fault(name, template):
        _fill(event.account_id, name, template)


@contextmanager
def _fault(name: str, template: JSONMapping) -> Iterator[None]:
    try:
        yield
    except AppError as error:
        details = error.details if isinstance(error, InvalidValues) else []
        shown_details = [
            {**one, "field": _place({name: template}, str(one["field"] or name))} for one in details
        ] or [problem(name, error.error, error.message)]
        log.error("account template has a fault", template=name, details=shown_details)
        raise Conflict(FAULT.format(name), error="template_fault", details=shown_details) from error


def _fill(account_id: str, name: str, template: JSONMapping) -> None:
    account = db.db.session.get_one(Account, account_id)
    facts = {"id": account.id, "slug": account.slug, "code": account.account_code}
    ready = filled(template, {**facts, "name": account.name})
    owner = operator(ready.get("by"))
    body = {"attributes": ready.get("attributes", {})}
    given = attribute_values.replaced(AttributesOf.ACCOUNTS, body, Level.SUPERADMIN)["attributes"]
    account.attributes = {**given, **account.attributes}
    account.plan, account.template = ready.get("plan"), name
    account.template_version = ready["version"]
    db.db.session.flush()
    if ready.get("settings"):
        by = principals.in_new_account(owner, account)
        account_settings.change(account.id, ready["settings"], by=by)
    if ready.get("brand"):
        product.change_brand(account.id, ready["brand"], by_operator=True)
    by = principals.in_new_account(owner, account)
    for kind in KINDS:
        for index, item in enumerate(ready.get(kind.section, ())):
            with _placed(f"{name}.{kind.section}[{index}]"):
                create(kind, item, ready, by=by)
    for collection, rows in ready.get("records", {}).items():
        for index, row in enumerate(rows):
            with _placed(f"{name}.records.{collection}[{index}]"):
                records.create(collection, row, by=by)


def create(kind: Kind, item: JSONMapping, template: JSONMapping, *, by: Principal) -> None:
    """Create an item of a filled template in the account acted in."""
    owner = template.get("owner") if kind.section in OWNED else None
    if owner is not None:
        user = service_users.ensure(by.require_account_id(), owner["name"], owner["role"])
        item = {**item, "owner_id": user.id}
    kind.create(item, by=by)


@contextmanager
def _placed(place: str) -> Iterator[None]:
    with _named(place) as found:
        yield
    if found:
        raise InvalidValues(found)


def operator(user_id: str | None) -> Principal:
    """The superadmin who applied a template, else the oldest one."""
    found = principals.for_user_verified(SYSTEM_ACCOUNT_ID, user_id) if user_id else None
    if found is None and (first := accounts.first_superadmin()) is not None:
        found = principals.for_user_verified(SYSTEM_ACCOUNT_ID, first.id)
    if found is None:
        raise Conflict("There is no superadmin who could own what a template makes.")
    return found


@names.place
def in_templates(name: Name) -> Iterator[Use]:
    """The templates that name a plan, role or flag: as values, and in expressions."""
    if name.account_id is not None:
        return
    for own, template in load().items():
        texts = dict[str, str]()
        for place, text in _texts(shown(template), ""):
            is_value = (name.kind == PLAN and place == "plan") or (
                name.kind == ROLE
                and (
                    place.startswith("settings.")
                    or place == "owner.role"
                    or RECIPIENT.fullmatch(place)
                )
                and text == name.value
            )
            in_expression = place.startswith(EXPRESSIONS) and named.names(
                text, name.kind, name.value
            )
            if (is_value and text == name.value) or in_expression:
                texts[place] = text
        if texts:
            yield TemplateUse(f"account_templates.{own}", texts, _Follow(own), template=template)


@dataclass(frozen=True)
class TemplateUse(Use):
    """A template, whose texts are names or expressions."""

    template: JSONMapping = field(default_factory=dict)

    @property
    def places(self) -> list[str]:
        return [f"{self.owner}.{_place(self.template, place)}" for place in self.texts]

    def _renamed(self, place: str, name: Name, new: str) -> str | None:
        return new if self.texts[place] == name.value else super()._renamed(place, name, new)


class _Follow:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, texts: Mapping[str, str]) -> None:
        known = dict(load(lock=True))
        followed = _mapped(known[self._name], lambda place, text: texts.get(place, text))
        _store(known | {self._name: followed})
        _remember({self._name: followed})


def versions() -> list[JSONObject]:
    """The templates, with how many accounts have an earlier version of each."""
    counted = sa.select(Account.template, Account.template_version, sa.func.count())
    counted = counted.where(Account.template.is_not(None), Account.closed_at.is_(None))
    rows = db.connection().execute(counted.group_by(*counted.selected_columns[:2])).all()
    return [
        {
            "name": name,
            "version": template["version"],
            "accounts": sum(n for of, _, n in rows if of == name),
            "behind": sum(n for of, v, n in rows if of == name and v < template["version"]),
            "template": shown(template),
        }
        for name, template in load().items()
    ]


def newest_jobs(limit: int) -> Sequence[TemplateJob]:
    """The jobs that brought or bring accounts up, the newest first."""
    return db.db.session.scalars(
        sa.select(TemplateJob).order_by(TemplateJob.id.desc()).limit(limit)
    ).all()


def behind(limit: int) -> Sequence[Account]:
    """Some of the accounts that have an earlier version of their template."""
    late = [
        sa.and_(Account.template == name, Account.template_version < template["version"])
        for name, template in load().items()
    ]
    query = sa.select(Account).where(sa.or_(sa.false(), *late), Account.closed_at.is_(None))
    return db.db.session.scalars(query.order_by(Account.name, Account.id).limit(limit)).all()
